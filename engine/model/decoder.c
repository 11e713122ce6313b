/* decoder.c - see decoder.h.
 *
 * One arena holds every activation, planned once for the largest step:
 *
 *   x        act [max_rows, dim]            the residual stream
 *   normed   act [max_rows, dim]            workspace of norms within and after products
 *   qkv      act [max_rows, as in mixer_widths()]
 *   gates    act [max_rows, as in mixer_widths()]   of a recurrent layer, or of attention's output
 *   attn     act [max_rows, as in mixer_widths()]
 *   gate_up  act [max_rows, as in feed_forward_widths()]
 *   ffn      act [max_rows, as in feed_forward_widths()]
 *   branch   act [max_rows, dim]            of FFN_BOTH: what the layer adds, and
 *   experts_out act [max_rows, dim]         what its experts give
 *   experts  u32 [max_rows, n_used]         what a router has chosen, and f32 shares of it
 *   inputs   act [max_rows, as in layer_inputs_width()]
 *   part     act [max_rows, dim]            of ranks that share weights (collective.h)
 *   products act [own rows, as qkv, of all heads]   of ranks that share rows (row_share.h); there
 *   own_attn act [own rows, as attn, of all heads]  buffers of products have own rows only
 *   last     act [max_logit_rows, dim]      the rows that need logits, of x
 *   last_attn act [max_logit_rows, as attn, of all heads]              and of attn,
 *   last_inputs act [max_logit_rows, as inputs]                        and of inputs
 *   logits   f32 [max_logit_rows, n_vocab]
 *   long_x   act [max_long_rows, dim]       x and qkv of a long prompt's rows,
 *   long_qkv act [max_long_rows, as qkv]    which outlive the step
 *
 * After the last layer's attention only the rows that need logits are computed further.  They are
 * gathered into `last`, max_logit_rows at a time, so that a long prompt's log-probabilities fit.
 * If no row of a prompt needs any, as in a chunk that is not the last, that attention is left out,
 * too.  Without such rows the last layers that share keys do not run at all (shared_keys.h).  A
 * step in which every sequence decodes needs all of its rows, and so does one with guesses.  It is
 * the same operations every time, and the backend may capture them in a CUDA graph (run_graph).
 * Budgets and selections add operations, so such steps have graphs of their own. */
#include "engine/model/decoder.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/collective.h"
#include "engine/device/evict.h"
#include "engine/device/experts.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/device/sample.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/model/decoder_internal.h"
#include "engine/model/decoder_layer.h"
#include "engine/model/feed_forward.h"
#include "engine/model/layer_inputs.h"
#include "engine/model/model_share.h"
#include "engine/model/recurrent_layer.h"
#include "engine/model/residual.h"
#include "engine/model/row_share.h"

enum { ARENA_ALIGN = 64, F32_BYTES = 4 };

/* Offsets in bytes from the start of the arena. */
struct decoder_layout {
    size_t x, normed, qkv, gates, attn, gate_up, ffn, part, products, own_attn, branch, experts_out,
        experts, shares, experts_workspace, recurrent_workspace, inputs, last, last_attn,
        last_inputs, logits, long_x, long_qkv, total;
};

static size_t reserve(struct decoder_layout *plan, size_t rows, size_t cols, size_t element_bytes) {
    const size_t at = plan->total;
    const size_t bytes = rows * cols * element_bytes;
    plan->total += round_up(bytes, ARENA_ALIGN);
    return at;
}

static void plan_experts(struct decoder_layout *plan, const struct model_config *c,
                         const struct backend *be, uint32_t n_rows, size_t act_bytes) {
    const struct experts_shape shape = feed_forward_experts(c, n_rows);
    if (shape.n_experts == 0) return;
    const uint32_t width = feed_forward_has_both(c) ? c->dim : 0;
    plan->branch = reserve(plan, n_rows, width, act_bytes);
    plan->experts_out = reserve(plan, n_rows, width, act_bytes);
    plan->experts = reserve(plan, n_rows, shape.n_used, sizeof(uint32_t));
    plan->shares = reserve(plan, n_rows, shape.n_used + 1, F32_BYTES);
    plan->experts_workspace = reserve(plan, 1, be->ops->experts->workspace(be, &shape), 1);
}

