/* observe.c - see observe.h.
 *
 *   sum     a task is a KV head of a sequence   (max, sum) of each observed row and head
 *   score   a task is a page of a sequence      the same products again; for each row the largest
 *                                               probability that a head gives a token; then the
 *                                               largest of the ranks that share the model (group.h)
 *   keep    a task is a page of a sequence      where select.h says
 *
 * Scores and keeps are of a strip, at most KV_OBSERVED rows of each sequence, and then of the next.
 *
 * Attention has (max, sum) of its rows, too, but of a sparse prompt only over what they visit, so
 * the sums are computed anew.  No result depends on how many workers there are, or
 * on what else is in the step. */
#include "engine/cpu/observe.h"

#include <math.h>
#include <string.h>

#include "engine/base/sizes.h"
#include "engine/cpu/group.h"
#include "engine/cpu/tile.h"
#include "engine/device/select.h"
#include "engine/device/step.h"

void keep_larger(float *token_scores, const float *p) {
    for (uint32_t i = 0; i < PAGE_TOKENS; i++)
        token_scores[i] = p[i] > token_scores[i] ? p[i] : token_scores[i];
}

static float *run_of(const struct kv_pool *kv, const struct kv_observation *o, uint32_t group_index,
                     uint32_t page, uint32_t position) {
    const uint32_t n_places = kv_observed_runs(o->selector),
                   run = page * n_places + position % n_places, n_runs = kv_score_runs(kv);
    const size_t at = o->pages[(size_t)group_index * o->n_pages + run / n_runs];
    return (float *)(void *)(kv_page_at(kv, at) + run % n_runs * KV_SCORE_RUN_BYTES);
}

/* Returns the first query that gives the page scores, where they are accumulated. */
static uint32_t first_query(uint32_t page) {
    return (page + 1) * PAGE_TOKENS - 1;
}

void observed_keep(const struct kv_pool *kv, const struct kv_observation *o, uint32_t group_index,
                   uint32_t page, uint32_t position, const float *scores) {
    float *run = run_of(kv, o, group_index, page, position);
    const bool adds = o->selector == KV_SELECTOR_ACCUMULATED && position > first_query(page);
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) run[i] = adds ? run[i] + scores[i] : scores[i];
}

void observed_sum(const struct kv_pool *kv, const struct kv_observation *o, uint32_t group_index,
                  uint32_t page, uint32_t position, float *sum) {
    memset(sum, 0, KV_SCORE_RUN_BYTES);
    for (uint32_t age = kv_observed_runs(o->selector); age-- > 0;) {
        const float *scores = run_of(kv, o, group_index, page, position - age),
                    weight = o->selector == KV_SELECTOR_EXPONENTIAL ? exp2f(-(float)age) : 1.0f;
        for (uint32_t i = 0; i < PAGE_TOKENS; i++) sum[i] += weight * scores[i];
    }
}

struct observe_job {
    struct cpu_backend *cpu;
    const struct select_args *args;
    uint32_t group;
    uint32_t *first_task; /* [n_seqs + 1]: prefix sums over sequences */
    float *softmax;       /* [rows of the step][n_heads][2]: maximum (base 2) and sum */
    float *token_scores;  /* [task][KV_OBSERVED][PAGE_TOKENS]: of the strip */
    uint32_t strip;
};

struct observe_work {
    float *q, *scores, *keys; /* of a tile; keys: PAGE_TOKENS * head_dim */
};

static uint32_t work_rows(const struct observe_job *job) {
    return min_u32(tile_tokens(job->group), KV_OBSERVED) * job->group;
}

static size_t work_bytes(const struct observe_job *job) {
    const uint32_t rows = work_rows(job), dim = job->args->attn.kv->head_dim;
    return sizeof(float) * ((size_t)rows * (dim + PAGE_TOKENS) + (size_t)PAGE_TOKENS * dim);
}

static struct observe_work work_layout(const struct observe_job *job, uint32_t worker) {
    const uint32_t rows = work_rows(job), dim = job->args->attn.kv->head_dim;
    struct observe_work w = {.q = scratch_of(job->cpu, worker)};
    w.scores = w.q + (size_t)rows * dim;
    w.keys = w.scores + (size_t)rows * PAGE_TOKENS;
    return w;
}

static const struct step_seq *seq_of(const struct observe_job *job, uint32_t seq) {
    return &job->cpu->step->seqs[seq];
}

