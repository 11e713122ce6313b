/* model.c - see model.h.  Walks the family's weight map: find, check, hand to the backend. */
#include "engine/model/model.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/activation.h"
#include "engine/device/collective.h"
#include "engine/model/canonical.h"
#include "engine/model/expert_layout.h"
#include "engine/model/expert_offload.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model_share.h"
#include "engine/model/quantised_source.h"
#include "engine/model/random_weights.h"
#include "engine/model/rotary_order.h"
#include "engine/model/text_half.h"
#include "engine/model/unclaimed.h"
#include "engine/model/unpack.h"
#include "engine/model/weight_find.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"

struct reordered {
    struct reordered *next;
    max_align_t data[];
};

struct loader {
    struct model *model;
    const struct model_source *source;
    struct backend *be;
    struct error *err;
    struct weight_query query; /* which weight is visited */
    uint64_t *expert_bytes;    /* [n_layers], as they are loaded */
};

/* What is done with each weight: first all are measured, then all are loaded. */
typedef int (*weight_visitor)(struct loader *l, struct weight *out);

/* Returns the weight, a vector as a column: then a row is what the file's order moves. */
static struct weight by_row(const struct weight *w) {
    struct weight rows = *w;
    if (w->rows == 1) rows.rows = w->cols, rows.cols = 1;
    return rows;
}

/* Returns true if the rows of the weight have another order in the files. */
static bool moves_rows(const struct weight_query *q) {
    return q->rule->is_rotary && q->config->paired_rotary;
}

static bool takes(const struct loader *l, const struct weight_format *format) {
    const struct weight_query *q = &l->query;
    return l->be->ops->takes(l->be, format, weights_uses(q->rule, q->config));
}

/* Returns true if the device can get the weight in this format.  Rows that move take their scales
 * with them, unless some of them share one. */
static bool can_load(const struct loader *l, const struct weight_format *format) {
    const bool is_movable = !format->scale || format->block_rows <= 1;
    return takes(l, format) && (is_movable || !moves_rows(&l->query));
}

/* Returns the plain element of a weight that the device cannot get as it is. */
static enum element unpacked_element(const struct loader *l, const struct weight_format *format) {
    if (l->be->act_dtype != DTYPE_F32) return ELEMENT_BF16;
    return l->source->unpacks_exactly ? weight_exact_element(format) : l->query.config->element;
}

/* Returns the format in which the device gets the weight.  It is that of the files if the device
 * takes it, or else its canonical one; or else plain elements. */
static struct weight_format format_to_load(const struct loader *l, const struct weight *host) {
    const enum element element = unpacked_element(l, &host->format);
    const struct weight_format canonical = canonical_format(&host->format);
    if (weight_is_plain(&host->format) || can_load(l, &host->format)) return host->format;
    return can_load(l, &canonical) ? canonical : (struct weight_format){.element = element};
}

/* Sets whether products with the weight, in the format that the device gets, round their input. */
static void set_rounding(const struct loader *l, struct weight *w) {
    const struct backend *be = l->be;
    const struct quantisation *how = &l->query.config->quantisation;
    const bool is_asked_for =
        be->input_rounding == ROUND_ALWAYS ||
        (be->input_rounding == ROUND_AS_DECLARED && how->activations == ACTIVATIONS_E4M3);
    w->rounds_input = is_asked_for && be->ops->rounds && be->ops->rounds(be, w) &&
                      weights_uses(l->query.rule, l->query.config) == WEIGHT_PRODUCT;
    w->input_most = how->activation_most;
}

static int refuse_tensor(const struct loader *l, int code, const char *why) {
    const struct weight_query *q = &l->query;
    char name[WEIGHTS_MAX_NAME];
    weights_file_name(name, q->config, q->rule->name, q->layer, 0);
    return error_set(l->err, code, "tensor '%.160s': %s", name, why);
}

/* Refuses a weight that the device has no kernels for. */
static int check_format(const struct loader *l, const struct weight_format *format) {
    char text[WEIGHT_FORMAT_TEXT], why[2 * WEIGHT_FORMAT_TEXT];
    if (takes(l, format)) return 0;
    weight_format_text(format, text);
    snprintf(why, sizeof(why), "its format, %s, is not supported on the device %.20s", text,
             l->be->name);
    return refuse_tensor(l, ERR_UNSUPPORTED, why);
}

