/* sparse.c - see sparse.h: the index of one layer, a task for each query head.
 *
 * Half a tile begins at slot B, in group R.  It meets a diagonal o at the keys B + i - o, i < 64.
 * With c = o / 16 these lie in the groups R - c - 1 … R - c + 3.  This holds for all sixteen o of
 * the same c.  Hence a chosen diagonal marks distances c - 3 … c + 1, once for all halves.
 *
 * The published conversion works on the same 64 rows.  There the diagonal o visits the window of 64
 * keys from B - o on.  The window lies in these groups, so it is visited here, too.  The conversion
 * also shifts windows that would begin before key 0 to the right, and grows ranges by whole blocks.
 * No line asks for what only this covers, so halves here may leave it out. */
#include "engine/cpu/sparse.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/cpu/sparse_lines.h"
#include "engine/device/backend.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

enum {
    FIRST_GROUPS = (SPARSE_MIN_COLUMNS + SPARSE_GROUP - 1) / SPARSE_GROUP,
    PAGE_GROUPS = PAGE_TOKENS / SPARSE_GROUP,
    TILE_PAGES = SPARSE_TILE / PAGE_TOKENS,
    TILE_GROUPS = SPARSE_TILE / SPARSE_GROUP,
    HALF_GROUPS = SPARSE_HALF / SPARSE_GROUP
};

/* Returns how many u64s a head's distances take.  A distance beyond the sequence's start can be
 * marked, too. */
static size_t distance_words_of(uint32_t n_slots) {
    return ((size_t)n_slots / SPARSE_GROUP + 2) / 64 + 1;
}

int sparse_reserve(struct cpu_backend *cpu, const struct step_limits *limits, struct error *err) {
    struct sparse_index *index = &cpu->sparse;
    const struct sparse_limits largest =
        limits->sparse ? *limits->sparse : (struct sparse_limits){0};
    const uint32_t n_heads = limits->n_heads, n_pages = kv_n_pages(largest.max_slots);
    index->valid = false;
    index->max_rows = largest.max_rows;
    index->max_slots = largest.max_slots;
    index->max_heads = n_heads;
    if (index->max_rows == 0) return 0;
    index->distance_words = distance_words_of(index->max_slots);
    index->column_words = n_pages;
    index->block_words = div_up(n_pages, 64);
    const size_t n_tiles = div_up(index->max_rows, SPARSE_TILE);
    const struct {
        struct cpu_buffer *buffer;
        size_t bytes;
    } wanted[] = {{&index->heads, n_heads * sizeof(struct cpu_sparse_head)},
                  {&index->distances, n_heads * index->distance_words * sizeof(uint64_t)},
                  {&index->columns, n_heads * index->column_words * sizeof(uint64_t)},
                  {&index->blocks, n_heads * n_tiles * index->block_words * sizeof(uint64_t)}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        int rc = cpu_buffer_reserve(wanted[i].buffer, wanted[i].bytes, err);
        if (rc < 0) return rc;
    }
    return scratch_reserve(cpu, lines_workspace_bytes(index->max_slots, limits->head_dim), err);
}

void sparse_free(struct sparse_index *index) {
    buffer_free(&index->heads);
    buffer_free(&index->distances);
    buffer_free(&index->columns);
    buffer_free(&index->blocks);
}

const struct step_seq *sparse_seq(const struct step *step) {
    for (uint32_t i = step->n_decode; i < step->n_seqs; i++) {
        if (step->seqs[i].sparse) return &step->seqs[i];
    }
    return NULL;
}

const struct layer_group *sparse_group_of(const struct step *step, const struct attn_sparse *sparse,
                                          uint32_t layer) {
    for (uint32_t i = 0; i < sparse->n_groups; i++)
        if (group_has(&sparse->groups[i], step->windows, layer)) return &sparse->groups[i];
    return NULL;
}

bool sparse_is_indexed(const struct sparse_index *index, const struct step *step,
                       const struct step_seq *seq, uint32_t layer) {
    const struct attn_sparse *sparse = seq->sparse;
    const bool is_of_layer =
        sparse->groups ? index->group && index->group == sparse_group_of(step, sparse, layer)
                       : !index->group && index->layer == layer;
    return index->valid && is_of_layer && index->first_slot == sparse->first_slot &&
           index->n_rows == sparse->n_rows;
}

