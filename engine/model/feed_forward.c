/* feed_forward.c - see feed_forward.h. */
#include "engine/model/feed_forward.h"

#include <stdbool.h>

#include "engine/model/decoder_internal.h"
#include "engine/model/residual.h"

/* Computes ffn from its input, by a gate and up, or by up and a function. */
static int run_gated(struct decoder *d, const struct layer_weights *w,
                     const struct residual_input *input, uint32_t n_rows, struct error *err) {
    const struct gated_args gated = {.x = input->x,
                                     .norm = input->norm,
                                     .n_rows = n_rows,
                                     .n_in = d->model->config.dim,
                                     .gate = &w->gate,
                                     .up = &w->up,
                                     .gate_bias = weight_if_present(&w->gate_bias),
                                     .up_bias = weight_if_present(&w->up_bias),
                                     .gate_up = d->gate_up,
                                     .out = d->ffn,
                                     .kind = d->model->config.gate};
    return d->be->ops->gated(d->be, &gated, err);
}

static int run_plain(struct decoder *d, const struct layer_weights *w,
                     const struct residual_input *input, uint32_t n_rows, struct error *err) {
    const struct model_config *c = &d->model->config;
    const struct linear_args up = {.x = input->x,
                                   .norm = input->norm,
                                   .n_rows = n_rows,
                                   .n_in = c->dim,
                                   .n_parts = 1,
                                   .parts = {{.w = &w->up,
                                              .bias = weight_if_present(&w->up_bias),
                                              .y = d->ffn,
                                              .y_stride = c->ffn_dim}}};
    const struct activate_args act = {
        .x = d->ffn, .n_rows = n_rows, .dim = c->ffn_dim, .kind = c->act};
    const int rc = d->be->ops->linear(d->be, &up, err);
    return rc ? rc : d->be->ops->activate(d->be, &act, err);
}

static int run_hidden(struct decoder *d, const struct layer_weights *w, const void *x,
                      uint32_t n_rows, struct error *err) {
    struct residual_input input;
    const int rc = residual_norm(d, x, n_rows, &w->ffn_norm, &w->ffn_norm_bias, &input, err);
    if (rc) return rc;
    return d->model->config.plain_ffn ? run_plain(d, w, &input, n_rows, err)
                                      : run_gated(d, w, &input, n_rows, err);
}

int feed_forward_run(struct decoder *d, uint32_t layer, const void *attn_out, void *x,
                     uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const bool parallel = d->model->config.parallel;
    /* A parallel block reads x as attention did, before attention is added. */
    int rc = parallel ? run_hidden(d, w, x, n_rows, err) : 0;
    if (!rc) rc = residual_add(d, attn_out, &w->o, &w->o_bias, &w->attn_post_norm, x, n_rows, err);
    if (!rc && !parallel) rc = run_hidden(d, w, x, n_rows, err);
    if (rc) return rc;
    return residual_add(d, d->ffn, &w->down, &w->down_bias, &w->ffn_post_norm, x, n_rows, err);
}
