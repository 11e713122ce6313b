/* sparse_filters.c - which slots before a chunk of a prompt the layers behind a filter visit
 * (OmniKV's variant for prompts; contract: PATTERN_FILTERS in engine/device/sparse.h).
 *
 *   attention of the filter     (max, sum) of every row and head
 *   score    a task is a page   the same products again: for each row the largest weight over the
 *                               heads, and then over the ranks that share the model (group.h)
 *   sum      a task is a page   these, added up over the rows in their order
 *   choose                      the best slots, as bits, which stand for all heads
 *
 * Scores and sums are of a block of pages, and then of the next.  A task has its page to itself, so
 * no result depends on how many workers there are. */
#include "engine/cpu/sparse.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/cpu/group.h"
#include "engine/cpu/observe.h"
#include "engine/cpu/sparse_lines.h"
#include "engine/cpu/tile.h"
#include "engine/device/layer_group.h"
#include "engine/device/step.h"

struct choose_job {
    struct cpu_backend *cpu;
    const struct attn_args *args;
    const struct step_seq *seq;
    float *token_scores; /* [slot] */
    float *largest;      /* [page of the block][row][PAGE_TOKENS] */
    uint32_t group, first_page;
};

/* Bytes of a block's largest weights, unless one page has more.  Ranks must have the same
 * blocks. */
enum { BLOCK_BYTES = 32 << 20 };

struct choose_work {
    float *q, *scores, *keys; /* of a tile; keys: PAGE_TOKENS * head_dim */
};

static size_t work_bytes(const struct choose_job *job) {
    const uint32_t rows = tile_tokens(job->group) * job->group, dim = job->args->kv->head_dim;
    return sizeof(float) * ((size_t)rows * (dim + PAGE_TOKENS) + (size_t)PAGE_TOKENS * dim);
}

static struct choose_work work_layout(const struct choose_job *job, uint32_t worker) {
    const uint32_t rows = tile_tokens(job->group) * job->group, dim = job->args->kv->head_dim;
    struct choose_work w = {.q = scratch_of(job->cpu, worker)};
    w.scores = w.q + (size_t)rows * dim;
    w.keys = w.scores + (size_t)rows * PAGE_TOKENS;
    return w;
}

static struct tile tile_of(const struct choose_job *job, uint32_t row, uint32_t kv_head) {
    const struct kv_view *view = &job->seq->layers[job->args->layer];
    const uint32_t first_visible = view->n_slots - job->seq->n_rows + row + 1;
    return tile_make(job->cpu, job->args, job->seq, kv_head, first_visible,
                     min_u32(tile_tokens(job->group), job->seq->n_rows - row));
}

/* Raises the largest weights of a tile's tokens to those of one KV head's queries. */
static void add_head(const struct choose_job *job, const struct tile *t, uint32_t row,
                     uint32_t page, const struct choose_work *w, float *largest) {
    const float *softmax = job->cpu->scores.softmax.data;
    tile_load_queries(job->args, t, job->seq->first_row + row, w->q);
    tile_scores(t, w->scores, w->q, page, w->keys);
    for (uint32_t r = 0; r < t->n_rows; r++) {
        const size_t at = (size_t)(job->seq->first_row + row + r / t->group) * job->args->n_heads +
                          t->first_head + r % t->group;
        float p[PAGE_TOKENS] = {0};
        t->kernels->add_scores(p, 1.0f, w->scores + (size_t)r * PAGE_TOKENS, softmax + 2 * at, 1,
                               PAGE_TOKENS);
        keep_larger(largest + (size_t)(row + r / t->group) * PAGE_TOKENS, p);
    }
}

/* Returns the largest weights that the rows give a page of the block. */
static float *largest_of(const struct choose_job *job, uint32_t task) {
    return job->largest + (size_t)task * job->seq->n_rows * PAGE_TOKENS;
}

static void score_task(void *ctx, uint32_t task, uint32_t worker) {
    const struct choose_job *job = ctx;
    const struct choose_work w = work_layout(job, worker);
    float *largest = largest_of(job, task);
    memset(largest, 0, (size_t)job->seq->n_rows * PAGE_TOKENS * sizeof(*largest));
    for (uint32_t row = 0; row < job->seq->n_rows; row += tile_tokens(job->group))
        for (uint32_t head = 0; head < job->args->kv->n_kv_heads; head++) {
            const struct tile t = tile_of(job, row, head);
            add_head(job, &t, row, job->first_page + task, &w, largest);
        }
}

