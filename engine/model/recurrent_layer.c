/* recurrent_layer.c - see recurrent_layer.h. */
#include "engine/model/recurrent_layer.h"

#include "engine/base/sizes.h"
#include "engine/device/collective.h"
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
    return shape->mixer == MIXER_RECURRENT ? n_values(&c->recurrent)
                                           : c->n_heads * shape->kv.head_dim;
}

/* Computes up to three products of the layer's input, side by side in the rows of `out`, of weights
 * that the layer has. */
static int run_products(struct decoder *d, const struct residual_input *input, uint32_t n_rows,
                        const struct weight *const *weights, void *out, uint32_t width,
                        struct error *err) {
    struct linear_args args = {
        .x = input->x, .norm = input->norm, .n_rows = n_rows, .n_in = d->model->config.dim};
    for (uint32_t i = 0, at = 0; i < LINEAR_MAX_PARTS; i++) {
        if (!weight_if_present(weights[i])) continue;
        args.parts[args.n_parts++] =
            (struct linear_part){.w = weights[i], .y = act_at(d, out, at), .y_stride = width};
        at += weights[i]->rows;
    }
    return d->be->ops->linear(d->be, &args, err);
}

/* Returns a view of n elements of a plain vector. */
static struct weight elements_of(const struct weight *vector, uint32_t first, uint32_t n) {
    const enum element element = vector->format.element;
    return weight_plain((const char *)vector->data + element_bytes(element, first), element, 1, n);
}

/* Norms what Mamba-2 computes, each group by itself.  A group that is the only one is that of all
 * ranks. */
static int norm_groups(struct decoder *d, const struct layer_weights *w, uint32_t n_rows,
                       struct error *err) {
    const struct recurrent_shape *shape = &d->model->config.recurrent;
    const uint32_t n = n_values(shape), each = n / shape->n_k_heads;
    const bool is_shared = d->part && d->model->whole->recurrent.n_k_heads == 1;
    int rc = 0;
    for (uint32_t i = 0; i < shape->n_k_heads && !rc; i++) {
        const struct weight weight = elements_of(&w->mixer_norm, i * each, each);
        const struct rmsnorm_args norm = {.x = act_at(d, d->attn, i * each),
                                          .weight = &weight,
                                          .out = act_at(d, d->attn, i * each),
                                          .n_rows = n_rows,
                                          .dim = each,
                                          .x_stride = n,
                                          .out_stride = n,
                                          .eps = d->model->config.mixer_eps,
                                          .n_heads = 1};
        rc = is_shared ? d->be->ops->collective->rmsnorm(d->be, &norm, err)
                       : d->be->ops->rmsnorm(d->be, &norm, err);
    }
    return rc;
}

/* Normalises the input at once, because both calls of run_products() read it. */
int recurrent_layer_run(struct decoder *d, uint32_t layer, struct row_range rows,
                        struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct model_config *c = &d->model->config;
    const struct recurrent_shape *shape = &c->recurrent;
    const struct weight *const qkv[] = {&w->q, &w->k, &w->v}, *const zba[] = {&w->z, &w->b, &w->a};
    const uint32_t n_inputs = recurrent_n_inputs(shape), n_gates = recurrent_n_gates(shape);
    const struct recurrent_args args = {
        .qkv = rows.qkv,
        .qkv_stride = n_inputs,
        .z = d->gates,
        .b = act_at(d, d->gates, n_values(shape)),
        .a = act_at(d, d->gates, n_gates - shape->n_v_heads),
        .gates_stride = n_gates,
        .conv = &w->conv,
        .rates = &w->rates,
        .dt_bias = &w->dt_bias,
        .norm = &w->mixer_norm,
        .skip = &w->skip,
        .conv_biases = {weight_if_present(&w->q_bias), weight_if_present(&w->k_bias),
                        weight_if_present(&w->v_bias)},
        .eps = c->mixer_eps,
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
    if (!rc) rc = d->be->ops->recurrent->run(d->be, &args, err);
    return rc || shape->kind != RECURRENT_MAMBA ? rc : norm_groups(d, w, rows.n, err);
}
