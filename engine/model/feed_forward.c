/* feed_forward.c - see feed_forward.h. */
#include "engine/model/feed_forward.h"

#include <stdbool.h>

#include "engine/base/sizes.h"
#include "engine/device/experts.h"
#include "engine/model/decoder_internal.h"
#include "engine/model/layer_inputs.h"
#include "engine/model/residual.h"

/* Computes the buffer ffn with gate and up of these matrices. */
static int run_matrices(struct decoder *d, const struct expert_matrices *m,
                        const struct residual_input *input, uint32_t n_rows, struct error *err) {
    const struct gated_args gated = {.x = input->x,
                                     .norm = input->norm,
                                     .n_rows = n_rows,
                                     .n_in = d->model->config.dim,
                                     .gate = m->gate,
                                     .up = m->up,
                                     .gate_bias = m->gate_bias,
                                     .up_bias = m->up_bias,
                                     .gate_up = d->gate_up,
                                     .out = d->ffn,
                                     .kind = d->model->config.gate,
                                     .next = m->down};
    return d->be->ops->gated(d->be, &gated, err);
}

static int run_gated(struct decoder *d, uint32_t layer, const struct residual_input *input,
                     uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct expert_matrices m = {.gate = &w->gate,
                                      .up = &w->up,
                                      .down = &w->down,
                                      .gate_bias = weight_if_present(&w->gate_bias),
                                      .up_bias = weight_if_present(&w->up_bias)};
    return run_matrices(d, &m, input, n_rows, err);
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

/* Routes the rows; x: act [n_rows, dim].  norm: rows are normalised first, and left there; or
 * NULL. */
static int route(struct decoder *d, uint32_t layer, const void *x, const struct rmsnorm_input *norm,
                 uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct model_config *c = &d->model->config;
    const struct route_args args = {.x = x,
                                    .norm = norm,
                                    .n_rows = n_rows,
                                    .n_used = c->layers[layer].n_used,
                                    .routing = &c->routing,
                                    .router = &w->router,
                                    .bias = weight_if_present(&w->router_bias),
                                    .choice_bias = weight_if_present(&w->choice_bias),
                                    .factors = weight_if_present(&w->factors),
                                    .shared_gate = weight_if_present(&w->shared_expert_gate),
                                    .workspace = d->experts_workspace,
                                    .experts = d->experts,
                                    .shares = d->shares};
    return d->be->ops->experts->route(d->be, &args, err);
}

/* Computes what the experts of rows that are routed give; x, out: act [n_rows, dim]. */
static int run_routed(struct decoder *d, uint32_t layer, const void *x, void *out, bool overwrites,
                      uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct model_config *c = &d->model->config;
    const struct experts_args args = {
        .x = x,
        .n_rows = n_rows,
        .n_used = c->layers[layer].n_used,
        .experts = d->experts,
        .shares = d->shares,
        .routed = {weight_if_present(&w->gate), &w->up, &w->down, weight_if_present(&w->gate_bias),
                   weight_if_present(&w->up_bias), weight_if_present(&w->down_bias)},
        .shared = {weight_if_present(&w->shared_gate), weight_if_present(&w->shared_up),
                   &w->shared_down, NULL, NULL, NULL},
        .gate = {c->gate, c->gate_most, c->gate_slope},
        .workspace = d->experts_workspace,
        .out = out,
        .overwrites = overwrites};
    return d->be->ops->experts->run(d->be, &args, err);
}

/* Adds what the rows' experts give to the residual stream.  The router normalises the input, which
 * the experts read, too. */
static int run_experts(struct decoder *d, uint32_t layer, void *x, uint32_t n_rows,
                       struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    struct residual_input input;
    int rc = residual_norm(d, x, n_rows, &w->ffn_norm, &w->ffn_norm_bias, &input, err);
    if (!rc) rc = route(d, layer, input.x, input.norm, n_rows, err);
    const void *normed = input.norm ? input.norm->normed : input.x;
    if (!rc) rc = run_routed(d, layer, normed, d->part ? d->part : x, d->part != NULL, n_rows, err);
    return rc || !d->part ? rc : residual_add_parts(d, x, n_rows, err);
}

/* Returns what the residual stream is multiplied by behind the layer; 0: it is not. */
static float scale_of(const struct decoder *d, uint32_t layer) {
    const float *scale = d->model->layers[layer].scale.data;
    return d->model->config.layer_scales ? *scale : 0;
}

/* Returns the same of the feed-forward part, behind which a layer may add what it makes of its
 * inputs. */
static float ffn_scale_of(const struct decoder *d, uint32_t layer) {
    return d->model->config.layer_inputs > 0 ? 0 : scale_of(d, layer);
}

/* Computes `branch`: the norm of what the dense part gives, the sum of what ranks have of it. */
static int run_dense(struct decoder *d, uint32_t layer, const void *x, uint32_t n_rows,
                     struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct expert_matrices m = {
        .gate = &w->dense_gate, .up = &w->dense_up, .down = &w->dense_down};
    const struct linear_args down = {
        .x = d->ffn,
        .n_rows = n_rows,
        .n_in = m.down->cols,
        .n_parts = 1,
        .parts = {{.w = m.down, .y = d->part ? d->part : d->normed, .y_stride = m.down->rows}}};
    struct residual_input input;
    int rc = residual_norm(d, x, n_rows, &w->ffn_norm, &w->ffn_norm_bias, &input, err);
    if (!rc) rc = run_matrices(d, &m, &input, n_rows, err);
    if (!rc) rc = d->be->ops->linear(d->be, &down, err);
    if (!rc && d->part) rc = residual_sum_parts(d, d->normed, n_rows, err);
    return rc ? rc
              : residual_norm_rows(d, d->normed, &w->dense_post_norm, d->branch, false, 0, n_rows,
                                   err);
}

/* Adds the norm of both parts' sum to the residual stream.  All parts read x. */
static int run_both(struct decoder *d, uint32_t layer, void *x, uint32_t n_rows,
                    struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct rmsnorm_input routed = {&w->router_norm, d->model->config.norm_eps, d->normed};
    int rc = run_dense(d, layer, x, n_rows, err);
    if (!rc) rc = route(d, layer, x, &routed, n_rows, err);
    if (!rc) rc = residual_norm_rows(d, x, &w->experts_norm, d->normed, false, 0, n_rows, err);
    if (!rc)
        rc = run_routed(d, layer, d->normed, d->part ? d->part : d->experts_out, true, n_rows, err);
    if (!rc && d->part) rc = residual_sum_parts(d, d->experts_out, n_rows, err);
    if (!rc)
        rc = residual_norm_rows(d, d->experts_out, &w->experts_post_norm, d->branch, true, 0,
                                n_rows, err);
    return rc ? rc
              : residual_norm_rows(d, d->branch, &w->ffn_post_norm, x, true, ffn_scale_of(d, layer),
                                   n_rows, err);
}

static const struct {
    /* Computes the buffer ffn from its input: act [n_rows, ffn_dim].  NULL: */
    int (*run_hidden)(struct decoder *d, uint32_t layer, const struct residual_input *input,
                      uint32_t n_rows, struct error *err);
    /* Adds the whole part to the residual stream. */
    int (*run_all)(struct decoder *d, uint32_t layer, void *x, uint32_t n_rows, struct error *err);
    uint32_t n_in_gate_up; /* matrices whose products lie in gate_up meanwhile */
    uint32_t n_in_ffn;     /* and in ffn */
    uint32_t n_matrices;   /* of ffn_dim x dim that a row is multiplied with, for each expert */
} kinds[] = {[FFN_GATED] = {run_gated, NULL, 2, 1, 3},
             [FFN_PLAIN] = {run_plain, NULL, 0, 1, 2},
             [FFN_EXPERTS] = {NULL, run_experts, 0, 0, 3},
             [FFN_PLAIN_EXPERTS] = {NULL, run_experts, 0, 0, 2},
             [FFN_BOTH] = {NULL, run_both, 2, 1, 3},
             [FFN_NONE] = {NULL, NULL, 0, 0, 0}};

struct ffn_widths feed_forward_widths(const struct model_config *c) {
    struct ffn_widths most = {0};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct layer_shape *shape = &c->layers[i];
        const uint32_t dim = shape->kind == FFN_BOTH ? shape->dense_dim : shape->ffn_dim;
        most.gate_up = max_u32(most.gate_up, kinds[shape->kind].n_in_gate_up * dim);
        most.ffn = max_u32(most.ffn, kinds[shape->kind].n_in_ffn * dim);
    }
    /* Where the inputs of layers are computed, and what a layer makes of its own. */
    most.gate_up = max_u32(most.gate_up, layer_inputs_width(c));
    most.ffn = max_u32(most.ffn, c->layer_inputs);
    return most;
}

