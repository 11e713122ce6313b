/* layer_inputs.c - see layer_inputs.h. */
#include "engine/model/layer_inputs.h"

#include <math.h>

#include "engine/device/backend.h"
#include "engine/model/residual.h"

uint32_t layer_inputs_width(const struct model_config *c) {
    return c->n_layers * c->layer_inputs;
}

/* Returns the inputs of the first of the rank's own rows. */
static void *own_inputs(const struct decoder *d, struct row_range rows) {
    return act_at(d, d->inputs, (size_t)rows.own.first * layer_inputs_width(&d->model->config));
}

const void *layer_inputs_of(const struct decoder *d, struct row_range rows) {
    return d->model->config.layer_inputs > 0 ? own_inputs(d, rows) : NULL;
}

int layer_inputs_make(struct decoder *d, struct row_range rows, struct error *err) {
    const struct model *m = d->model;
    const struct model_config *c = &m->config;
    const uint32_t width = layer_inputs_width(c);
    const struct embed_args embed = {
        .table = &m->input_embedding, .out = d->inputs, .scale = sqrtf((float)c->layer_inputs)};
    const struct linear_args product = {
        .x = own_x(d, rows),
        .n_rows = rows.own.n,
        .n_in = c->dim,
        .n_parts = 1,
        .parts = {{.w = &m->input_projection, .y = d->gate_up, .y_stride = width}}};
    /* The model divides the product by the root of its width: for the norm a larger eps. */
    const struct rmsnorm_args norm = {.x = d->gate_up,
                                      .weight = &m->input_norm,
                                      .out = own_inputs(d, rows),
                                      .n_rows = rows.own.n,
                                      .dim = c->layer_inputs,
                                      .x_stride = width,
                                      .out_stride = width,
                                      .eps = c->norm_eps * (float)c->dim,
                                      .n_heads = c->n_layers,
                                      .accumulate = true,
                                      .sum_scale = sqrtf(0.5f)};
    if (width == 0) return 0;
    int rc = d->be->ops->embed(d->be, &embed, err);
    if (!rc) rc = d->be->ops->linear(d->be, &product, err);
    return rc ? rc : d->be->ops->rmsnorm(d->be, &norm, err);
}

/* Returns the layer's part of the rows' inputs for gated(), as an up_bias with a row for each
 * row. */
static struct weight rows_as_weight(const struct decoder *d, const void *inputs, uint32_t layer,
                                    uint32_t n_rows) {
    const struct model_config *c = &d->model->config;
    const enum element element = d->be->act_dtype == DTYPE_F32 ? ELEMENT_F32 : ELEMENT_BF16;
    return weight_plain(act_at(d, (void *)inputs, (size_t)layer * c->layer_inputs), element, n_rows,
                        layer_inputs_width(c));
}

int layer_inputs_add(struct decoder *d, uint32_t layer, const void *inputs, float scale, void *x,
                     uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct model_config *c = &d->model->config;
    const uint32_t dim = c->layer_inputs;
    const struct weight own = rows_as_weight(d, inputs, layer, n_rows);
    const struct gated_args gated = {.x = x,
                                     .n_rows = n_rows,
                                     .n_in = c->dim,
                                     .gate = &w->input_gate,
                                     .up_bias = &own,
                                     .gate_up = d->gate_up,
                                     .out = d->ffn,
                                     .kind = c->gate};
    const struct linear_args projection = {
        .x = d->ffn,
        .n_rows = n_rows,
        .n_in = dim,
        .n_parts = 1,
        .parts = {{.w = &w->input_projection, .y = d->normed, .y_stride = c->dim}}};
    if (dim == 0) return 0;
    int rc = d->be->ops->gated(d->be, &gated, err);
    if (!rc) rc = d->be->ops->linear(d->be, &projection, err);
    if (rc) return rc;
    return residual_norm_rows(d, d->normed, &w->input_post_norm, x, true, scale, n_rows, err);
}