/* --- The slots that half a tile visits. --- */

/* Returns the bitmap of the first n of a page's slots. */
static uint64_t first_slots(uint32_t n) {
    return n < PAGE_TOKENS ? ((uint64_t)1 << n) - 1 : UINT64_MAX;
}

/* Returns the slot behind a tile's last row. */
static uint32_t tile_end(const struct sparse_index *index, uint32_t tile) {
    return index->first_slot + min_u32(index->n_rows, (tile + 1) * SPARSE_TILE);
}

static uint32_t half_end(const struct sparse_index *index, uint32_t half) {
    return index->first_slot + min_u32(index->n_rows, (half + 1) * SPARSE_HALF);
}

static bool bit(const uint64_t *bits, uint32_t i) {
    return bits[i / 64] >> i % 64 & 1;
}

static void set_bit(uint64_t *bits, uint32_t i) {
    bits[i / 64] |= (uint64_t)1 << i % 64;
}

static bool behind_dense_from(const struct sparse_index *index, uint32_t tile) {
    return tile_end(index, tile) > index->dense_from;
}

bool sparse_visits_all(const struct sparse_index *index, uint32_t head, uint32_t tile) {
    return sparse_head_of(index, head)->kind == PATTERN_DENSE || behind_dense_from(index, tile);
}

static uint64_t visited_of_page(const struct sparse_index *index, uint32_t head, uint32_t half,
                                uint32_t page) {
    const uint64_t *distances = sparse_distances(index, head);
    const uint32_t n_first = sparse_head_of(index, head)->n_first,
                   first_group = index->first_slot / SPARSE_GROUP + half * HALF_GROUPS,
                   tile_group = index->first_slot / SPARSE_GROUP + half / 2 * TILE_GROUPS;
    uint64_t visited = 0;
    for (uint32_t i = 0; i < PAGE_GROUPS; i++) {
        const uint32_t group = page * PAGE_GROUPS + i;
        if (group >= tile_group || group < n_first || bit(distances, first_group - group))
            visited |= first_slots(SPARSE_GROUP) << i * SPARSE_GROUP;
    }
    return page * PAGE_GROUPS < tile_group ? visited | sparse_columns(index, head)[page] : visited;
}

/* Returns the slots that a filter chose, which are all in the first head's columns. */
static uint64_t chosen_of_page(const struct sparse_index *index, uint32_t page) {
    return page < index->first_slot / PAGE_TOKENS ? sparse_columns(index, 0)[page] : UINT64_MAX;
}

uint32_t sparse_visit(const struct sparse_index *index, uint32_t head, uint32_t half,
                      uint64_t *pages) {
    const uint32_t tile = half / 2, end = half_end(index, half), n_pages = kv_n_pages(end);
    const bool all = sparse_visits_all(index, head, tile),
               blocks = sparse_head_of(index, head)->kind == PATTERN_BLOCK_SPARSE;
    for (uint32_t page = 0; page < n_pages; page++) {
        if (all) pages[page] = UINT64_MAX;
        else if (index->group) pages[page] = chosen_of_page(index, page);
        else if (blocks) pages[page] = bit(sparse_blocks(index, head, tile), page) ? UINT64_MAX : 0;
        else pages[page] = visited_of_page(index, head, half, page);
    }
    pages[n_pages - 1] &= first_slots(end - (n_pages - 1) * PAGE_TOKENS);
    return n_pages;
}

/* --- Building. --- */

/* Marks the distances at which any of the chosen diagonals can meet a group. */
static void mark_distances(const uint64_t *diagonals, uint32_t n_slots, uint64_t *distances) {
    for (uint32_t c = 0; c * SPARSE_GROUP < n_slots; c++) {
        const uint64_t chosen = diagonals[c / PAGE_GROUPS] >> c % PAGE_GROUPS * SPARSE_GROUP;
        if (!(chosen & first_slots(SPARSE_GROUP))) continue;
        for (uint32_t d = c < HALF_GROUPS ? 0 : c - (HALF_GROUPS - 1); d <= c + 1; d++)
            set_bit(distances, d);
    }
}

