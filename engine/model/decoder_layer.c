/* decoder_layer.c - see decoder_layer.h. */
#include "engine/model/decoder_layer.h"

#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/evict.h"
#include "engine/device/layer_group.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/model/feed_forward.h"
#include "engine/model/residual.h"
#include "engine/model/row_share.h"

/* Returns where the keys of the first row begin, and its values. */
static void *keys_at(const struct decoder *d, uint32_t layer, void *qkv) {
    const struct model_config *c = &d->model->config;
    return act_at(d, qkv, (size_t)c->n_heads * c->layers[layer].kv.head_dim);
}

static void *values_at(const struct decoder *d, uint32_t layer, void *qkv) {
    const struct kv_shape *kv = &d->model->config.layers[layer].kv;
    return act_at(d, keys_at(d, layer, qkv), (size_t)kv->n_heads * kv->head_dim);
}

/* Returns how many of q, k and v have a product of their own. */
static uint32_t n_products(const struct layer_weights *w) {
    return 1 + (weight_if_present(&w->k) != NULL) + (weight_if_present(&w->v) != NULL);
}

/* Computes the products of the rank's own rows. */
static int run_qkv(struct decoder *d, uint32_t layer, struct row_range rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct qkv_rows to = row_share_products(d, layer, rows);
    struct residual_input input;
    int rc = residual_norm(d, own_x(d, rows), rows.own.n, &w->attn_norm, &w->attn_norm_bias, &input,
                           err);
    const struct linear_args args = {
        .x = input.x,
        .norm = input.norm,
        .n_rows = rows.own.n,
        .n_in = d->model->config.dim,
        .n_parts = n_products(w),
        .parts = {
            {.w = &w->q, .bias = weight_if_present(&w->q_bias), .y = to.q, .y_stride = to.stride},
            {.w = &w->k, .bias = weight_if_present(&w->k_bias), .y = to.k, .y_stride = to.stride},
            {.w = &w->v, .bias = weight_if_present(&w->v_bias), .y = to.v, .y_stride = to.stride},
        }};
    return rc ? rc : d->be->ops->linear(d->be, &args, err);
}

/* Norms a vector of each of n_rows, which begins at x.  Ranks that share weights have a part of
 * it. */
static int norm_vector(struct decoder *d, void *x, size_t stride, const struct weight *weight,
                       uint32_t n_rows, struct error *err) {
    const struct rmsnorm_args norm = {.x = x,
                                      .weight = weight,
                                      .out = x,
                                      .n_rows = n_rows,
                                      .dim = weight->cols,
                                      .x_stride = stride,
                                      .out_stride = stride,
                                      .eps = d->model->config.norm_eps,
                                      .n_heads = 1};
    return d->part ? d->be->ops->collective->rmsnorm(d->be, &norm, err)
                   : d->be->ops->rmsnorm(d->be, &norm, err);
}

/* Norms the heads of v.  In a layer without v of its own it is made of the keys, which are as the
 * product left them. */
static int norm_v(struct decoder *d, uint32_t layer, struct row_range rows, struct error *err) {
    const struct layer_shape *shape = &d->model->config.layers[layer];
    void *v = values_at(d, layer, rows.qkv);
    const struct rmsnorm_args norm = {.x = shape->k_is_v ? keys_at(d, layer, rows.qkv) : v,
                                      .out = v,
                                      .n_rows = rows.n,
                                      .dim = shape->kv.head_dim,
                                      .x_stride = d->qkv_dim,
                                      .out_stride = d->qkv_dim,
                                      .eps = d->model->config.norm_eps,
                                      .n_heads = shape->kv.n_heads};
    if (!d->model->config.v_norm || shape->borrows_kv) return 0;
    return d->be->ops->rmsnorm(d->be, &norm, err);
}

/* Norms all heads of q as one vector, and all of k, where the model does. */
static int norm_whole(struct decoder *d, uint32_t layer, struct row_range rows, struct error *err) {
    const struct layer_weights *w = &d->model->layers[layer];
    const struct qkv_rows at = row_share_products(d, layer, rows);
    if (!d->model->config.whole_qk_norm) return 0;
    const int rc = norm_vector(d, at.q, at.stride, &w->q_norm, rows.own.n, err);
    return rc ? rc : norm_vector(d, at.k, at.stride, &w->k_norm, rows.own.n, err);
}

