/* attention.c - attention over pages, for decoding and for prefill (algorithms: Flash-Decoding's
 * split of the keys and log-sum-exp merge; FlashAttention's online softmax inside a chunk).
 *
 *   keys of a sequence   |--- chunk 0: 8 pages ---|--- chunk 1 ---|- chunk 2 -|
 *                           page by page: scores, online softmax, values
 *   a query row          (max, sum, out) of each chunk, folded into the row's state in chunk order
 *
 * Both operations compute a row by the same chunks in the same order, so its bits depend only on
 * its own keys.  They do not depend on the batch, on how a prompt was cut into steps, or on the
 * number of threads.  The query heads that share a KV head are rows of one tile (GQA packing), so a
 * page is read once.
 *
 * A sparse prompt (sparse.h) is computed in the same way, with one query head in a tile.  Pages
 * that it does not visit are skipped.  Unvisited slots of other pages get the weight 0, like those
 * in a row's future.  So a head that visits everything computes the bits of dense attention.
 *
 * Where a layer has a window, pages before the window of every row of a tile are skipped.  In other
 * pages, slots before a row's own window get no weight; a page wholly before it leaves the row's
 * state as it was.
 *
 * A sink joins a row's sum after the last chunk.
 *
 * For sequences whose budget has scores (evict.c) or that have a selection (select.c), every row's
 * maximum and sum are saved, and decode's raw scores, too. */
#include "engine/cpu/tile.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"

enum { CHUNK_PAGES = 8, CHUNK_SLOTS = CHUNK_PAGES * PAGE_TOKENS };

/* Scratch of a worker: row-wise arrays of up to `rows` rows. */
struct attn_work {
    float *q, *scores, *out, *chunk_out, *page;
    float *max, *sum, *chunk_max, *chunk_sum, *factor;
    /* NULL, or for each page the bitmap of its visited slots.  A bitmap is empty, or has a slot
     * that is visible to every row that sees any slot of the page. */
    const uint64_t *visited;
    float *raw; /* NULL, or where raw scores are saved: page p's at raw + p * raw_stride */
    size_t raw_stride;
};

static size_t work_bytes(uint32_t rows, uint32_t dim) {
    return sizeof(float) *
           ((size_t)rows * (3 * dim + PAGE_TOKENS + 5) + (size_t)PAGE_TOKENS * dim + 64);
}

static struct attn_work work_layout(void *scratch, uint32_t rows, uint32_t dim) {
    struct attn_work w = {.q = scratch};
    w.out = w.q + (size_t)rows * dim;
    w.chunk_out = w.out + (size_t)rows * dim;
    w.scores = w.chunk_out + (size_t)rows * dim;
    w.page = w.scores + (size_t)rows * PAGE_TOKENS;
    w.max = w.page + (size_t)PAGE_TOKENS * dim;
    w.sum = w.max + rows;
    w.chunk_max = w.sum + rows;
    w.chunk_sum = w.chunk_max + rows;
    w.factor = w.chunk_sum + rows;
    return w;
}

/* Sets each row's scores of the page's unvisited slots to -inf, so that they get no weight. */
static void hide_slots(float *scores, uint32_t n_rows, uint64_t visited) {
    int32_t seen[PAGE_TOKENS];
    for (uint32_t i = 0; i < PAGE_TOKENS; i++) seen[i] = (int32_t)(visited >> i & 1);
    for (uint32_t r = 0; r < n_rows; r++) {
        float *s = scores + (size_t)r * PAGE_TOKENS;
        for (uint32_t i = 0; i < PAGE_TOKENS; i++) s[i] = seen[i] ? s[i] : -INFINITY;
    }
}