static void find_vertical_slash(struct sparse_index *index, const struct lines_task *task,
                                const struct attn_pattern *pattern) {
    sparse_head_of(index, task->head)->n_first = FIRST_GROUPS;
    lines_find(task, pattern, sparse_columns(index, task->head), task->workspace.bits);
    mark_distances(task->workspace.bits, task->n_slots, sparse_distances(index, task->head));
}

static void find_a_shape(struct sparse_index *index, const struct lines_task *task,
                         const struct attn_pattern *pattern) {
    const uint64_t furthest = ((uint64_t)pattern->p2 + SPARSE_GROUP - 2) / SPARSE_GROUP;
    uint64_t *distances = sparse_distances(index, task->head);
    const uint64_t n_first = div_up(pattern->p1, SPARSE_GROUP);
    sparse_head_of(index, task->head)->n_first = (uint32_t)n_first;
    for (uint32_t d = 0; d <= furthest && d <= task->n_slots / SPARSE_GROUP; d++)
        set_bit(distances, d);
}

static void find_blocks(struct sparse_index *index, const struct lines_task *task,
                        const struct attn_pattern *pattern) {
    const uint32_t n_tiles = sparse_tiles(index), first_page = index->first_slot / PAGE_TOKENS;
    lines_mean_keys(task, first_page + (n_tiles - 1) * TILE_PAGES);
    for (uint32_t tile = 0; tile < n_tiles; tile++) {
        const uint32_t own = first_page + tile * TILE_PAGES, first_row = tile * SPARSE_TILE;
        uint64_t *blocks = sparse_blocks(index, task->head, tile);
        memset(blocks, 0, index->block_words * sizeof(*blocks));
        lines_best_pages(task, first_row, min_u32(SPARSE_TILE, index->n_rows - first_row), own,
                         pattern->p1, blocks);
        set_bit(blocks, 0);
        for (uint32_t page = own; page < kv_n_pages(tile_end(index, tile)); page++)
            set_bit(blocks, page);
    }
}

/* Counts the visited and the causal pairs of row and slot in the tiles before dense_from. */
static void count_pairs(const struct sparse_index *index, uint32_t head, uint64_t *pages) {
    struct cpu_sparse_head *h = sparse_head_of(index, head);
    for (uint32_t half = 0; half * SPARSE_HALF < index->n_rows; half++) {
        if (behind_dense_from(index, half / 2)) return;
        const uint32_t first = index->first_slot + half * SPARSE_HALF;
        const uint64_t n_rows = half_end(index, half) - first, own = n_rows * (n_rows + 1) / 2;
        uint64_t n_before = 0;
        sparse_visit(index, head, half, pages);
        for (uint32_t page = 0; page < first / PAGE_TOKENS; page++)
            n_before += (uint64_t)__builtin_popcountll(pages[page]);
        h->visited += n_before * n_rows + own;
        h->causal += first * n_rows + own;
    }
}

struct index_job {
    struct cpu_backend *cpu;
    const struct sparse_index_args *args;
    const struct step_seq *seq;
};

static void index_task(void *ctx, uint32_t head, uint32_t worker) {
    const struct index_job *job = ctx;
    struct sparse_index *index = &job->cpu->sparse;
    const struct attn_sparse *sparse = job->seq->sparse;
    const struct attn_pattern *pattern =
        &sparse->patterns[(size_t)job->args->layer * job->args->n_heads + head];
    const uint32_t n_slots = sparse->first_slot + sparse->n_rows;
    const struct lines_task task = {
        .cpu = job->cpu,
        .args = job->args,
        .sparse = sparse,
        .view = &job->seq->layers[job->args->layer],
        .workspace =
            lines_workspace_layout(scratch_of(job->cpu, worker), n_slots, job->args->kv->head_dim),
        .head = head,
        .n_slots = n_slots};
    struct cpu_sparse_head *h = sparse_head_of(index, head);
    *h = (struct cpu_sparse_head){.named = pattern->kind, .kind = pattern->kind};
    memset(sparse_distances(index, head), 0, index->distance_words * sizeof(uint64_t));
    memset(sparse_columns(index, head), 0, index->column_words * sizeof(uint64_t));
    if (pattern->kind == PATTERN_VERTICAL_SLASH) find_vertical_slash(index, &task, pattern);
    else if (pattern->kind == PATTERN_A_SHAPE) find_a_shape(index, &task, pattern);
    else if (pattern->kind == PATTERN_BLOCK_SPARSE) find_blocks(index, &task, pattern);
    else return;
    count_pairs(index, head, task.workspace.bits);
    if ((double)h->visited > (double)sparse->dense_above * (double)h->causal)
        h->kind = PATTERN_DENSE;
}

