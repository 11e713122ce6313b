/* tile.c - see tile.h. */
#include "engine/cpu/tile.h"

#include <math.h>
#include <string.h>

#include "engine/device/attention.h"
#include "engine/device/evict.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

uint32_t task_owner(const uint32_t *first_task, uint32_t n, uint32_t task) {
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint32_t mid = low + (high - low) / 2;
        if (first_task[mid] <= task) low = mid;
        else high = mid;
    }
    return low;
}

void tile_load_queries(const struct attn_args *args, const struct tile *t, uint32_t first_row,
                       float *q) {
    uint32_t dim = t->kv->head_dim;
    float scale = (float)(args->scale * LOG2_E);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const float *from = (const float *)args->q + (first_row + r / t->group) * args->q_stride +
                            (size_t)(t->first_head + r % t->group) * dim;
        for (uint32_t d = 0; d < dim; d++) q[(size_t)r * dim + d] = from[d] * scale;
    }
}

float sink_logit(const struct cpu_kernels *kernels, const struct weight *sinks, uint32_t head) {
    const enum element element = sinks ? sinks->format.element : ELEMENT_F32;
    float logit = 0;
    if (!sinks) return -INFINITY;
    if (sinks->data)
        kernels->to_f32(&logit, (const char *)sinks->data + element_bytes(element, head), 1,
                        element);
    return logit * (float)LOG2_E;
}

/* Writes a copy of a page's keys, each rotated by its rank. */
static void rotated_keys(const struct tile *t, float *out, const struct page_rows *keys,
                         uint32_t page) {
    const struct kv_pool *kv = t->kv;
    const struct kv_page_state *state = page_state(kv, t->view->pages[page], t->kv_head);
    const uint32_t n = slots_of_page(t->view->n_slots, page);
    uint32_t rank[PAGE_TOKENS];
    /* An unused slot may hold anything, but its rank must still be in the table. */
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) rank[i] = i < n ? state->rank[i] : 0;
    t->kernels->rotate_page(out, keys->data, keys->element, kv->head_dim, rank,
                            t->angles->table.data, t->angles->n_freqs);
}

static struct tile_bias bias_of(const struct attn_args *args, const struct step *step,
                                const struct step_seq *seq, uint32_t first_visible) {
    const uint32_t n_before = seq->layers[args->layer].n_slots - seq->n_rows,
                   row = seq->first_row + first_visible - 1 - n_before;
    if (!args->slopes) return (struct tile_bias){0};
    const bool in_text = seq->budget && !step_ranked(seq, args->layer);
    const uint32_t position = in_text ? seq->n_before + row - seq->first_row : step->positions[row];
    return (struct tile_bias){args->slopes, position, seq, args->group};
}

struct tile tile_make(const struct cpu_backend *cpu, const struct attn_args *args,
                      const struct step_seq *seq, uint32_t kv_head, uint32_t first_visible,
                      uint32_t n_tokens) {
    const uint32_t group = args->n_heads / args->kv->n_kv_heads;
    const bool rotates = step_ranked(seq, args->layer) && args->n_freqs > 0;
    return (struct tile){.kernels = cpu->kernels,
                         .kv = args->kv,
                         .view = &seq->layers[args->layer],
                         .angles = rotates ? &cpu->rank_angles : NULL,
                         .kv_head = kv_head,
                         .first_head = kv_head * group,
                         .group = group,
                         .n_rows = n_tokens * group,
                         .first_visible = first_visible,
                         .softcap = args->softcap,
                         .bias = bias_of(args, cpu->step, seq, first_visible)};
}

/* Writes the positions of a page's keys in a layer whose slots hold chosen tokens, and the tail
 * behind them (select.h). */
static void selected_positions(const struct tile *t, uint32_t page, uint32_t *out) {
    const struct kv_select *select = t->bias.seq->select;
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) {
        const uint32_t slot = page * PAGE_TOKENS + i;
        out[i] = slot < select->n_selected ? *select_token_in(t->kv, select, t->bias.group, slot)
                                           : select->n_candidates + slot - select->n_selected;
    }
}

/* Writes the positions of a page's keys, as the step counts them. */
static void key_positions(const struct tile *t, uint32_t page, uint32_t *out) {
    const struct step_seq *seq = t->bias.seq;
    if (seq && step_budget(seq, (uint32_t)(t->view - seq->layers))) {
        const struct kv_page_state *state = page_state(t->kv, t->view->pages[page], t->kv_head);
        memcpy(out, seq->budget->cache_positions ? state->rank : state->position,
               sizeof(state->rank));
    } else if (seq && seq->select && t->bias.group != NO_GROUP) {
        selected_positions(t, page, out);
    } else {
        for (uint32_t i = 0; i < PAGE_TOKENS; i++) out[i] = page * PAGE_TOKENS + i;
    }
}

/* Takes from each score what its distance costs.  Slots in a row's future get more instead, and no
 * weight. */
static void add_bias(const struct tile *t, float *scores, uint32_t page) {
    uint32_t positions[PAGE_TOKENS];
    key_positions(t, page, positions);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const uint32_t query = t->bias.position + r / t->group;
        const float slope =
            (float)(t->bias.slopes[t->first_head + r % t->group] * LOG2_E); /* base 2 */
        float *s = scores + (size_t)r * PAGE_TOKENS;
        for (uint32_t i = 0; i < PAGE_TOKENS; i++)
            s[i] -= slope * (float)(int32_t)(query - positions[i]);
    }
}

void tile_scores(const struct tile *t, float *scores, const float *q, uint32_t page,
                 float *workspace) {
    struct page_rows keys =
        page_rows(t->kernels, t->kv, t->view->pages[page], t->kv_head, workspace);
    if (t->angles) {
        rotated_keys(t, workspace, &keys, page);
        keys = (struct page_rows){workspace, ELEMENT_F32};
    }
    t->kernels->page_scores(scores, q, t->n_rows, keys.data, keys.element, t->kv->head_dim,
                            workspace);
    if (t->softcap > 0) /* scores are in base 2, and so is the cap */
        t->kernels->soft_cap(scores, (size_t)t->n_rows * PAGE_TOKENS, (float)(t->softcap * LOG2_E));
    if (t->bias.slopes) add_bias(t, scores, page);
}
