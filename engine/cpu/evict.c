/* evict.c - bounded caches: updates token scores, then evicts the lowest-scoring tokens (H2O
 * section 3, StreamingLLM section 3; the contract is in engine/device/evict.h).
 *
 *   decode    raw scores and (max, sum) from attention -> p -> score += p -> free the lowest slot
 *   chunk     q . k again, page by page                -> p -> score += p, row after row
 *             at a chunk's end q . k of the last row   -> p -> the attention lost by eviction
 *   oldest    the same without scores: the oldest slot is freed; at a chunk's end the oldest tokens
 *             are evicted
 *
 * At a chunk's end the tokens that stay move to the front:
 *
 *     slots before   A B C D E F G H         in the order of the text, before and after
 *     evicted          x   x x
 *     slots after    A C F G H               each moves to a slot that is free by then
 *
 * A score is a float to which tokens add one after the other.  So its bits depend neither on
 * threads nor on how a prompt was cut.  Evicted tokens are found by integer keys that sort as
 * (score, position) does.  Every task has a KV head of a sequence, or some of its pages, to
 * itself.
 *
 * Several ranks that share a model may have the same KV head (group.h).  Each has a part of its
 * queries, and so a part of each score.  Where they are about to evict, each score becomes the mean
 * of their parts.  All evict the same tokens then, and the parts still add up to the score.  What
 * is lost is the mean of their parts, too. */
#include "engine/cpu/tile.h"

#include <math.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/evict_order.h"
#include "engine/cpu/group.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

enum { TASK_PAGES = 8 };
#define STAYS UINT64_MAX
#define LN_2 0.69314718055994531

struct evict_job {
    struct cpu_backend *cpu;
    const struct attn_args *args;
    uint32_t group;
    uint32_t *first_task; /* prefill scores: [n_seqs - n_decode + 1], prefix sums */
    bool has_scores;      /* those of rows that decode are already added */
    /* What each sequence and KV head loses, where ranks agree on that, too; or NULL. */
    struct shared_loss *losses; /* [n_seqs][n_kv_heads] */
};

/* A loss as ranks exchange it: of a part of the head's queries, and then of all. */
struct shared_loss {
    float is_there, given, sink, terms[KV_LOST_TERMS];
};

/* The tokens of one KV head of one sequence. */
struct evict_head {
    const struct kv_pool *kv;
    const struct kv_view *view;
    const struct kv_budget *budget;
    const struct step_seq *seq;
    uint32_t kv_head;
    uint32_t n_text; /* tokens of the text, this step's included */
};

static struct evict_head layer_head_of(const struct kv_pool *kv, const struct step_seq *seq,
                                       uint32_t layer, uint32_t kv_head) {
    return (struct evict_head){.kv = kv,
                               .view = &seq->layers[layer],
                               .budget = step_budget(seq, layer),
                               .seq = seq,
                               .kv_head = kv_head,
                               .n_text = seq->n_before + seq->n_rows};
}

static struct evict_head head_of(const struct evict_job *job, uint32_t seq, uint32_t kv_head) {
    return layer_head_of(job->args->kv, &job->cpu->step->seqs[seq], job->args->layer, kv_head);
}

static struct kv_page_state *state_at(const struct evict_head *h, uint32_t page) {
    return page_state(h->kv, h->view->pages[page], h->kv_head);
}

static uint32_t pages_of(const struct evict_head *h) {
    return (uint32_t)kv_n_pages(h->view->n_slots);
}

/* Tells whether the layer evicts tokens of the sequence by their scores. */
static bool has_scores(const struct kv_budget *budget) {
    return budget && kv_has_scores(budget);
}

