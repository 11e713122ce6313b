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

/* What a query asks for.  Rows are what a tensor is cut into: a vector is a column of them. */
struct extent {
    uint32_t n_stacked, rows, cols;
    uint32_t whole, before;   /* rows of a matrix in the tensor, and those before the weight's */
    uint32_t n_groups;        /* of KV heads, if its rows lie by group; else 1 */
    bool is_vector, is_fused; /* is_fused: all of a stack is one tensor */
};

static struct extent extent_of(const struct weight_query *q) {
    const struct weight_rule *rule = q->rule;
    const bool is_vector = rule->rows == SIDE_VECTOR;
    const enum weight_side rows = is_vector ? rule->cols : rule->rows,
                           cols = is_vector ? SIDE_VECTOR : rule->cols,
                           whole = rule->whole ? rule->whole : rows;
    const bool is_by_group = q->config->qkv_by_group && whole == SIDE_QKV;
    return (struct extent){
        .n_stacked = rule->stacked ? weights_side(rule->stacked, q->config, q->shape) : 1,
        .rows = weights_side(rows, q->config, q->shape),
        .cols = weights_side(cols, q->config, q->shape),
        .whole = weights_side(whole, q->config, q->shape),
        .before = weights_side(rule->before, q->config, q->shape),
        .n_groups = is_by_group ? q->config->n_kv_heads : 1,
        .is_vector = is_vector,
        .is_fused = rule->stacked && !strchr(rule->name, '@')};
}

/* Where rows of a matrix lie, all or those of a group: the tensor, and the first of them. */
struct site {
    char name[WEIGHTS_MAX_NAME];
    struct tensor_shape shape;
    uint32_t first;
};

/* Returns the site of a group of matrix number i. */
static struct site site_of(const struct weight_query *q, const struct extent *e, uint32_t i,
                           uint32_t group) {
    struct site site = {.first = (e->is_fused ? i * e->whole : 0) +
                                 (group * e->whole + e->before) / e->n_groups};
    struct tensor_shape *shape = &site.shape;
    if (e->is_fused) shape->dims[shape->n_dims++] = e->n_stacked;
    shape->dims[shape->n_dims++] = e->whole;
    if (!e->is_vector) shape->dims[shape->n_dims++] = e->cols;
    weights_file_name(site.name, q->config, q->rule->name, q->layer, i);
    return site;
}

/* Finds a group of matrix number i of a stack, as rows of its tensor. */
static int find_rows(const struct weight_source *files, const struct weight_query *q,
                     const struct extent *e, uint32_t i, uint32_t group, struct weight *out,
                     struct error *err) {
    const struct site site = site_of(q, e, i, group);
    struct weight tensor;
    const int rc = files->ops->get(files, site.name, &site.shape, &tensor, err);
    if (rc) return rc;
    if (e->is_vector) tensor.rows *= tensor.cols, tensor.cols = 1;
    if (weight_rows(&tensor, site.first, e->rows / e->n_groups, out)) return 0;
    return error_set(err, ERR_UNSUPPORTED,
                     "tensor '%.160s': its row %" PRIu32 " is inside a block of scales", site.name,
                     site.first);
}

/* Finds matrix number i of a stack; *out has its first group. */
static int find_matrix(const struct weight_source *files, const struct weight_query *q,
                       const struct extent *e, uint32_t i, struct weight *out, struct error *err) {
    struct weight other;
    int rc = find_rows(files, q, e, i, 0, out, err);
    for (uint32_t group = 1; group < e->n_groups && !rc; group++)
        rc = find_rows(files, q, e, i, group, &other, err);
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
    return e.n_groups > 1 || (e.n_stacked > 1 && (!e.is_fused || e.whole != e.rows));
}

/* Copies rows with their scales. */
static void copy_rows(const struct weight *to, const struct weight *from) {
    const size_t n_scales = weight_scale_bytes(from);
    memcpy((void *)to->data, from->data, from->rows * weight_row_bytes(from));
    if (from->format.scale) memcpy((void *)to->scales, from->scales, n_scales);
    if (from->format.has_min) memcpy((void *)to->mins, from->mins, n_scales);
}

/* Copies or converts a group of matrix number i of a stack. */
static int gather_rows(const struct weight_source *files, const struct weight_query *q,
                       const struct extent *e, uint32_t i, uint32_t group,
                       const struct weight *stack, struct error *err) {
    const struct site site = site_of(q, e, i, group);
    const uint32_t n = e->rows / e->n_groups;
    struct weight matrix = weight_matrix(stack, i), from, to;
    if (e->is_vector) matrix.rows = matrix.cols, matrix.cols = 1;
    const int rc = find_rows(files, q, e, i, group, &from, err);
    if (rc) return rc;
    if (!weight_rows(&matrix, group * n, n, &to))
        return error_set(err, ERR_UNSUPPORTED,
                         "tensor '%.160s': the rows of a KV head end inside a block of scales",
                         site.name);
    if (!from.data) return files->ops->read(files, site.name, &site.shape, site.first, &to, err);
    copy_rows(&to, &from);
    return 0;
}

int weight_gather(const struct weight_source *files, const struct weight_query *q, void *memory,
                  struct weight *w, struct error *err) {
    const struct extent e = extent_of(q);
    const struct weight stack = weight_copy_at(w, memory);
    int rc = 0;
    for (uint32_t i = 0; i < e.n_stacked && !rc; i++)
        for (uint32_t group = 0; group < e.n_groups && !rc; group++)
            rc = gather_rows(files, q, &e, i, group, &stack, err);
    if (!rc) *w = stack;
    return rc;
}
