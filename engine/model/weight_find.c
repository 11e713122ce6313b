/* weight_find.c - see weight_find.h. */
#include "engine/model/weight_find.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/weight.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/model_share.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"

enum { TILE_COLS = 64 }; /* of a matrix that is transposed: as many lines of a first-level cache */

/* What a query asks for.  Rows are what a tensor is cut into: a vector is a column of them. */
struct extent {
    uint32_t n_stacked, rows, cols;
    uint32_t n_own;         /* matrices of the stack that the rank has */
    uint32_t whole, before; /* rows of a matrix in the tensor, and those before the weight's */
    uint32_t n_groups;      /* of rows that lie together: of a KV head, or a pair; else 1 */
    struct side_part own_rows, own_cols; /* the rank's; else all */
    bool is_vector, is_fused;            /* is_fused: all of a stack is one tensor */
    bool is_transposed;                  /* the tensor has its columns as rows */
};

/* Returns the groups that the rows of a tensor of rows of several weights lie in. */
static uint32_t n_groups_of(const struct weight_query *q, enum weight_side whole) {
    const bool is_paired =
        q->rule->stacked && whole == SIDE_GATE_UP && q->config->expert_layout >= EXPERTS_PAIRED;
    if (q->config->qkv_by_group && whole == SIDE_QKV) return q->config->n_kv_heads;
    if (whole == SIDE_Q_GATE) return q->config->n_heads;
    if (whole == SIDE_CHANNELS_Z || whole == SIDE_B_A) return q->config->recurrent.n_k_heads;
    return is_paired ? weights_side(SIDE_FFN, q->config, q->shape) : 1;
}

/* Returns what the rank has of a side.  Of the vocabulary it has a part in the head only.  Where
 * ranks share rows, it has a part of nothing but what is one number for each head. */
static struct side_part own_part(const struct weight_query *q, enum weight_side side) {
    const uint32_t whole = weights_side(side, q->config, q->shape);
    if (!q->rank || (side != SIDE_HEADS && !model_shares_weights(q->rank)))
        return (struct side_part){0, whole};
    if (side == SIDE_VOCAB && !q->rule->is_table) return model_share_vocab(q->rank);
    const struct layer_shape *shape = q->shape ? &q->rank->layers[q->layer] : NULL;
    return model_share_of(q->rank, whole, weights_side(side, q->rank, shape));
}

/* Returns how many matrices of a stack the rank has. */
static uint32_t n_own_stacked(const struct weight_query *q) {
    const struct layer_shape *shape = q->rank && q->shape ? &q->rank->layers[q->layer] : q->shape;
    return q->rule->stacked ? weights_side(q->rule->stacked, q->rank ? q->rank : q->config, shape)
                            : 1;
}

/* Returns which matrix of the files' stack the rank's matrix number i is.  Of a convolution's
 * channels it has a part of those of q, of k, and of v, or of x, B and C.  Of other stacks it has
 * every matrix. */
static uint32_t stacked_at(const struct weight_query *q, uint32_t i) {
    static const enum weight_side of_delta[] = {SIDE_KEYS, SIDE_KEYS, SIDE_VALUES},
                                  of_mamba[] = {SIDE_VALUES, SIDE_KEYS, SIDE_KEYS};
    const enum weight_side *sides =
        q->config->recurrent.kind == RECURRENT_MAMBA ? of_mamba : of_delta;
    uint32_t before = 0;
    if (q->rule->stacked != SIDE_CHANNELS) return i;
    for (size_t k = 0; k < COUNT(of_delta); k++) {
        const struct side_part own = own_part(q, sides[k]);
        if (i < own.n) return before + own.first + i;
        i -= own.n;
        before += weights_side(sides[k], q->config, q->shape);
    }
    return before;
}

static struct extent extent_of(const struct weight_query *q) {
    const struct weight_rule *rule = q->rule;
    const bool is_vector = rule->rows == SIDE_VECTOR;
    const enum weight_side rows = is_vector ? rule->cols : rule->rows,
                           cols = is_vector ? SIDE_VECTOR : rule->cols,
                           whole = rule->whole ? rule->whole : rows;
    return (struct extent){
        .n_stacked = rule->stacked ? weights_side(rule->stacked, q->config, q->shape) : 1,
        .n_own = n_own_stacked(q),
        .rows = weights_side(rows, q->config, q->shape),
        .cols = weights_side(cols, q->config, q->shape),
        .own_rows = own_part(q, rows),
        .own_cols = own_part(q, cols),
        .whole = weights_side(whole, q->config, q->shape),
        .before = weights_side(rule->before, q->config, q->shape),
        .n_groups = n_groups_of(q, whole),
        .is_vector = is_vector,
        .is_fused = rule->stacked && !strchr(rule->name, '@'),
        .is_transposed =
            rule->stacked && !is_vector && q->config->expert_layout == EXPERTS_COLUMNS};
}

/* Returns true if the rank has only some of the columns. */
static bool cuts_columns(const struct extent *e) {
    return e->own_cols.n != e->cols;
}