static float decay_of(const struct kv_budget *budget) {
    return budget->score == KV_SCORE_DECAY ? budget->decay : 1.0f;
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* Returns the key by which tokens are evicted, lowest first: (score, position), or STAYS for a sink
 * or a recent token.  Scores are not negative, so their bits sort as they do.  NaN is 0, below all
 * of them. */
static uint64_t leaving_key(const struct evict_head *h, uint32_t position, float score) {
    const struct kv_budget *budget = h->budget;
    if (position < budget->n_sink || position + (uint64_t)budget->n_recent >= h->n_text)
        return STAYS;
    if (budget->score == KV_SCORE_MEAN) score /= (float)(h->n_text - position);
    return (uint64_t)(isnan(score) ? 0 : bits_of(score) + 1) << 32 | position;
}

/* --- Lost attention (struct kv_page_state). --- */

/* The attention that a KV head loses in one compression or one step. */
struct loss {
    double given;                /* share of the newest query's attention, mean over the group */
    double sink;                 /* the share that no token gets (attn_args.sinks) */
    double terms[KV_LOST_TERMS]; /* sum of given * age * exp(-rate * age) */
};

/* Computes fades[k] = exp(-rate(k) * n); each is the square of the next one. */
static void fades_after(double *fades, double n) {
    double fade = exp(-ldexp(n, 1 - KV_LOST_TERMS));
    for (uint32_t k = KV_LOST_TERMS; k-- > 0; fade *= fade) fades[k] = fade;
}

static void loss_add(struct loss *loss, const struct evict_head *h, uint32_t position,
                     double given) {
    const double age = h->n_text - position;
    double fades[KV_LOST_TERMS];
    fades_after(fades, age);
    loss->given += given;
    for (uint32_t k = 0; k < KV_LOST_TERMS; k++) loss->terms[k] += given * age * fades[k];
}

static void loss_note(const struct loss *loss, const struct evict_head *h) {
    struct kv_page_state *first = state_at(h, 0);
    const double left = 1 - loss->sink - loss->given,
                 kept = left > KV_LEAST_KEPT ? left : KV_LEAST_KEPT;
    double fades[KV_LOST_TERMS];
    first->n_evictions++;
    fades_after(fades, h->n_text - first->lost_at);
    first->lost_at = h->n_text;
    for (uint32_t k = 0; k < KV_LOST_TERMS; k++)
        first->lost[k] = (float)(first->lost[k] * fades[k] + loss->terms[k] / kept);
}

/* Notes the loss, or leaves that to note_losses(). */
static void loss_end(const struct evict_job *job, const struct loss *loss,
                     const struct evict_head *h) {
    if (!job->losses) {
        loss_note(loss, h);
        return;
    }
    const size_t seq = (size_t)(h->seq - job->cpu->step->seqs);
    struct shared_loss *shared = &job->losses[seq * job->args->kv->n_kv_heads + h->kv_head];
    shared->is_there = 1;
    shared->given = (float)loss->given;
    shared->sink = (float)loss->sink;
    for (uint32_t k = 0; k < KV_LOST_TERMS; k++) shared->terms[k] = (float)loss->terms[k];
}

static double kept_share(const struct kv_page_state *first) {
    double loss = 0;
    for (uint32_t k = 0; k < KV_LOST_TERMS; k++) loss += ldexp(first->lost[k], -(int)k);
    return 1 / (1 + LN_2 * loss);
}

/* --- Heads of several ranks. --- */

/* Copies the scores of a head's slots to or from an array, in whole pages. */
static void copy_scores(const struct evict_head *h, float *array, bool to_array) {
    for (uint32_t page = 0; page < pages_of(h); page++) {
        float *score = state_at(h, page)->score, *at = array + (size_t)page * PAGE_TOKENS;
        const size_t bytes = slots_of_page(h->view->n_slots, page) * sizeof(float);
        memcpy(to_array ? at : score, to_array ? score : at, bytes);
    }
}

/* Tells whether the head loses tokens in this step. */
static bool will_evict(const struct evict_head *h, bool decodes) {
    return has_scores(h->budget) && h->view->n_slots > h->budget->capacity &&
           (decodes || h->seq->compress);
}

/* Copies the scores of all heads that lose tokens to or from an array; returns how many there are.
 * NULL: only counts them. */
static size_t copy_all_scores(const struct evict_job *job, uint32_t first, uint32_t end,
                              float *array, bool to_array) {
    size_t n = 0;
    for (uint32_t i = 0; i < (end - first) * job->args->kv->n_kv_heads; i++) {
        const uint32_t n_kv = job->args->kv->n_kv_heads, seq = first + i / n_kv;
        const struct evict_head h = head_of(job, seq, i % n_kv);
        if (!will_evict(&h, seq < job->cpu->step->n_decode)) continue;
        if (array) copy_scores(&h, array + n, to_array);
        n += (size_t)pages_of(&h) * PAGE_TOKENS;
    }
    return n;
}

/* Lets ranks that have the same heads agree on the scores of sequences [first, end). */
static int agree_on_scores(const struct evict_job *job, uint32_t first, uint32_t end,
                           struct error *err) {
    struct cpu_backend *cpu = job->cpu;
    const size_t n = copy_all_scores(job, first, end, NULL, true);
    if (n == 0 || !cpu_group_shares_heads(cpu)) return 0;
    int rc = cpu_buffer_reserve(&cpu->shared_scores, n * sizeof(float), err);
    if (rc) return rc;
    float *array = cpu->shared_scores.data;
    memset(array, 0, n * sizeof(float));
    copy_all_scores(job, first, end, array, true);
    rc = cpu_group_mean_of_head(cpu, array, n, err);
    if (!rc) copy_all_scores(job, first, end, array, false);
    return rc;
}

/* Makes space for the losses of a step, if ranks agree on them. */
static int begin_losses(struct evict_job *job, struct error *err) {
    struct cpu_buffer *buffer = &job->cpu->shared_losses;
    const size_t bytes =
        (size_t)job->cpu->step->n_seqs * job->args->kv->n_kv_heads * sizeof(struct shared_loss);
    if (!cpu_group_shares_heads(job->cpu)) return 0;
    const int rc = cpu_buffer_reserve(buffer, bytes, err);
    if (rc) return rc;
    memset(buffer->data, 0, bytes);
    job->losses = buffer->data;
    return 0;
}

/* Notes the losses that ranks had together. */
static int note_losses(const struct evict_job *job, struct error *err) {
    const uint32_t n_kv = job->args->kv->n_kv_heads, n = job->cpu->step->n_seqs * n_kv;
    if (!job->losses) return 0;
    const int rc = cpu_group_mean_of_head(job->cpu, (float *)job->losses,
                                          n * sizeof(struct shared_loss) / sizeof(float), err);
    for (uint32_t i = 0; i < n && !rc; i++) {
        const struct shared_loss *shared = &job->losses[i];
        const struct evict_head h = head_of(job, i / n_kv, i % n_kv);
        struct loss loss = {.given = shared->given, .sink = shared->sink};
        for (uint32_t k = 0; k < KV_LOST_TERMS; k++) loss.terms[k] = shared->terms[k];
        if (shared->is_there > 0) loss_note(&loss, &h);
    }
    return rc;
}

/* --- Decode: a task is a KV head of a sequence. --- */

/* Returns the group's raw scores of a page. */
static float *raw_at(const struct evict_job *job, uint32_t seq, const struct evict_head *h,
                     uint32_t page) {
    const struct score_inputs *scores = &job->cpu->scores;
    const size_t at = ((const uint32_t *)scores->first_page.data)[seq] + page;
    return (float *)scores->raw.data +
           (at * job->args->n_heads + (size_t)h->kv_head * job->group) * PAGE_TOKENS;
}

/* Returns (max, sum) of each query head of the group, for a row of the step. */
static const float *softmax_at(const struct evict_job *job, uint32_t row, uint32_t kv_head) {
    return (const float *)job->cpu->scores.softmax.data +
           2 * ((size_t)row * job->args->n_heads + (size_t)kv_head * job->group);
}

/* Adds the attention of a token, in row `row` of the step, to the scores of the first n slots of a
 * page.  s holds its query heads' raw scores there. */
static void count_token(const struct evict_job *job, const struct evict_head *h, uint32_t row,
                        uint32_t page, uint32_t n, const float *s) {
    job->cpu->kernels->add_scores(state_at(h, page)->score, decay_of(h->budget), s,
                                  softmax_at(job, row, h->kv_head), job->group, n);
}

static void add_decode_scores(const struct evict_job *job, uint32_t seq,
                              const struct evict_head *h) {
    const uint32_t row = job->cpu->step->seqs[seq].first_row;
    for (uint32_t page = 0; page < pages_of(h); page++) {
        const uint32_t n = slots_of_page(h->view->n_slots, page);
        count_token(job, h, row, page, n, raw_at(job, seq, h, page));
    }
}

static uint32_t lowest_slot(const struct evict_head *h) {
    uint64_t lowest = STAYS;
    uint32_t slot = 0;
    for (uint32_t page = 0; page < pages_of(h); page++) {
        const struct kv_page_state *state = state_at(h, page);
        const uint32_t n = slots_of_page(h->view->n_slots, page);
        for (uint32_t at = 0; at < n; at++) {
            const uint64_t key = leaving_key(h, state->position[at], state->score[at]);
            if (key >= lowest) continue;
            lowest = key;
            slot = page * PAGE_TOKENS + at;
        }
    }
    return slot;
}

/* Returns the share of a row's attention that a slot got, as the mean over the group.  s points to
 * the slot's raw score of the group's first head. */
static double share_of(const struct evict_job *job, const struct evict_head *h, uint32_t row,
                       const float *s) {
    const float *softmax = softmax_at(job, row, h->kv_head);
    double p = 0;
    for (uint32_t g = 0; g < job->group; g++)
        p += exp2f(s[g * PAGE_TOKENS] - softmax[2 * g]) / softmax[2 * g + 1];
    return p / job->group;
}

/* Returns the share of a row's attention that the sinks got. */
static double sink_share(const struct evict_job *job, const struct evict_head *h, uint32_t row) {
    const float *softmax = softmax_at(job, row, h->kv_head);
    double p = 0;
    for (uint32_t g = 0; g < job->group; g++)
        p += exp2f(sink_logit(job->cpu->kernels, job->args->sinks, h->kv_head * job->group + g) -
                   softmax[2 * g]) /
             softmax[2 * g + 1];
    return p / job->group;
}

/* Records the attention that the sequence's row loses when the slot is evicted. */
static void lose_slot(const struct evict_job *job, uint32_t seq, const struct evict_head *h,
                      uint32_t slot) {
    const uint32_t at = slot % PAGE_TOKENS, page = slot / PAGE_TOKENS;
    const uint32_t row = job->cpu->step->seqs[seq].first_row;
    struct loss loss = {.sink = sink_share(job, h, row)};
    loss_add(&loss, h, state_at(h, page)->position[at],
             share_of(job, h, row, raw_at(job, seq, h, page) + at));
    loss_end(job, &loss, h);
}

static void free_slot(const struct evict_head *h, uint32_t slot) {
    const uint32_t left = state_at(h, slot / PAGE_TOKENS)->rank[slot % PAGE_TOKENS];
    for (uint32_t page = 0; page < pages_of(h); page++) {
        uint32_t *rank = state_at(h, page)->rank;
        for (uint32_t at = 0; at < PAGE_TOKENS; at++) rank[at] -= rank[at] > left;
    }
    state_at(h, 0)->free_slot = slot;
}

static void evict_decode_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct evict_job *job = ctx;
    const uint32_t n_kv = job->args->kv->n_kv_heads, seq = task / n_kv;
    const struct evict_head h = head_of(job, seq, task % n_kv);
    if (!has_scores(h.budget)) return;
    if (!job->has_scores) add_decode_scores(job, seq, &h);
    if (h.view->n_slots <= h.budget->capacity) return;
    const uint32_t slot = lowest_slot(&h);
    lose_slot(job, seq, &h, slot);
    free_slot(&h, slot);
}