static int check_request(const struct sparse_index *index, const struct sparse_index_args *args,
                         const struct step_seq *seq, struct error *err) {
    if (index->max_rows == 0)
        return error_set(err, ERR_UNSUPPORTED, "cpu: no memory was reserved for sparse prefill");
    if (!seq) return error_set(err, ERR_INVALID, "cpu: no sequence of the step is sparse");
    const struct attn_sparse *sparse = seq->sparse;
    const uint64_t n_slots = (uint64_t)sparse->first_slot + sparse->n_rows;
    if (sparse->n_rows == 0 || sparse->n_rows > index->max_rows || n_slots > index->max_slots ||
        args->n_heads > index->max_heads)
        return error_set(err, ERR_INVALID,
                         "cpu: rows [%" PRIu32 ", %" PRIu64 ") exceed the limits of sparse "
                         "prefill, %" PRIu32 " rows and %" PRIu32 " slots",
                         sparse->first_slot, n_slots, index->max_rows, index->max_slots);
    if (sparse->first_slot % PAGE_TOKENS != 0 || n_slots > seq->layers[args->layer].n_slots)
        return error_set(err, ERR_INVALID, "cpu: rows [%" PRIu32 ", %" PRIu64 ") cannot be indexed",
                         sparse->first_slot, n_slots);
    return 0;
}

static int index_layer(struct backend *be, const struct sparse_index_args *args,
                       struct error *err) {
    struct cpu_backend *cpu = (struct cpu_backend *)be;
    struct sparse_index *index = &cpu->sparse;
    struct index_job job = {cpu, args, sparse_seq(cpu->step)};
    const double start = clock_seconds();
    int rc = check_request(index, args, job.seq, err);
    if (rc < 0) return rc;
    const struct attn_sparse *sparse = job.seq->sparse;
    rc = scratch_reserve(
        cpu, lines_workspace_bytes(sparse->first_slot + sparse->n_rows, args->kv->head_dim), err);
    if (rc < 0) return rc;
    index->valid = true;
    index->group = NULL;
    index->layer = args->layer;
    index->n_heads = args->n_heads;
    index->first_slot = sparse->first_slot;
    index->n_rows = sparse->n_rows;
    index->dense_from = sparse->dense_from;
    pool_run(cpu->pool, index_task, &job, args->n_heads);
    for (uint32_t head = 0; head < args->n_heads; head++) {
        const struct cpu_sparse_head *h = sparse_head_of(index, head);
        index->totals.n_dense += h->kind != h->named;
        if (args->density) /* 1 where all tiles are dense anyway */
            args->density[head] = h->causal ? (float)h->visited / (float)h->causal : 1;
    }
    index->totals.index_s += clock_seconds() - start;
    return 0;
}

static int sparse_totals(struct backend *be, struct sparse_totals *out, struct error *err) {
    struct sparse_index *index = &((struct cpu_backend *)be)->sparse;
    (void)err;
    *out = index->totals;
    index->totals = (struct sparse_totals){0};
    return 0;
}

const struct sparse_ops cpu_sparse_ops = {
    .index = index_layer,
    .choose = sparse_choose,
    .totals = sparse_totals,
};

enum attn_pattern_kind cpu_sparse_kind(const struct backend *be, uint32_t head) {
    return sparse_head_of(&((const struct cpu_backend *)be)->sparse, head)->kind;
}

uint32_t cpu_sparse_visited(const struct backend *be, uint32_t head, uint32_t half,
                            uint32_t *slots) {
    const struct cpu_backend *cpu = (const struct cpu_backend *)be;
    uint64_t *pages = scratch_of(cpu, 0); /* index() has reserved enough */
    const uint32_t n_pages = sparse_visit(&cpu->sparse, head, half, pages);
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < n_pages * PAGE_TOKENS; slot++) {
        if (bit(pages, slot)) slots[n++] = slot;
    }
    return n;
}
