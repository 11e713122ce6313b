/* config.c - see config.h and model.h.
 *
 * The files are input: each value is checked and bounded before anything is computed from it.  What
 * would change the arithmetic in a way the decoder does not know is refused by name. */
#include "engine/model/config.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/activation.h"
#include "engine/device/backend.h"
#include "engine/gguf/model_document.h"
#include "engine/model/config_reader.h"
#include "engine/model/experts_config.h"
#include "engine/model/family.h"
#include "engine/model/family_names.h"
#include "engine/model/feed_forward.h"
#include "engine/model/gguf_layout.h"
#include "engine/model/recurrent_config.h"
#include "engine/model/rope_config.h"
#include "engine/model/shared_keys.h"
#include "engine/model/text_half.h"
#include "engine/model/window_config.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_HEAD_DIM = 512 };

/* Keys with a whole number.  The bounds are far beyond any model and keep every product of two or
 * three of them within 64 bits. */
struct count_key {
    const char *key;
    size_t offset;
    uint32_t max;
};

static const struct count_key required_counts[] = {
    {"vocab_size", offsetof(struct model_config, n_vocab), 1 << 24},
    {"hidden_size", offsetof(struct model_config, dim), 1 << 16},
    {"num_hidden_layers", offsetof(struct model_config, n_layers), CONFIG_MAX_LAYERS},
    {"num_attention_heads", offsetof(struct model_config, n_heads), 1024},
    {"max_position_embeddings", offsetof(struct model_config, max_position), 1 << 30},
};

static int read_architecture(const struct config_reader *r, struct model_config *c) {
    const json_t *list = config_get(r->root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name || json_array_size(list) != 1)
        return config_refuse(r, ERR_INVALID, "architectures", "is not a list of one name");
    if (!family_find(name)) {
        char all[FAMILY_LIST_BYTES];
        family_list(all);
        return error_set(r->err, ERR_UNSUPPORTED,
                         "architecture '%.40s' is not supported%s; the nearest is %s; "
                         "these are: %s",
                         name, family_missing(name), family_nearest(name), all);
    }
    const char *type = json_string_value(config_get(r->root, "model_type"));
    const char *of_type = type ? family_of_type(type) : NULL;
    if (of_type && strcmp(of_type, name) != 0)
        return error_set(r->err, ERR_INVALID,
                         "%.200s: config.json: 'model_type' '%.60s' is %s's, 'architectures' says "
                         "%s",
                         r->label, type, of_type, name);
    snprintf(c->architecture, sizeof(c->architecture), "%s", name);
    const struct model_family *family = family_find(name);
    c->qk_norm = family->qk_norm;
    c->whole_qk_norm = family->whole_qk_norm;
    c->v_norm = family->v_norm;
    c->layer_scales = family->layer_scales;
    c->no_pre_norms = family->no_pre_norms;
    c->fused_qkv = family->fused_qkv;
    c->fused_gate_up = family->fused_gate_up;
    c->post_norms = family->post_norms;
    c->paired_rotary = family->paired_rotary;
    c->own_ffn_norms = family->own_ffn_norms;
    c->norms_from_one = family->norms_from_one;
    c->tied_head = family->usually_tied;
    c->gate = family->gate;
    c->act = family->act;
    c->positions = family->positions;
    c->first_position = family->first_position;
    c->layer_norm = family->layer_norm;
    c->norm_bias = family->norm_bias;
    c->parallel = family->parallel;
    c->shared_norm = family->shared_norm;
    c->qkv_by_group = family->qkv_by_group;
    c->output_gate = family->output_gate;
    c->recurrent_by_group = c->gates_by_group = family->recurrent_by_group;
    c->softmax = family->softmax;
    c->experts_in_columns = family->experts_in_columns;
    c->tensors = family->tensors;
    c->head_dim = family->usual_head_dim;
    c->max_position = family->usual_context;
    if (family->count_layers) c->n_layers = family->count_layers(r);
    return 0;
}

/* Returns what the model's family calls a key. */
static const char *key_of(const struct model_config *c, const char *usual) {
    return family_own_name(family_find(c->architecture)->keys, usual);
}