static void decode_scores_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct evict_job *job = ctx;
    const uint32_t n_kv = job->args->kv->n_kv_heads, seq = task / n_kv;
    const struct evict_head h = head_of(job, seq, task % n_kv);
    if (has_scores(h.budget)) add_decode_scores(job, seq, &h);
}

static struct evict_job evict_job(struct backend *be, const struct attn_args *args) {
    return (struct evict_job){.cpu = (struct cpu_backend *)be,
                              .args = args,
                              .group = args->n_heads / args->kv->n_kv_heads};
}

static int evict_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    struct evict_job job = evict_job(be, args);
    const uint32_t n = job.cpu->step->n_decode, n_tasks = n * args->kv->n_kv_heads;
    if (!job.cpu->bounded) return 0;
    if (cpu_group_shares_heads(job.cpu)) {
        pool_run(job.cpu->pool, decode_scores_task, &job, n_tasks);
        int rc = agree_on_scores(&job, 0, n, err);
        if (!rc) rc = begin_losses(&job, err);
        if (rc) return rc;
        job.has_scores = true;
    }
    pool_run(job.cpu->pool, evict_decode_task, &job, n_tasks);
    return note_losses(&job, err);
}

/* --- Prefill, scores: a task is some pages of a KV head, which the rows visit in order. --- */

