/* family_config.c - see family_config.h. */
#include "engine/model/family_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/model/alibi.h"
#include "engine/model/config_reader.h"
#include "engine/model/experts_config.h"
#include "engine/model/family.h"
#include "engine/model/family_names.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/shared_keys.h"

enum { MAX_HEAD_DIM = 512 };

/* A key whose value must be this one, as it is where the key is absent. */
struct demand {
    const char *key;
    bool wanted;
    const char *why; /* what the other value would be */
};

static int check_demands(const struct config_reader *r, const struct demand *demands, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool said = demands[i].wanted;
        const int rc = config_read_bool(r, r->root, demands[i].key, &said);
        if (rc) return rc;
        if (said != demands[i].wanted)
            return config_refuse(r, ERR_UNSUPPORTED, demands[i].key, demands[i].why);
    }
    return 0;
}

#define CHECK_DEMANDS(r, demands) check_demands(r, demands, sizeof(demands) / sizeof((demands)[0]))

static int make_slopes(const struct config_reader *r, struct model_config *c, double most,
                       double scale) {
    c->slopes = calloc(c->n_heads, sizeof(*c->slopes));
    if (!c->slopes)
        return error_set(r->err, ERR_NOMEM, "%.200s: no memory for the heads' slopes", r->label);
    alibi_slopes(c->slopes, c->n_heads, most, scale);
    c->positions = POSITIONS_ALIBI;
    return 0;
}

int family_read_neox(const struct config_reader *r, struct model_config *c) {
    c->parallel = true;
    return config_read_bool(r, r->root, "use_parallel_residual", &c->parallel);
}

int family_read_opt(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {
        {"do_layer_norm_before", true, "is false: norms after a block's sum are not supported"},
        {"layer_norm_elementwise_affine", true,
         "is false: norms without weights are not supported"},
        {"_remove_final_layer_norm", false, "is true: there must be a norm before the logits"}};
    uint32_t embedding = c->dim;
    int rc = CHECK_DEMANDS(r, demands);
    if (!rc) rc = config_read_count(r, r->root, "word_embed_proj_dim", UINT16_MAX + 1, &embedding);
    if (rc || embedding == c->dim) return rc;
    return config_refuse(r, ERR_UNSUPPORTED, "word_embed_proj_dim",
                         "is not 'hidden_size': projected embeddings are not supported");
}

/* Sets the norms of a block: one for both halves, or one for each. */
static int read_falcon_norms(const struct config_reader *r, struct model_config *c, bool is_new) {
    uint32_t n_norms = is_new ? 2 : 1;
    const int rc = config_read_count(r, r->root, "num_ln_in_parallel_attn", 2, &n_norms);
    if (rc) return rc;
    if (!is_new && n_norms == 2)
        return config_refuse(r, ERR_UNSUPPORTED, "num_ln_in_parallel_attn",
                             "is 2 without 'new_decoder_architecture'");
    c->shared_norm = c->parallel && n_norms == 1;
    if (c->parallel && n_norms == 2) c->tensors = falcon_two_norms_tensors;
    return 0;
}

int family_read_falcon(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {
        {"apply_residual_connection_post_layernorm", false, "is true"}};
    bool is_new = false, multi_query = true, alibi = false;
    c->parallel = true;
    int rc = CHECK_DEMANDS(r, demands);
    if (!rc) rc = config_read_bool(r, r->root, "new_decoder_architecture", &is_new);
    if (!rc) rc = config_read_bool(r, r->root, "alibi", &alibi);
    if (!rc) rc = config_read_bool(r, r->root, "multi_query", &multi_query);
    if (!rc) rc = config_read_bool(r, r->root, "parallel_attn", &c->parallel);
    if (rc) return rc;
    if (is_new && !c->parallel)
        return config_refuse(r, ERR_UNSUPPORTED, "parallel_attn",
                             "is false beside 'new_decoder_architecture'");
    if (!is_new) c->n_kv_heads = multi_query ? 1 : c->n_heads; /* whatever 'num_kv_heads' is */
    rc = read_falcon_norms(r, c, is_new);
    /* Falcon scales its scores after it has added the bias. */
    return rc || !alibi ? rc : make_slopes(r, c, 8, 1 / sqrt(c->head_dim));
}

