/* recurrent_layer.c - see recurrent_layer.h. */
#include "engine/model/recurrent_layer.h"

#include "engine/base/sizes.h"
#include "engine/device/recurrent.h"
#include "engine/model/feed_forward.h"
#include "engine/model/residual.h"

static uint32_t n_values(const struct recurrent_shape *shape) {
    return shape->n_v_heads * shape->v_dim;
}

struct mixer_widths mixer_widths(const struct model_config *c) {
    const struct recurrent_shape *shape = &c->recurrent;
    const uint32_t q = model_q_width(c);
    const struct mixer_widths attention = {model_qkv_width(c), c->output_gate ? q : 0, q};
    if (shape->n_layers == 0) return attention;
    return (struct mixer_widths){max_u32(attention.qkv, recurrent_n_inputs(shape)),
                                 max_u32(attention.gates, recurrent_n_gates(shape)),
                                 max_u32(attention.attn, n_values(shape))};
}

uint32_t mixer_attn_width(const struct model_config *c, uint32_t layer) {
    const struct layer_shape *shape = &c->layers[layer];
    return shape->is_recurrent ? n_values(&c->recurrent) : c->n_heads * shape->kv.head_dim;
}

/* Computes up to three products of the layer's input, side by side in the rows of `out`. */
static int run_products(struct decoder *d, const struct residual_input *input, uint32_t n_rows,
                        const struct weight *const *weights, void *out, uint32_t width,
                        struct error *err) {
    struct linear_args args = {.x = input->x,
                               .norm = input->norm,
                               .n_rows = n_rows,
                               .n_in = d->model->config.dim,
                               .n_parts = LINEAR_MAX_PARTS};
    for (uint32_t i = 0, at = 0; i < LINEAR_MAX_PARTS; at += weights[i++]->rows)
        args.parts[i] =
            (struct linear_part){.w = weights[i], .y = act_at(d, out, at), .y_stride = width};
    return d->be->ops->linear(d->be, &args, err);
}

/* Normalises the input at once, because both calls of run_products() read it. */
int recurrent_layer_run(struct decoder *d, uint32_t layer, struct row_range rows,
                        struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct model_config *c = &d->model->config;
    const struct recurrent_shape *shape = &c->recurrent;
    const struct weight *const qkv[] = {&w->q, &w->k, &w->v}, *const zba[] = {&w->z, &w->b, &w->a};
    const uint32_t n_inputs = recurrent_n_inputs(shape), n_gates = recurrent_n_gates(shape);
    const struct recurrent_args args = {.qkv = rows.qkv,
                                        .qkv_stride = n_inputs,
                                        .z = d->gates,
                                        .b = act_at(d, d->gates, n_values(shape)),
                                        .a = act_at(d, d->gates, n_gates - shape->n_v_heads),
                                        .gates_stride = n_gates,
                                        .conv = &w->conv,
                                        .rates = &w->rates,
                                        .dt_bias = &w->dt_bias,
                                        .norm = &w->mixer_norm,
                                        .eps = c->norm_eps,
                                        .states = d->limits.states,
                                        .layer = c->layers[layer].number,
                                        .n_rows = rows.n,
                                        .workspace = d->recurrent_workspace,
                                        .out = d->attn};
    struct residual_input input;
    int rc = residual_norm(d, rows.x, rows.n, &w->attn_norm, &w->attn_norm_bias, &input, err);
    if (!rc) rc = residual_norm_now(d, &input, rows.n, err);
    if (!rc) rc = run_products(d, &input, rows.n, qkv, rows.qkv, n_inputs, err);
    if (!rc && n_gates > 0) rc = run_products(d, &input, rows.n, zba, d->gates, n_gates, err);
    return rc ? rc : d->be->ops->recurrent->run(d->be, &args, err);
}