static void plan_recurrent(struct decoder_layout *plan, const struct model_config *c,
                           const struct backend *be, uint32_t n_rows) {
    if (c->recurrent.n_layers == 0) return;
    plan->recurrent_workspace =
        reserve(plan, 1, be->ops->recurrent->workspace(be, &c->recurrent, n_rows), 1);
}

static struct decoder_layout make_plan(const struct model_config *c, const struct backend *be,
                                       const struct decoder_limits *limits, size_t act_bytes) {
    struct decoder_layout plan = {0};
    const struct ffn_widths ffn = feed_forward_widths(c);
    const struct mixer_widths mixer = mixer_widths(c);
    const uint32_t rows = max_u32(limits->max_rows, limits->max_logit_rows),
                   own_rows = row_share_most(c, limits->max_rows, limits->max_logit_rows),
                   widening = row_share_widening(c);
    plan.x = reserve(&plan, rows, c->dim, act_bytes);
    plan.normed = reserve(&plan, own_rows, c->dim, act_bytes);
    plan.qkv = reserve(&plan, rows, mixer.qkv, act_bytes);
    plan.gates = reserve(&plan, own_rows, widening * (size_t)mixer.gates, act_bytes);
    plan.attn = reserve(&plan, rows, mixer.attn, act_bytes);
    plan.gate_up = reserve(&plan, own_rows, ffn.gate_up, act_bytes);
    plan.ffn = reserve(&plan, own_rows, ffn.ffn, act_bytes);
    if (model_shares_weights(c)) plan.part = reserve(&plan, rows, c->dim, act_bytes);
    if (widening > 1) {
        plan.products = reserve(&plan, own_rows, widening * (size_t)mixer.qkv, act_bytes);
        plan.own_attn = reserve(&plan, own_rows, widening * (size_t)mixer.attn, act_bytes);
    }
    plan_experts(&plan, c, be, own_rows, act_bytes);
    plan_recurrent(&plan, c, be, rows);
    plan.inputs = reserve(&plan, rows, layer_inputs_width(c), act_bytes);
    plan.last = reserve(&plan, limits->max_logit_rows, c->dim, act_bytes);
    plan.last_attn =
        reserve(&plan, limits->max_logit_rows, widening * (size_t)mixer.attn, act_bytes);
    plan.last_inputs = reserve(&plan, limits->max_logit_rows, layer_inputs_width(c), act_bytes);
    plan.logits = reserve(&plan, limits->max_logit_rows, c->n_vocab, F32_BYTES);
    plan.long_x = reserve(&plan, limits->max_long_rows, c->dim, act_bytes);
    plan.long_qkv = reserve(&plan, limits->max_long_rows, model_qkv_width(c), act_bytes);
    return plan;
}

size_t decoder_long_bytes(const struct model_config *c, uint32_t n_rows, enum dtype act_dtype) {
    return activation_bytes(act_dtype, n_rows * ((size_t)c->dim + model_qkv_width(c)));
}

size_t decoder_workspace_bytes(const struct model_config *config, const struct backend *be,
                               const struct decoder_limits *limits) {
    return make_plan(config, be, limits, F32_BYTES).total;
}

static int make_arena(struct decoder *d, struct error *err) {
    const struct decoder_layout plan =
        make_plan(&d->model->config, d->be, &d->limits, activation_bytes(d->be->act_dtype, 1));
    int rc = d->be->ops->alloc(d->be, plan.total, &d->arena, err);
    if (rc) return rc;
    char *base = d->arena;
    d->x = base + plan.x;
    d->normed = base + plan.normed;
    d->qkv = base + plan.qkv;
    d->gates = base + plan.gates;
    d->attn = base + plan.attn;
    d->gate_up = base + plan.gate_up;
    d->ffn = base + plan.ffn;
    if (model_shares_weights(&d->model->config)) d->part = base + plan.part;
    d->products = base + plan.products;
    d->own_attn = base + plan.own_attn;
    d->branch = base + plan.branch;
    d->experts_out = base + plan.experts_out;
    d->experts = (uint32_t *)(base + plan.experts);
    d->shares = (float *)(base + plan.shares);
    d->experts_workspace = base + plan.experts_workspace;
    d->recurrent_workspace = base + plan.recurrent_workspace;
    d->last = base + plan.last;
    d->last_attn = base + plan.last_attn;
    d->inputs = base + plan.inputs;
    d->last_inputs = base + plan.last_inputs;
    d->logits = base + plan.logits;
    d->long_x = base + plan.long_x;
    d->long_qkv = base + plan.long_qkv;
    return 0;
}