/* Reads and checks the object of settings of MPT's attention. */
static int read_mpt_attention(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {
        {"alibi", true, "is false: learned positions are not supported here"},
        {"qk_ln", false, "is true: norms of queries and keys are not supported here"},
        {"prefix_lm", false, "is true: attention to later tokens is not supported"},
        {"attn_uses_sequence_id", false, "is true"}};
    const json_t *object = config_get(r->root, "attn_config");
    const struct config_reader inner = {object, r->label, r->context, r->err};
    const char *type = json_string_value(config_get(object, "attn_type"));
    double most = 8, scale = 0;
    if (object && !json_is_object(object))
        return config_refuse(r, ERR_INVALID, "attn_config", "is not an object");
    if (config_get(object, "attn_type") && (!type || strcmp(type, "multihead_attention") != 0))
        return config_refuse(r, ERR_UNSUPPORTED, "attn_type", "is not multihead_attention");
    if (config_get(object, "clip_qkv"))
        return config_refuse(r, ERR_UNSUPPORTED, "clip_qkv", "is not null");
    int rc = CHECK_DEMANDS(&inner, demands);
    if (!rc) rc = config_read_number(r, object, "alibi_bias_max", 1e-3, 1e3, &most);
    if (!rc) rc = config_read_number(r, object, "softmax_scale", 1e-6, 1e6, &scale);
    c->attn_scale = (float)scale;
    return rc ? rc : make_slopes(r, c, most, 1);
}

int family_read_mpt(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {{"no_bias", true, "is false"}};
    uint32_t ratio = 4;
    int rc = CHECK_DEMANDS(r, demands);
    if (!rc) rc = config_read_count(r, r->root, "expansion_ratio", 64, &ratio);
    if (rc) return rc;
    if (config_get(r->root, "logit_scale"))
        return config_refuse(r, ERR_UNSUPPORTED, "logit_scale", "is not null");
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i].ffn_dim = ratio * c->dim;
    return read_mpt_attention(r, c);
}

int family_read_chatglm(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {
        {"rmsnorm", true, "is false: LayerNorm is not supported here"},
        {"post_layer_norm", true, "is false: there must be a norm before the logits"},
        {"add_bias_linear", false, "is true: only queries, keys and values may have a bias"},
        {"apply_residual_connection_post_layernorm", false, "is true"}};
    bool groups = false;
    int rc = CHECK_DEMANDS(r, demands);
    if (!rc) rc = config_read_bool(r, r->root, "multi_query_attention", &groups);
    if (!groups) c->n_kv_heads = c->n_heads; /* whatever 'multi_query_group_num' is */
    return rc;
}

/* Reads which layers rotate nothing: those that a list has with 0, or every interval-th one. */
int family_read_smollm3(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {
        {"use_sliding_window", false, "is true: layers with a window are not supported here"}};
    const json_t *list = config_get(r->root, "no_rope_layers");
    uint32_t interval = 4;
    int rc = CHECK_DEMANDS(r, demands);
    if (!rc) rc = config_read_count(r, r->root, "no_rope_layer_interval", 1024, &interval);
    if (rc) return rc;
    if (list && json_array_size(list) != c->n_layers)
        return config_refuse(r, ERR_INVALID, "no_rope_layers", "is not a list of one per layer");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *rotates = json_array_get(list, i);
        if (list && !json_is_integer(rotates))
            return config_refuse(r, ERR_INVALID, "no_rope_layers",
                                 "has an element that is no "
                                 "whole number");
        c->layers[i].is_local = list ? json_integer_value(rotates) == 0 : (i + 1) % interval == 0;
    }
    return 0;
}

/* Reads Granite's multipliers.  What a branch adds is multiplied with r.  The decoder's residual
 * stream is that of the model divided by r, which only changes the norms' eps. */
