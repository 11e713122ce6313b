/* weight_find.c - see weight_find.h. */
#include "engine/model/weight_find.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/weight.h"
#include "engine/model/model.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"

enum { TILE_COLS = 64 }; /* of a matrix that is transposed: as many lines of a first-level cache */

/* What a query asks for.  Rows are what a tensor is cut into: a vector is a column of them. */
struct extent {
    uint32_t n_stacked, rows, cols;
    uint32_t whole, before;   /* rows of a matrix in the tensor, and those before the weight's */
    uint32_t n_groups;        /* of rows that lie together: of a KV head, or a pair; else 1 */
    bool is_vector, is_fused; /* is_fused: all of a stack is one tensor */
    bool is_transposed;       /* the tensor has its columns as rows */
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

static struct extent extent_of(const struct weight_query *q) {
    const struct weight_rule *rule = q->rule;
    const bool is_vector = rule->rows == SIDE_VECTOR;
    const enum weight_side rows = is_vector ? rule->cols : rule->rows,
                           cols = is_vector ? SIDE_VECTOR : rule->cols,
                           whole = rule->whole ? rule->whole : rows;
    return (struct extent){
        .n_stacked = rule->stacked ? weights_side(rule->stacked, q->config, q->shape) : 1,
        .rows = weights_side(rows, q->config, q->shape),
        .cols = weights_side(cols, q->config, q->shape),
        .whole = weights_side(whole, q->config, q->shape),
        .before = weights_side(rule->before, q->config, q->shape),
        .n_groups = n_groups_of(q, whole),
        .is_vector = is_vector,
        .is_fused = rule->stacked && !strchr(rule->name, '@'),
        .is_transposed =
            rule->stacked && !is_vector && q->config->expert_layout == EXPERTS_COLUMNS};
}

/* The tensor that a matrix lies in. */
struct site {
    char name[WEIGHTS_MAX_NAME];
    struct tensor_shape shape;
    struct weight tensor;
};

/* Returns the row of its tensor at which a group of matrix number i begins. */
static uint32_t first_row(const struct extent *e, uint32_t i, uint32_t group) {
    return (e->is_fused ? i * e->whole : 0) +
           (uint32_t)(((uint64_t)group * e->whole + e->before) / e->n_groups);
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

/* Makes *out a view of a group of matrix number i, which lies in the site. */
static int view_rows(const struct site *site, const struct extent *e, uint32_t i, uint32_t group,
                     struct weight *out, struct error *err) {
    const uint32_t first = first_row(e, i, group);
    if (weight_rows(&site->tensor, first, e->rows / e->n_groups, out)) return 0;
    return error_set(err, ERR_UNSUPPORTED,
                     "tensor '%.160s': its row %" PRIu32 " is inside a block of scales", site->name,
                     first);
}

/* Finds matrix number i of a stack; *out has its first group. */
static int find_matrix(const struct weight_source *files, const struct weight_query *q,
                       const struct extent *e, uint32_t i, struct weight *out, struct error *err) {
    struct weight other;
    struct site site;
    int rc = find_site(files, q, e, i, &site, err);
    if (!rc && e->is_transposed) {
        *out = weight_plain(NULL, site.tensor.format.element, e->rows, e->cols);
        return 0;
    }
    if (!rc) rc = view_rows(&site, e, i, 0, out, err);
    for (uint32_t group = 1; group < e->n_groups && !rc; group++)
        rc = view_rows(&site, e, i, group, &other, err);
    return rc;
}

int weight_find(const struct weight_source *files, const struct weight_query *q, struct weight *out,
                struct error *err) {
    const struct extent e = extent_of(q);
    struct weight found = weight_plain(NULL, ELEMENT_BF16, e.rows, e.cols);
    for (uint32_t i = 0; files && i < e.n_stacked; i++) {
        struct weight matrix;
        const int rc = find_matrix(files, q, &e, i, &matrix, err);
        if (rc) return rc;
        if (i == 0) found = matrix;
        if (!weight_same_format(&matrix.format, &found.format))
            return error_set(err, ERR_INVALID,
                             "'%.160s' of layer %" PRIu32 ": the weights of expert %" PRIu32
                             " have another format than those of expert 0",
                             q->rule->name, q->layer, i);
    }
    *out = found;
    out->n_stacked = e.n_stacked;
    out->rows = e.rows;
    if (e.is_vector) out->rows = 1, out->cols = e.rows;
    return 0;
}

bool weight_is_scattered(const struct weight_query *q) {
    const struct extent e = extent_of(q);
    return e.n_groups > 1 || e.is_transposed ||
           (e.n_stacked > 1 && (!e.is_fused || e.whole != e.rows));
}

/* Copies rows with their scales. */
static void copy_rows(const struct weight *to, const struct weight *from) {
    const size_t n_scales = weight_scale_bytes(from);
    memcpy((void *)to->data, from->data, from->rows * weight_row_bytes(from));
    if (from->format.scale) memcpy((void *)to->scales, from->scales, n_scales);
    if (from->format.has_min) memcpy((void *)to->mins, from->mins, n_scales);
}

/* Copies or converts a group of matrix number i of a stack. */
static int gather_rows(const struct weight_source *files, const struct site *site,
                       const struct extent *e, uint32_t i, uint32_t group,
                       const struct weight *to_all, struct error *err) {
    const uint32_t n = e->rows / e->n_groups;
    struct weight from, to;
    const int rc = view_rows(site, e, i, group, &from, err);
    if (rc) return rc;
    if (!weight_rows(to_all, group * n, n, &to))
        return error_set(err, ERR_UNSUPPORTED,
                         "tensor '%.160s': the rows of a KV head end inside a block of scales",
                         site->name);
    if (!from.data)
        return files->ops->read(files, site->name, &site->shape, first_row(e, i, group), &to, err);
    copy_rows(&to, &from);
    return 0;
}

/* Copies columns first to end - 1 of matrix number i, which are rows of the tensor. */
static void gather_columns(const struct site *site, const struct extent *e, uint32_t i,
                           uint32_t first, uint32_t end, const struct weight *to) {
    const size_t size = element_bits(to->format.element) / 8;
    const uint32_t n = e->rows / e->n_groups;
    for (uint32_t r = 0; r < e->rows; r++) {
        const char *from = weight_row_at(&site->tensor, i * e->cols);
        char *out = (char *)weight_row_at(to, r);
        from += (first_row(e, 0, r / n) + r % n) * size;
        for (uint32_t c = first; c < end; c++)
            memcpy(out + c * size, from + (size_t)c * e->whole * size, size);
    }
}

static int gather_matrix(const struct weight_source *files, const struct weight_query *q,
                         const struct extent *e, uint32_t i, const struct weight *stack,
                         struct error *err) {
    struct weight to = weight_matrix(stack, i);
    struct site site;
    int rc = find_site(files, q, e, i, &site, err);
    if (e->is_vector) to.rows = to.cols, to.cols = 1;
    for (uint32_t c = 0; !rc && e->is_transposed && c < e->cols; c += TILE_COLS)
        gather_columns(&site, e, i, c, min_u32(c + TILE_COLS, e->cols), &to);
    for (uint32_t group = 0; !rc && !e->is_transposed && group < e->n_groups; group++)
        rc = gather_rows(files, &site, e, i, group, &to, err);
    return rc;
}

int weight_gather(const struct weight_source *files, const struct weight_query *q, void *memory,
                  struct weight *w, struct error *err) {
    const struct extent e = extent_of(q);
    const struct weight stack = weight_copy_at(w, memory);
    int rc = 0;
    for (uint32_t i = 0; i < e.n_stacked && !rc; i++)
        rc = gather_matrix(files, q, &e, i, &stack, err);
    if (!rc) *w = stack;
    return rc;
}
