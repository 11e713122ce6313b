/* config.c - see config.h and model.h.
 *
 * The files are input: each value is checked and bounded before anything is computed from it, and
 * what would change the arithmetic in a way the decoder does not know is refused by name. */
#include "engine/model/config.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/model/json_guard.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"

enum { MAX_CONFIG_BYTES = 1 << 20, MAX_HEAD_DIM = 256 };

struct reader {
    const json_t *root;
    const char *label;
    struct error *err;
};

static int refuse(const struct reader *r, int code, const char *key, const char *why) {
    return error_set(r->err, code, "%.200s: config.json: '%s' %s", r->label, key, why);
}

/* Absent and null mean the same to the library that writes these files. */
static const json_t *get(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

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
    {"num_hidden_layers", offsetof(struct model_config, n_layers), 1024},
    {"num_attention_heads", offsetof(struct model_config, n_heads), 1024},
    {"intermediate_size", offsetof(struct model_config, ffn_dim), 1 << 20},
    {"max_position_embeddings", offsetof(struct model_config, max_position), 1 << 30},
};

/* Leaves *out alone when the key is absent. */
static int read_count(const struct reader *r, const char *key, uint32_t max, uint32_t *out) {
    const json_t *value = get(r->root, key);
    if (!value) return 0;
    json_int_t n = json_integer_value(value); /* 0 for other types */
    if (n < 1 || n > (json_int_t)max)
        return error_set(r->err, ERR_INVALID,
                         "%.200s: config.json: '%s' is not a whole number from 1 to %" PRIu32,
                         r->label, key, max);
    *out = (uint32_t)n;
    return 0;
}

static int read_number(const struct reader *r, const json_t *object, const char *key, double min,
                       double max, double *out) {
    const json_t *value = get(object, key);
    if (!value) return 0;
    double n = json_number_value(value); /* 0 for other types */
    if (!json_is_number(value) || !(n >= min && n <= max))
        return error_set(r->err, ERR_INVALID,
                         "%.200s: config.json: '%s' is not a number from %g to %g", r->label, key,
                         min, max);
    *out = n;
    return 0;
}

static int read_bool(const struct reader *r, const char *key, bool *out) {
    const json_t *value = get(r->root, key);
    if (value && !json_is_boolean(value))
        return refuse(r, ERR_INVALID, key, "is not true or false");
    *out = json_is_true(value);
    return 0;
}

static int read_architecture(const struct reader *r, struct model_config *c) {
    const json_t *list = get(r->root, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    if (!name || json_array_size(list) != 1)
        return refuse(r, ERR_INVALID, "architectures", "is not a list of one name");
    if (!weights_find_family(name))
        return error_set(r->err, ERR_UNSUPPORTED, "%.200s: architecture '%.100s' is not supported",
                         r->label, name);
    snprintf(c->architecture, sizeof(c->architecture), "%s", name);
    return 0;
}

static int read_heads(const struct reader *r, struct model_config *c) {
    c->n_kv_heads = c->n_heads;
    int rc = read_count(r, "num_key_value_heads", c->n_heads, &c->n_kv_heads);
    if (rc) return rc;
    if (c->n_heads % c->n_kv_heads != 0)
        return refuse(r, ERR_INVALID, "num_key_value_heads",
                      "does not divide 'num_attention_heads'");
    rc = read_count(r, "head_dim", MAX_HEAD_DIM, &c->head_dim);
    if (rc) return rc;
    if (c->head_dim == 0 && c->dim % c->n_heads != 0)
        return refuse(r, ERR_INVALID, "hidden_size", "is not a multiple of 'num_attention_heads'");
    if (c->head_dim == 0) c->head_dim = c->dim / c->n_heads;
    if (c->head_dim < 2 || c->head_dim % 2 != 0 || c->head_dim > MAX_HEAD_DIM)
        return refuse(r, ERR_UNSUPPORTED, "head_dim", "is odd or larger than 256");
    return 0;
}

static int read_shape(const struct reader *r, struct model_config *c) {
    for (size_t i = 0; i < sizeof(required_counts) / sizeof(required_counts[0]); i++) {
        const struct count_key *k = &required_counts[i];
        if (!get(r->root, k->key)) return refuse(r, ERR_INVALID, k->key, "is missing");
        int rc = read_count(r, k->key, k->max, (uint32_t *)((char *)c + k->offset));
        if (rc) return rc;
    }
    return read_heads(r, c);
}

static int read_dtype(const struct reader *r, struct model_config *c) {
    static const char *const names[] = {
        [DTYPE_F32] = "float32", [DTYPE_F16] = "float16", [DTYPE_BF16] = "bfloat16"};
    const json_t *value = get(r->root, "dtype");
    if (!value) value = get(r->root, "torch_dtype"); /* its name before transformers 5 */
    if (!value) return 0;
    const char *name = json_string_value(value);
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        c->weight_dtype = (enum dtype)i;
        return 0;
    }
    return refuse(r, ERR_UNSUPPORTED, "dtype", "is not float32, float16 or bfloat16");
}