int decoder_layer_enter(struct decoder *d, uint32_t layer, struct row_range rows,
                        struct error *err) {
    const struct model_config *c = &d->model->config;
    const struct layer_weights *w = &d->model->layers[layer];
    const struct head_norms norms = {&w->q_norm, &w->k_norm, c->norm_eps};
    /* With no KV heads only q is normed and rotated. */
    struct kv_pool own = d->pools[layer];
    if (c->layers[layer].borrows_kv) own.n_kv_heads = 0;
    const struct rope_append_args rope = {.qkv = rows.qkv,
                                          .qkv_stride = d->qkv_dim,
                                          .kv = &own,
                                          .inv_freq = model_freqs(c, layer),
                                          .rope_scale = model_rope_scale(c, layer),
                                          .n_freqs = model_n_freqs(c, layer),
                                          .layer = c->layers[layer].number,
                                          .n_heads = c->n_heads,
                                          .rope = c->layers[layer].is_local,
                                          .query_beta = c->query_beta,
                                          .query_period = c->query_period,
                                          .norms = c->qk_norm ? &norms : NULL};
    int rc = run_qkv(d, layer, rows, err);
    if (!rc) rc = norm_whole(d, layer, rows, err);
    if (!rc) rc = row_share_to_heads(d, layer, rows, err);
    if (!rc) rc = norm_v(d, layer, rows, err);
    return rc ? rc : d->be->ops->rope_append(d->be, &rope, err);
}

bool decoder_layer_is_indexed(const struct decoder *d, uint32_t layer) {
    const uint32_t number = d->model->config.layers[layer].number;
    return d->sparse && !d->sparse->sparse->groups && step_window(&d->step, number) == 0;
}

/* Tells whether the step has a sparse prompt for which the layer is a filter. */
static bool chooses(const struct decoder *d, uint32_t layer) {
    const struct attn_sparse *sparse = d->sparse ? d->sparse->sparse : NULL;
    for (uint32_t i = 0; sparse && i < sparse->n_groups; i++)
        if (sparse->groups[i].filter == layer) return true;
    return false;
}

/* Lets a filter layer choose for the layers behind it, where a sparse prompt's filters do that. */
static int run_choose(struct decoder *d, const struct attn_args *attn, struct error *err) {
    return chooses(d, attn->layer) ? d->be->ops->sparse->choose(d->be, attn, err) : 0;
}

/* Returns the sinks of a layer's softmax, NULL if the model has none. */
static const struct weight *sinks_of(const struct decoder *d, uint32_t layer) {
    static const struct weight zeros = {0};
    switch (d->model->config.softmax) {
    case SOFTMAX_OFF_BY_ONE: return &zeros;
    case SOFTMAX_SINKS: return &d->model->layers[layer].sinks;
    case SOFTMAX_PLAIN: break;
    }
    return NULL;
}

int decoder_layer_index(struct decoder *d, uint32_t layer, const void *q, struct error *err) {
    const struct model_config *c = &d->model->config;
    const struct sparse_index_args args = {.q = q,
                                           .q_stride = d->qkv_dim,
                                           .kv = &d->pools[layer],
                                           .layer = c->layers[layer].number,
                                           .n_heads = c->n_heads,
                                           .scale = c->attn_scale,
                                           .softcap = c->attn_softcap,
                                           .slopes = c->slopes,
                                           .sinks = sinks_of(d, layer)};
    return d->be->ops->sparse->index(d->be, &args, err);
}

/* Returns the group that a layer of this number is sparse in. */
static uint32_t sparse_group(const struct decoder *d, uint32_t layer) {
    for (uint32_t i = 0; i < d->limits.n_groups; i++)
        if (group_has(&d->limits.groups[i], d->model->config.windows, layer)) return i;
    return NO_GROUP;
}

static struct attn_args attn_of(const struct decoder *d, uint32_t layer, const void *q) {
    const struct model_config *c = &d->model->config;
    return (struct attn_args){.q = q,
                              .q_stride = d->qkv_dim,
                              .out = d->attn,
                              .kv = &d->pools[layer],
                              .layer = c->layers[layer].number,
                              .n_heads = c->n_heads,
                              .scale = c->attn_scale,
                              .softcap = c->attn_softcap,
                              .sinks = sinks_of(d, layer),
                              .inv_freq = model_freqs(c, layer),
                              .rope_scale = model_rope_scale(c, layer),
                              .n_freqs = model_n_freqs(c, layer),
                              .rope = c->layers[layer].is_local,
                              .slopes = c->slopes,
                              .group = sparse_group(d, c->layers[layer].number)};
}

/* Returns the group whose filter the layer is, n_groups if it is no filter. */
static uint32_t group_index(const struct decoder *d, uint32_t layer) {
    uint32_t i = 0;
    while (i < d->limits.n_groups && d->limits.groups[i].filter != layer) i++;
    return i;
}