/* Advances every row's (max, sum, out) by one page: scores, online softmax, values. */
static void attend_page(const struct tile *t, const struct attn_work *w, const float *q,
                        uint32_t page, float *max, float *sum, float *out) {
    const struct kv_pool *kv = t->kv;
    tile_scores(t, w->scores, q, page, w->page);
    if (w->raw)
        memcpy(w->raw + page * w->raw_stride, w->scores, t->n_rows * PAGE_TOKENS * sizeof(float));
    if (w->visited && w->visited[page] != UINT64_MAX)
        hide_slots(w->scores, t->n_rows, w->visited[page]);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const uint32_t visible = t->first_visible + r / t->group, n = slots_of_page(visible, page),
                       n_hidden = slots_of_page(tile_first_slot(t, visible), page);
        float *s = w->scores + (size_t)r * PAGE_TOKENS;
        if (n == n_hidden) { /* the page lies in this row's future, or before its window */
            memset(s, 0, PAGE_TOKENS * sizeof(float));
            w->factor[r] = 1.0f;
        } else {
            for (uint32_t i = 0; i < n_hidden; i++) s[i] = -INFINITY;
            w->factor[r] = t->kernels->softmax_update(s, n, &max[r], &sum[r]);
        }
    }
    const struct page_rows values =
        page_rows(t->kernels, kv, t->view->pages[page], kv->n_kv_heads + t->kv_head, w->page);
    t->kernels->page_values(out, w->factor, w->scores, t->n_rows, values.data, values.element,
                            kv->head_dim, slots_of_page(tile_last_visible(t), page), w->page);
}

static void attend_chunk(const struct tile *t, const struct attn_work *w, const float *q,
                         uint32_t chunk, float *max, float *sum, float *out) {
    const uint32_t n_pages = (uint32_t)kv_n_pages(tile_last_visible(t)),
                   first_page = tile_first_slot(t, t->first_visible) / PAGE_TOKENS,
                   end = min_u32((chunk + 1) * CHUNK_PAGES, n_pages);
    uint32_t page = chunk * CHUNK_PAGES;
    if (page < first_page) page = first_page;
    for (uint32_t r = 0; r < t->n_rows; r++) {
        max[r] = -INFINITY;
        sum[r] = 0.0f;
    }
    memset(out, 0, (size_t)t->n_rows * t->kv->head_dim * sizeof(float));
    for (; page < end; page++) {
        if (!w->visited || w->visited[page]) attend_page(t, w, q, page, max, sum, out);
    }
}

static uint32_t first_chunk(const struct tile *t) {
    return tile_first_slot(t, t->first_visible) / CHUNK_SLOTS;
}

/* Returns the chunk behind the last one that has slots for the tile. */
static uint32_t end_chunk(const struct tile *t) {
    return (uint32_t)div_up(tile_last_visible(t), CHUNK_SLOTS);
}

/* Folds a chunk's result into a row's state.  A chunk of which the row sees nothing (max -inf)
 * changes nothing. */
static void fold_row(float *max, float *sum, float *out, float chunk_max, float chunk_sum,
                     const float *chunk_out, uint32_t dim) {
    if (chunk_max == -INFINITY) return;
    float new_max = *max > chunk_max ? *max : chunk_max;
    float a = *max == -INFINITY ? 0.0f : exp2f(*max - new_max), b = exp2f(chunk_max - new_max);
    *max = new_max;
    *sum = *sum * a + chunk_sum * b;
    for (uint32_t d = 0; d < dim; d++) out[d] = out[d] * a + chunk_out[d] * b;
}

struct attn_job {
    struct cpu_backend *cpu;
    const struct attn_args *args;
    uint32_t group, work_rows;
    uint32_t tile_tokens;          /* prefill: tokens of a tile */
    uint32_t *first_task;          /* [n_seqs + 1]: prefix sums over sequences */
    const struct step_seq *sparse; /* NULL, or the sequence with sparse prefill */
    uint32_t visited_pages;        /* its bitmaps, u64 each, in front of a worker's scratch */
    uint64_t *pairs;               /* sparse prefill: [task], slots visited, summed over rows */
    float *partials;               /* decode: [task][group][head_dim + 2]: out, max, sum */
};

static const struct kv_view *view_of(const struct attn_job *job, uint32_t seq) {
    return &job->cpu->step->seqs[seq].layers[job->args->layer];
}

/* Adds the sink to a row's sum, once all of its keys are in it. */
static void add_sink(const struct attn_job *job, const struct tile *t, uint32_t r, float max,
                     float *sum) {
    if (job->args->sinks)
        *sum += exp2f(sink_logit(t->kernels, job->args->sinks, t->first_head + r % t->group) - max);
}