/* The tensor that a matrix lies in. */
struct site {
    char name[WEIGHTS_MAX_NAME];
    struct tensor_shape shape;
    struct weight tensor;
};

/* Rows of a matrix that lie together in its tensor. */
struct run {
    uint32_t first, n;  /* rows of the weight */
    uint32_t in_tensor; /* where the first is */
};

/* Returns the run of matrix number i that begins at a row of the weight. */
static struct run run_at(const struct extent *e, uint32_t i, uint32_t row) {
    const uint32_t each = e->rows / e->n_groups, end = e->own_rows.first + e->own_rows.n;
    const uint64_t group = row / each, before = (group * e->whole + e->before) / e->n_groups;
    return (struct run){
        .first = row,
        .n = min_u32(end - row, each - row % each),
        .in_tensor = (e->is_fused ? i * e->whole : 0) + (uint32_t)before + row % each};
}

/* Returns the first run of matrix number i, and the one behind another.  n 0: there are no more. */
static struct run first_run(const struct extent *e, uint32_t i) {
    return run_at(e, i, e->own_rows.first);
}

static struct run next_run(const struct extent *e, uint32_t i, const struct run *run) {
    const uint32_t row = run->first + run->n;
    return row < e->own_rows.first + e->own_rows.n ? run_at(e, i, row) : (struct run){0};
}

/* Returns the shape of a tensor, with other rows in it. */
static struct tensor_shape shape_of(const struct extent *e) {
    struct tensor_shape shape = {0};
    if (e->is_fused) shape.dims[shape.n_dims++] = e->n_stacked;
    shape.dims[shape.n_dims++] = e->is_transposed ? e->cols : e->whole;
    if (!e->is_vector) shape.dims[shape.n_dims++] = e->is_transposed ? e->whole : e->cols;
    return shape;
}

struct tensor_shape weight_tensor_shape(const struct weight_query *q) {
    const struct extent e = extent_of(q);
    return shape_of(&e);
}

/* Finds the tensor of matrix number i of a stack. */
static int find_site(const struct weight_source *files, const struct weight_query *q,
                     const struct extent *e, uint32_t i, struct site *site, struct error *err) {
    site->shape = shape_of(e);
    weights_file_name(site->name, q->config, q->rule->name, q->layer, i);
    const int rc = files->ops->get(files, site->name, &site->shape, &site->tensor, err);
    if (!rc && e->is_vector) site->tensor.rows *= site->tensor.cols, site->tensor.cols = 1;
    if (rc || !e->is_transposed || weight_is_plain(&site->tensor.format)) return rc;
    return error_set(err, ERR_UNSUPPORTED,
                     "tensor '%.160s': transposed experts must be F32, F16 or BF16", site->name);
}

/* Makes *out a view of a run of rows, with all columns, in the site's tensor. */
static int view_rows(const struct site *site, const struct run *run, struct weight *out,
                     struct error *err) {
    if (weight_rows(&site->tensor, run->in_tensor, run->n, out)) return 0;
    return error_set(err, ERR_UNSUPPORTED,
                     "tensor '%.160s': its row %" PRIu32 " is inside a block of scales", site->name,
                     run->in_tensor);
}

/* Leaves a matrix only the rank's columns, which must be copied. */
static int cut_columns(const struct site *site, const struct extent *e, struct weight *matrix,
                       struct error *err) {
    if (!cuts_columns(e)) return 0;
    if (!weight_can_cut(matrix, e->own_cols.first, e->own_cols.n))
        return error_set(err, ERR_UNSUPPORTED,
                         "tensor '%.160s': --tensor-parallel-size: columns %" PRIu32 " to %" PRIu32
                         " begin or end inside a block of scales or elements",
                         site->name, e->own_cols.first, e->own_cols.first + e->own_cols.n - 1);
    matrix->cols = e->own_cols.n;
    matrix->data = matrix->scales = matrix->mins = NULL;
    return 0;
}

/* Finds matrix number i of a stack; *out has its first run. */
static int find_matrix(const struct weight_source *files, const struct weight_query *q,
                       const struct extent *e, uint32_t i, struct weight *out, struct error *err) {
    struct run run = first_run(e, i);
    struct weight other;
    struct site site;
    int rc = find_site(files, q, e, i, &site, err);
    if (!rc && e->is_transposed) {
        *out = weight_plain(NULL, site.tensor.format.element, e->own_rows.n, e->own_cols.n);
        return 0;
    }
    if (!rc) rc = view_rows(&site, &run, out, err);
    while (!rc && (run = next_run(e, i, &run)).n > 0) rc = view_rows(&site, &run, &other, err);
    return rc ? rc : cut_columns(&site, e, out, err);
}