static struct select_args select_args_of(const struct decoder *d, const struct attn_args *attn,
                                         uint32_t index) {
    const struct layer_group *groups = d->limits.groups;
    return (struct select_args){
        .attn = *attn,
        .group = &groups[index],
        .group_index = index,
        .store = d->limits.store,
        .first_host_layer = groups_n_layers(groups, index, d->model->config.windows)};
}

static int run_select(struct decoder *d, const struct attn_args *attn, uint32_t index,
                      struct error *err) {
    const struct select_args args = select_args_of(d, attn, index);
    return d->be->ops->select->select(d->be, &args, err);
}

/* Keeps a filter layer's token scores of the last rows, where sequences select by these. */
static int run_observe(struct decoder *d, const struct attn_args *attn, struct error *err) {
    const uint32_t index = group_index(d, attn->layer);
    if (!(d->extras & STEP_OBSERVES) || index == d->limits.n_groups) return 0;
    const struct select_args args = select_args_of(d, attn, index);
    return d->be->ops->select->observe(d->be, &args, err);
}

/* Runs attention of the sequences that decode.  In a filter layer they select afterwards. */
static int run_attn_decode(struct decoder *d, struct attn_args attn, struct error *err) {
    const uint32_t index = group_index(d, attn.layer);
    const bool filters = index < d->limits.n_groups;
    attn.selects = d->extras & (STEP_SELECTS | STEP_OBSERVES) && filters;
    const int rc = d->be->ops->attn_decode(d->be, &attn, err);
    return rc || !(d->extras & STEP_SELECTS && filters) ? rc : run_select(d, &attn, index, err);
}

/* Runs attention of the prompts.  In a filter layer their rows may be observed, or choose. */
static int attend_prompts(struct decoder *d, struct attn_args attn, struct error *err) {
    const bool observes =
        d->extras & STEP_OBSERVES && group_index(d, attn.layer) < d->limits.n_groups;
    attn.selects = observes || chooses(d, attn.layer);
    return d->be->ops->attn_prefill(d->be, &attn, err);
}

/* Does the same, unless nothing reads it. */
static int run_attn_prefill(struct decoder *d, uint32_t layer, const struct attn_args *attn,
                            struct error *err) {
    const bool is_last = layer + 1 >= model_n_writing(&d->model->config);
    return is_last && !d->last_attends ? 0 : attend_prompts(d, *attn, err);
}

/* Returns true if tokens are evicted by their scores behind the layer.  Of layers that share keys
 * the last one says the scores, so that all of them see the same tokens. */
static bool evicts_lowest(const struct decoder *d, uint32_t layer) {
    return d->extras & STEP_EVICTS_LOWEST && d->model->config.layers[layer].is_last_reader;
}

int decoder_layer_evict_oldest(struct decoder *d, uint32_t first_layer, uint32_t n_layers,
                               struct error *err) {
    if (!(d->extras & STEP_EVICTS_OLDEST)) return 0;
    return d->be->ops->evict->oldest(d->be, d->kv, first_layer, n_layers, err);
}

int decoder_layer_attention(struct decoder *d, uint32_t layer, struct row_range rows,
                            struct error *err) {
    const struct attn_args attn = attn_of(d, layer, rows.qkv);
    int rc = decoder_layer_enter(d, layer, rows, err);
    if (!rc && decoder_layer_is_indexed(d, layer))
        rc = decoder_layer_index(
            d, layer, act_at(d, rows.qkv, (size_t)d->sparse->first_row * d->qkv_dim), err);
    if (rc) return rc;
    if ((rc = run_attn_decode(d, attn, err))) return rc;
    if ((rc = run_attn_prefill(d, layer, &attn, err))) return rc;
    if ((rc = run_observe(d, &attn, err))) return rc;
    if ((rc = run_choose(d, &attn, err))) return rc;
    if (!evicts_lowest(d, layer)) return 0;
    if ((rc = d->be->ops->evict->decode(d->be, &attn, err))) return rc;
    return d->be->ops->evict->chunk(d->be, &attn, err);
}

int decoder_layer_attend_slice(struct decoder *d, uint32_t layer, struct row_range rows,
                               struct error *err) {
    const struct attn_args attn = attn_of(d, layer, rows.qkv);
    int rc = attend_prompts(d, attn, err);
    if (!rc) rc = run_observe(d, &attn, err);
    if (!rc && evicts_lowest(d, layer)) rc = d->be->ops->evict->chunk(d->be, &attn, err);
    return rc ? rc : decoder_layer_evict_oldest(d, attn.layer, 1, err);
}