static void store_row(const struct attn_job *job, const struct tile *t, uint32_t first_row,
                      uint32_t r, float max, float sum, const float *out) {
    const struct score_inputs *scores = &job->cpu->scores;
    const uint32_t dim = t->kv->head_dim;
    const size_t at =
        (size_t)(first_row + r / t->group) * job->args->n_heads + t->first_head + r % t->group;
    float *to = (float *)job->args->out + at * dim;
    for (uint32_t d = 0; d < dim; d++) to[d] = out[d] / sum;
    if (!scores->wanted) return;
    float *softmax = (float *)scores->softmax.data + 2 * at;
    softmax[0] = max;
    softmax[1] = sum;
}

/* Returns a tile of n_tokens rows of a sequence, from its first_token-th row on. */
static struct tile tile_of(const struct attn_job *job, uint32_t seq, uint32_t first_token,
                           uint32_t n_tokens, uint32_t kv_head) {
    const struct step_seq *s = &job->cpu->step->seqs[seq];
    const uint32_t first_visible = view_of(job, seq)->n_slots - s->n_rows + first_token + 1;
    struct tile t = tile_make(job->cpu, job->args, s, kv_head, first_visible, n_tokens);
    t.window = step_window(job->cpu->step, job->args->layer);
    return t;
}

/* --- Decode: a task is a chunk of one KV head of one sequence; then one fold per head. --- */

static struct tile decode_tile(const struct attn_job *job, uint32_t seq, uint32_t kv_head) {
    return tile_of(job, seq, 0, 1, kv_head);
}

static uint32_t chunks_of(const struct attn_job *job, uint32_t seq) {
    const struct tile t = decode_tile(job, seq, 0);
    return end_chunk(&t) - first_chunk(&t);
}

/* Points w->raw to where decode saves its raw scores, if the sequence needs them.  It does if its
 * budget in the layer has scores, or if it has a selection and the layer is a filter. */
static void leave_raw(const struct attn_job *job, struct attn_work *w, uint32_t seq,
                      uint32_t kv_head) {
    const struct score_inputs *scores = &job->cpu->scores;
    const uint32_t *first_page = scores->first_page.data;
    if (!scores->wanted || first_page[seq] == first_page[seq + 1]) return;
    const struct step_seq *s = &job->cpu->step->seqs[seq];
    const struct kv_budget *budget = step_budget(s, job->args->layer);
    if (!(budget && budget->score != KV_SCORE_NONE) && !(s->select && job->args->selects)) return;
    w->raw_stride = (size_t)job->args->n_heads * PAGE_TOKENS;
    w->raw = (float *)scores->raw.data + first_page[seq] * w->raw_stride +
             (size_t)kv_head * job->group * PAGE_TOKENS;
}

static void decode_chunk_task(void *ctx, uint32_t task, uint32_t worker) {
    struct attn_job *job = ctx;
    const struct kv_pool *kv = job->args->kv;
    uint32_t seq = task_owner(job->first_task, job->cpu->step->n_decode, task);
    uint32_t n_chunks = chunks_of(job, seq), at = task - job->first_task[seq];
    struct tile t = decode_tile(job, seq, at / n_chunks);
    struct attn_work w = work_layout(scratch_of(job->cpu, worker), job->work_rows, kv->head_dim);
    leave_raw(job, &w, seq, t.kv_head);
    tile_load_queries(job->args, &t, job->cpu->step->seqs[seq].first_row, w.q);
    float *out = job->partials + (size_t)task * job->group * (kv->head_dim + 2);
    float *max = out + (size_t)job->group * kv->head_dim;
    attend_chunk(&t, &w, w.q, first_chunk(&t) + at % n_chunks, max, max + job->group, out);
}

static void decode_fold_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    struct attn_job *job = ctx;
    const struct kv_pool *kv = job->args->kv;
    uint32_t seq = task / kv->n_kv_heads, kv_head = task % kv->n_kv_heads, dim = kv->head_dim,
             group = job->group;
    struct tile t = decode_tile(job, seq, kv_head);
    uint32_t n_chunks = chunks_of(job, seq);
    size_t partial = (size_t)group * (dim + 2);
    float *state = job->partials + (job->first_task[seq] + (size_t)kv_head * n_chunks) * partial;
    for (uint32_t r = 0; r < group; r++) {
        float *max = state + (size_t)group * dim + r, *sum = max + group;
        for (uint32_t c = 1; c < n_chunks; c++) {
            const float *chunk = state + c * partial, *chunk_max = chunk + (size_t)group * dim + r;
            fold_row(max, sum, state + (size_t)r * dim, *chunk_max, chunk_max[group],
                     chunk + (size_t)r * dim, dim);
        }
        add_sink(job, &t, r, *max, sum);
        store_row(job, &t, job->cpu->step->seqs[seq].first_row, r, *max, *sum,
                  state + (size_t)r * dim);
    }
}