int decoder_create(struct decoder **out, const struct model *model, struct backend *be,
                   const struct kv_pool *kv, const struct decoder_limits *limits,
                   struct error *err) {
    const struct model_config *c = &model->config;
    if (limits->max_rows == 0 || limits->max_logit_rows == 0)
        return error_set(err, ERR_INVALID,
                         "decoder: a step needs at least one row and one row of logits");
    if (kv->n_kv_heads != c->n_kv_heads || kv->head_dim != c->head_dim)
        return error_set(err, ERR_INVALID,
                         "decoder: the shape of the pages is not that of the model");
    if (c->recurrent.n_layers > 0 && !limits->states)
        return error_set(err, ERR_INVALID, "decoder: recurrent layers need a pool of states");
    if (model_without_slices(c) && limits->max_long_rows > 0)
        return error_set(err, ERR_INVALID, "decoder: %s, so it has no layer-major prompts",
                         model_without_slices(c));
    struct decoder *d = calloc(1, sizeof(*d));
    if (!d) return error_set(err, ERR_NOMEM, "decoder: no memory");
    *d = (struct decoder){.model = model, .be = be, .kv = kv, .limits = *limits};
    for (unsigned i = 0; i < N_STEP_EXTRAS; i++) d->bodies[i] = (struct step_body){d, i};
    d->qkv_dim = model_qkv_width(c);
    int rc = ERR_NOMEM;
    d->pools = calloc(c->n_layers, sizeof(*d->pools));
    d->slice_rows = calloc(limits->max_logit_rows, sizeof(*d->slice_rows));
    d->slice_samples = calloc(limits->max_logit_rows, sizeof(*d->slice_samples));
    if (!d->pools || !d->slice_rows || !d->slice_samples) {
        error_set(err, ERR_NOMEM,
                  "decoder: no memory for %" PRIu32 " layers, or %" PRIu32 " rows of logits",
                  c->n_layers, limits->max_logit_rows);
        goto fail;
    }
    rc = make_arena(d, err);
    if (rc) goto fail;
    *out = d;
    return 0;

fail:
    decoder_destroy(d);
    return rc;
}

void decoder_destroy(struct decoder *decoder) {
    if (!decoder) return;
    if (decoder->arena) decoder->be->ops->free(decoder->be, decoder->arena);
    free(decoder->pools);
    free(decoder->slice_rows);
    free(decoder->slice_samples);
    free(decoder);
}

static int run_embed(struct decoder *d, void *x, struct error *err) {
    const struct embed_args embed = {
        .table = &d->model->embedding, .out = x, .scale = d->model->config.embed_scale};
    const struct add_positions_args positions = {
        .table = &d->model->positions, .first = d->model->config.first_position, .x = x};
    const int rc = d->be->ops->embed(d->be, &embed, err);
    if (rc || d->model->config.positions != POSITIONS_LEARNED) return rc;
    return d->be->ops->add_positions(d->be, &positions, err);
}

/* Runs the rest of a layer, whose attention has been computed. */
static int finish_layer(struct decoder *d, uint32_t layer, struct row_range rows,
                        struct error *err) {
    void *attn;
    const int rc = row_share_to_rows(d, layer, rows, &attn, err);
    if (rc) return rc;
    return feed_forward_run(d, layer, attn, layer_inputs_of(d, rows), own_x(d, rows), rows.own.n,
                            err);
}

/* Runs what mixes the rows of a layer's texts. */
static int run_mixer(struct decoder *d, uint32_t layer, struct row_range rows, struct error *err) {
    switch (d->model->config.layers[layer].mixer) {
    case MIXER_ATTENTION: return decoder_layer_attention(d, layer, rows, err);
    case MIXER_RECURRENT: return recurrent_layer_run(d, layer, rows, err);
    case MIXER_NONE: break;
    }
    return 0;
}

/* Runs the layers that the step needs, the last one only as far as its attention. */
static int run_layers(struct decoder *d, uint32_t n_rows, struct error *err) {
    const uint32_t n_layers = d->n_run;
    const struct row_range rows = row_share_range(d, d->x, d->qkv, n_rows);
    int rc = run_embed(d, d->x, err);
    if (!rc) rc = layer_inputs_make(d, rows, err);
    for (uint32_t layer = 0; layer < n_layers && !rc; layer++) {
        rc = run_mixer(d, layer, rows, err);
        if (!rc && layer + 1 < n_layers) rc = finish_layer(d, layer, rows, err);
    }
    return rc;
}