/* Gives a weight that is made up its format: bf16, or the one that was asked for.  That is for the
 * matrices of layers but for routers, and if it is packed for all others, too, as checkpoints have
 * it. */
static int choose_random_format(const struct loader *l, struct weight *host) {
    const struct weight_format *format = l->source->random_format;
    const struct weight_rule *rule = l->query.rule;
    const bool is_matrix =
        rule->rows != SIDE_VECTOR && !rule->is_small && !weights_are_router(rule);
    char why[96];
    if (!format || !is_matrix || (!l->query.shape && !element_is_packed(format->element))) return 0;
    host->format = *format;
    if (!element_is_packed(format->element) || host->cols % packed_block(format->element) == 0)
        return 0;
    snprintf(why, sizeof(why),
             "--random-format: its rows have %" PRIu32
             " elements, which are not whole blocks of %" PRIu32,
             host->cols, packed_block(format->element));
    return refuse_tensor(l, ERR_UNSUPPORTED, why);
}

/* Describes the weight that is visited. */
static int find_weight(const struct loader *l, struct weight *host) {
    const int rc = weight_find(l->model->files, &l->query, host, l->err);
    return rc || !l->model->random ? rc : choose_random_format(l, host);
}

/* Returns the bytes of the device's copy in the system's memory; 0: it makes none. */
static uint64_t repacked_bytes(const struct loader *l, const struct weight *host) {
    const struct backend_ops *ops = l->be->ops;
    return ops->repacked_bytes ? ops->repacked_bytes(l->be, host) : 0;
}

/* Returns true if the weight is a stack of experts' matrices. */
static bool is_experts(const struct weight_query *q) {
    return q->rule->stacked == SIDE_EXPERTS && weights_uses(q->rule, q->config) == WEIGHT_PRODUCT;
}

static int measure_weight(struct loader *l, struct weight *out) {
    struct weight_tally *tally = &l->model->tally;
    struct weight host, loaded;
    (void)out;
    const int rc = find_weight(l, &host);
    if (rc) return rc;
    loaded = host;
    loaded.format = format_to_load(l, &host);
    set_rounding(l, &loaded);
    weight_tally_add(tally, &host, &loaded, repacked_bytes(l, &loaded),
                     weight_is_scattered(&l->query));
    tally->rounds_from = l->be->rounds_inputs_from;
    if (is_experts(&l->query)) l->expert_bytes[l->query.layer] += weight_bytes(&loaded);
    return check_format(l, &loaded.format);
}

static int tell(const struct loader *l) {
    const struct model_source *source = l->source;
    if (!source->progress ||
        source->progress(source->ctx, l->model->weight_bytes, l->model->tally.bytes))
        return 0;
    return error_set(l->err, ERR_STOPPED, "the loading of the weights was stopped");
}

/* Allocates memory for a copy of a weight, which the model owns.  NULL: no memory. */
static void *own_room(struct loader *l, size_t bytes) {
    struct reordered *own = malloc(sizeof(*own) + bytes);
    if (!own) {
        error_set(l->err, ERR_NOMEM, "no memory to convert a weight");
        return NULL;
    }
    own->next = l->model->reordered;
    l->model->reordered = own;
    return own->data;
}

/* Replaces a weight by a copy in which its matrices follow one another. */
static int gather(struct loader *l, struct weight *host) {
    void *out = own_room(l, weight_copy_bytes(host));
    if (!out) return ERR_NOMEM;
    return weight_gather(l->model->files, &l->query, out, host, l->err);
}

/* Replaces a weight by one of another format that has its values. */
static int convert(struct loader *l, const struct weight_format *format, struct weight *host) {
    struct weight to = *host;
    struct error why;
    to.format = *format;
    void *out = own_room(l, weight_copy_bytes(&to));
    if (!out) return ERR_NOMEM;
    to = weight_copy_at(&to, out);
    const int rc = weight_convert(host, &to, &why);
    *host = to;
    return rc ? refuse_tensor(l, rc, why.text) : 0;
}

/* Copies rows to the decoder's order. */
static void reorder_rows(const struct loader *l, const void *out, const void *in, uint32_t n_rows,
                         size_t row_bytes) {
    const struct model_config *c = &l->model->config;
    rotary_order((void *)out, in, n_rows, row_bytes, c->head_dim, c->n_freqs);
}