struct score_work {
    float *q, *scores, *workspace;
};

static size_t score_work_bytes(uint32_t rows, uint32_t dim) {
    return sizeof(float) * ((size_t)rows * (dim + PAGE_TOKENS) + (size_t)PAGE_TOKENS * dim);
}

static struct score_work score_work_layout(void *scratch, uint32_t rows, uint32_t dim) {
    struct score_work w = {.q = scratch};
    w.scores = w.q + (size_t)rows * dim;
    w.workspace = w.scores + (size_t)rows * PAGE_TOKENS;
    return w;
}

static void add_tile_scores(const struct evict_job *job, const struct evict_head *h,
                            const struct tile *t, uint32_t first_row, uint32_t page,
                            const struct score_work *w) {
    tile_scores(t, w->scores, w->q, page, w->workspace);
    for (uint32_t token = 0; token < t->n_rows / t->group; token++) {
        const uint32_t n = slots_of_page(t->first_visible + token, page);
        const float *s = w->scores + (size_t)token * t->group * PAGE_TOKENS;
        if (n > 0) count_token(job, h, first_row + token, page, n, s);
    }
}

/* Returns a tile of n_tokens rows of a prompt; the first row sees first_visible slots. */
static struct tile prompt_tile(const struct evict_job *job, const struct evict_head *h,
                               uint32_t first_visible, uint32_t n_tokens) {
    return tile_make(job->cpu, job->args, h->seq, h->kv_head, first_visible, n_tokens);
}