static int read_heads(const struct config_reader *r, struct model_config *c) {
    c->n_kv_heads = c->n_heads;
    const char *n_kv_heads = key_of(c, "num_key_value_heads");
    int rc = config_read_count(r, r->root, n_kv_heads, c->n_heads, &c->n_kv_heads);
    if (rc) return rc;
    if (c->n_heads % c->n_kv_heads != 0)
        return config_refuse(r, ERR_INVALID, n_kv_heads, "does not divide 'num_attention_heads'");
    rc = config_read_count(r, r->root, key_of(c, "head_dim"), MAX_HEAD_DIM, &c->head_dim);
    if (rc) return rc;
    if (c->head_dim == 0 && c->dim % c->n_heads != 0)
        return config_refuse(r, ERR_INVALID, "hidden_size",
                             "is not a multiple of 'num_attention_heads'");
    if (c->head_dim == 0) c->head_dim = c->dim / c->n_heads;
    if (c->head_dim < 2 || c->head_dim % 2 != 0 || c->head_dim > MAX_HEAD_DIM)
        return config_refuse(r, ERR_UNSUPPORTED, "head_dim", "is odd or larger than 512");
    return 0;
}

/* Reads a count.  config.json may lack it if *out has the family's usual one already, which is not
 * 0. */
static int read_required(const struct config_reader *r, const struct model_config *c,
                         const char *usual_key, uint32_t max, uint32_t *out) {
    const char *key = key_of(c, usual_key);
    if (!config_get(r->root, key) && *out == 0)
        return config_refuse(r, ERR_INVALID, key, "is missing");
    return config_read_count(r, r->root, key, max, out);
}

static int read_guess_layers(const struct config_reader *r, struct model_config *c) {
    double n = 0;
    const int rc = config_read_number(r, r->root, "num_nextn_predict_layers", 0, 16, &n);
    c->n_guess_layers = (uint32_t)n;
    return rc;
}

/* Reads what follows attention. */
static int read_layers(const struct config_reader *r, struct model_config *c) {
    const struct model_family *family = family_find(c->architecture);
    struct layer_shape shape = {.kind = family->ffn, .ffn_dim = family->usual_ffn_ratio * c->dim};
    const int rc = read_required(r, c, "intermediate_size", 1 << 20, &shape.ffn_dim);
    if (rc) return rc;
    c->layers = calloc(c->n_layers, sizeof(*c->layers));
    if (!c->layers)
        return error_set(r->err, ERR_NOMEM, "%.200s: no memory for the layers' shapes", r->label);
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i] = shape;
    int code = family->experts ? experts_config_read(r, family->experts, c) : 0;
    if (!code) code = read_guess_layers(r, c);
    return code ? code : recurrent_config_read(r, family->recurrent, c);
}

static int read_shape(const struct config_reader *r, struct model_config *c) {
    for (size_t i = 0; i < sizeof(required_counts) / sizeof(required_counts[0]); i++) {
        const struct count_key *k = &required_counts[i];
        int rc = read_required(r, c, k->key, k->max, (uint32_t *)((char *)c + k->offset));
        if (rc) return rc;
    }
    const int rc = read_layers(r, c);
    return rc ? rc : read_heads(r, c);
}

/* Reads the dtype, and refuses one that no reader knows.  Plain tensors are read as their own
 * headers say. */
static int read_dtype(const struct config_reader *r, struct model_config *c) {
    static const char *const names[] = {
        [ELEMENT_F32] = "float32", [ELEMENT_F16] = "float16", [ELEMENT_BF16] = "bfloat16"};
    const json_t *value = config_get(r->root, "dtype");
    if (!value) value = config_get(r->root, "torch_dtype"); /* its name before transformers 5 */
    c->element = ELEMENT_BF16;
    if (!value) return 0;
    const char *name = json_string_value(value);
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        c->element = (enum element)i;
        return 0;
    }
    return config_refuse(r, ERR_UNSUPPORTED, "dtype", "is not float32, float16 or bfloat16");
}

static bool has_bias(enum family_bias bias, bool said) {
    return bias == BIAS_ALWAYS || (bias == BIAS_AS_SAID && said);
}