/* Replaces a weight with a copy in the decoder's order.  Scales that are the rows' own move with
 * them. */
static int reorder(struct loader *l, struct weight *host) {
    const struct weight rows = by_row(host);
    const bool has_own = host->format.scale && host->format.block_rows == 1;
    const size_t n_scales = weight_scale_bytes(host), scales_bytes = n_scales / rows.rows;
    void *memory = own_room(l, weight_copy_bytes(host));
    if (!memory) return ERR_NOMEM;
    const struct weight out = weight_copy_at(host, memory);
    reorder_rows(l, out.data, host->data, rows.rows, weight_row_bytes(&rows));
    if (has_own) reorder_rows(l, out.scales, host->scales, rows.rows, scales_bytes);
    else if (n_scales) memcpy((void *)out.scales, host->scales, n_scales);
    if (has_own && out.mins) reorder_rows(l, out.mins, host->mins, rows.rows, scales_bytes);
    else if (out.mins) memcpy((void *)out.mins, host->mins, n_scales);
    *host = out;
    return 0;
}

/* Replaces a vector with a copy whose elements are (element + more) * scale, in f32: 16 bits would
 * round what is near 1. */
static int adjust(struct loader *l, float more, float scale, struct weight *host) {
    float *out = own_room(l, host->cols * sizeof(float));
    if (!out) return ERR_NOMEM;
    weight_to_float(host, 0, out);
    for (uint32_t i = 0; i < host->cols; i++) out[i] = (more + out[i]) * scale;
    *host = weight_plain(out, ELEMENT_F32, 1, host->cols);
    return 0;
}

/* Replaces a vector of logarithms with a copy whose elements are -exp(element), in f32. */
static int make_rates(struct loader *l, struct weight *host) {
    float *out = own_room(l, host->cols * sizeof(float));
    if (!out) return ERR_NOMEM;
    weight_to_float(host, 0, out);
    for (uint32_t i = 0; i < host->cols; i++) out[i] = -expf(out[i]);
    *host = weight_plain(out, ELEMENT_F32, 1, host->cols);
    return 0;
}

/* Frees the copies that were made since `before` was the newest, but for the newest if it is to
 * stay. */
static void drop_copies(struct model *model, const struct reordered *before, bool keeps_newest) {
    struct reordered **link = &model->reordered, *own;
    if (keeps_newest && *link != before) link = &(*link)->next;
    while ((own = *link) != before) {
        *link = own->next;
        free(own);
    }
}

/* Makes of what the files have what the device gets: *host.  *bytes: of the weight, without what
 * adjust() or make_rates() makes of it. */
static int prepare(struct loader *l, struct weight *host, uint64_t *bytes) {
    struct model *model = l->model;
    const struct weight_rule *rule = l->query.rule;
    int rc = find_weight(l, host);
    if (rc == 0 && model->random)
        rc = random_weights_get(model->random, rule->is_norm, host, l->err);
    if (rc) return rc;
    const struct weight_format format = format_to_load(l, host);
    if (!model->random && (!host->data || weight_is_scattered(&l->query))) rc = gather(l, host);
    if (!rc && !weight_same_format(&format, &host->format)) {
        rc = convert(l, &format, host);
        if (model->random) random_weights_take_back(model->random);
    }
    *bytes = rc ? 0 : weight_bytes(host);
    set_rounding(l, host);
    if (!rc && rule->is_log && !model->config.has_rates) rc = make_rates(l, host);
    if (rc || model->random) return rc;
    if (moves_rows(&l->query)) rc = reorder(l, host);
    const bool is_from_1 = model->config.norms_from_one && !rule->is_from_0;
    const float more = rule->is_norm && is_from_1 ? 1 : 0;
    float scale = rule->is_last && model->config.logit_scale ? model->config.logit_scale : 1;
    if (rule->over_root) scale = 1 / sqrtf((float)model->config.dim);
    return rc || (more == 0 && scale == 1) ? rc : adjust(l, more, scale, host);
}

/* Gives a weight to the device, or keeps it as f32 in the host's memory. */
static int load_weight(struct loader *l, struct weight *host, struct weight *out) {
    struct error why = {0};
    if (l->query.rule->is_host) {
        const int rc = adjust(l, 0, 1, host);
        *out = *host;
        return rc;
    }
    const bool is_offloaded = is_experts(&l->query) && l->model->is_offloaded[l->query.layer],
               is_gate = is_offloaded && out == &l->model->layers[l->query.layer].gate;
    const int rc = is_offloaded ? expert_offload_load(l->be, host, is_gate, out, &why)
                                : l->be->ops->weight_load(l->be, host, out, &why);
    return rc ? refuse_tensor(l, rc, why.text) : 0;
}

