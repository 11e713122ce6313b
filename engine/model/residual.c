/* residual.c - see residual.h. */
#include "engine/model/residual.h"

#include <stdbool.h>

#include "engine/model/decoder_internal.h"

int residual_norm(struct decoder *d, const void *x, uint32_t n_rows, const struct weight *weight,
                  const struct weight *bias, struct residual_input *out, struct error *err) {
    const struct model_config *c = &d->model->config;
    const struct layernorm_args args = {.x = x,
                                        .weight = weight,
                                        .bias = weight_if_present(bias),
                                        .out = d->normed,
                                        .n_rows = n_rows,
                                        .dim = c->dim,
                                        .eps = c->norm_eps};
    *out = (struct residual_input){.x = x};
    if (!weight_if_present(weight)) return 0;
    out->rms = (struct rmsnorm_input){weight, c->norm_eps, d->normed};
    out->x = c->layer_norm ? d->normed : x;
    out->norm = c->layer_norm ? NULL : &out->rms;
    return c->layer_norm ? d->be->ops->layernorm(d->be, &args, err) : 0;
}

int residual_norm_now(struct decoder *d, struct residual_input *input, uint32_t n_rows,
                      struct error *err) {
    const struct linear_args product = {
        .x = input->x, .norm = input->norm, .n_rows = n_rows, .n_in = d->model->config.dim};
    if (!input->norm) return 0;
    const struct rmsnorm_args norm = linear_norm(&product);
    input->x = norm.out;
    input->norm = NULL;
    return d->be->ops->rmsnorm(d->be, &norm, err);
}

int residual_add(struct decoder *d, const void *in, const struct weight *w,
                 const struct weight *bias, const struct weight *post_norm, void *x,
                 uint32_t n_rows, struct error *err) {
    const bool normed = d->model->config.post_norms;
    const struct linear_args args = {.x = in,
                                     .n_rows = n_rows,
                                     .n_in = w->cols,
                                     .n_parts = 1,
                                     .accumulate = !normed,
                                     .parts = {{.w = w,
                                                .bias = weight_if_present(bias),
                                                .y = normed ? d->normed : x,
                                                .y_stride = w->rows}}};
    const struct rmsnorm_args norm = {.x = d->normed,
                                      .weight = post_norm,
                                      .out = x,
                                      .n_rows = n_rows,
                                      .dim = w->rows,
                                      .x_stride = w->rows,
                                      .out_stride = w->rows,
                                      .eps = d->model->config.norm_eps,
                                      .n_heads = 1,
                                      .accumulate = true};
    const int rc = d->be->ops->linear(d->be, &args, err);
    return rc || !normed ? rc : d->be->ops->rmsnorm(d->be, &norm, err);
}