int weight_find(const struct weight_source *files, const struct weight_query *q, struct weight *out,
                struct error *err) {
    const struct extent e = extent_of(q);
    struct weight found = weight_plain(NULL, ELEMENT_BF16, e.own_rows.n, e.own_cols.n);
    for (uint32_t i = 0; files && i < e.n_own; i++) {
        struct weight matrix;
        const int rc = find_matrix(files, q, &e, stacked_at(q, i), &matrix, err);
        if (rc) return rc;
        if (i == 0) found = matrix;
        if (!weight_same_format(&matrix.format, &found.format))
            return error_set(err, ERR_INVALID,
                             "'%.160s' of layer %" PRIu32 ": the weights of expert %" PRIu32
                             " have another format than those of expert 0",
                             q->rule->name, q->layer, i);
    }
    *out = found;
    out->n_stacked = e.n_own;
    out->rows = e.own_rows.n;
    if (e.is_vector) out->rows = 1, out->cols = e.own_rows.n;
    return 0;
}

bool weight_is_scattered(const struct weight_query *q) {
    const struct extent e = extent_of(q);
    return e.n_groups > 1 || e.is_transposed || cuts_columns(&e) || e.n_own != e.n_stacked ||
           (e.n_stacked > 1 && (!e.is_fused || e.whole != e.own_rows.n));
}

/* Copies rows with their scales. */
static void copy_rows(const struct weight *to, const struct weight *from) {
    const size_t n_scales = weight_scale_bytes(from);
    memcpy((void *)to->data, from->data, from->rows * weight_row_bytes(from));
    if (from->format.scale) memcpy((void *)to->scales, from->scales, n_scales);
    if (from->format.has_min) memcpy((void *)to->mins, from->mins, n_scales);
}

/* Copies the rank's columns of rows, of which only read() makes the data. */
static int read_columns(const struct weight_source *files, const struct site *site,
                        const struct extent *e, const struct run *run, const struct weight *from,
                        const struct weight *to, struct error *err) {
    void *memory = malloc(weight_copy_bytes(from));
    if (!memory) return error_set(err, ERR_NOMEM, "no memory to read a weight");
    const struct weight whole = weight_copy_at(from, memory);
    const int rc = files->ops->read(files, site->name, &site->shape, run->in_tensor, &whole, err);
    if (!rc) weight_copy_columns(&whole, e->own_cols.first, to);
    free(memory);
    return rc;
}

/* Copies or converts a run of rows to its place in `to_all`, the rank's matrix. */
static int gather_rows(const struct weight_source *files, const struct site *site,
                       const struct extent *e, const struct run *run, const struct weight *to_all,
                       struct error *err) {
    struct weight from, to;
    const int rc = view_rows(site, run, &from, err);
    if (rc) return rc;
    if (!weight_rows(to_all, run->first - e->own_rows.first, run->n, &to))
        return error_set(err, ERR_UNSUPPORTED,
                         "tensor '%.160s': the rows of a KV head end inside a block of scales",
                         site->name);
    if (!from.data && cuts_columns(e)) return read_columns(files, site, e, run, &from, &to, err);
    if (!from.data)
        return files->ops->read(files, site->name, &site->shape, run->in_tensor, &to, err);
    if (cuts_columns(e)) weight_copy_columns(&from, e->own_cols.first, &to);
    else copy_rows(&to, &from);
    return 0;
}

/* Copies columns first to end - 1 of matrix number i of the files' stack, which are rows of the
 * tensor. */
static void gather_columns(const struct site *site, const struct extent *e, uint32_t i,
                           uint32_t first, uint32_t end, const struct weight *to) {
    const size_t size = element_bits(to->format.element) / 8;
    for (uint32_t r = 0; r < to->rows; r++) {
        const size_t row = run_at(e, 0, e->own_rows.first + r).in_tensor;
        const char *from = weight_row_at(&site->tensor, i * e->cols + e->own_cols.first);
        char *out = (char *)weight_row_at(to, r);
        for (uint32_t c = first; c < end; c++)
            memcpy(out + c * size, from + ((size_t)c * e->whole + row) * size, size);
    }
}

static int gather_matrix(const struct weight_source *files, const struct weight_query *q,
                         const struct extent *e, uint32_t i, const struct weight *stack,
                         struct error *err) {
    struct weight to = weight_matrix(stack, i);
    const uint32_t number = stacked_at(q, i);
    struct site site;
    int rc = find_site(files, q, e, number, &site, err);
    if (e->is_vector) to.rows = to.cols, to.cols = 1;
    for (uint32_t c = 0; !rc && e->is_transposed && c < to.cols; c += TILE_COLS)
        gather_columns(&site, e, number, c, min_u32(c + TILE_COLS, to.cols), &to);
    for (struct run run = first_run(e, number); !rc && !e->is_transposed && run.n > 0;
         run = next_run(e, number, &run))
        rc = gather_rows(files, &site, e, &run, &to, err);
    return rc;
}

int weight_gather(const struct weight_source *files, const struct weight_query *q, void *memory,
                  struct weight *w, struct error *err) {
    const struct extent e = extent_of(q);
    const struct weight stack = weight_copy_at(w, memory);
    int rc = 0;
    for (uint32_t i = 0; i < e.n_own && !rc; i++) rc = gather_matrix(files, q, &e, i, &stack, err);
    if (!rc) *w = stack;
    return rc;
}