/* Prepares what sequences with budgets or selections need: rank angles, raw scores, softmax
 * states. */
static int reserve_scores(struct attn_job *job, struct error *err) {
    struct cpu_backend *cpu = job->cpu;
    struct score_inputs *scores = &cpu->scores;
    const size_t n_heads = job->args->n_heads;
    int rc = rank_angles_prepare(cpu, job->args, err);
    if (rc < 0 || !scores->wanted) return rc;
    const uint32_t *first_page = scores->first_page.data;
    rc = cpu_buffer_reserve(
        &scores->raw, first_page[cpu->step->n_decode] * n_heads * PAGE_TOKENS * sizeof(float), err);
    if (rc < 0) return rc;
    return cpu_buffer_reserve(&scores->softmax, cpu->step->n_rows * n_heads * 2 * sizeof(float),
                              err);
}

static int reserve_tasks(struct attn_job *job, uint32_t n_seqs, struct error *err) {
    int rc = cpu_buffer_reserve(&job->cpu->tasks, (n_seqs + 1) * sizeof(uint32_t), err);
    job->first_task = job->cpu->tasks.data;
    return rc < 0 ? rc : reserve_scores(job, err);
}

static struct attn_job attn_job(struct backend *be, const struct attn_args *args) {
    struct attn_job job = {.cpu = (struct cpu_backend *)be, .args = args};
    job.group = args->n_heads / args->kv->n_kv_heads;
    job.tile_tokens = tile_tokens(job.group);
    job.work_rows = job.tile_tokens * job.group;
    return job;
}

int cpu_attn_decode(struct backend *be, const struct attn_args *args, struct error *err) {
    struct attn_job job = attn_job(be, args);
    const struct kv_pool *kv = args->kv;
    uint32_t n = job.cpu->step->n_decode;
    if (n == 0) return 0;
    int rc = reserve_tasks(&job, n, err);
    if (rc < 0) return rc;
    job.first_task[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        job.first_task[i + 1] = job.first_task[i] + kv->n_kv_heads * chunks_of(&job, i);
    }
    rc = scratch_reserve(job.cpu, work_bytes(job.work_rows, kv->head_dim), err);
    if (rc < 0) return rc;
    rc = cpu_buffer_reserve(
        &job.cpu->partials,
        (size_t)job.first_task[n] * job.group * (kv->head_dim + 2) * sizeof(float), err);
    if (rc < 0) return rc;
    job.partials = job.cpu->partials.data;
    pool_run(job.cpu->pool, decode_chunk_task, &job, job.first_task[n]);
    pool_run(job.cpu->pool, decode_fold_task, &job, n * kv->n_kv_heads);
    return 0;
}

/* --- Prefill: a task is a tile of tokens of one KV head; it folds each chunk before the next.
 * --- */

/* Computes a tile's outputs, and its rows' lse if wanted.  The tile's tokens are rows of the step
 * from first_row on. */
static void attend_tile(const struct attn_job *job, const struct tile *t, const struct attn_work *w,
                        uint32_t first_row) {
    const uint32_t dim = t->kv->head_dim, first = first_chunk(t), end = end_chunk(t);
    tile_load_queries(job->args, t, first_row, w->q);
    attend_chunk(t, w, w->q, first, w->max, w->sum, w->out);
    for (uint32_t c = first + 1; c < end; c++) {
        attend_chunk(t, w, w->q, c, w->chunk_max, w->chunk_sum, w->chunk_out);
        for (uint32_t r = 0; r < t->n_rows; r++) {
            fold_row(&w->max[r], &w->sum[r], w->out + (size_t)r * dim, w->chunk_max[r],
                     w->chunk_sum[r], w->chunk_out + (size_t)r * dim, dim);
        }
    }
    for (uint32_t r = 0; r < t->n_rows; r++) {
        add_sink(job, t, r, w->max[r], &w->sum[r]);
        store_row(job, t, first_row, r, w->max[r], w->sum[r], w->out + (size_t)r * dim);
        if (!job->args->lse) continue;
        job->args->lse[(size_t)(first_row + r / t->group) * job->args->n_heads + t->first_head +
                       r % t->group] = w->max[r] + log2f(w->sum[r]);
    }
}