static int gather(struct decoder *d, const void *from, void *to, uint32_t n, uint32_t dim,
                  struct error *err) {
    const struct gather_rows_args args = {
        .x = from, .out = to, .rows = d->slice_rows, .n = n, .dim = dim};
    return d->be->ops->gather_rows(d->be, &args, err);
}

/* Copies the other ranks' parts of the logits to rank 0. */
static int gather_logits(struct decoder *d, uint32_t n, struct error *err) {
    const struct gather_columns_args args = {.x = d->logits,
                                             .n_rows = n,
                                             .width = d->model->config.n_vocab,
                                             .first = d->model->head_first,
                                             .n_cols = d->model->head.rows};
    if (!model_shares_weights(&d->model->config)) return 0;
    return d->be->ops->collective->gather_columns(d->be, &args, err);
}

/* Computes the logits of n rows of the residual stream. */
static int run_logits(struct decoder *d, const void *x, uint32_t n, struct error *err) {
    const struct model_config *c = &d->model->config;
    const struct model *m = d->model;
    struct residual_input input;
    int rc = residual_norm(d, x, n, &m->final_norm, &m->final_norm_bias, &input, err);
    const struct linear_args head = {
        .x = input.x,
        .norm = input.norm,
        .n_rows = n,
        .n_in = c->dim,
        .n_parts = 1,
        .y_f32 = true,
        .parts = {
            {.w = &m->head, .y = (float *)d->logits + m->head_first, .y_stride = c->n_vocab}}};
    const struct soft_cap_args cap = {d->logits, n, c->n_vocab, c->logit_softcap};
    if (!rc) rc = d->be->ops->linear(d->be, &head, err);
    if (!rc) rc = gather_logits(d, n, err);
    return rc || cap.cap == 0 ? rc : d->be->ops->soft_cap(d->be, &cap, err);
}

/* Gathers what the last layer's attention gives to the n rows in slice_rows. */
static int gather_attention(struct decoder *d, uint32_t n, struct error *err) {
    const struct model_config *c = &d->model->config;
    const uint32_t layer = c->n_layers - 1;
    const bool joins = row_share_widening(c) > 1;
    void *own = joins ? d->products : d->last_attn; /* which is free behind the last layer */
    if (c->layers[layer].mixer == MIXER_NONE) return 0;
    const int rc = gather(d, d->attn, own, n, mixer_attn_width(c, layer), err);
    return rc || !joins ? rc : row_share_all_heads(d, layer, own, d->last_attn, n, err);
}

/* Computes the logits of the n rows in slice_rows; x: the residual stream of the step's first
 * row. */
static int run_head(struct decoder *d, const void *x, uint32_t n, struct error *err) {
    const struct model_config *c = &d->model->config;
    int rc = gather(d, x, d->last, n, c->dim, err);
    if (!rc) rc = gather_attention(d, n, err);
    if (!rc && c->layer_inputs > 0)
        rc = gather(d, d->inputs, d->last_inputs, n, layer_inputs_width(c), err);
    if (rc || !row_share_has_logits(d)) return rc;
    rc = feed_forward_run(d, c->n_layers - 1, d->last_attn, d->last_inputs, d->last, n, err);
    return rc ? rc : run_logits(d, d->last, n, err);
}

/* Lets the next step begin with the n tokens that rank 0 has sampled, on all ranks. */
static int share_sampled(struct decoder *d, uint32_t n, struct error *err) {
    const struct collective_ops *ops = d->be->ops->collective;
    return d->be->n_ranks > 1 && ops->share_sampled ? ops->share_sampled(d->be, n, err) : 0;
}

/* Samples the first n rows of logits.  Of several ranks only rank 0 has them whole. */
static int run_sample(struct decoder *d, const struct sample_row *samples, uint32_t n,
                      struct sample_result *results, float *logits_out, struct error *err) {
    const struct sample_args sample = {.logits = d->logits,
                                       .n_vocab = d->model->config.n_vocab,
                                       .n = n,
                                       .rows = samples,
                                       .results = results};
    if (d->be->rank > 0) return share_sampled(d, n, err);
    int rc = d->be->ops->sample(d->be, &sample, err);
    if (!rc) rc = share_sampled(d, n, err);
    if (!rc && logits_out)
        rc = d->be->ops->download(d->be, logits_out, d->logits,
                                  (size_t)n * sample.n_vocab * F32_BYTES, err);
    return rc;
}