static int read_biases(const struct config_reader *r, struct model_config *c) {
    const struct model_family *family = family_find(c->architecture);
    const char *attention_key = key_of(c, "attention_bias"), *mlp_key = key_of(c, "mlp_bias");
    const bool asks_for_o = family->o_bias == BIAS_BY_KEY;
    bool attention = family->usual_bias, o = false;
    bool mlp = family->usual_bias && !asks_for_o && family->mlp_bias != BIAS_NEVER;
    int rc = config_read_bool(r, r->root, attention_key, &attention);
    if (!rc) rc = config_read_bool(r, r->root, mlp_key, &mlp);
    if (!rc && asks_for_o) rc = config_read_bool(r, r->root, "attention_out_bias", &o);
    if (rc) return rc;
    if (attention && family->qkv_bias == BIAS_NEVER)
        return config_refuse(r, ERR_UNSUPPORTED, attention_key, "is not of this architecture");
    if (mlp && family->mlp_bias == BIAS_NEVER)
        return config_refuse(r, ERR_UNSUPPORTED, mlp_key, "is not of this architecture");
    c->qkv_bias = has_bias(family->qkv_bias, attention);
    c->o_bias = asks_for_o ? o : has_bias(family->o_bias, attention);
    c->mlp_bias = has_bias(family->mlp_bias, mlp);
    return 0;
}

/* Reads the function of FFN_PLAIN. */
static int read_activation(const struct config_reader *r, struct model_config *c) {
    static const struct {
        const char *name;
        enum act_kind act;
    } known[] = {{"gelu", ACT_GELU},           {"gelu_new", ACT_GELU_TANH},
                 {"gelu_fast", ACT_GELU_TANH}, {"gelu_pytorch_tanh", ACT_GELU_TANH},
                 {"relu", ACT_RELU},           {"relu2", ACT_RELU2}};
    const char *key = key_of(c, "hidden_act");
    const json_t *value = config_get(r->root, key);
    const char *name = json_string_value(value);
    if (!value) return 0;
    for (size_t i = 0; name && i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(name, known[i].name) != 0) continue;
        c->act = known[i].act;
        return 0;
    }
    return config_refuse(r, ERR_UNSUPPORTED, key,
                         "is not gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu or relu2");
}

static int read_gate(const struct config_reader *r, struct model_config *c) {
    static const char *const keys[] = {"hidden_act", "hidden_activation"};
    const bool gelu = c->gate == GATE_GELU;
    if (family_find(c->architecture)->ffn == FFN_PLAIN) return read_activation(r, c);
    for (int i = 0; i < 2; i++) {
        const json_t *act = config_get(r->root, keys[i]);
        const char *name = json_string_value(act);
        if (act && (!name || strcmp(name, gelu ? "gelu_pytorch_tanh" : "silu") != 0))
            return config_refuse(r, ERR_UNSUPPORTED, keys[i],
                                 gelu ? "is not gelu_pytorch_tanh" : "is not silu");
    }
    return 0;
}

/* Reads a softcap; null means none. */
static int read_softcap(const struct config_reader *r, const char *key, double usual, bool as_said,
                        float *out) {
    double cap = json_object_get(r->root, key) ? 0 : usual;
    if (usual == 0 && !as_said && config_get(r->root, key))
        return config_refuse(r, ERR_UNSUPPORTED, key, "is not null");
    const int rc = config_read_number(r, r->root, key, 1e-3, 1e6, &cap);
    *out = (float)cap;
    return rc;
}

static int read_softcaps(const struct config_reader *r, struct model_config *c) {
    const struct model_family *family = family_find(c->architecture);
    int rc = read_softcap(r, "attn_logit_softcapping", family->usual_attn_softcap, false,
                          &c->attn_softcap);
    if (!rc)
        rc = read_softcap(r, "final_logit_softcapping", family->usual_logit_softcap,
                          family->caps_as_said, &c->logit_softcap);
    return rc;
}