/* Returns the sequence's first observed row; n_rows if there is none. */
static uint32_t first_observed(const struct step_seq *seq) {
    if (!seq->observed || seq->select || seq->observed->n_scored == 0) return seq->n_rows;
    const uint32_t first = seq->observed->first, before = seq->n_before;
    return first > before ? min_u32(first - before, seq->n_rows) : 0;
}

/* Returns (max, sum) of a row and a head. */
static float *softmax_of(const struct observe_job *job, uint32_t seq, uint32_t row, uint32_t head) {
    const size_t i = seq_of(job, seq)->first_row + row;
    return job->softmax + 2 * (i * job->args->attn.n_heads + head);
}

/* Loads the queries of a KV head for as many rows before `end` as a tile takes, from this one
 * on. */
static struct tile load_tile(const struct observe_job *job, uint32_t seq, uint32_t row,
                             uint32_t end, uint32_t kv_head, float *q) {
    const struct step_seq *s = seq_of(job, seq);
    const struct kv_view *view = &s->layers[job->args->attn.layer];
    const uint32_t n_tokens = min_u32(end - row, min_u32(tile_tokens(job->group), KV_OBSERVED));
    const uint32_t first_visible = view->n_slots - s->n_rows + row + 1;
    const struct tile t =
        tile_make(job->cpu, &job->args->attn, s, kv_head, first_visible, n_tokens);
    tile_load_queries(&job->args->attn, &t, s->first_row + row, q);
    return t;
}

/* --- The softmax of each row. --- */

static void sum_tile(const struct observe_job *job, const struct tile *t, uint32_t seq,
                     uint32_t row, const struct observe_work *w) {
    for (uint32_t r = 0; r < t->n_rows; r++) {
        float *softmax = softmax_of(job, seq, row + r / t->group, t->first_head + r % t->group);
        softmax[0] = sink_logit(t->kernels, job->args->attn.sinks, t->first_head + r % t->group);
        softmax[1] = job->args->attn.sinks ? 1.0f : 0.0f;
    }
    for (uint32_t page = 0; page < kv_n_pages(tile_last_visible(t)); page++) {
        tile_scores(t, w->scores, w->q, page, w->keys);
        for (uint32_t r = 0; r < t->n_rows; r++) {
            const uint32_t n = slots_of_page(t->first_visible + r / t->group, page);
            float *softmax = softmax_of(job, seq, row + r / t->group, t->first_head + r % t->group);
            if (n > 0)
                t->kernels->softmax_update(w->scores + (size_t)r * PAGE_TOKENS, n, softmax,
                                           softmax + 1);
        }
    }
}

static void sum_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct observe_job *job = ctx;
    const uint32_t n_kv = job->args->attn.kv->n_kv_heads, seq = task / n_kv;
    const struct step_seq *s = seq_of(job, seq);
    const struct observe_work w = work_layout(job, worker);
    for (uint32_t row = first_observed(s), n; row < s->n_rows; row += n) {
        const struct tile t = load_tile(job, seq, row, s->n_rows, task % n_kv, w.q);
        sum_tile(job, &t, seq, row, &w);
        n = t.n_rows / t.group;
    }
}

/* --- The token scores. --- */

/* Raises the scores that the tile's rows give a page to those of its heads; token_scores begins
 * with the tile's first row. */
static void add_tile(const struct observe_job *job, const struct tile *t, uint32_t seq,
                     uint32_t row, uint32_t page, const struct observe_work *w,
                     float *token_scores) {
    tile_scores(t, w->scores, w->q, page, w->keys);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        float p[PAGE_TOKENS] = {0};
        t->kernels->add_scores(
            p, 1.0f, w->scores + (size_t)r * PAGE_TOKENS,
            softmax_of(job, seq, row + r / t->group, t->first_head + r % t->group), 1, PAGE_TOKENS);
        keep_larger(token_scores + (size_t)(r / t->group) * PAGE_TOKENS, p);
    }
}

/* Returns the first of the sequence's rows that give the page scores. */
static uint32_t first_scoring(const struct step_seq *s, uint32_t page) {
    const uint32_t first = first_observed(s), query = first_query(page);
    if (s->observed->selector != KV_SELECTOR_ACCUMULATED || query <= s->n_before) return first;
    return max_u32(first, query - s->n_before);
}

/* A page of a sequence, and the rows of the strip that give it scores. */
struct strip {
    uint32_t seq, page, first, end;
    float *token_scores; /* [KV_OBSERVED][PAGE_TOKENS] */
};