int family_read_granite(const struct config_reader *r, struct model_config *c) {
    double embedding = 1, attention = 1, residual = 1, logits = 1;
    int rc = config_read_number(r, r->root, "embedding_multiplier", 1e-6, 1e6, &embedding);
    if (!rc) rc = config_read_number(r, r->root, "attention_multiplier", 1e-6, 1e6, &attention);
    if (!rc) rc = config_read_number(r, r->root, "residual_multiplier", 1e-3, 1e3, &residual);
    if (!rc) rc = config_read_number(r, r->root, "logits_scaling", 1e-6, 1e6, &logits);
    c->embed_scale = (float)(embedding / residual);
    c->attn_scale = (float)attention;
    c->logit_scale = (float)(1 / logits);
    c->eps_scale = 1 / (residual * residual);
    return rc;
}

int family_read_cohere(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {
        {"use_qk_norm", false, "is true: LayerNorm of queries and keys is not supported"}};
    double scale = 0.0625;
    int rc = CHECK_DEMANDS(r, demands);
    if (!rc) rc = config_read_number(r, r->root, "logit_scale", 1e-6, 1e6, &scale);
    c->logit_scale = (float)scale;
    return rc;
}

/* Reads how the router makes shares, and how they go with the shared expert's: added to them, or
 * all halved. */
static int read_cohere_route(const struct config_reader *r, struct model_config *c) {
    struct routing *routing = &c->routing;
    const json_t *select = config_get(r->root, "expert_selection_fn"),
                 *combine = config_get(r->root, "shared_expert_combination_strategy");
    const char *selects = select ? json_string_value(select) : "softmax",
               *combines = combine ? json_string_value(combine) : "average";
    const bool sigmoid = selects && strcmp(selects, "sigmoid") == 0,
               average = combines && strcmp(combines, "average") == 0;
    if (!sigmoid && (!selects || strcmp(selects, "softmax") != 0))
        return config_refuse(r, ERR_UNSUPPORTED, "expert_selection_fn",
                             "is not softmax or sigmoid");
    if (!average && (!combines || strcmp(combines, "sum") != 0))
        return config_refuse(r, ERR_UNSUPPORTED, "shared_expert_combination_strategy",
                             "is not average or sum");
    if (average && c->layers[c->n_layers - 1].shared_dim > 0)
        routing->factor = routing->shared = 0.5F;
    /* The sigmoid keeps the order of the logits. */
    routing->kind = sigmoid ? ROUTE_SIGMOID : ROUTE_SOFTMAX_CHOSEN;
    routing->normalises = sigmoid;
    return sigmoid ? config_read_bool(r, r->root, "norm_topk_prob", &routing->normalises) : 0;
}

int family_read_cohere2_moe(const struct config_reader *r, struct model_config *c) {
    const bool is_rms = config_get(r->root, "rms_norm_eps") != NULL;
    double eps = 1e-5;
    int rc = family_read_cohere(r, c);
    if (!rc) rc = read_cohere_route(r, c);
    if (!rc) rc = config_read_number(r, r->root, "layer_norm_eps", 1e-12, 1.0, &eps);
    if (rc) return rc;
    c->layer_norm = !is_rms;
    if (!is_rms) c->norm_eps = (float)eps;
    return 0;
}

int family_read_qwen_moe(const struct config_reader *r, struct model_config *c) {
    static const struct demand demands[] = {
        {"use_sliding_window", false, "is true: windows are not supported beside experts here"}};
    (void)c;
    return CHECK_DEMANDS(r, demands);
}

int family_read_gpt_oss(const struct config_reader *r, struct model_config *c) {
    double most = 7, slope = 1.702;
    int rc = config_read_number(r, r->root, "swiglu_limit", 1e-3, 1e6, &most);
    if (!rc) rc = config_read_number(r, r->root, "swiglu_alpha", 1e-3, 1e3, &slope);
    c->gate_most = (float)most;
    c->gate_slope = (float)slope;
    return rc;
}

int family_read_glm4_moe(const struct config_reader *r, struct model_config *c) {
    return config_read_bool(r, r->root, "use_qk_norm", &c->qk_norm);
}

/* Reads the width of LFM2's feed-forward parts: its own name for it wins.  What is said may be
 * three halves of it, to be rounded up to a multiple. */