/* Reads what attention scores and embeddings are multiplied with. */
static int read_scales(const struct config_reader *r, struct model_config *c) {
    const struct model_family *family = family_find(c->architecture);
    static const char both_ways_key[] = "use_bidirectional_attention";
    const char *both_ways_of = json_string_value(config_get(r->root, both_ways_key));
    bool both_ways = false, causal = true;
    double scalar = family->usual_query_scalar;
    int rc = 0; /* among images only, text does not have any */
    if (!both_ways_of || strcmp(both_ways_of, "vision") != 0)
        rc = config_read_bool(r, r->root, both_ways_key, &both_ways);
    if (!rc) rc = config_read_bool(r, r->root, "is_causal", &causal);
    if (!rc && scalar > 0)
        rc = config_read_number(r, r->root, "query_pre_attn_scalar", 1e-3, 1e6, &scalar);
    if (rc) return rc;
    if (both_ways) return config_refuse(r, ERR_UNSUPPORTED, both_ways_key, "is true");
    if (!causal)
        return config_refuse(r, ERR_UNSUPPORTED, "is_causal",
                             "is false: attention to later tokens is not supported");
    if (c->attn_scale == 0) /* unless the family has read another */
        c->attn_scale = (float)(1.0 / sqrt(scalar > 0 ? scalar : c->head_dim));
    if (c->embed_scale == 0)
        c->embed_scale = family->scales_embedding ? sqrtf((float)c->dim) : 1.0f;
    return 0;
}

/* Reads what the softmax of attention adds up, unless the family says it.  transformers has no name
 * for it: gpt-oss always has sinks.  Megatron's name is taken. */
static int read_softmax(const struct config_reader *r, struct model_config *c) {
    static const char *const names[] = {[SOFTMAX_PLAIN] = "vanilla",
                                        [SOFTMAX_OFF_BY_ONE] = "off-by-one",
                                        [SOFTMAX_SINKS] = "learnable"};
    const json_t *value = config_get(r->root, "softmax_type");
    const char *name = json_string_value(value);
    if (!value) return 0;
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        c->softmax = (enum softmax_kind)i;
        return 0;
    }
    return config_refuse(r, ERR_UNSUPPORTED, "softmax_type",
                         "is not vanilla, off-by-one or learnable");
}

static int read_options(const struct config_reader *r, struct model_config *c) {
    /* Unless the family has read another. */
    double eps = c->norm_eps > 0 ? (double)c->norm_eps : family_find(c->architecture)->norm_eps;
    int rc = config_read_number(r, r->root, key_of(c, "rms_norm_eps"), 1e-12, 1.0, &eps);
    if (rc) return rc;
    c->mixer_eps = (float)eps;
    c->norm_eps = (float)(c->eps_scale > 0 ? eps * c->eps_scale : eps);
    if ((rc = config_read_bool(r, r->root, "tie_word_embeddings", &c->tied_head))) return rc;
    if ((rc = read_biases(r, c))) return rc;
    if ((rc = read_gate(r, c))) return rc;
    if ((rc = read_scales(r, c))) return rc;
    if ((rc = read_softcaps(r, c))) return rc;
    if ((rc = read_softmax(r, c))) return rc;
    if ((rc = quantisation_read(&c->quantisation, r->root, r->label, r->err))) return rc;
    return read_dtype(r, c);
}

static int read_token(const struct config_reader *r, const struct model_config *c, const char *key,
                      const json_t *value, uint32_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= c->n_vocab)
        return error_set(r->err, ERR_INVALID, "%.200s: '%s' is not a token of the vocabulary",
                         r->label, key);
    *out = (uint32_t)json_integer_value(value);
    return 0;
}

bool model_ends_with(const struct model_config *c, uint32_t token) {
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == token) return true;
    return false;
}

int model_add_end(struct model_config *c, uint32_t token, struct error *err) {
    if (token >= c->n_vocab || model_ends_with(c, token)) return 0;
    if (c->n_eos == MODEL_MAX_EOS)
        return error_set(err, ERR_UNSUPPORTED, "'eos_token_id': more than %d tokens",
                         MODEL_MAX_EOS);
    c->eos[c->n_eos++] = token;
    return 0;
}