/* Adds the attention of all rows from score_row on to the scores of pages [first, end) of a
 * head. */
static void add_prefill_scores(const struct evict_job *job, const struct step_seq *seq,
                               const struct evict_head *h, uint32_t first, uint32_t end,
                               const struct score_work *w) {
    const uint32_t most = tile_tokens(job->group);
    for (uint32_t token = seq->score_row; token < seq->n_rows; token += most) {
        const uint32_t n_tokens = min_u32(seq->n_rows - token, most);
        const struct tile t =
            prompt_tile(job, h, h->view->n_slots - seq->n_rows + token + 1, n_tokens);
        tile_load_queries(job->args, &t, seq->first_row + token, w->q);
        for (uint32_t page = first; page < end; page++) {
            if (slots_of_page(tile_last_visible(&t), page) == 0) break;
            add_tile_scores(job, h, &t, seq->first_row + token, page, w);
        }
    }
}

static uint32_t score_tasks_of(const struct step_seq *seq, uint32_t layer) {
    return (uint32_t)div_up(seq->layers[layer].n_slots, TASK_PAGES * PAGE_TOKENS);
}

static void forget_scores(const struct evict_head *h, uint32_t first, uint32_t end) {
    for (uint32_t page = first; page < end; page++)
        memset(state_at(h, page)->score, 0, slots_of_page(h->view->n_slots, page) * sizeof(float));
}

