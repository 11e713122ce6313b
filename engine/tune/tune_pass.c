/* tune_pass.c - see tune_pass.h. */
#include "engine/tune/tune_pass.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/dtype.h"
#include "engine/device/layer_group.h"
#include "engine/device/recurrent.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/memory_plan.h"
#include "engine/model/decoder.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/tune/tune_search.h"

enum { N_BUFFERS = 2 }; /* how many layers have pages at a time */

struct tune_pass {
    struct backend *be;
    struct model *model;
    struct decoder *decoder;
    struct kv_pool kv;
    struct state_pool states;      /* one state, of models with recurrent layers */
    uint32_t max_tokens, max_rows; /* max_rows: of a slice */
    uint32_t max_selected;
    uint32_t layer; /* entered last */
    uint32_t synthetic;

    /* The prompt, and a step of one of its slices. */
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint32_t *positions;   /* [max_tokens] */
    uint32_t *pages;       /* [N_BUFFERS][pages of max_tokens], then kv_select's state_pages */
    struct kv_view *views; /* [n_layers] */
    struct step_seq seq;
    struct step step;

    struct attn_pattern *patterns; /* [n_layers][n_heads]: attn_sparse's */
    void *out;                     /* device act [max_rows, n_heads * head_dim]: discarded */
    void *lse, *token_scores;      /* device f32 [max_tokens, n_heads] and [max_tokens] */
    float *dense_lse, *sparse_lse; /* host [max_tokens, n_heads] */
    double *sums;                  /* [n_heads] */
};

static uint32_t n_pages_of(const struct tune_pass *p) {
    return (uint32_t)(N_BUFFERS * kv_n_pages(p->max_tokens) +
                      div_up(p->max_selected, kv_state_slots(&p->kv)));
}

/* ---- create ---- */

static int load_model(struct tune_pass *p, const struct engine_config *config, struct error *err) {
    const struct model_source source = {.random = config->random_weights,
                                        .random_format = config->random_format,
                                        .unpacks_exactly = config->unpacks_exactly,
                                        .progress = config->load_progress,
                                        .ctx = config->load_ctx};
    return model_load(&p->model, config->model_dir, &source, p->be, err);
}

static int alloc_host(struct tune_pass *p, struct error *err) {
    const struct model_config *m = &p->model->config;
    const size_t n_lse = (size_t)p->max_tokens * m->n_heads;
    p->positions = calloc(p->max_tokens, sizeof(*p->positions));
    p->pages = calloc(n_pages_of(p), sizeof(*p->pages));
    p->views = calloc(m->n_attention, sizeof(*p->views));
    p->patterns = calloc((size_t)m->n_attention * m->n_heads, sizeof(*p->patterns));
    p->dense_lse = calloc(n_lse, sizeof(*p->dense_lse));
    p->sparse_lse = calloc(n_lse, sizeof(*p->sparse_lse));
    p->sums = calloc(m->n_heads, sizeof(*p->sums));
    if (!p->positions || !p->pages || !p->views || !p->patterns || !p->dense_lse ||
        !p->sparse_lse || !p->sums)
        return error_set(err, ERR_NOMEM, "tune: no memory for prompts of %" PRIu32 " tokens",
                         p->max_tokens);
    for (uint32_t i = 0; i < p->max_tokens; i++) p->positions[i] = i;
    for (uint32_t i = 0; i < n_pages_of(p); i++) p->pages[i] = i;
    return 0;
}

static int make_decoder(struct tune_pass *p, const struct engine_config *config,
                        struct error *err) {
    const struct model_config *m = &p->model->config;
    const struct decoder_limits limits = {.max_rows = p->max_rows,
                                          .max_logit_rows = 1,
                                          .max_long_rows = p->max_tokens,
                                          .states = p->states.n_slots > 0 ? &p->states : NULL};
    const struct sparse_limits sparse = {.max_rows = p->max_tokens, .max_slots = p->max_tokens};
    const struct select_limits selections = {.max_slots = p->max_tokens,
                                             .max_selected = p->max_selected,
                                             .n_groups = 1,
                                             .max_group_layers = 1};
    const struct step_limits largest = {.max_rows = p->max_rows,
                                        .max_seqs = 1,
                                        .max_seq_pages = kv_n_pages(p->max_tokens),
                                        .max_slots = p->max_tokens,
                                        .max_prompt_slots = p->max_tokens,
                                        .kv_format = config->kv_format,
                                        .max_logit_rows = 1,
                                        .n_layers = m->n_attention,
                                        .n_heads = m->n_heads,
                                        .n_kv_heads = m->n_kv_heads,
                                        .head_dim = m->head_dim,
                                        .windowed = m->windowed,
                                        .n_freqs = max_u32(m->n_freqs, m->n_local_freqs),
                                        .n_vocab = m->n_vocab,
                                        .sparse = &sparse,
                                        .select = p->max_selected ? &selections : NULL};
    const int rc = decoder_create(&p->decoder, p->model, p->be, &p->kv, &limits, err);
    return rc ? rc : p->be->ops->reserve(p->be, &largest, err);
}