static void prefill_task(void *ctx, uint32_t task, uint32_t worker) {
    struct attn_job *job = ctx;
    const struct step *step = job->cpu->step;
    const uint32_t n_kv = job->args->kv->n_kv_heads,
                   i = task_owner(job->first_task, step->n_seqs - step->n_decode, task),
                   n_tiles = (job->first_task[i + 1] - job->first_task[i]) / n_kv,
                   at = task - job->first_task[i];
    const struct step_seq *seq = &step->seqs[step->n_decode + i];
    /* Late tokens see the most keys.  Their tiles come first, so that no long task is left for the
     * end. */
    const uint32_t first_token = (n_tiles - 1 - at / n_kv) * job->tile_tokens,
                   n_tokens = min_u32(job->tile_tokens, seq->n_rows - first_token);
    const struct tile t = tile_of(job, step->n_decode + i, first_token, n_tokens, at % n_kv);
    const struct attn_work w =
        work_layout(scratch_of(job->cpu, worker), job->work_rows, job->args->kv->head_dim);
    attend_tile(job, &t, &w, seq->first_row + first_token);
}

static int prefill_dense(struct attn_job *job, struct error *err) {
    const struct step *step = job->cpu->step;
    const struct kv_pool *kv = job->args->kv;
    const uint32_t n = step->n_seqs - step->n_decode;
    int rc = reserve_tasks(job, n, err);
    if (rc < 0) return rc;
    job->first_task[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct step_seq *seq = &step->seqs[step->n_decode + i];
        const uint32_t n_tiles = (uint32_t)div_up(seq->n_rows, job->tile_tokens);
        const uint32_t n_tasks = seq == job->sparse ? 0 : n_tiles * kv->n_kv_heads;
        job->first_task[i + 1] = job->first_task[i] + n_tasks;
    }
    rc = scratch_reserve(job->cpu, work_bytes(job->work_rows, kv->head_dim), err);
    if (rc < 0) return rc;
    pool_run(job->cpu->pool, prefill_task, job, job->first_task[n]);
    return 0;
}

/* --- Sparse prefill: a task is half a tile for one query head, as each head has its own keys.  Its
 * rows lie in one page. --- */

enum { SPARSE_ROWS = SPARSE_HALF };

/* Returns how many slots a task's rows visit, summed over the rows. */
static uint64_t pairs_of(const struct tile *t, const uint64_t *visited) {
    const uint64_t before = t->first_visible - 1, n = t->n_rows;
    uint64_t n_before = 0;
    if (!visited) return n * before + n * (n + 1) / 2;
    for (uint32_t page = 0; page < before / PAGE_TOKENS; page++)
        n_before += (uint64_t)__builtin_popcountll(visited[page]);
    return n * n_before + n * (n + 1) / 2;
}

static struct tile sparse_tile(const struct attn_job *job, uint32_t first_token, uint32_t head) {
    const uint32_t seq = (uint32_t)(job->sparse - job->cpu->step->seqs),
                   n_tokens = min_u32(SPARSE_ROWS, job->sparse->n_rows - first_token);
    struct tile t = tile_of(job, seq, first_token, n_tokens, head / job->group);
    t.first_head = head;
    t.group = 1;
    t.n_rows = n_tokens;
    return t;
}

static void sparse_task(void *ctx, uint32_t task, uint32_t worker) {
    struct attn_job *job = ctx;
    const struct sparse_index *index = &job->cpu->sparse;
    const uint32_t n_heads = job->args->n_heads, head = task % n_heads,
                   n_parts = (uint32_t)div_up(job->sparse->n_rows, SPARSE_ROWS),
                   first_token = (n_parts - 1 - task / n_heads) * SPARSE_ROWS;
    const struct tile t = sparse_tile(job, first_token, head);
    const uint32_t half = (t.first_visible - 1 - index->first_slot) / SPARSE_HALF;
    uint64_t *visited = scratch_of(job->cpu, worker);
    struct attn_work w = work_layout(visited + job->visited_pages, SPARSE_ROWS, t.kv->head_dim);
    if (!sparse_visits_all(index, head, half / 2)) {
        sparse_visit(index, head, half, visited);
        w.visited = visited;
    }
    attend_tile(job, &t, &w, job->sparse->first_row + first_token);
    job->pairs[task] = pairs_of(&t, w.visited);
}