/* Computes and samples the logits of at most max_logit_rows samples. */
static int run_some(struct decoder *d, const void *x, const struct sample_row *samples, uint32_t n,
                    struct sample_result *results, float *logits_out, struct error *err) {
    for (uint32_t i = 0; i < n; i++) {
        d->slice_rows[i] = samples[i].logit_row;
        d->slice_samples[i] = samples[i];
        d->slice_samples[i].logit_row = i;
    }
    const int rc = run_head(d, x, n, err);
    return rc ? rc : run_sample(d, d->slice_samples, n, results, logits_out, err);
}

/* Computes and samples the logits of all samples.  x: the residual stream of the step's n_rows.
 * d->attn is what attention gives to them in the last layer. */
static int run_samples(struct decoder *d, void *x, uint32_t n_rows,
                       const struct sample_row *samples, uint32_t n_samples,
                       struct sample_result *results, float *logits_out, struct error *err) {
    const struct model_config *c = &d->model->config;
    const uint32_t max = d->limits.max_logit_rows;
    const size_t n_vocab = c->n_vocab;
    if (n_samples == 0) return 0;
    int rc = row_share_all_rows(d, x, c->dim, n_rows, err);
    if (!rc && c->layer_inputs > 0)
        rc = row_share_all_rows(d, d->inputs, layer_inputs_width(c), n_rows, err);
    for (uint32_t at = 0; at < n_samples && !rc; at += max)
        rc = run_some(d, x, samples + at, min_u32(n_samples - at, max), results + at,
                      logits_out ? logits_out + at * n_vocab : NULL, err);
    return rc;
}

/* ---- a step in which every row wants its logits ---- */

/* The most rows with which a step with prompts, or guesses, is one body: to launch the kernels of
 * more takes less time than to compute them. */
enum { MOST_ROWS_WITH_PROMPTS = 64 };

/* Says whether a body has all of the step's operations. */
static bool has_body(const struct decoder *d, const struct step *step) {
    if (step->n_decode == step->n_seqs) return true;
    return step->n_rows <= MOST_ROWS_WITH_PROMPTS && d->extras == 0 && !d->sparse;
}

/* Returns true if each row wants its logits, in order, so that nothing needs to be gathered. */
static bool wants_all_logits(const struct decoder *d, const struct step *step,
                             const struct sample_row *samples, uint32_t n_samples) {
    if (n_samples != step->n_rows || n_samples > d->limits.max_logit_rows) return false;
    for (uint32_t i = 0; i < n_samples; i++)
        if (samples[i].logit_row != i) return false;
    return true;
}

/* Rounds n up to one of few sizes if the backend captures graphs, one for each size.  Small sizes
 * lie closer together: there a row more costs more. */
static uint32_t padded_rows(const struct decoder *d, uint32_t n) {
    const uint32_t most = min_u32(d->limits.max_rows, d->limits.max_logit_rows);
    uint32_t unit = 1;
    if (!d->be->repeats) return n;
    while (unit < n && unit < 8) unit *= 2;
    if (n > 64) unit = 16;
    return min_u32((uint32_t)round_up(n, unit), most);
}

/* Computes a step from tokens to the logits of all rows. */
static int run_to_logits(void *ctx, uint32_t n_rows, struct error *err) {
    const struct step_body *body = ctx;
    struct decoder *d = body->decoder;
    assert(body->extras == d->extras);
    const struct model_config *c = &d->model->config;
    const struct row_range rows = row_share_range(d, d->x, d->qkv, n_rows);
    int rc = run_layers(d, n_rows, err);
    if (!rc) rc = decoder_layer_evict_oldest(d, 0, c->n_attention, err);
    if (!rc) rc = finish_layer(d, c->n_layers - 1, rows, err);
    return rc || !row_share_has_logits(d) ? rc : run_logits(d, d->x, n_rows, err);
}

static int run_body(struct decoder *d, uint32_t n_rows, struct error *err) {
    struct step_body *body = &d->bodies[d->extras];
    return d->be->ops->run_graph(d->be, padded_rows(d, n_rows), run_to_logits, body, err);
}

static bool is_sampled(const struct decoder *d, uint32_t token) {
    return token & STEP_SAMPLED && (token & ~STEP_SAMPLED) < d->n_sampled;
}