static int add_eos(const struct config_reader *r, struct model_config *c, const json_t *value) {
    uint32_t token = 0;
    int rc = read_token(r, c, "eos_token_id", value, &token);
    if (rc) return rc;
    struct error why = {0};
    rc = model_add_end(c, token, &why);
    return rc ? error_set(r->err, rc, "%.200s: %s", r->label, why.text) : 0;
}

/* Reads the begin and end tokens.  The end tokens of both files count: chat models often add theirs
 * in the second one only. */
static int read_tokens(const struct config_reader *r, const json_t *object,
                       struct model_config *c) {
    const json_t *bos = config_get(object, "bos_token_id"),
                 *eos = config_get(object, "eos_token_id");
    if (bos && !c->has_bos) {
        int rc = read_token(r, c, "bos_token_id", bos, &c->bos);
        if (rc) return rc;
        c->has_bos = true;
    }
    if (!eos) return 0;
    if (!json_is_array(eos)) return add_eos(r, c, eos);
    for (size_t i = 0; i < json_array_size(eos); i++) {
        int rc = add_eos(r, c, json_array_get(eos, i));
        if (rc) return rc;
    }
    return 0;
}

static bool has_local(const struct model_config *c) {
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].is_local) return true;
    return false;
}

/* Makes the frequencies of the layers.  Local ones that are left 0 rotate nothing. */
static int make_frequencies(const struct config_reader *r, struct model_config *c,
                            const struct rope_params *rope) {
    const struct rope_params local = {.theta = rope->local_theta};
    const bool differ = has_local(c);
    c->n_local_freqs = c->windowed.head_dim > 0 ? c->windowed.head_dim / 2 : c->n_freqs;
    c->inv_freq = calloc(c->n_freqs, sizeof(*c->inv_freq));
    if (differ) c->local_freq = calloc(c->n_local_freqs, sizeof(*c->local_freq));
    if (!c->inv_freq || (differ && !c->local_freq))
        return error_set(r->err, ERR_NOMEM, "%.200s: no memory for the rotary frequencies",
                         r->label);
    rope_frequencies(rope, c->inv_freq, c->n_freqs);
    if (differ && local.theta > 0) rope_frequencies(&local, c->local_freq, c->n_local_freqs);
    return 0;
}

const double *model_freqs(const struct model_config *c, uint32_t layer) {
    return c->layers[layer].is_local ? c->local_freq : c->inv_freq;
}

uint32_t model_n_freqs(const struct model_config *c, uint32_t layer) {
    return c->layers[layer].is_local ? c->n_local_freqs : c->n_freqs;
}

float model_rope_scale(const struct model_config *c, uint32_t layer) {
    return c->layers[layer].is_local ? 1 : c->rope_scale;
}

/* Returns the KV heads of layers with a window, or without one. */
static struct kv_shape kv_shape_of(const struct model_config *c, bool has_window) {
    const bool differs = has_window && c->windowed.head_dim > 0;
    return differs ? c->windowed : (struct kv_shape){c->n_kv_heads, c->head_dim};
}

struct kv_pool model_pages(const struct model_config *c, enum page_format format, bool tracked) {
    struct kv_pool pool = {.format = format, .tracked = tracked};
    const struct kv_pool windowed = kv_pool_of(&pool, kv_shape_of(c, true));
    pool = kv_pool_of(&pool, kv_shape_of(c, false));
    pool.page_bytes = max_u64(kv_page_bytes(&pool), kv_page_bytes(&windowed));
    return pool;
}

uint32_t model_q_width(const struct model_config *c) {
    return c->n_heads * max_u32(c->head_dim, c->windowed.head_dim);
}

static uint32_t qkv_width(const struct model_config *c, bool has_window) {
    const struct kv_shape shape = kv_shape_of(c, has_window);
    return (c->n_heads + 2 * shape.n_heads) * shape.head_dim;
}

uint32_t model_qkv_width(const struct model_config *c) {
    return max_u32(qkv_width(c, false), qkv_width(c, true));
}

