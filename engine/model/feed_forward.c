/* feed_forward.c - see feed_forward.h. */
#include "engine/model/feed_forward.h"

#include <stdbool.h>

#include "engine/base/sizes.h"
#include "engine/model/decoder_internal.h"
#include "engine/model/residual.h"

static int run_gated(struct decoder *d, uint32_t layer, const struct residual_input *input,
                     uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
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
                                     .kind = d->model->config.gate,
                                     .next = &w->down};
    return d->be->ops->gated(d->be, &gated, err);
}

static int run_plain(struct decoder *d, uint32_t layer, const struct residual_input *input,
                     uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct model_config *c = &d->model->config;
    const uint32_t ffn_dim = c->layers[layer].ffn_dim;
    const struct linear_args up = {.x = input->x,
                                   .norm = input->norm,
                                   .n_rows = n_rows,
                                   .n_in = c->dim,
                                   .n_parts = 1,
                                   .parts = {{.w = &w->up,
                                              .bias = weight_if_present(&w->up_bias),
                                              .y = d->ffn,
                                              .y_stride = ffn_dim}}};
    const struct activate_args act = {
        .x = d->ffn, .n_rows = n_rows, .dim = ffn_dim, .kind = c->act};
    const int rc = d->be->ops->linear(d->be, &up, err);
    return rc ? rc : d->be->ops->activate(d->be, &act, err);
}

static const struct {
    /* Computes the buffer ffn from its input: act [n_rows, ffn_dim]. */
    int (*run_hidden)(struct decoder *d, uint32_t layer, const struct residual_input *input,
                      uint32_t n_rows, struct error *err);
    uint32_t n_in_gate_up; /* matrices whose products lie in gate_up meanwhile */
    uint32_t n_matrices;   /* of ffn_dim x dim that a row is multiplied with */
} kinds[] = {[FFN_GATED] = {run_gated, 2, 3}, [FFN_PLAIN] = {run_plain, 0, 2}};

struct ffn_widths feed_forward_widths(const struct model_config *c) {
    struct ffn_widths most = {0};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_shape *shape = &c->layers[i];
        most.gate_up = max_u32(most.gate_up, kinds[shape->kind].n_in_gate_up * shape->ffn_dim);
        most.ffn = max_u32(most.ffn, shape->ffn_dim);
    }
    return most;
}

double feed_forward_work(const struct model_config *c) {
    double sum = 0;
    for (uint32_t i = 0; i < c->n_layers; i++)
        sum += (double)kinds[c->layers[i].kind].n_matrices * c->layers[i].ffn_dim;
    return sum * c->dim / c->n_layers;
}

static int run_hidden(struct decoder *d, uint32_t layer, const void *x, uint32_t n_rows,
                      struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    struct residual_input input;
    const int rc = residual_norm(d, x, n_rows, &w->ffn_norm, &w->ffn_norm_bias, &input, err);
    if (rc) return rc;
    return kinds[d->model->config.layers[layer].kind].run_hidden(d, layer, &input, n_rows, err);
}

int feed_forward_run(struct decoder *d, uint32_t layer, const void *attn_out, void *x,
                     uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const bool parallel = d->model->config.parallel;
    /* A parallel block reads x as attention did, before attention is added. */
    int rc = parallel ? run_hidden(d, layer, x, n_rows, err) : 0;
    if (!rc) rc = residual_add(d, attn_out, &w->o, &w->o_bias, &w->attn_post_norm, x, n_rows, err);
    if (!rc && !parallel) rc = run_hidden(d, layer, x, n_rows, err);
    if (rc) return rc;
    return residual_add(d, d->ffn, &w->down, &w->down_bias, &w->ffn_post_norm, x, n_rows, err);
}