/* Checks that learned positions are rows of their table, which nothing else bounds. */
static int check_positions(const struct decoder *d, const struct step *step, struct error *err) {
    const struct model_config *c = &d->model->config;
    if (c->positions != POSITIONS_LEARNED) return 0;
    for (uint32_t i = 0; i < step->n_rows; i++)
        if (step->positions[i] >= c->max_position)
            return error_set(err, ERR_INVALID,
                             "decoder: position %" PRIu32 ", but only %" PRIu32 " were learned",
                             step->positions[i], c->max_position);
    return 0;
}

/* Checks all tokens and the number of rows.  A wrong one would be read or written outside a buffer,
 * and the device does not notice. */
static int check_rows(const struct decoder *d, const struct step *step, struct error *err) {
    const uint32_t n_vocab = d->model->config.n_vocab;
    if (step->n_rows == 0 || step->n_rows > d->limits.max_rows)
        return error_set(err, ERR_INVALID,
                         "decoder: a step of %" PRIu32 " rows, planned for 1 to %" PRIu32,
                         step->n_rows, d->limits.max_rows);
    for (uint32_t i = 0; i < step->n_rows; i++)
        if (step->tokens[i] >= n_vocab && !is_sampled(d, step->tokens[i]))
            return error_set(err, ERR_INVALID, "decoder: token %" PRIu32 " outside the vocabulary",
                             step->tokens[i]);
    return check_positions(d, step, err);
}

static int check_samples(const struct step *step, const struct sample_row *samples,
                         uint32_t n_samples, struct error *err) {
    for (uint32_t i = 0; i < n_samples; i++)
        if (samples[i].logit_row >= step->n_rows)
            return error_set(err, ERR_INVALID,
                             "decoder: sample %" PRIu32 " asks for row %" PRIu32 " of %" PRIu32, i,
                             samples[i].logit_row, step->n_rows);
    return 0;
}

static unsigned extras_of(const struct step *step) {
    unsigned extras = 0;
    for (uint32_t i = 0; i < step->n_seqs; i++) {
        const struct kv_budget *budget = step->seqs[i].budget;
        if (budget) extras |= kv_has_scores(budget) ? STEP_EVICTS_LOWEST : STEP_EVICTS_OLDEST;
        if (step->seqs[i].select) extras |= STEP_SELECTS;
        if (step->seqs[i].observed) extras |= STEP_OBSERVES;
    }
    return extras;
}

static const struct step_seq *sparse_of(const struct step *step) {
    for (uint32_t i = 0; i < step->n_seqs; i++)
        if (step->seqs[i].sparse) return &step->seqs[i];
    return NULL;
}

/* Says whether something reads what prompts attend to behind model_n_writing(): logits, or a choice
 * of tokens, for which attention keeps scores. */
static bool needs_last_attention(const struct decoder *d, const struct step *step,
                                 const struct sample_row *samples, uint32_t n_samples) {
    if (d->sparse || d->extras & (STEP_EVICTS_LOWEST | STEP_OBSERVES)) return true;
    for (uint32_t i = 0; i < n_samples; i++)
        if (samples[i].logit_row >= step->n_decode) return true; /* the rows behind are prompts' */
    return false;
}

/* Runs the step as far as it does not depend on how its rows are sampled. */
static int run_rows(struct decoder *d, const struct step *step, const struct sample_row *samples,
                    uint32_t n_samples, struct error *err) {
    d->last_attends = needs_last_attention(d, step, samples, n_samples);
    d->n_run = n_samples > 0 || d->last_attends ? d->model->config.n_layers
                                                : model_n_writing(&d->model->config);
    d->has_logits = has_body(d, step) && wants_all_logits(d, step, samples, n_samples);
    d->owes_evictions = !d->has_logits;
    row_share_begin(d, step->n_rows, d->has_logits);
    return d->has_logits ? run_body(d, n_samples, err) : run_layers(d, step->n_rows, err);
}

/* Sets the pools of the layers, whose heads may have two shapes.  All pages have one size. */
static void set_pools(struct decoder *d) {
    const struct model_config *c = &d->model->config;
    for (uint32_t i = 0; i < c->n_layers; i++) d->pools[i] = kv_pool_of(d->kv, c->layers[i].kv);
}