static int move_weight(struct loader *l, struct weight *out) {
    struct model *model = l->model;
    const struct reordered *before = model->reordered;
    struct weight host;
    uint64_t bytes;
    int rc = prepare(l, &host, &bytes);
    if (rc) return rc;
    const uint64_t repacked = repacked_bytes(l, &host);
    rc = load_weight(l, &host, out);
    if (rc) return rc;
    if (repacked) bytes = repacked;
    const bool is_copy = out->data != host.data;
    if (model->random && is_copy) random_weights_take_back(model->random);
    drop_copies(model, before, !is_copy);
    model->weight_bytes += bytes;
    return tell(l);
}

static int visit_rules(struct loader *l, weight_visitor visit, const struct weight_rules *rules,
                       void *base) {
    for (size_t i = 0; i < rules->n; i++) {
        l->query.rule = &rules->rules[i];
        if (!weights_rule_applies(l->query.rule, l->query.config, l->query.shape)) continue;
        const bool is_of_rank_0 = l->query.rule->is_in_sum && model_shares_weights(l->query.config);
        if (is_of_rank_0 && l->query.config->rank > 0) continue;
        int rc = visit(l, (struct weight *)((char *)base + l->query.rule->at));
        if (rc) return rc;
    }
    return 0;
}

static int visit_weights(struct loader *l, weight_visitor visit) {
    struct model *model = l->model;
    const struct model_config *c = model->whole,
                              *rank = c == &model->config ? NULL : &model->config;
    l->query = (struct weight_query){.config = c, .rank = rank};
    int rc = visit_rules(l, visit, &weights_of_model, model);
    for (uint32_t i = 0; !rc && i < c->n_layers; i++) {
        l->query =
            (struct weight_query){.config = c, .shape = &c->layers[i], .layer = i, .rank = rank};
        rc = visit_rules(l, visit, &weights_of_layer, &model->layers[i]);
    }
    return rc;
}

/* Settles which weights make logits. */
static int choose_head(struct loader *l) {
    struct model *model = l->model;
    const struct weight_query head = {.config = &model->config,
                                      .rule = weights_find("lm_head.weight")},
                              embedding = {.config = &model->config,
                                           .rule = weights_find("model.embed_tokens.weight")};
    struct weight own, table;
    char name[WEIGHTS_MAX_NAME];
    weights_file_name(name, &model->config, head.rule->name, 0, 0);
    model->config.head_source = model->config.tied_head ? HEAD_TIED : HEAD_OWN;
    if (!model->config.tied_head || l->source->random ||
        !model->files->ops->has(model->files, name))
        return 0;
    int rc = weight_find(model->files, &head, &own, l->err);
    if (!rc) rc = weight_find(model->files, &embedding, &table, l->err);
    if (rc) return rc;
    const bool equal = weight_is_plain(&own.format) &&
                       weight_same_format(&own.format, &table.format) &&
                       memcmp(own.data, table.data, weight_bytes(&own)) == 0;
    model->config.tied_head = equal;
    model->config.head_source = equal ? HEAD_EQUAL : HEAD_FOUND;
    return 0;
}

/* Asks whether the model is to be loaded. */
static int check_source(const struct loader *l) {
    const struct weight_tally *tally = &l->model->tally;
    const uint64_t own =
        l->model->random ? tally->bytes : tally->converted_bytes + tally->repacked_bytes;
    if (!l->source->check) return 0;
    return l->source->check(l->source->check_ctx, l->model->whole, own, l->model->offload.bytes,
                            l->err);
}

/* Chooses the layers whose experts are offloaded. */
static void choose_offloaded(struct loader *l) {
    const struct model_source *source = l->source;
    const uint32_t n = l->model->config.n_layers;
    uint64_t bytes = source->offload_bytes, most = 0;
    for (uint32_t i = 0; i < n; i++) most = max_u64(most, l->expert_bytes[i]);
    if (bytes == EXPERT_OFFLOAD_AUTO)
        bytes = source->choose_offload && most > 0
                    ? source->choose_offload(source->check_ctx, l->model, most)
                    : 0;
    l->model->offload = offloaded_layers_choose(l->expert_bytes, n, bytes, l->model->is_offloaded);
}