static int alloc_device(struct tune_pass *p, struct error *err) {
    const struct model_config *m = &p->model->config;
    const struct backend_ops *ops = p->be->ops;
    const size_t out = (size_t)p->max_rows * m->n_heads * m->head_dim;
    const size_t lse = (size_t)p->max_tokens * m->n_heads;
    p->kv.n_pages = n_pages_of(p);
    int rc = ops->alloc(p->be, p->kv.n_pages * p->kv.page_bytes, &p->kv.base, err);
    if (!rc) rc = ops->alloc(p->be, out * dtype_size(p->be->act_dtype), &p->out, err);
    if (!rc) rc = ops->alloc(p->be, lse * sizeof(float), &p->lse, err);
    if (!rc) rc = ops->alloc(p->be, p->max_tokens * sizeof(float), &p->token_scores, err);
    const size_t states = p->states.n_slots * p->states.slot_bytes;
    return rc || states == 0 ? rc : ops->alloc(p->be, states, &p->states.base, err);
}

/* Returns the pool of the one sequence's recurrent state, if the model has such layers. */
static struct state_pool states_of(const struct tune_pass *p) {
    const struct recurrent_shape *shape = &p->model->config.recurrent;
    return state_pool_of(shape, p->be->act_dtype, shape->n_layers > 0);
}

int tune_pass_create(struct tune_pass **out, const struct engine_config *config,
                     uint32_t max_tokens, uint32_t max_selected, uint32_t synthetic,
                     struct error *err) {
    if (!config->backend->ops->sparse)
        return error_set(err, ERR_UNSUPPORTED,
                         "tune: this backend has only dense attention, so it cannot use patterns");
    struct tune_pass *p = calloc(1, sizeof(*p));
    if (!p) return error_set(err, ERR_NOMEM, "tune: no memory");
    p->be = config->backend;
    p->max_tokens = max_tokens;
    p->max_selected = max_selected;
    p->synthetic = synthetic;
    /* Sparse rows are computed in tiles; every slice begins at one. */
    p->max_rows = min_u32(config->max_batched_tokens, max_tokens) / SPARSE_TILE * SPARSE_TILE;
    if (p->max_rows == 0) p->max_rows = SPARSE_TILE;
    int rc = load_model(p, config, err);
    if (!rc) p->kv = memory_plan_pages(config, &p->model->config);
    if (!rc) p->states = states_of(p);
    if (!rc) rc = make_decoder(p, config, err);
    if (!rc) rc = alloc_host(p, err);
    if (!rc) rc = alloc_device(p, err);
    if (rc) tune_pass_destroy(p);
    else *out = p;
    return rc;
}

void tune_pass_destroy(struct tune_pass *p) {
    if (!p) return;
    void *const device[] = {p->kv.base, p->out, p->lse, p->token_scores, p->states.base};
    void *const host[] = {p->positions, p->pages,      p->views, p->patterns,
                          p->dense_lse, p->sparse_lse, p->sums};
    decoder_destroy(p->decoder);
    for (size_t i = 0; i < sizeof(device) / sizeof(*device); i++)
        if (device[i]) p->be->ops->free(p->be, device[i]);
    for (size_t i = 0; i < sizeof(host) / sizeof(*host); i++) free(host[i]);
    model_destroy(p->model, p->be);
    free(p);
}

/* ---- steps ---- */

