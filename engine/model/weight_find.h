/* weight_find.h - the weight that a rule describes, in a model's files.
 *
 * A weight is a tensor, some rows of one, or a stack: a matrix for each expert.  Files have a stack
 * in one of two layouts, with or without other rows (weight_rule.whole) in each matrix:
 *
 *   experts.@.up_proj.weight   a tensor for each expert   [rows, cols]
 *   experts.up_proj            one tensor for all         [n_stacked, rows, cols]
 *
 * Where gate and up are one tensor, their rows follow each other, or take turns.  gpt-oss has them
 * so, and its experts that are not quantised are transposed, too (enum expert_layout).
 *
 * Falcon and GPT-NeoX have q, k and v as one tensor, and in it each KV head's queries beside its
 * key and its value.  Operations read q, k and v apart, so the rows of each are gathered.
 *
 *   in the file       q0 q1 k0 v0 | q2 q3 k1 v1     two queries in the group of a KV head
 *   for the decoder   q0 q1 q2 q3,  k0 k1,  v0 v1   each head_dim rows
 *
 * Output gates lie likewise, each head's beside its query.  In Qwen3-Next's recurrent layers all
 * products do, by k head: q, k, v and z in one tensor, b and a in another.
 *
 * Thread: any.  Memory: none; a weight that is found points into the files. */
#ifndef ENGINE_MODEL_WEIGHT_FIND_H
#define ENGINE_MODEL_WEIGHT_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct layer_shape;
struct model_config;
struct tensor_shape;
struct weight;
struct weight_rule;
struct weight_source;

struct weight_query {
    const struct model_config *config; /* of the whole model: what the files have */
    const struct weight_rule *rule;
    const struct layer_shape *shape; /* NULL: the rule is the model's, not a layer's */
    uint32_t layer;
    /* What the rank has (model_share.h): only its rows and columns are found.  NULL: all. */
    const struct model_config *rank;
};

/* Describes the weight, and checks all tensors that it lies in.  files NULL: only its shape, as
 * bf16.  out->data: where its first matrix begins, or its first group of rows.  It is NULL if only
 * weight_gather() makes its data.  ERR_NOT_FOUND: a tensor is missing.  ERR_INVALID:
 * one has another shape, or experts differ in their format.  ERR_UNSUPPORTED: rows or columns begin
 * inside a block of scales, or of packed elements. */
int weight_find(const struct weight_source *files, const struct weight_query *query,
                struct weight *out, struct error *err);
/* Returns the shape of the tensor that the weight's first matrix lies in, with other rows in it. */
struct tensor_shape weight_tensor_shape(const struct weight_query *query);
/* Returns true if the elements of a weight do not follow one another in the files.  They are in
 * several tensors then, or others are between them. */
bool weight_is_scattered(const struct weight_query *query);
/* Copies or converts the matrices of a weight that was found, and their scales, to memory
 * [weight_copy_bytes()], one behind the other.  w: the weight; it then has its data there. */
int weight_gather(const struct weight_source *files, const struct weight_query *query, void *memory,
                  struct weight *w, struct error *err);

#endif
