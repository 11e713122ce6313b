/* evict_order.c - puts the tokens of a full bounded cache into the order of the text, so that a
 * chunk of a prompt can follow generated tokens (engine/device/evict.h).
 *
 *   slots   0 1 2 3 4      a token belongs into the slot of its rank, and what is in the free slot
 *   ranks   0 3 1 . 2      behind all of them
 *
 * Each exchange puts one token into its place for good, so there are at most as many of them as
 * tokens.  Every task has a KV head of a sequence's layer to itself. */
#include "engine/cpu/evict_order.h"

#include <string.h>

#include "engine/cpu/tile.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

struct order_job {
    const struct step *step;
    const struct kv_pool *kv;
};

struct order_head {
    const struct kv_pool *kv;
    const uint32_t *pages;
    uint32_t kv_head;
};

/* A slot's place in the pool. */
struct place {
    uint32_t page, at;
    struct kv_page_state *state;
};

static struct place place_of(const struct order_head *h, uint32_t slot) {
    const uint32_t page = h->pages[slot / PAGE_TOKENS];
    return (struct place){page, slot % PAGE_TOKENS, page_state(h->kv, page, h->kv_head)};
}

static uint32_t *rank_at(const struct order_head *h, uint32_t slot) {
    const struct place p = place_of(h, slot);
    return &p.state->rank[p.at];
}

static void exchange(void *a, void *b, size_t size) {
    char kept[4];
    memcpy(kept, a, size);
    memcpy(a, b, size);
    memcpy(b, kept, size);
}

/* Exchanges keys or values of two slots: n_elements that lie `stride` elements apart. */
static void exchange_rows(const struct order_head *h, uint32_t head, struct place a, struct place b,
                          uint32_t row_stride, uint32_t stride) {
    const size_t size = dtype_size(h->kv->dtype);
    char *x = page_of_head(h->kv, a.page, head) + a.at * row_stride * size,
         *y = page_of_head(h->kv, b.page, head) + b.at * row_stride * size;
    for (size_t i = 0; i < h->kv->head_dim; i++)
        exchange(x + i * stride * size, y + i * stride * size, size);
    if (h->kv->dtype == DTYPE_FP8)
        exchange(page_scales(h->kv, a.page, head) + a.at, page_scales(h->kv, b.page, head) + b.at,
                 1);
}

static void exchange_tokens(const struct order_head *h, uint32_t slot, uint32_t other) {
    const struct place a = place_of(h, slot), b = place_of(h, other);
    exchange_rows(h, h->kv_head, a, b, 1, PAGE_TOKENS);
    exchange_rows(h, h->kv->n_kv_heads + h->kv_head, a, b, h->kv->head_dim, 1);
    exchange(&a.state->position[a.at], &b.state->position[b.at], sizeof(uint32_t));
    exchange(&a.state->score[a.at], &b.state->score[b.at], sizeof(float));
    exchange(&a.state->rank[a.at], &b.state->rank[b.at], sizeof(uint32_t));
}

static void order_head(const struct order_head *h, uint32_t capacity) {
    struct kv_page_state *first = page_state(h->kv, h->pages[0], h->kv_head);
    *rank_at(h, first->free_slot) = capacity;
    first->free_slot = capacity;
    for (uint32_t slot = 0; slot < capacity; slot++)
        for (uint32_t rank; (rank = *rank_at(h, slot)) != slot;) exchange_tokens(h, slot, rank);
}

static void order_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct order_job *job = ctx;
    const uint32_t n_kv = job->kv->n_kv_heads, n_layers = job->step->n_layers;
    const struct step_seq *seq = &job->step->seqs[task / n_kv / n_layers];
    const struct order_head h = {
        .kv = job->kv, .pages = seq->layers[task / n_kv % n_layers].pages, .kv_head = task % n_kv};
    if (seq->budget && seq->reorders) order_head(&h, seq->budget->capacity);
}

int cpu_evict_order(struct backend *be, const struct kv_pool *kv, struct error *err) {
    (void)err;
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct order_job job = {cpu->step, kv};
    pool_run(cpu->pool, order_task, &job, cpu->step->n_seqs * cpu->step->n_layers * kv->n_kv_heads);
    return 0;
}