bool feed_forward_has_both(const struct model_config *c) {
    uint32_t i = 0;
    while (i < c->n_layers && c->layers[i].kind != FFN_BOTH) i++;
    return i < c->n_layers;
}

struct experts_shape feed_forward_experts(const struct model_config *c, uint32_t n_rows) {
    struct experts_shape shape = {.n_rows = n_rows, .dim = c->dim};
    for (uint32_t i = 0; i < c->n_layers && shape.n_experts == 0; i++) {
        shape.n_experts = c->layers[i].n_experts;
        shape.n_used = c->layers[i].n_used;
        shape.ffn_dim = c->layers[i].ffn_dim;
        shape.shared_dim = c->layers[i].shared_dim;
    }
    return shape;
}

/* Returns the multiply-adds of a row in a layer, divided by the model's width. */
static double work_of(const struct layer_shape *shape) {
    const uint32_t n_matrices = kinds[shape->kind].n_matrices;
    if (shape->n_experts == 0) return (double)n_matrices * shape->ffn_dim;
    return n_matrices *
               ((double)shape->n_used * shape->ffn_dim + shape->shared_dim + shape->dense_dim) +
           shape->n_experts;
}

double feed_forward_work(const struct model_config *c) {
    double sum = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) sum += work_of(&c->layers[i]);
    return sum * c->dim / c->n_layers;
}