struct mean_widths model_mean_widths(const struct model_config *c) {
    struct mean_widths sum = {0};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        sum.q += (double)c->n_heads * c->layers[i].kv.head_dim;
        if (!c->layers[i].borrows_kv)
            sum.k += (double)c->layers[i].kv.n_heads * c->layers[i].kv.head_dim;
    }
    return (struct mean_widths){sum.q / c->n_layers, sum.k / c->n_layers};
}

const char *model_without_slices(const struct model_config *c) {
    if (c->n_kv_shared > 0) return "layers of this model share keys";
    return c->layer_inputs > 0 ? "layers of this model have inputs of their own" : NULL;
}

uint32_t model_attending_layer(const struct model_config *c, uint32_t number) {
    uint32_t layer = 0;
    assert(number < c->n_attention);
    while (c->layers[layer].mixer != MIXER_ATTENTION || c->layers[layer].number != number) layer++;
    return layer;
}

uint32_t model_n_writing(const struct model_config *c) {
    uint32_t n = shared_keys_n_writing(c);
    while (c->layers[n - 1].mixer == MIXER_NONE) n--; /* at least one layer attends */
    return n;
}

bool model_ends_recurrent(const struct model_config *c) {
    return c->layers[model_n_writing(c) - 1].mixer == MIXER_RECURRENT;
}

/* Gives the layers their KV heads, once it is known which have a window. */
static void place_heads(struct model_config *c) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const bool has_window = c->window > 0 && c->windows[i] > 0;
        c->layers[i].kv = kv_shape_of(c, has_window);
        c->layers[i].k_is_v = c->k_is_v && !has_window;
    }
}

static int parse(const struct config_reader *r, const json_t *generation, struct model_config *c) {
    struct rope_params rope;
    int rc = read_architecture(r, c);
    if (!rc) rc = read_shape(r, c);
    if (rc) return rc;
    const struct model_family *family = family_find(c->architecture);
    if (family->read) rc = family->read(r, c);
    if (!rc) rc = read_options(r, c);
    c->rope_scale = 1.0f;
    if (!rc && c->positions == POSITIONS_ROTARY) rc = rope_config_read(r, c, &rope);
    if (!rc) rc = read_tokens(r, r->root, c);
    if (!rc && generation) rc = read_tokens(r, generation, c);
    if (!rc) rc = window_config_read(r, c);
    if (!rc) rc = shared_keys_place(r, c);
    if (!rc) place_heads(c);
    if (!rc && c->positions == POSITIONS_ROTARY) rc = make_frequencies(r, c, &rope);
    return rc;
}

int model_config_parse(struct model_config *out, const json_t *config, const json_t *generation,
                       const char *label, uint32_t context, struct error *err) {
    json_t *text = NULL;
    struct model_config c = {0};
    int rc = text_half_config(&text, config, label, err);
    const struct config_reader r = {
        .root = text ? text : config, .label = label, .context = context, .err = err};
    c.is_text_half = text != NULL;
    if (!rc) rc = parse(&r, generation, &c);
    if (rc) model_config_fini(&c);
    else *out = c;
    json_decref(text);
    return rc;
}

int model_config_load(struct model_config *out, const char *dir, uint32_t context,
                      struct error *err) {
    json_t *config = NULL, *generation = NULL;
    struct error why;
    int rc = model_document_read(&config, dir, "config.json", MAX_CONFIG_BYTES, err);
    if (rc) goto done;
    if ((rc = quantisation_add_file(config, dir, err))) goto done;
    rc = model_document_read(&generation, dir, "generation_config.json", MAX_CONFIG_BYTES, &why);
    if (rc && rc != ERR_NOT_FOUND) { /* many models have none */
        error_set(err, rc, "%s", why.text);
        goto done;
    }
    rc = model_config_parse(out, config, generation, dir, context, err);
    if (rc) goto done;
    if ((rc = gguf_layout_apply(out, dir, err))) model_config_fini(out);

done:
    json_decref(config);
    json_decref(generation);
    return rc;
}

void model_config_fini(struct model_config *config) {
    free(config->inv_freq);
    free(config->layers);
    free(config->windows);
    free(config->local_freq);
    free(config->slopes);
    config->slopes = NULL;
    config->inv_freq = config->local_freq = NULL;
    config->windows = NULL;
    config->layers = NULL;
}