static int read_lfm2_width(const struct config_reader *r, struct model_config *c) {
    static const char own[] = "block_ff_dim", multiplier[] = "block_ffn_dim_multiplier";
    const bool rounds = !json_is_null(json_object_get(r->root, multiplier));
    uint32_t width = c->layers[0].ffn_dim, unit = 256;
    bool adjusts = true;
    double factor = 1;
    if (!config_get(r->root, own) && !config_get(r->root, "intermediate_size"))
        return config_refuse(r, ERR_INVALID, "intermediate_size", "is missing");
    int rc = config_read_count(r, r->root, own, 1 << 20, &width);
    if (!rc) rc = config_read_bool(r, r->root, "block_auto_adjust_ff_dim", &adjusts);
    if (!rc) rc = config_read_number(r, r->root, multiplier, 1e-3, 1e3, &factor);
    if (!rc) rc = config_read_count(r, r->root, "block_multiple_of", 1 << 20, &unit);
    if (rc) return rc;
    if (adjusts) width = (uint32_t)(factor * (width * 2 / 3));
    if (adjusts && rounds) width = (uint32_t)round_up(width, unit);
    if (width == 0 || width > 1 << 20)
        return config_refuse(r, ERR_INVALID, own, "makes no width from 1 to 1048576");
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i].ffn_dim = width;
    return 0;
}

int family_read_lfm2(const struct config_reader *r, struct model_config *c) {
    const int rc = read_lfm2_width(r, c);
    return rc ? rc : config_read_bool(r, r->root, "tie_embedding", &c->tied_head);
}

int family_read_lfm2_moe(const struct config_reader *r, struct model_config *c) {
    c->has_choice_bias = true;
    const int rc = config_read_bool(r, r->root, "use_expert_bias", &c->has_choice_bias);
    return rc ? rc : config_read_bool(r, r->root, "tie_embedding", &c->tied_head);
}

/* Reads the KV heads that one layer has in place of the others' ones. */
static int read_own_heads(const struct config_reader *r, const struct model_config *c,
                          uint32_t layer, struct kv_shape *out) {
    static const char key[] = "per_layer_config";
    char number[16];
    snprintf(number, sizeof(number), "%" PRIu32, layer);
    const json_t *own = config_get(config_get(r->root, key), number);
    const size_t n_known =
        (config_get(own, "head_dim") != NULL) + (config_get(own, "num_key_value_heads") != NULL);
    if (own && json_object_size(own) != n_known)
        return config_refuse(r, ERR_UNSUPPORTED, key, "has another key than the heads' ones");
    const int rc = config_read_count(r, own, "head_dim", MAX_HEAD_DIM, &out->head_dim);
    return rc ? rc : config_read_count(r, own, "num_key_value_heads", c->n_heads, &out->n_heads);
}

/* Reads the same where transformers 5 has written it, for each layer.  There are two kinds. */
static int read_heads_by_layer(const struct config_reader *r, const struct model_config *c,
                               struct kv_shape *full) {
    const json_t *types = config_get(r->root, "layer_types");
    const struct kv_shape windowed = *full;
    int rc = read_own_heads(r, c, c->n_layers - 1, full);
    for (uint32_t i = 0; i < c->n_layers && !rc; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const struct kv_shape wanted =
            type && strcmp(type, "full_attention") == 0 ? *full : windowed;
        struct kv_shape own = windowed;
        rc = read_own_heads(r, c, i, &own);
        if (!rc && (own.n_heads != wanted.n_heads || own.head_dim != wanted.head_dim))
            return config_refuse(r, ERR_UNSUPPORTED, "per_layer_config",
                                 "has layers of one type that differ");
    }
    return rc;
}

/* Reads the heads of layers without a window, which are not those of the others. */
static int read_gemma4_heads(const struct config_reader *r, struct model_config *c) {
    struct kv_shape full = {c->n_kv_heads, c->head_dim};
    uint32_t n_global = 0;
    int rc = config_read_bool(r, r->root, "attention_k_eq_v", &c->k_is_v);
    c->windowed = full;
    if (!rc && config_get(r->root, "per_layer_config")) {
        rc = read_heads_by_layer(r, c, &full);
    } else if (!rc) {
        full.head_dim = 512;
        rc = config_read_count(r, r->root, "global_head_dim", MAX_HEAD_DIM, &full.head_dim);
        if (!rc)
            rc = config_read_count(r, r->root, "num_global_key_value_heads", c->n_heads, &n_global);
        if (c->k_is_v && n_global > 0) full.n_heads = n_global;
    }
    if (rc) return rc;
    c->n_kv_heads = full.n_heads;
    c->head_dim = full.head_dim;
    if (full.head_dim % 2 != 0)
        return config_refuse(r, ERR_UNSUPPORTED, "global_head_dim", "is odd");
    if (c->n_heads % full.n_heads == 0) return 0;
    return config_refuse(r, ERR_INVALID, "num_global_key_value_heads",
                         "does not divide 'num_attention_heads'");
}