/* Refuses what the device's ranks cannot compute together. */
static int check_ranks(const struct loader *l) {
    const bool shares_rows = l->source->ranks_share == RANKS_SHARE_ROWS;
    if (shares_rows && !l->be->ops->collective->exchange)
        return error_set(l->err, ERR_UNSUPPORTED,
                         "%s %" PRIu32 " is not supported on the device %.20s",
                         ranks_setting(l->source->ranks_share), l->source->n_ranks, l->be->name);
    if (shares_rows || !l->model->config.whole_qk_norm || l->be->ops->collective->rmsnorm) return 0;
    return error_set(
        l->err, ERR_UNSUPPORTED,
        "--tensor-parallel-size %" PRIu32
        ": the model norms all heads of q, and of k, as one vector, which ranks cannot "
        "do on the device %.20s",
        l->source->n_ranks, l->be->name);
}

/* Leaves the model only what its rank has, if ranks share it. */
static int take_share(struct loader *l) {
    struct model *model = l->model;
    if (l->source->n_ranks <= 1) return 0;
    const int rc = check_ranks(l);
    if (rc) return rc;
    struct model_config *whole = malloc(sizeof(*whole));
    if (!whole) return error_set(l->err, ERR_NOMEM, "no memory for the model's configuration");
    *whole = model->config;
    whole->n_ranks = l->source->n_ranks;
    whole->rank = l->source->rank;
    whole->ranks_share = l->source->ranks_share;
    model->whole = whole;
    model->config.layers = NULL; /* whole's from here on, until there are the rank's own */
    return model_share_make(&model->config, whole, l->err);
}

/* Refuses recurrent layers that the device cannot run, with the heads that the rank has. */
static int check_recurrent(const struct loader *l) {
    static const char *const kinds[] = {[RECURRENT_DELTA] = "Gated DeltaNet",
                                        [RECURRENT_CONVOLUTION] = "short convolutions",
                                        [RECURRENT_MAMBA] = "Mamba-2"};
    const struct model_config *c = &l->model->config;
    const struct recurrent_shape *shape = &c->recurrent;
    const struct recurrent_ops *ops = l->be->ops->recurrent;
    if (shape->n_layers == 0 || (ops && ops->takes(l->be, shape))) return 0;
    return error_set(l->err, ERR_UNSUPPORTED,
                     "%s: its recurrent layers (%s, %" PRIu32 " heads of %" PRIu32 " x %" PRIu32
                     ") are not supported on the device %.20s",
                     c->architecture, kinds[shape->kind], shape->n_v_heads, shape->k_dim,
                     shape->v_dim, l->be->name);
}

/* Refuses a function of feed-forward parts that the device lacks. */
static int check_activation(const struct loader *l) {
    const struct model_config *c = &l->model->config;
    if (activation_is_known(l->be, c->act)) return 0;
    return error_set(l->err, ERR_UNSUPPORTED,
                     "%s: its feed-forward parts (the square of a ReLU) are not supported on the "
                     "device %.20s",
                     c->architecture, l->be->name);
}

/* Checks and measures all weights, and reads the data of none. */
static int measure_weights(struct loader *l) {
    struct model *model = l->model;
    const struct weight_source *files = model->files;
    int rc = choose_head(l);
    if (!rc) rc = take_share(l);
    if (!rc) rc = check_recurrent(l);
    if (!rc) rc = check_activation(l);
    if (!rc) rc = visit_weights(l, measure_weight);
    if (!rc && files && files->ops->name)
        rc = unclaimed_check(files, model->whole, &model->tally, l->err);
    if (!rc) choose_offloaded(l);
    return rc;
}

/* Tells whether one weight is both.  A rank's head is a part of the embedding, and a weight of its
 * own. */
static bool head_is_embedding(const struct model *model) {
    return model->config.tied_head && !model_shares_weights(&model->config);
}

static int load_weights(struct loader *l) {
    struct model *model = l->model;
    int rc = check_source(l);
    if (!rc) rc = tell(l);
    if (!rc) rc = visit_weights(l, move_weight);
    if (rc) return rc;
    expert_offload_link(model);
    if (head_is_embedding(model)) model->head = model->embedding;
    model->head_first = model_share_vocab(&model->config).first;
    return 0;
}