static struct strip strip_of(const struct observe_job *job, uint32_t task) {
    const uint32_t seq = task_owner(job->first_task, job->cpu->step->n_seqs, task);
    const struct step_seq *s = seq_of(job, seq);
    struct strip strip = {.seq = seq, .page = task - job->first_task[seq]};
    strip.first = min_u32(first_scoring(s, strip.page) + job->strip * KV_OBSERVED, s->n_rows);
    strip.end = min_u32(strip.first + KV_OBSERVED, s->n_rows);
    strip.token_scores = job->token_scores + (size_t)task * KV_OBSERVED * PAGE_TOKENS;
    return strip;
}

static void score_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct observe_job *job = ctx;
    const struct strip s = strip_of(job, task);
    const struct observe_work w = work_layout(job, worker);
    memset(s.token_scores, 0, KV_OBSERVED * KV_SCORE_RUN_BYTES);
    for (uint32_t head = 0; head < job->args->attn.kv->n_kv_heads; head++)
        for (uint32_t row = s.first, n; row < s.end; row += n) {
            const struct tile t = load_tile(job, s.seq, row, s.end, head, w.q);
            add_tile(job, &t, s.seq, row, s.page, &w,
                     s.token_scores + (size_t)(row - s.first) * PAGE_TOKENS);
            n = t.n_rows / t.group;
        }
}

static void keep_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct observe_job *job = ctx;
    const struct strip s = strip_of(job, task);
    const struct step_seq *seq = seq_of(job, s.seq);
    for (uint32_t row = s.first; row < s.end; row++)
        observed_keep(job->args->attn.kv, seq->observed, job->args->group_index, s.page,
                      seq->n_before + row, s.token_scores + (size_t)(row - s.first) * PAGE_TOKENS);
}

/* Returns how many strips the sequences have, at most. */
static uint32_t n_strips(const struct observe_job *job) {
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < job->cpu->step->n_seqs; i++) {
        const struct step_seq *s = seq_of(job, i);
        n_rows = max_u32(n_rows, s->n_rows - first_observed(s));
    }
    return (uint32_t)div_up(n_rows, KV_OBSERVED);
}

static int reserve(struct observe_job *job, struct error *err) {
    struct cpu_backend *cpu = job->cpu;
    const uint32_t n = cpu->step->n_seqs;
    const size_t n_softmax = (size_t)cpu->step->n_rows * job->args->attn.n_heads * 2;
    int rc = cpu_buffer_reserve(&cpu->tasks, (n + 1) * sizeof(uint32_t), err);
    if (!rc) rc = cpu_buffer_reserve(&cpu->partials, n_softmax * sizeof(float), err);
    if (!rc) rc = scratch_reserve(cpu, work_bytes(job), err);
    if (rc) return rc;
    job->first_task = cpu->tasks.data;
    job->softmax = cpu->partials.data;
    return 0;
}

/* Computes and keeps the scores of one strip after the other. */
static int keep_strips(struct observe_job *job, struct error *err) {
    struct cpu_backend *cpu = job->cpu;
    const uint32_t n_tasks = job->first_task[cpu->step->n_seqs];
    const size_t n = (size_t)n_tasks * KV_OBSERVED * PAGE_TOKENS;
    int rc = cpu_buffer_reserve(&cpu->selections.token_scores, n * sizeof(float), err);
    job->token_scores = cpu->selections.token_scores.data;
    for (job->strip = 0; !rc && job->strip < n_strips(job); job->strip++) {
        pool_run(cpu->pool, score_task, job, n_tasks);
        rc = cpu_group_largest(cpu, job->token_scores, n, err);
        if (!rc) pool_run(cpu->pool, keep_task, job, n_tasks);
    }
    return rc;
}

int observe_rows(struct backend *be, const struct select_args *args, struct error *err) {
    struct observe_job job = {.cpu = (struct cpu_backend *)be, .args = args};
    const uint32_t n = job.cpu->step->n_seqs, n_kv = args->attn.kv->n_kv_heads;
    job.group = args->attn.n_heads / n_kv;
    const int rc = reserve(&job, err);
    if (rc < 0) return rc;
    job.first_task[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct step_seq *s = seq_of(&job, i);
        const uint32_t n_pages =
            first_observed(s) < s->n_rows ? s->observed->n_scored / PAGE_TOKENS : 0;
        job.first_task[i + 1] = job.first_task[i] + n_pages;
    }
    if (job.first_task[n] == 0) return 0;
    pool_run(job.cpu->pool, sum_task, &job, n * n_kv);
    return keep_strips(&job, err);
}