static int read_options(const struct reader *r, struct model_config *c) {
    double eps = 1e-6; /* LlamaConfig's default */
    int rc = read_number(r, r->root, "rms_norm_eps", 1e-12, 1.0, &eps);
    if (rc) return rc;
    c->norm_eps = (float)eps;
    if ((rc = read_bool(r, "tie_word_embeddings", &c->tied_head))) return rc;
    if ((rc = read_bool(r, "attention_bias", &c->attn_bias))) return rc;
    if ((rc = read_bool(r, "mlp_bias", &c->mlp_bias))) return rc;
    const json_t *act = get(r->root, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return refuse(r, ERR_UNSUPPORTED, "hidden_act", "is not silu");
    if (get(r->root, "quantization_config"))
        return refuse(r, ERR_UNSUPPORTED, "quantization_config", "is not supported");
    return read_dtype(r, c);
}

/* transformers 4 writes rope_theta and "rope_scaling", 5 both inside "rope_parameters". */
static int find_rope(const struct reader *r, const json_t **out) {
    const json_t *scaling = get(r->root, "rope_scaling"),
                 *parameters = get(r->root, "rope_parameters");
    if (scaling && parameters)
        return refuse(r, ERR_INVALID, "rope_scaling", "is given beside 'rope_parameters'");
    const char *key = scaling ? "rope_scaling" : "rope_parameters";
    *out = scaling ? scaling : parameters;
    if (*out && !json_is_object(*out)) return refuse(r, ERR_INVALID, key, "is not an object");
    return 0;
}

static int read_rope_kind(const struct reader *r, const json_t *rope, enum rope_kind *out) {
    static const char *const names[] = {
        [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3"};
    const json_t *value = get(rope, "rope_type");
    if (!value) value = get(rope, "type"); /* the older spelling */
    if (!value) return 0;
    const char *name = json_string_value(value);
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (enum rope_kind)i;
        return 0;
    }
    return error_set(r->err, ERR_UNSUPPORTED,
                     "%.200s: config.json: 'rope_type' '%.60s' is not default, linear or llama3",
                     r->label, name ? name : "");
}

static int read_llama3(const struct reader *r, const json_t *rope, struct rope_params *p) {
    int rc = read_number(r, rope, "low_freq_factor", 1e-3, 1e6, &p->low_freq_factor);
    if (rc) return rc;
    if ((rc = read_number(r, rope, "high_freq_factor", 1e-3, 1e6, &p->high_freq_factor))) return rc;
    rc = read_number(r, rope, "original_max_position_embeddings", 1.0, 1 << 30,
                     &p->original_max_position);
    if (rc) return rc;
    if (p->low_freq_factor == 0 || p->high_freq_factor == 0 || p->original_max_position == 0)
        return refuse(r, ERR_INVALID, "rope_type",
                      "llama3 needs low_freq_factor, high_freq_factor and "
                      "original_max_position_embeddings");
    if (p->high_freq_factor <= p->low_freq_factor)
        return refuse(r, ERR_INVALID, "high_freq_factor", "is not above 'low_freq_factor'");
    return 0;
}

static int read_rope(const struct reader *r, struct rope_params *p) {
    const json_t *rope = NULL;
    double rotary = 1.0;
    int rc = find_rope(r, &rope);
    if (rc) return rc;
    if ((rc = read_number(r, r->root, "rope_theta", 1.0, 1e15, &p->theta))) return rc;
    if ((rc = read_number(r, rope, "rope_theta", 1.0, 1e15, &p->theta))) return rc;
    if ((rc = read_number(r, r->root, "partial_rotary_factor", 0.0, 1.0, &rotary))) return rc;
    if ((rc = read_number(r, rope, "partial_rotary_factor", 0.0, rotary, &rotary))) return rc;
    if (rotary != 1.0) return refuse(r, ERR_UNSUPPORTED, "partial_rotary_factor", "is not 1");
    if ((rc = read_rope_kind(r, rope, &p->kind))) return rc;
    if (p->kind == ROPE_DEFAULT) return 0;
    if ((rc = read_number(r, rope, "factor", 1.0, 1e6, &p->factor))) return rc;
    if (p->factor == 0)
        return refuse(r, ERR_INVALID, "factor", "is missing from the rope settings");
    return p->kind == ROPE_LLAMA3 ? read_llama3(r, rope, p) : 0;
}

static int read_token(const struct reader *r, const struct model_config *c, const char *key,
                      const json_t *value, uint32_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0 ||
        json_integer_value(value) >= c->n_vocab)
        return error_set(r->err, ERR_INVALID, "%.200s: '%s' is not a token of the vocabulary",
                         r->label, key);
    *out = (uint32_t)json_integer_value(value);
    return 0;
}

static int add_eos(const struct reader *r, struct model_config *c, const json_t *value) {
    uint32_t token = 0;
    int rc = read_token(r, c, "eos_token_id", value, &token);
    if (rc) return rc;
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == token) return 0;
    if (c->n_eos == MODEL_MAX_EOS)
        return error_set(r->err, ERR_UNSUPPORTED, "%.200s: 'eos_token_id': more than %d tokens",
                         r->label, MODEL_MAX_EOS);
    c->eos[c->n_eos++] = token;
    return 0;
}

