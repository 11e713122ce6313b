/* attention.c - see attention.h. */
#include "engine/device/attention.h"

#include "engine/device/backend.h"
#include "engine/device/pages.h"

size_t rope_row_stride(const struct rope_append_args *args) {
    const size_t n_heads = args->n_heads + 2 * (size_t)args->kv->n_kv_heads;
    return args->qkv_stride ? args->qkv_stride : n_heads * args->kv->head_dim;
}

int norm_heads(struct backend *be, const struct rope_append_args *args, uint32_t n_rows,
               struct error *err) {
    const uint32_t dim = args->kv->head_dim;
    const size_t stride = rope_row_stride(args);
    struct rmsnorm_args norm = {.x = args->qkv,
                                .weight = args->norms->q,
                                .out = args->qkv,
                                .n_rows = n_rows,
                                .dim = dim,
                                .x_stride = stride,
                                .out_stride = stride,
                                .eps = args->norms->eps,
                                .n_heads = args->n_heads};
    const int rc = be->ops->rmsnorm(be, &norm, err);
    norm.out = (char *)args->qkv + activation_bytes(be->act_dtype, (size_t)args->n_heads * dim);
    norm.x = norm.out;
    norm.weight = args->norms->k;
    norm.n_heads = args->kv->n_kv_heads;
    return rc || norm.n_heads == 0 ? rc : be->ops->rmsnorm(be, &norm, err);
}