/* Refuses what transformers fills in or overrides where a file does not say it. */
static int check_gemma4_layers(const struct config_reader *r, const struct model_config *c) {
    const json_t *types = config_get(r->root, "layer_types");
    const char *last = json_string_value(json_array_get(types, c->n_layers - 1));
    if (!types) return config_refuse(r, ERR_INVALID, "layer_types", "is missing");
    if (!last || strcmp(last, "full_attention") != 0)
        return config_refuse(r, ERR_UNSUPPORTED, "layer_types", "does not end with full_attention");
    if (config_get(r->root, "rope_parameters")) return 0;
    return config_refuse(r, ERR_INVALID, "rope_parameters", "is missing");
}

/* Gives all layers experts beside their dense parts, where config.json says so. */
static int read_gemma4_experts(const struct config_reader *r, struct model_config *c) {
    static const struct family_experts experts = {.count = "num_experts",
                                                  .used = "top_k_experts",
                                                  .width = "moe_intermediate_size",
                                                  .kind = ROUTE_SOFTMAX,
                                                  .normalises = true};
    const uint32_t dense_dim = c->layers[0].ffn_dim;
    bool has_experts = false;
    int rc = config_read_bool(r, r->root, "enable_moe_block", &has_experts);
    if (rc || !has_experts) return rc;
    rc = experts_config_read(r, &experts, c);
    for (uint32_t i = 0; i < c->n_layers && !rc; i++) {
        c->layers[i].kind = FFN_BOTH;
        c->layers[i].dense_dim = dense_dim;
    }
    return rc;
}

/* Reads what each layer gets of a token beside the residual stream. */
static int read_layer_inputs(const struct config_reader *r, struct model_config *c) {
    static const char key[] = "hidden_size_per_layer_input";
    double n = family_find(c->architecture)->usual_layer_inputs;
    int rc = config_read_number(r, r->root, key, 0, 1 << 12, &n);
    if (rc) return rc;
    if (n != (uint32_t)n) return config_refuse(r, ERR_INVALID, key, "is not a whole number");
    c->layer_inputs = (uint32_t)n;
    if (c->layer_inputs == 0) return 0;
    c->n_input_vocab = 262144;
    rc = config_read_count(r, r->root, "vocab_size_per_layer_input", 1 << 24, &c->n_input_vocab);
    if (rc || c->n_input_vocab >= c->n_vocab) return rc;
    return config_refuse(r, ERR_UNSUPPORTED, "vocab_size_per_layer_input",
                         "is less than 'vocab_size': some tokens would have no inputs");
}

/* Reads which layers share the keys of others.  These may be twice as wide. */
static int read_gemma4_sharing(const struct config_reader *r, struct model_config *c) {
    bool is_double = false;
    int rc = shared_keys_read(r, c);
    if (!rc) rc = config_read_bool(r, r->root, "use_double_wide_mlp", &is_double);
    for (uint32_t i = shared_keys_n_writing(c); i < c->n_layers && is_double && !rc; i++) {
        struct layer_shape *shape = &c->layers[i];
        *(shape->kind == FFN_BOTH ? &shape->dense_dim : &shape->ffn_dim) *= 2;
    }
    return rc;
}

int family_read_gemma4(const struct config_reader *r, struct model_config *c) {
    int rc = check_gemma4_layers(r, c);
    if (!rc) rc = read_layer_inputs(r, c);
    if (!rc) rc = read_gemma4_experts(r, c);
    if (!rc) rc = read_gemma4_sharing(r, c);
    c->attn_scale = 1;
    return rc ? rc : read_gemma4_heads(r, c);
}