int model_check(const struct model *model, struct error *err) {
    return model->files ? model->files->ops->check(model->files, err) : 0;
}

static int open_files(struct model *model, const char *dir, struct error *err) {
    const struct quantisation *how = &model->config.quantisation;
    return *how->method ? quantised_source_open(&model->files, dir, how, err)
                        : weight_source_open(&model->files, dir, err);
}

/* Finds out how the files name the tensors of a text model that is a part of another. */
static int choose_prefix(struct model *model, const char *dir, struct error *err) {
    if (!model->config.is_text_half) return 0;
    model->config.prefix = text_half_prefix(model->files);
    if (model->config.prefix) return 0;
    return error_set(err, ERR_NOT_FOUND, "%.200s: no text model's tensor 'embed_tokens.weight'",
                     dir);
}

/* Reads the configuration, opens the files and measures the weights. */
static int open_model(struct loader *l, const char *dir) {
    struct model *model = l->model;
    int rc = model_config_load(&model->config, dir, l->source->context, l->err);
    if (rc) return rc;
    model->layers = calloc(model->config.n_layers, sizeof(*model->layers));
    l->expert_bytes = calloc(model->config.n_layers, sizeof(*l->expert_bytes));
    model->is_offloaded = calloc(model->config.n_layers, sizeof(*model->is_offloaded));
    if (!model->layers || !l->expert_bytes || !model->is_offloaded)
        return error_set(l->err, ERR_NOMEM, "%.200s: no memory for its layers", dir);
    if (l->source->random)
        rc = random_weights_create(&model->random, l->source->random_format, l->err);
    else rc = open_files(model, dir, l->err);
    if (!rc) rc = choose_prefix(model, dir, l->err);
    if (rc) return rc;
    if (model->files) expert_layout_find(&model->config, model->files);
    return measure_weights(l);
}

/* Makes a model, with its weights or without. */
static int make_model(struct model **out, const char *dir, const struct model_source *source,
                      struct backend *be, bool has_weights, struct error *err) {
    static const struct model_source files = {0};
    struct model *model = calloc(1, sizeof(*model));
    if (model) model->whole = &model->config;
    struct loader loader = {
        .model = model, .source = source ? source : &files, .be = be, .err = err};
    if (!model) return error_set(err, ERR_NOMEM, "%.200s: no memory for the model", dir);
    int rc = open_model(&loader, dir);
    if (!rc && has_weights) rc = load_weights(&loader);
    free(loader.expert_bytes);
    if (model_check(model, err)) rc = ERR_IO; /* whatever else seemed to be wrong */
    if (rc) model_destroy(model, be);
    else *out = model;
    return rc;
}

int model_load(struct model **out, const char *dir, const struct model_source *source,
               struct backend *be, struct error *err) {
    return make_model(out, dir, source, be, true, err);
}

int model_measure(struct model **out, const char *dir, const struct model_source *source,
                  struct backend *be, struct error *err) {
    return make_model(out, dir, source, be, false, err);
}

/* Releases the weights of the rules.  Two rules may fill the same member, one for each of the ways
 * to store it. */
static void release_rules(struct backend *be, const struct weight_rules *rules, void *base) {
    for (size_t i = 0; i < rules->n; i++) {
        struct weight *w = (struct weight *)((char *)base + rules->rules[i].at);
        if (w->data && !rules->rules[i].is_host) be->ops->weight_release(be, w);
        w->data = NULL;
    }
}

void model_destroy(struct model *model, struct backend *be) {
    if (!model) return;
    if (head_is_embedding(model)) model->head.data = NULL; /* released once */
    release_rules(be, &weights_of_model, model);
    for (uint32_t i = 0; model->layers && i < model->config.n_layers; i++) {
        if (model->is_offloaded && model->is_offloaded[i])
            expert_offload_release(be, &model->layers[i]);
        release_rules(be, &weights_of_layer, &model->layers[i]);
    }
    drop_copies(model, NULL, false);
    if (model->files) model->files->ops->close(model->files);
    random_weights_destroy(model->random);
    free(model->layers);
    free(model->is_offloaded);
    if (model->whole != &model->config) free(model->config.layers);
    model_config_fini(model->whole);
    if (model->whole != &model->config) free(model->whole);
    free(model);
}