/* Reads x.  What a layer of experts gives is added to it at once; other layers leave
 * their result in ffn. */
static int run(struct decoder *d, uint32_t layer, void *x, uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const enum ffn_kind kind = d->model->config.layers[layer].kind;
    struct residual_input input;
    if (kinds[kind].run_all) return kinds[kind].run_all(d, layer, x, n_rows, err);
    if (!kinds[kind].run_hidden) return 0;
    const int rc = residual_norm(d, x, n_rows, &w->ffn_norm, &w->ffn_norm_bias, &input, err);
    return rc ? rc : kinds[kind].run_hidden(d, layer, &input, n_rows, err);
}

/* Multiplies what attention gives with its output gate, if the layer has one.  The gate is a
 * product of what attention read: x is the same still. */
static int gate_attention(struct decoder *d, uint32_t layer, void *attn_out, const void *x,
                          uint32_t n_rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct gate_args gate = {attn_out, d->gates, n_rows, w->output_gate.rows};
    struct residual_input input;
    if (!weight_if_present(&w->output_gate)) return 0;
    int rc = residual_norm(d, x, n_rows, &w->attn_norm, &w->attn_norm_bias, &input, err);
    const struct linear_args product = {
        .x = input.x,
        .norm = input.norm,
        .n_rows = n_rows,
        .n_in = d->model->config.dim,
        .n_parts = 1,
        .parts = {{.w = &w->output_gate, .y = d->gates, .y_stride = gate.dim}}};
    if (!rc) rc = d->be->ops->linear(d->be, &product, err);
    return rc ? rc : d->be->ops->gate(d->be, &gate, err);
}

/* Adds what attention gives, and the feed-forward part. */
static int run_halves(struct decoder *d, uint32_t layer, void *attn_out, void *x, uint32_t n_rows,
                      struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const bool parallel = d->model->config.parallel;
    const struct layer_shape *shape = &d->model->config.layers[layer];
    const bool has_down = kinds[shape->kind].run_hidden;
    const struct residual_term terms[] = {{attn_out, &w->o, &w->o_bias},
                                          {d->ffn, &w->down, &w->down_bias}};
    /* A parallel block reads x as attention did, before attention is added. */
    const bool at_once = parallel && has_down && !d->model->config.post_norms;
    int rc = gate_attention(d, layer, attn_out, x, n_rows, err);
    if (!rc && parallel) rc = run(d, layer, x, n_rows, err);
    if (!rc && shape->mixer != MIXER_NONE)
        rc = residual_add(d, terms, at_once ? 2 : 1, &w->attn_post_norm, 0, x, n_rows, err);
    if (!rc && !parallel) rc = run(d, layer, x, n_rows, err);
    if (rc || at_once || !has_down) return rc;
    return residual_add(d, &terms[1], 1, &w->ffn_post_norm, ffn_scale_of(d, layer), x, n_rows, err);
}

int feed_forward_run(struct decoder *d, uint32_t layer, void *attn_out, const void *inputs, void *x,
                     uint32_t n_rows, struct error *err) {
    const int rc = run_halves(d, layer, attn_out, x, n_rows, err);
    return rc ? rc : layer_inputs_add(d, layer, inputs, scale_of(d, layer), x, n_rows, err);
}