static void prefill_scores_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct evict_job *job = ctx;
    const struct step *step = job->cpu->step;
    const uint32_t n_kv = job->args->kv->n_kv_heads, dim = job->args->kv->head_dim,
                   i = task_owner(job->first_task, step->n_seqs - step->n_decode, task),
                   at = task - job->first_task[i];
    const struct step_seq *seq = &step->seqs[step->n_decode + i];
    const struct evict_head h = head_of(job, step->n_decode + i, at % n_kv);
    const struct score_work w =
        score_work_layout(scratch_of(job->cpu, worker), tile_tokens(job->group) * job->group, dim);
    const uint32_t first = at / n_kv * TASK_PAGES, n_pages = pages_of(&h),
                   end = first + TASK_PAGES < n_pages ? first + TASK_PAGES : n_pages;
    if (seq->begins_chunk && h.budget->score == KV_SCORE_WINDOW) forget_scores(&h, first, end);
    add_prefill_scores(job, seq, &h, first, end, &w);
}

static int run_prefill_scores(struct evict_job *job, struct error *err) {
    struct cpu_backend *cpu = job->cpu;
    const struct step *step = cpu->step;
    const struct kv_pool *kv = job->args->kv;
    const uint32_t n = step->n_seqs - step->n_decode;
    int rc = cpu_buffer_reserve(&cpu->tasks, (n + 1) * sizeof(uint32_t), err);
    if (!rc)
        rc = scratch_reserve(
            cpu, score_work_bytes(tile_tokens(job->group) * job->group, kv->head_dim), err);
    if (rc < 0) return rc;
    job->first_task = cpu->tasks.data;
    job->first_task[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct step_seq *seq = &step->seqs[step->n_decode + i];
        const bool is_scored = has_scores(step_budget(seq, job->args->layer));
        const uint32_t n_tasks =
            is_scored ? kv->n_kv_heads * score_tasks_of(seq, job->args->layer) : 0;
        job->first_task[i + 1] = job->first_task[i] + n_tasks;
    }
    pool_run(cpu->pool, prefill_scores_task, job, job->first_task[n]);
    return 0;
}

/* --- Prefill, compression: a task is a KV head of a sequence. --- */

/* Returns the element that would be keys[nth] if keys were sorted, and reorders keys. */
static uint64_t nth_smallest(uint64_t *keys, uint32_t n, uint32_t nth) {
    int64_t low = 0, high = (int64_t)n - 1;
    while (low < high) {
        const uint64_t pivot = keys[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (keys[i] < pivot) i++;
            while (keys[j] > pivot) j--;
            if (i > j) break;
            const uint64_t key = keys[i];
            keys[i++] = keys[j];
            keys[j--] = key;
        }
        if (nth > j && nth < i) break;
        if (nth <= j) high = j;
        else low = i;
    }
    return keys[nth];
}

static float score_at(const struct evict_head *h, uint32_t slot) {
    return state_at(h, slot / PAGE_TOKENS)->score[slot % PAGE_TOKENS];
}

/* Returns the score by which a slot is evicted, pooled over its neighbours (enum kv_pooling). */
static float pooled_score(const struct evict_head *h, uint32_t slot) {
    const struct kv_budget *budget = h->budget;
    const uint32_t n_slots = h->view->n_slots, half = budget->kernel / 2,
                   n_pooled = n_slots > budget->window ? n_slots - budget->window : 0;
    if (budget->pooling == KV_POOLING_NONE || slot >= n_pooled) return score_at(h, slot);
    float pooled = 0;
    for (uint32_t i = slot > half ? slot - half : 0; i <= slot + half && i < n_pooled; i++) {
        const float score = score_at(h, i);
        if (budget->pooling == KV_POOLING_AVERAGE) pooled += score;
        else if (score > pooled) pooled = score;
    }
    return pooled;
}

/* Returns the bound of eviction: a slot whose key is at most the bound is evicted.  Writes the
 * slots' keys to the first half of keys [2][n_slots]; the second half is workspace. */