/* The end tokens of both files count: chat models often add theirs in the second one only. */
static int read_tokens(const struct reader *r, const json_t *object, struct model_config *c) {
    const json_t *bos = get(object, "bos_token_id"), *eos = get(object, "eos_token_id");
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

int model_config_parse(struct model_config *out, const json_t *config, const json_t *generation,
                       const char *label, struct error *err) {
    const struct reader r = {.root = config, .label = label, .err = err};
    struct model_config c = {.rope_scale = 1.0f};
    struct rope_params rope = {.theta = 10000.0}; /* LlamaConfig's default */
    int rc = read_architecture(&r, &c);
    if (rc) return rc;
    if ((rc = read_shape(&r, &c))) return rc;
    if ((rc = read_options(&r, &c))) return rc;
    if ((rc = read_rope(&r, &rope))) return rc;
    if ((rc = read_tokens(&r, config, &c))) return rc;
    if (generation && (rc = read_tokens(&r, generation, &c))) return rc;
    c.attn_scale = (float)(1.0 / sqrt(c.head_dim));
    c.n_freqs = c.head_dim / 2;
    c.inv_freq = calloc(c.n_freqs, sizeof(*c.inv_freq));
    if (!c.inv_freq)
        return error_set(err, ERR_NOMEM, "%.200s: no memory for the rotary frequencies", label);
    rope_frequencies(&rope, c.inv_freq, c.n_freqs);
    *out = c;
    return 0;
}

static int read_file(json_t **out, const char *dir, const char *name, struct error *err) {
    char path[PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (n < 0 || n >= PATH_MAX)
        return error_set(err, ERR_INVALID, "%.200s: the path is too long", dir);
    return json_guard_read(out, path, MAX_CONFIG_BYTES, err);
}

int model_config_load(struct model_config *out, const char *dir, struct error *err) {
    json_t *config = NULL, *generation = NULL;
    int rc = read_file(&config, dir, "config.json", err);
    if (rc) goto done;
    rc = read_file(&generation, dir, "generation_config.json", err);
    if (rc && rc != ERR_NOT_FOUND) goto done; /* many models have none */
    rc = model_config_parse(out, config, generation, dir, err);

done:
    json_decref(config);
    json_decref(generation);
    return rc;
}

void model_config_fini(struct model_config *config) {
    free(config->inv_freq);
    config->inv_freq = NULL;
}