/* Makes p->step the step of n_rows rows from `first` on. */
static void describe_rows(struct tune_pass *p, uint32_t first, uint32_t n_rows) {
    const uint32_t n_layers = p->model->config.n_attention;
    for (uint32_t l = 0; l < n_layers; l++)
        p->views[l] =
            (struct kv_view){.pages = p->pages + l % N_BUFFERS * kv_n_pages(p->max_tokens),
                             .n_slots = first + n_rows,
                             .append_slot = first};
    p->seq = (struct step_seq){.n_rows = n_rows,
                               .layers = p->views,
                               .n_before = first,
                               .state.from = first > 0 ? 0 : STATE_ZERO};
    p->step = (struct step){.n_rows = n_rows,
                            .n_seqs = 1,
                            .n_layers = n_layers,
                            .windows = p->model->config.windows,
                            .tokens = p->tokens + first,
                            .positions = p->positions + first,
                            .seqs = &p->seq};
}

static void describe_slice(struct tune_pass *p, uint32_t first, const struct attn_sparse *sparse) {
    describe_rows(p, first, min_u32(p->max_rows, p->n_tokens - first));
    p->seq.sparse = sparse;
}

void tune_pass_begin(struct tune_pass *pass, const uint32_t *tokens, uint32_t n_tokens) {
    pass->tokens = tokens;
    pass->n_tokens = n_tokens;
}

int tune_pass_enter(struct tune_pass *pass, uint32_t layer, struct error *err) {
    int rc = 0;
    pass->layer = layer;
    for (uint32_t first = 0; first < pass->n_tokens && !rc; first += pass->max_rows) {
        describe_slice(pass, first, NULL);
        const struct layer_slice slice = {.layer = layer,
                                          .first_row = first,
                                          .n_rows = pass->step.n_rows,
                                          .n_prompt_rows = pass->n_tokens};
        rc = decoder_submit_slice(pass->decoder, &pass->step, &slice, NULL, 0, NULL, NULL, err);
    }
    if (!rc) rc = pass->be->ops->sync(pass->be, err);
    return rc ? rc : model_check(pass->model, err);
}

/* ---- measurements ---- */

/* Returns the arguments of attention for the rows from `first` on. */
static struct attn_args args_from(const struct tune_pass *p, uint32_t first) {
    const struct model_config *m = &p->model->config;
    const uint32_t layer = model_attending_layer(m, p->layer);
    size_t q_stride;
    const char *q = decoder_long_q(p->decoder, &q_stride);
    return (struct attn_args){.q = q + first * q_stride * dtype_size(p->be->act_dtype),
                              .q_stride = q_stride,
                              .out = p->out,
                              .kv = &p->kv,
                              .layer = p->layer,
                              .n_heads = m->n_heads,
                              .scale = m->attn_scale,
                              .softcap = m->attn_softcap,
                              .inv_freq = model_freqs(m, layer),
                              .rope_scale = model_rope_scale(m, layer),
                              .n_freqs = model_n_freqs(m, layer),
                              .rope = m->layers[layer].is_local,
                              .slopes = m->slopes,
                              .group = NO_GROUP};
}

static int run_slice(struct tune_pass *p, uint32_t first, struct error *err) {
    struct attn_args args = args_from(p, first);
    args.lse = (float *)p->lse + (size_t)first * p->model->config.n_heads;
    return p->be->ops->attn_prefill(p->be, &args, err);
}

/* Runs and times attention of all rows, and writes their sums to lse. */
static int run_attention(struct tune_pass *p, const struct attn_sparse *sparse, float *lse,
                         double *seconds, struct error *err) {
    const struct backend_ops *ops = p->be->ops;
    const size_t bytes = (size_t)p->n_tokens * p->model->config.n_heads * sizeof(*lse);
    const double begin = clock_seconds();
    int rc = 0;
    for (uint32_t first = 0; first < p->n_tokens && !rc; first += p->max_rows) {
        describe_slice(p, first, sparse);
        rc = ops->step_begin(p->be, &p->step, err);
        if (!rc) rc = run_slice(p, first, err);
    }
    if (!rc) rc = ops->sync(p->be, err);
    *seconds = clock_seconds() - begin;
    return rc ? rc : ops->download(p->be, lse, p->lse, bytes, err);
}

int tune_pass_dense(struct tune_pass *pass, double *seconds, struct error *err) {
    return run_attention(pass, NULL, pass->dense_lse, seconds, err);
}