static uint64_t leaving_bound(const struct evict_head *h, uint64_t *keys) {
    const uint32_t n = h->view->n_slots;
    for (uint32_t slot = 0; slot < n; slot++) {
        const uint32_t position = state_at(h, slot / PAGE_TOKENS)->position[slot % PAGE_TOKENS];
        keys[slot] = leaving_key(h, position, pooled_score(h, slot));
    }
    memcpy(keys + n, keys, n * sizeof(*keys));
    return nth_smallest(keys + n, n, n - h->budget->capacity - 1);
}

/* Records the attention that the chunk's last row loses with the slots whose keys are at most the
 * bound. */
static void lose_slots(const struct evict_job *job, const struct step_seq *seq,
                       const struct evict_head *h, const uint64_t *keys, uint64_t bound,
                       const struct score_work *w) {
    const uint32_t row = seq->first_row + seq->n_rows - 1;
    const struct tile t = prompt_tile(job, h, h->view->n_slots, 1);
    struct loss loss = {.sink = sink_share(job, h, row)};
    tile_load_queries(job->args, &t, row, w->q);
    for (uint32_t page = 0; page < pages_of(h); page++) {
        const uint32_t n = slots_of_page(h->view->n_slots, page);
        tile_scores(&t, w->scores, w->q, page, w->workspace);
        for (uint32_t at = 0; at < n; at++)
            if (keys[page * PAGE_TOKENS + at] <= bound)
                loss_add(&loss, h, state_at(h, page)->position[at],
                         share_of(job, h, row, w->scores + at));
    }
    loss_end(job, &loss, h);
}

static void move_token(const struct evict_head *h, uint32_t to, uint32_t from) {
    const struct kv_pool *kv = h->kv;
    const uint32_t to_page = h->view->pages[to / PAGE_TOKENS], to_at = to % PAGE_TOKENS,
                   from_page = h->view->pages[from / PAGE_TOKENS], from_at = from % PAGE_TOKENS;
    copy_token(kv, h->kv_head, to_page, to_at, from_page, from_at);
    const struct kv_page_state *source = page_state(kv, from_page, h->kv_head);
    struct kv_page_state *target = page_state(kv, to_page, h->kv_head);
    target->position[to_at] = source->position[from_at];
    target->score[to_at] = source->score[from_at];
}

/* Keeps the token of slot `from` in slot `to`, which is free by then. */
static void keep_token(const struct evict_head *h, uint32_t to, uint32_t from) {
    if (to != from) move_token(h, to, from);
    state_at(h, to / PAGE_TOKENS)->rank[to % PAGE_TOKENS] = to;
}

static void compress(const struct evict_head *h, const uint64_t *keys, uint64_t bound) {
    uint32_t to = 0;
    for (uint32_t slot = 0; slot < h->view->n_slots; slot++)
        if (keys[slot] > bound) keep_token(h, to++, slot);
}

static void compress_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct evict_job *job = ctx;
    const struct step *step = job->cpu->step;
    const uint32_t n_kv = job->args->kv->n_kv_heads, seq = step->n_decode + task / n_kv;
    const struct evict_head h = head_of(job, seq, task % n_kv);
    if (!will_evict(&h, false)) return;
    uint64_t *keys = scratch_of(job->cpu, worker);
    const struct score_work w =
        score_work_layout(keys + 2 * (size_t)h.view->n_slots, job->group, h.kv->head_dim);
    const uint64_t bound = leaving_bound(&h, keys);
    lose_slots(job, &step->seqs[seq], &h, keys, bound, &w);
    compress(&h, keys, bound);
}

static int run_compress(struct evict_job *job, struct error *err) {
    const struct step *step = job->cpu->step;
    uint32_t n_slots = 0;
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        const struct step_seq *seq = &step->seqs[i];
        const uint32_t n = seq->layers[job->args->layer].n_slots;
        const bool is_scored = has_scores(step_budget(seq, job->args->layer));
        if (is_scored && seq->compress && n > n_slots) n_slots = n;
    }
    if (n_slots == 0) return 0;
    int rc = scratch_reserve(
        job->cpu,
        2 * n_slots * sizeof(uint64_t) + score_work_bytes(job->group, job->args->kv->head_dim),
        err);
    if (rc < 0) return rc;
    pool_run(job->cpu->pool, compress_task, job,
             (step->n_seqs - step->n_decode) * job->args->kv->n_kv_heads);
    return 0;
}

