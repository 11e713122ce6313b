/* residual.c - see residual.h. */
#include "engine/model/residual.h"

#include "engine/device/collective.h"
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

int residual_norm_rows(struct decoder *d, const void *x, const struct weight *weight, void *out,
                       bool accumulate, float sum_scale, uint32_t n_rows, struct error *err) {
    const struct model_config *c = &d->model->config;
    const struct rmsnorm_args norm = {.x = x,
                                      .weight = weight,
                                      .out = out,
                                      .n_rows = n_rows,
                                      .dim = c->dim,
                                      .x_stride = c->dim,
                                      .out_stride = c->dim,
                                      .eps = c->norm_eps,
                                      .n_heads = 1,
                                      .accumulate = accumulate,
                                      .sum_scale = sum_scale};
    return d->be->ops->rmsnorm(d->be, &norm, err);
}

/* Computes a term to out, or adds it there. */
static int run_term(struct decoder *d, const struct residual_term *term, void *out, bool accumulate,
                    uint32_t n_rows, struct error *err) {
    const struct linear_args args = {.x = term->in,
                                     .n_rows = n_rows,
                                     .n_in = term->w->cols,
                                     .n_parts = 1,
                                     .accumulate = accumulate,
                                     .parts = {{.w = term->w,
                                                .bias = weight_if_present(term->bias),
                                                .y = out,
                                                .y_stride = term->w->rows}}};
    return d->be->ops->linear(d->be, &args, err);
}

/* Makes x the sum of what all ranks have in `part`, or adds that. */
static int sum_parts(struct decoder *d, void *x, bool accumulate, uint32_t n_rows,
                     struct error *err) {
    const struct sum_args args = {.part = d->part,
                                  .x = x,
                                  .n = (size_t)n_rows * d->model->config.dim,
                                  .accumulate = accumulate};
    return d->be->ops->collective->sum(d->be, &args, err);
}

int residual_add_parts(struct decoder *d, void *x, uint32_t n_rows, struct error *err) {
    return sum_parts(d, x, true, n_rows, err);
}

int residual_sum_parts(struct decoder *d, void *x, uint32_t n_rows, struct error *err) {
    return sum_parts(d, x, false, n_rows, err);
}

int residual_add(struct decoder *d, const struct residual_term *terms, uint32_t n,
                 const struct weight *post_norm, float scale, void *x, uint32_t n_rows,
                 struct error *err) {
    const bool normed = d->model->config.post_norms;
    void *const to = normed ? d->normed : x, *const out = d->part ? d->part : to;
    int rc = 0;
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = run_term(d, &terms[i], out, i > 0 || out == x, n_rows, err);
    if (!rc && d->part) rc = sum_parts(d, to, !normed, n_rows, err);
    if (rc || !normed) return rc;
    return residual_norm_rows(d, d->normed, post_norm, x, true, scale, n_rows, err);
}