/* Begins a step, if the backend and the pages have what its sequences need. */
static int begin(struct decoder *d, const struct step *step, uint32_t n_samples,
                 struct error *err) {
    d->n_sampled = n_samples;
    d->owes_evictions = false;
    d->extras = extras_of(step);
    d->sparse = sparse_of(step);
    if (d->sparse && !d->be->ops->sparse)
        return error_set(err, ERR_INVALID, "decoder: this backend has only dense attention");
    if (d->extras & STEP_EVICTS && !d->kv->tracked)
        return error_set(err, ERR_INVALID,
                         "decoder: the step has budgets, but the pages have no space for scores");
    if (d->extras & (STEP_SELECTS | STEP_OBSERVES) &&
        (!d->be->ops->select || d->limits.n_groups == 0))
        return error_set(err, ERR_INVALID,
                         "decoder: the step has selections, but no filter layers, or a backend "
                         "that cannot select");
    set_pools(d);
    d->step = *step;
    d->step.windows = d->model->config.windows;
    d->step.has_states = d->limits.states != NULL;
    return d->be->ops->step_begin(d->be, &d->step, err);
}

/* Submits a read of what the step's sequences have evicted, if any has a budget. */
static int fetch_totals(struct decoder *d, struct evict_total *totals, struct error *err) {
    if (!(d->extras & STEP_EVICTS) || !totals) return 0;
    return d->be->ops->evict->totals(d->be, d->kv, totals, err);
}

int decoder_submit_rows(struct decoder *d, const struct step *step,
                        const struct sample_row *samples, uint32_t n_samples, struct error *err) {
    int rc = check_rows(d, step, err);
    if (!rc) rc = check_samples(step, samples, n_samples, err);
    if (!rc) rc = begin(d, step, n_samples, err);
    return rc ? rc : run_rows(d, step, samples, n_samples, err);
}

static int submit_samples(struct decoder *d, const struct sample_row *samples, uint32_t n_samples,
                          struct sample_result *results, struct evict_total *totals,
                          float *logits_out, struct error *err) {
    const int rc = d->has_logits ? run_sample(d, samples, n_samples, results, logits_out, err)
                                 : run_samples(d, d->x, d->step.n_rows, samples, n_samples, results,
                                               logits_out, err);
    return rc ? rc : fetch_totals(d, totals, err);
}

int decoder_submit_samples(struct decoder *d, const struct sample_row *samples, uint32_t n_samples,
                           struct sample_result *results, struct evict_total *totals,
                           struct error *err) {
    return submit_samples(d, samples, n_samples, results, totals, NULL, err);
}

int decoder_submit(struct decoder *d, const struct step *step, const struct sample_row *samples,
                   uint32_t n_samples, struct sample_result *results, struct evict_total *totals,
                   struct error *err) {
    const int rc = decoder_submit_rows(d, step, samples, n_samples, err);
    return rc ? rc : submit_samples(d, samples, n_samples, results, totals, NULL, err);
}

int decoder_submit_evictions(struct decoder *d, struct error *err) {
    const bool owes = d->owes_evictions;
    d->owes_evictions = false;
    return owes ? decoder_layer_evict_oldest(d, 0, d->model->config.n_attention, err) : 0;
}

/* ---- a long prompt ---- */

/* Tells whether the slice only leaves the last layer. */
static bool is_leaving(const struct decoder *d, const struct layer_slice *slice) {
    return slice->leaves_last && slice->layer == d->model->config.n_attention;
}

static int check_slice(const struct decoder *d, const struct step *step,
                       const struct layer_slice *slice, uint32_t n_samples, struct error *err) {
    const bool alone = step->n_seqs == 1 && step->n_decode == 0,
               is_known = slice->layer < d->model->config.n_attention || is_leaving(d, slice);
    if (!alone || !is_known || slice->n_rows != step->n_rows ||
        slice->n_prompt_rows > d->limits.max_long_rows || slice->first_row > slice->n_prompt_rows ||
        slice->n_rows > slice->n_prompt_rows - slice->first_row ||
        (n_samples > 0 && !is_leaving(d, slice)))
        return error_set(err, ERR_INVALID,
                         "decoder: the layer slice does not belong to a long prompt");
    return check_rows(d, step, err);
}

/* Runs the feed-forward part of a layer, except the last one's: only rows that need logits go
 * through that. */
static int leave_layer(struct decoder *d, uint32_t layer, struct row_range rows,
                       struct error *err) {
    if (layer + 1 == d->model->config.n_layers) return 0;
    return finish_layer(d, layer, rows, err);
}

