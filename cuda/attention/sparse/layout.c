/* layout.c - where the index of a sparse prompt, and the data it is made from, lie in one block of
 * device memory:
 *
 *   the view's arrays | bitmap of diagonals, log-sum-exps | scratch: lines, then pages
 *
 * Thread: engine.  Memory: the caller's. */
#include "cuda/attention/sparse/sparse_index.h"

#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

enum { ALIGNMENT = 256 };

struct layout {
    char *base;
    size_t used;
};

/* Takes the next array; returns NULL while the block is only measured. */
static void *take(struct layout *l, size_t n, size_t size) {
    void *at = l->base ? l->base + l->used : NULL;
    l->used += round_up(n * size, ALIGNMENT);
    return at;
}

static void lay_out_view(struct layout *l, const struct sparse_shape *s, struct sparse_view *v) {
    const size_t n = s->n_heads;
    const uint32_t n_pages = kv_n_pages(s->n_slots), n_own = SPARSE_TILE / PAGE_TOKENS;
    v->n_heads = s->n_heads;
    v->n_rows = s->n_rows;
    v->n_slots = s->n_slots;
    v->n_tiles = v->max_tiles = div_up(s->n_rows, SPARSE_TILE);
    v->max_distances = s->n_slots / SPARSE_GROUP + SPARSE_TILE_GROUPS;
    v->mark_words = (v->max_distances + SPARSE_HALF_GROUPS) / 32 + 1;
    v->max_columns = v->column_stride = s->max_columns;
    v->max_blocks = s->max_pages + 1 + n_own; /* and page 0 */
    if (v->max_blocks > n_pages) v->max_blocks = n_pages;
    v->heads = take(l, n, sizeof(*v->heads));
    v->distances = take(l, n * v->max_distances, sizeof(*v->distances));
    v->marks = take(l, n * v->mark_words, sizeof(*v->marks));
    v->columns = take(l, n * v->max_columns, sizeof(*v->columns));
    v->column_count = take(l, n * v->max_tiles, sizeof(*v->column_count));
    v->blocks = take(l, n * v->max_tiles * v->max_blocks, sizeof(*v->blocks));
    v->block_count = take(l, n * v->max_tiles, sizeof(*v->block_count));
}

static void lay_out_lines(struct layout *l, struct sparse_build *b) {
    const size_t n = b->view.n_heads;
    b->columns = take(l, n * b->stride, sizeof(float));
    b->lower = take(l, n * b->stride, sizeof(float));
    b->upper = take(l, n * b->stride, sizeof(float));
    /* Sized for the most chunks: a shorter prompt may have more chunks than a longer one, but must
     * not need more memory. */
    b->row_parts = take(l, n * SPARSE_QUERIES * SPARSE_MAX_CHUNKS, sizeof(*b->row_parts));
}

/* Lays out the scratch of pages, for as many tiles at a time as fit into `room` bytes. */
static void lay_out_pages(struct layout *l, const struct sparse_shape *s, size_t room,
                          struct sparse_build *b) {
    const size_t n = s->n_heads, dim = s->head_dim, begin = l->used;
    const size_t batch_bytes = n * SPARSE_PAGE_BATCH * b->page_stride * sizeof(float);
    b->mean_queries = take(l, n * b->view.n_tiles * dim, sizeof(float));
    b->mean_keys = take(l, s->n_kv_heads * b->page_stride * dim, sizeof(float));
    const size_t means = l->used - begin, rest = room > means ? room - means : 0;
    b->batch = SPARSE_PAGE_BATCH * (rest > batch_bytes ? (uint32_t)(rest / batch_bytes) : 1);
    b->products = take(l, n * b->batch * b->page_stride, sizeof(float));
}

size_t sparse_lay_out(struct sparse_build *b, const struct sparse_shape *s, char *base) {
    struct layout l = {base, 0};
    const uint32_t n_pages = kv_n_pages(s->n_slots);
    lay_out_view(&l, s, &b->view);
    b->stride = round_up(s->n_slots, SPARSE_UNIT);
    b->page_stride = round_up(n_pages, SPARSE_UNIT);
    b->chunk_pages = div_up(n_pages, SPARSE_MAX_CHUNKS);
    if (b->chunk_pages < SPARSE_MIN_CHUNK) b->chunk_pages = SPARSE_MIN_CHUNK;
    b->n_chunks = div_up(n_pages, b->chunk_pages);
    b->visited = take(&l, s->n_heads, sizeof(*b->visited));
    b->near_diagonals = take(&l, s->n_heads, b->stride / SPARSE_UNIT);
    b->lse = take(&l, (size_t)s->n_heads * SPARSE_QUERIES, sizeof(float));
    struct layout lines = l, pages = l;
    lay_out_lines(&lines, b);
    lay_out_pages(&pages, s, lines.used - l.used, b);
    return lines.used > pages.used ? lines.used : pages.used;
}