static int evict_chunk(struct backend *be, const struct attn_args *args, struct error *err) {
    struct evict_job job = evict_job(be, args);
    const struct step *step = job.cpu->step;
    if (!job.cpu->bounded || step->n_seqs == step->n_decode) return 0;
    int rc = job.cpu->scores.wanted ? run_prefill_scores(&job, err) : 0;
    if (!rc) rc = agree_on_scores(&job, step->n_decode, step->n_seqs, err);
    if (!rc) rc = begin_losses(&job, err);
    if (!rc) rc = run_compress(&job, err);
    return rc < 0 ? rc : note_losses(&job, err);
}

/* --- Without scores: a task is a KV head of a sequence in one of the layers. --- */

struct oldest_job {
    const struct step *step;
    const struct kv_pool *kv;
    uint32_t first_layer, n_layers;
};

static void keep_newest(const struct evict_head *h) {
    const struct kv_budget *budget = h->budget;
    const uint32_t n_evicted = h->view->n_slots - budget->capacity;
    for (uint32_t to = 0; to < budget->capacity; to++)
        keep_token(h, to, to < budget->n_sink ? to : to + n_evicted);
}

static void oldest_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct oldest_job *job = ctx;
    const uint32_t n_kv = job->kv->n_kv_heads, head = task / job->n_layers, seq = head / n_kv;
    const struct evict_head h = layer_head_of(job->kv, &job->step->seqs[seq],
                                              job->first_layer + task % job->n_layers, head % n_kv);
    if (!h.budget || has_scores(h.budget) || h.view->n_slots <= h.budget->capacity) return;
    if (seq >= job->step->n_decode && !h.seq->compress) return;
    if (seq < job->step->n_decode) free_slot(&h, lowest_slot(&h));
    else keep_newest(&h);
    state_at(&h, 0)->n_evictions++;
}

static int evict_oldest(struct backend *be, const struct kv_pool *kv, uint32_t first_layer,
                        uint32_t n_layers, struct error *err) {
    (void)err;
    const struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct oldest_job job = {cpu->step, kv, first_layer, n_layers};
    if (cpu->bounded)
        pool_run(cpu->pool, oldest_task, &job, cpu->step->n_seqs * n_layers * kv->n_kv_heads);
    return 0;
}

/* --- Totals. --- */

static struct evict_total total_of(const struct step *step, const struct step_seq *seq,
                                   const struct kv_pool *kv) {
    double kept = 0;
    uint32_t n_evictions = 0; /* the same in all heads that evict */
    uint32_t n_layers = 0;
    for (uint32_t layer = 0; layer < step->n_layers; layer++) {
        if (!step_budget(seq, layer)) continue;
        n_layers++;
        for (uint32_t head = 0; head < kv->n_kv_heads; head++) {
            const struct kv_page_state *first = page_state(kv, seq->layers[layer].pages[0], head);
            n_evictions = first->n_evictions;
            if (n_evictions > 0) kept += kept_share(first);
        }
    }
    const bool known = has_scores(seq->budget) && n_evictions > 0;
    return (struct evict_total){known ? (float)(kept / n_layers / kv->n_kv_heads) : NAN,
                                n_evictions};
}

static int evict_totals(struct backend *be, const struct kv_pool *kv, struct evict_total *totals,
                        struct error *err) {
    (void)err;
    const struct cpu_backend *cpu = (struct cpu_backend *)be;
    for (uint32_t i = 0; cpu->bounded && i < cpu->step->n_seqs; i++) {
        const struct step_seq *seq = &cpu->step->seqs[i];
        if (seq->budget) totals[i] = total_of(cpu->step, seq, kv);
    }
    return 0;
}

const struct evict_ops cpu_evict_ops = {
    .decode = evict_decode,
    .chunk = evict_chunk,
    .oldest = evict_oldest,
    .order = cpu_evict_order,
    .totals = evict_totals,
};