/* Runs what the rows need before they enter the slice's layer: the rest of the layer before, and
 * those that do not attend in between.  q, k and v of these do not outlive the slice, so they need
 * no space among those of a long prompt. */
static int approach(struct decoder *d, const struct layer_slice *slice, struct row_range rows,
                    struct error *err) {
    const struct model_config *c = &d->model->config;
    const struct row_range other = {rows.x, d->qkv, rows.n, rows.own};
    uint32_t layer = 0;
    int rc = slice->layer == 0 ? run_embed(d, rows.x, err) : 0;
    if (slice->layer > 0) {
        layer = model_attending_layer(c, slice->layer - 1);
        rc = decoder_layer_attend_slice(d, layer, rows, err);
        if (!rc) rc = leave_layer(d, layer, rows, err);
        layer++;
    }
    for (; layer < c->n_layers && c->layers[layer].mixer != MIXER_ATTENTION && !rc; layer++) {
        rc = run_mixer(d, layer, other, err);
        if (!rc) rc = leave_layer(d, layer, rows, err);
    }
    return rc;
}

/* Takes the rows into the slice's layer.  With its last rows the layer is indexed, unless none will
 * leave it. */
static int run_layer_slice(struct decoder *d, const struct layer_slice *slice,
                           struct row_range rows, struct error *err) {
    const struct model_config *c = &d->model->config;
    const uint32_t layer = model_attending_layer(c, slice->layer);
    const bool is_last = slice->first_row + slice->n_rows == slice->n_prompt_rows,
               leaves = slice->leaves_last || slice->layer + 1 < c->n_attention;
    int rc = approach(d, slice, rows, err);
    if (!rc) rc = decoder_layer_enter(d, layer, rows, err);
    if (rc || !is_last || !leaves || !decoder_layer_is_indexed(d, layer)) return rc;
    return decoder_layer_index(d, layer, d->long_qkv, err);
}

int decoder_submit_slice(struct decoder *d, const struct step *step,
                         const struct layer_slice *slice, const struct sample_row *samples,
                         uint32_t n_samples, struct sample_result *results,
                         struct evict_total *totals, struct error *err) {
    void *x = act_at(d, d->long_x, (size_t)slice->first_row * d->model->config.dim),
         *qkv = act_at(d, d->long_qkv, (size_t)slice->first_row * d->qkv_dim);
    int rc = check_slice(d, step, slice, n_samples, err);
    if (!rc) rc = check_samples(step, samples, n_samples, err);
    if (rc) return rc;
    if ((rc = begin(d, step, n_samples, err))) return rc;
    row_share_begin(d, step->n_rows, false);
    const struct row_range rows = row_share_range(d, x, qkv, slice->n_rows);
    if (!is_leaving(d, slice)) return run_layer_slice(d, slice, rows, err);
    rc = approach(d, slice, rows, err);
    if (!rc) rc = run_samples(d, rows.x, rows.n, samples, n_samples, results, NULL, err);
    if (rc || !layer_slice_is_final(slice, d->model->config.n_attention)) return rc;
    return fetch_totals(d, totals, err);
}

const void *decoder_long_q(const struct decoder *d, size_t *q_stride) {
    *q_stride = d->qkv_dim;
    return d->long_qkv;
}

int decoder_submit_totals(struct decoder *d, struct sparse_totals *out, struct error *err) {
    return d->be->ops->sparse->totals(d->be, out, err);
}

int decoder_submit_selected(struct decoder *d, struct select_total *out, struct error *err) {
    return d->be->ops->select->totals(d->be, out, err);
}

int decoder_collect(struct decoder *decoder, uint32_t n_newer, struct error *err) {
    return decoder->be->ops->collect(decoder->be, n_newer, err);
}

int decoder_step(struct decoder *decoder, const struct step *step, const struct sample_row *samples,
                 uint32_t n_samples, struct sample_result *results, struct evict_total *totals,
                 float *logits_out, struct error *err) {
    int rc = decoder_submit_rows(decoder, step, samples, n_samples, err);
    if (!rc) rc = submit_samples(decoder, samples, n_samples, results, totals, logits_out, err);
    if (!rc) rc = decoder_submit_evictions(decoder, err);
    return rc ? rc : decoder->be->ops->sync(decoder->be, err);
}