static int run_index(struct tune_pass *p, const struct attn_sparse *sparse, float *density,
                     double *seconds, struct error *err) {
    const struct model_config *m = &p->model->config;
    struct sparse_index_args args = {.kv = &p->kv,
                                     .layer = p->layer,
                                     .n_heads = m->n_heads,
                                     .scale = m->attn_scale,
                                     .softcap = m->attn_softcap,
                                     .slopes = m->slopes,
                                     .density = density};
    args.q = decoder_long_q(p->decoder, &args.q_stride);
    const double begin = clock_seconds();
    describe_slice(p, (p->n_tokens - 1) / p->max_rows * p->max_rows, sparse);
    int rc = p->be->ops->step_begin(p->be, &p->step, err);
    if (!rc) rc = p->be->ops->sparse->index(p->be, &args, err);
    if (!rc) rc = p->be->ops->sync(p->be, err);
    *seconds = clock_seconds() - begin;
    return rc;
}

static void find_recall(struct tune_pass *p, float *recall) {
    const uint32_t n_heads = p->model->config.n_heads, first = tune_first_row(p->n_tokens);
    const uint32_t n_rows = p->n_tokens - first;
    const size_t at = (size_t)first * n_heads;
    memset(p->sums, 0, n_heads * sizeof(*p->sums));
    tune_add_recall(p->sums, p->sparse_lse + at, p->dense_lse + at, n_rows, n_heads);
    for (uint32_t h = 0; h < n_heads; h++) recall[h] = (float)(p->sums[h] / n_rows);
}

/* Sets each head's pattern, heads[h], in the layer entered last, and returns the attn_sparse that
 * uses them. */
static struct attn_sparse describe_heads(struct tune_pass *p, const struct attn_pattern *heads,
                                         float dense_above) {
    const uint32_t n_heads = p->model->config.n_heads;
    memcpy(p->patterns + (size_t)p->layer * n_heads, heads, n_heads * sizeof(*heads));
    return (struct attn_sparse){.patterns = p->patterns,
                                .n_rows = p->n_tokens,
                                .dense_from = UINT32_MAX,
                                .dense_above = dense_above,
                                .synthetic = p->synthetic};
}

int tune_pass_density(struct tune_pass *pass, const struct attn_pattern *heads, float *density,
                      struct error *err) {
    double seconds;
    const struct attn_sparse sparse = describe_heads(pass, heads, 1);
    return run_index(pass, &sparse, density, &seconds, err);
}

int tune_pass_sparse(struct tune_pass *pass, const struct attn_pattern *heads, float dense_above,
                     struct tune_run *run, struct error *err) {
    const struct attn_sparse sparse = describe_heads(pass, heads, dense_above);
    int rc = run_index(pass, &sparse, run->density, &run->index_s, err);
    if (!rc) rc = run_attention(pass, &sparse, pass->sparse_lse, &run->attention_s, err);
    if (!rc && run->recall) find_recall(pass, run->recall);
    return rc;
}

static int run_select(struct tune_pass *p, uint32_t row, struct error *err) {
    const struct layer_group none = {p->layer, p->layer + 1, p->layer + 1};
    struct select_args args = {
        .attn = args_from(p, row), .group = &none, .token_scores = p->token_scores};
    args.attn.selects = true;
    const int rc = p->be->ops->attn_decode(p->be, &args.attn, err);
    return rc ? rc : p->be->ops->select->select(p->be, &args, err);
}

int tune_pass_select(struct tune_pass *pass, const struct tune_look *look, struct error *err) {
    const struct backend_ops *ops = pass->be->ops;
    const size_t state_page = N_BUFFERS * kv_n_pages(pass->max_tokens);
    const struct kv_select select = {.n_selected = look->n_selected,
                                     .n_candidates = look->n_candidates,
                                     .fresh = true,
                                     .state_pages = pass->pages + state_page};
    describe_rows(pass, look->row, 1);
    pass->step.n_decode = 1;
    pass->seq.select = &select;
    int rc = ops->step_begin(pass->be, &pass->step, err);
    if (!rc) rc = run_select(pass, look->row, err);
    if (!rc) rc = ops->sync(pass->be, err);
    /* The state pages are adjacent, so the tokens of all slots are one array. */
    const char *state = kv_page_at(&pass->kv, state_page);
    if (!rc)
        rc = ops->download(pass->be, look->chosen, state, look->n_selected * sizeof(*look->chosen),
                           err);
    if (!rc)
        rc = ops->download(pass->be, look->token_scores, pass->token_scores,
                           look->n_candidates * sizeof(*look->token_scores), err);
    return rc;
}
