/* row_share.c - see row_share.h. */
#include "engine/model/row_share.h"

#include "engine/base/sizes.h"
#include "engine/device/collective.h"
#include "engine/device/exchange.h"
#include "engine/model/feed_forward.h"
#include "engine/model/recurrent_layer.h"

/* The most rows that are not split. */
enum { MOST_WHOLE = 64 };

static bool shares_rows(const struct model_config *c) {
    return c->n_ranks > 1 && c->ranks_share == RANKS_SHARE_ROWS;
}

uint32_t row_share_most(const struct model_config *c, uint32_t max_rows, uint32_t max_whole) {
    if (!shares_rows(c)) return max_u32(max_rows, max_whole);
    const uint32_t split = (uint32_t)div_up(max_rows, c->n_ranks);
    return max_u32(max_u32(split, max_whole), min_u32(max_rows, MOST_WHOLE));
}

uint32_t row_share_widening(const struct model_config *c) {
    return shares_rows(c) ? c->n_ranks : 1;
}

void row_share_begin(struct decoder *d, uint32_t n_rows, bool is_whole) {
    d->is_split = shares_rows(&d->model->config) && n_rows > MOST_WHOLE && !is_whole;
}

struct row_range row_share_range(const struct decoder *d, void *x, void *qkv, uint32_t n) {
    const struct rank_rows all = {0, n},
                           own = rank_rows_of(n, d->be->rank, max_u32(d->be->n_ranks, 1));
    return (struct row_range){.x = x, .qkv = qkv, .n = n, .own = d->is_split ? own : all};
}

/* Returns the elements of a row's q, and of its k, in the configuration. */
static uint32_t q_width(const struct model_config *c, uint32_t layer) {
    return c->n_heads * c->layers[layer].kv.head_dim;
}

static uint32_t k_width(const struct model_config *c, uint32_t layer) {
    return c->layers[layer].kv.n_heads * c->layers[layer].kv.head_dim;
}

struct qkv_rows row_share_products(const struct decoder *d, uint32_t layer, struct row_range rows) {
    const bool shares = shares_rows(&d->model->config);
    const struct model_config *c = shares ? d->model->whole : &d->model->config;
    void *q = shares ? d->products : rows.qkv, *k = act_at(d, q, q_width(c, layer));
    return (struct qkv_rows){q, k, act_at(d, k, k_width(c, layer)),
                             (size_t)d->qkv_dim * row_share_widening(&d->model->config)};
}

/* Returns columns of which each rank has `own` of `all` that begin in a row at all_at; the rank's
 * begin at own_at. */
static struct exchange_part part_of(const struct decoder *d, uint32_t all_at, uint32_t all,
                                    uint32_t own_at, uint32_t own) {
    const uint32_t n_ranks = d->be->n_ranks;
    return (struct exchange_part){.all = all_at,
                                  .own = own_at,
                                  .n = own,
                                  .n_sharing = (uint32_t)((uint64_t)own * n_ranks / all)};
}

int row_share_to_heads(struct decoder *d, uint32_t layer, struct row_range rows,
                       struct error *err) {
    const struct model_config *own = &d->model->config, *all = d->model->whole;
    const struct layer_weights *w = &d->model->layers[layer];
    const uint32_t q = q_width(all, layer), k = k_width(all, layer), own_q = q_width(own, layer),
                   own_k = k_width(own, layer);
    const bool has_k = weight_if_present(&w->k), has_v = weight_if_present(&w->v);
    const struct qkv_rows from = row_share_products(d, layer, rows);
    const struct exchange_args args = {
        .from = from.q,
        .to = rows.qkv,
        .from_stride = from.stride,
        .to_stride = d->qkv_dim,
        .n_rows = rows.n,
        .from_own_rows = d->is_split,
        .to_own_columns = true,
        .n_parts = 1 + has_k + has_v,
        .parts = {part_of(d, 0, q, 0, own_q), part_of(d, q, k, own_q, own_k),
                  part_of(d, q + k, k, own_q + own_k, own_k)}};
    return shares_rows(own) ? d->be->ops->collective->exchange(d->be, &args, err) : 0;
}

/* Makes rows of all heads from rows of the rank's. */
static int join_heads(struct decoder *d, uint32_t layer, const void *from, void *to, uint32_t n,
                      bool to_own_rows, struct error *err) {
    const uint32_t own = mixer_attn_width(&d->model->config, layer), all = own * d->be->n_ranks;
    const struct exchange_args args = {.from = from,
                                       .to = to,
                                       .from_stride = own,
                                       .to_stride = all,
                                       .n_rows = n,
                                       .to_own_rows = to_own_rows,
                                       .n_parts = 1,
                                       .parts = {part_of(d, 0, all, 0, own)}};
    return d->be->ops->collective->exchange(d->be, &args, err);
}

int row_share_to_rows(struct decoder *d, uint32_t layer, struct row_range rows, void **out,
                      struct error *err) {
    const bool shares = shares_rows(&d->model->config);
    *out = shares ? d->own_attn : d->attn;
    return shares ? join_heads(d, layer, d->attn, *out, rows.n, d->is_split, err) : 0;
}

int row_share_all_heads(struct decoder *d, uint32_t layer, const void *from, void *to, uint32_t n,
                        struct error *err) {
    return join_heads(d, layer, from, to, n, false, err);
}

int row_share_all_rows(struct decoder *d, void *x, uint32_t width, uint32_t n, struct error *err) {
    const uint32_t n_ranks = max_u32(d->be->n_ranks, 1);
    const struct rank_rows own = rank_rows_of(n, d->be->rank, n_ranks);
    const struct exchange_args args = {.from = act_at(d, x, (size_t)own.first * width),
                                       .to = x,
                                       .from_stride = width,
                                       .to_stride = width,
                                       .n_rows = n,
                                       .from_own_rows = true,
                                       .n_parts = 1,
                                       .parts = {{.n = width, .n_sharing = n_ranks}}};
    return d->is_split ? d->be->ops->collective->exchange(d->be, &args, err) : 0;
}

bool row_share_has_logits(const struct decoder *d) {
    return !shares_rows(&d->model->config) || d->be->rank == 0;
}