static void sum_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct choose_job *job = ctx;
    const float *largest = largest_of(job, task);
    float *token_scores = job->token_scores + (size_t)(job->first_page + task) * PAGE_TOKENS;
    memset(token_scores, 0, PAGE_TOKENS * sizeof(*token_scores));
    for (uint32_t row = 0; row < job->seq->n_rows; row++)
        for (uint32_t at = 0; at < PAGE_TOKENS; at++)
            token_scores[at] += largest[(size_t)row * PAGE_TOKENS + at];
}

/* Computes the token scores of the first n_pages pages, block after block. */
static int score_pages(struct choose_job *job, uint32_t n_pages, struct error *err) {
    struct cpu_buffer *buffer = &job->cpu->selections.token_scores;
    const size_t page_bytes = job->seq->n_rows * PAGE_TOKENS * sizeof(float);
    const uint32_t most = (uint32_t)max_u64(BLOCK_BYTES / page_bytes, 1);
    int rc = cpu_buffer_reserve(buffer, min_u32(most, n_pages) * page_bytes, err);
    job->largest = buffer->data;
    for (uint32_t page = 0, n; !rc && page < n_pages; page += n) {
        n = min_u32(most, n_pages - page);
        job->first_page = page;
        pool_run(job->cpu->pool, score_task, job, n);
        rc = cpu_group_largest(job->cpu, job->largest, n * page_bytes / sizeof(float), err);
        if (!rc) pool_run(job->cpu->pool, sum_task, job, n);
    }
    return rc;
}

static const struct layer_group *group_behind(const struct attn_sparse *sparse, uint32_t filter) {
    for (uint32_t i = 0; i < sparse->n_groups; i++)
        if (sparse->groups[i].filter == filter) return &sparse->groups[i];
    return NULL;
}

static int check(const struct sparse_index *index, const struct choose_job *job,
                 struct error *err) {
    const struct attn_sparse *sparse = job->seq ? job->seq->sparse : NULL;
    const uint32_t layer = job->args->layer;
    if (!sparse || !group_behind(sparse, layer))
        return error_set(err, ERR_INVALID, "cpu: layer %" PRIu32 " is no filter", layer);
    if (job->args->n_heads > index->max_heads || sparse->n_rows != job->seq->n_rows ||
        sparse->first_slot % PAGE_TOKENS != 0 ||
        sparse->first_slot + sparse->n_rows != job->seq->layers[layer].n_slots ||
        sparse->first_slot + sparse->n_rows > index->max_slots)
        return error_set(err, ERR_INVALID, "cpu: the rows are not a chunk that a filter can take");
    return 0;
}

/* Describes the index of the group, for every head. */
static void begin_index(struct sparse_index *index, const struct choose_job *job) {
    const struct attn_sparse *sparse = job->seq->sparse;
    index->valid = true;
    index->group = group_behind(sparse, job->args->layer);
    index->n_heads = job->args->n_heads;
    index->first_slot = sparse->first_slot;
    index->n_rows = sparse->n_rows;
    index->dense_from = sparse->dense_from;
    for (uint32_t head = 0; head < index->n_heads; head++)
        *sparse_head_of(index, head) =
            (struct cpu_sparse_head){.named = PATTERN_FILTERS, .kind = PATTERN_FILTERS};
}

int sparse_choose(struct backend *be, const struct attn_args *filter, struct error *err) {
    struct choose_job job = {.cpu = (struct cpu_backend *)be, .args = filter};
    struct sparse_index *index = &job.cpu->sparse;
    const double start = clock_seconds();
    job.seq = sparse_seq(job.cpu->step);
    job.group = filter->n_heads / filter->kv->n_kv_heads;
    int rc = check(index, &job, err);
    if (rc < 0) return rc;
    const uint32_t n_slots = job.seq->sparse->first_slot;
    rc = cpu_buffer_reserve(&job.cpu->partials, (size_t)n_slots * sizeof(float), err);
    if (!rc) rc = scratch_reserve(job.cpu, work_bytes(&job), err);
    if (rc < 0) return rc;
    job.token_scores = job.cpu->partials.data;
    begin_index(index, &job);
    if ((rc = score_pages(&job, n_slots / PAGE_TOKENS, err))) return rc;
    lines_select(job.token_scores, n_slots, min_u32(job.seq->sparse->patterns[0].p1, n_slots),
                 sparse_columns(index, 0));
    index->totals.index_s += clock_seconds() - start;
    return 0;
}