/* Checks that the index is of this layer and covers the step's rows of the sparse sequence. */
static int check_index(const struct attn_job *job, struct error *err) {
    const struct sparse_index *index = &job->cpu->sparse;
    const struct step_seq *seq = job->sparse;
    const uint32_t end = seq->layers[job->args->layer].n_slots, first = end - seq->n_rows;
    const bool fits = sparse_is_indexed(index, job->cpu->step, seq, job->args->layer) &&
                      index->n_heads == job->args->n_heads;
    if (!fits)
        return error_set(err, ERR_INVALID, "cpu: layer %" PRIu32 " has no index", job->args->layer);
    if (first < index->first_slot || (first - index->first_slot) % SPARSE_TILE != 0 ||
        end - index->first_slot > index->n_rows)
        return error_set(err, ERR_INVALID,
                         "cpu: rows [%" PRIu32 ", %" PRIu32 ") are not tiles of "
                         "the index",
                         first, end);
    return 0;
}

static void add_totals(const struct attn_job *job, uint32_t n_tasks, double seconds) {
    struct sparse_index *index = &job->cpu->sparse;
    struct sparse_totals *totals = &index->totals;
    const uint32_t n_heads = job->args->n_heads;
    const uint64_t n = job->sparse->n_rows,
                   before = job->sparse->layers[job->args->layer].n_slots - n,
                   causal = n * before + n * (n + 1) / 2;
    for (uint32_t task = 0; task < n_tasks; task++)
        totals->visited[sparse_head_of(index, task % n_heads)->named] += (double)job->pairs[task];
    for (uint32_t head = 0; head < n_heads; head++)
        totals->causal[sparse_head_of(index, head)->named] += (double)causal;
    totals->attention_s += seconds;
}

static int prefill_sparse(struct attn_job *job, struct error *err) {
    const double start = clock_seconds();
    const uint32_t n_parts = (uint32_t)div_up(job->sparse->n_rows, SPARSE_ROWS),
                   n_tasks = n_parts * job->args->n_heads,
                   n_slots = job->sparse->layers[job->args->layer].n_slots;
    int rc = check_index(job, err);
    if (rc < 0) return rc;
    job->visited_pages = (uint32_t)round_up(kv_n_pages(n_slots), 8); /* 64 bytes */
    rc = scratch_reserve(
        job->cpu,
        job->visited_pages * sizeof(uint64_t) + work_bytes(SPARSE_ROWS, job->args->kv->head_dim),
        err);
    if (!rc) rc = cpu_buffer_reserve(&job->cpu->partials, n_tasks * sizeof(uint64_t), err);
    if (rc < 0) return rc;
    job->pairs = job->cpu->partials.data;
    pool_run(job->cpu->pool, sparse_task, job, n_tasks);
    add_totals(job, n_tasks, clock_seconds() - start);
    return 0;
}

/* Counts what the rows of a prompt whose filters choose visit in a layer of no group. */
static void add_dense_totals(const struct attn_job *job, const struct step_seq *seq) {
    struct sparse_totals *totals = &job->cpu->sparse.totals;
    const uint64_t n = seq->n_rows, before = seq->layers[job->args->layer].n_slots - n;
    const double causal = (double)(n * before + n * (n + 1) / 2) * job->args->n_heads;
    totals->visited[PATTERN_FILTERS] += causal;
    totals->causal[PATTERN_FILTERS] += causal;
}

int cpu_attn_prefill(struct backend *be, const struct attn_args *args, struct error *err) {
    struct attn_job job = attn_job(be, args);
    if (job.cpu->step->n_seqs == job.cpu->step->n_decode) return 0;
    const struct step *step = job.cpu->step;
    if (step_window(step, args->layer) == 0) job.sparse = sparse_seq(step);
    if (job.sparse && job.sparse->sparse->groups &&
        !sparse_group_of(step, job.sparse->sparse, args->layer)) {
        add_dense_totals(&job, job.sparse);
        job.sparse = NULL;
    }
    int rc = prefill_dense(&job, err);
    return rc < 0 || !job.sparse ? rc : prefill_sparse(&job, err);
}
