/* gguf_settings.c - see gguf_settings.h. */
#include "engine/quantise/gguf_settings.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf_config.h"
#include "engine/model/family.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/rope.h"
#include "engine/quantise/gguf_writer.h"

enum { NAME_BYTES = 128 };

/* ---- rotary frequencies, as config.json has them ---- */

/* Returns the rotary settings; NULL: there are none.  Gemma's are those of full attention. */
static const json_t *rope_of(const json_t *config) {
    const json_t *scaling = json_object_get(config, "rope_scaling"),
                 *all = json_object_get(config, "rope_parameters"),
                 *full = json_object_get(all, "full_attention");
    return json_is_object(scaling) ? scaling : full ? full : all;
}

static double number_or(const json_t *object, const char *key, double other) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : other;
}

static double theta_of(const struct model_config *c, const json_t *config) {
    const double usual = family_find(c->architecture)->usual_theta;
    return number_or(rope_of(config), "rope_theta",
                     number_or(config, "rope_theta", usual > 0 ? usual : 10000));
}

static double local_theta_of(const struct model_config *c, const json_t *config) {
    const json_t *local =
        json_object_get(json_object_get(config, "rope_parameters"), "sliding_attention");
    return number_or(
        local, "rope_theta",
        number_or(config, "rope_local_base_freq", family_find(c->architecture)->usual_local_theta));
}

static const char *kind_of(const json_t *config) {
    const json_t *rope = rope_of(config), *kind = json_object_get(rope, "rope_type");
    const char *name = json_string_value(kind ? kind : json_object_get(rope, "type"));
    return name ? name : "default";
}

/* Tensors of divisors: of Llama's scaling one list, of longrope's two. */
static const struct divisors {
    const char *kind, *tensor, *list; /* list NULL: they are computed */
} all_divisors[] = {{"llama3", "rope_freqs.weight", NULL},
                    {"longrope", "rope_factors_long.weight", "long_factor"},
                    {"longrope", "rope_factors_short.weight", "short_factor"},
                    {"su", "rope_factors_long.weight", "long_factor"},
                    {"su", "rope_factors_short.weight", "short_factor"}};

enum { N_DIVISORS = sizeof(all_divisors) / sizeof(*all_divisors) };

int gguf_settings_add(struct gguf_writer *w, const struct model_config *c, const json_t *config,
                      struct error *err) {
    int rc = 0;
    for (size_t i = 0; i < N_DIVISORS && !rc; i++) {
        struct gguf_tensor t = {.element = ELEMENT_F32, .n_dims = 1, .dims = {c->n_freqs}};
        if (strcmp(all_divisors[i].kind, kind_of(config)) != 0) continue;
        snprintf(t.name, sizeof(t.name), "%s", all_divisors[i].tensor);
        rc = gguf_writer_add(w, &t, err);
    }
    return rc;
}

int gguf_settings_write(const struct gguf_writer *w, uint32_t first, const struct model_config *c,
                        const json_t *config, struct error *err) {
    const struct rope_params plain = {.theta = theta_of(c, config)};
    double usual[ROPE_MAX_FREQS];
    float values[ROPE_MAX_FREQS];
    int rc = 0;
    rope_frequencies(&plain, usual, c->n_freqs);
    for (size_t i = 0; i < N_DIVISORS && !rc; i++) {
        const json_t *list =
            all_divisors[i].list ? json_object_get(rope_of(config), all_divisors[i].list) : NULL;
        if (strcmp(all_divisors[i].kind, kind_of(config)) != 0) continue;
        for (uint32_t k = 0; k < c->n_freqs; k++)
            values[k] = (float)(list ? json_number_value(json_array_get(list, k))
                                     : usual[k] / c->inv_freq[k]);
        rc = gguf_writer_write(w, first++, 0, values, c->n_freqs * sizeof(*values), err);
    }
    return rc;
}

/* ---- keys ---- */

struct keys {
    struct gguf_writer *w;
    const char *architecture;
    char name[NAME_BYTES];
};

static const char *key(struct keys *keys, const char *name) {
    snprintf(keys->name, sizeof(keys->name), "%s.%s", keys->architecture, name);
    return keys->name;
}

static void put_counts(struct keys *keys, const struct model_config *c) {
    const struct {
        const char *name;
        uint32_t n;
    } counts[] = {{"context_length", c->max_position},
                  {"embedding_length", c->dim},
                  {"block_count", c->n_layers},
                  {"feed_forward_length", c->layers[0].ffn_dim},
                  {"attention.head_count", c->n_heads},
                  {"attention.head_count_kv", c->n_kv_heads},
                  {"attention.key_length", c->head_dim},
                  {"attention.value_length", c->head_dim},
                  {"rope.dimension_count", 2 * c->n_freqs},
                  {"vocab_size", c->n_vocab}};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        gguf_put_u32(keys->w, key(keys, counts[i].name), counts[i].n);
}

/* Writes the window, and which layers have it unless all do. */
static void put_windows(struct keys *keys, const struct model_config *c) {
    if (c->window == 0) return;
    gguf_put_u32(keys->w, key(keys, "attention.sliding_window"), c->window);
    if (!model_has_full_attention(c)) return;
    gguf_put_array(keys->w, key(keys, "attention.sliding_window_pattern"), GGUF_BOOL, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) gguf_put_element_bool(keys->w, c->windows[i] > 0);
}

static void put_scaling(struct keys *keys, const struct model_config *c, const json_t *config) {
    const json_t *rope = rope_of(config);
    const char *kind = kind_of(config);
    const bool is_yarn = strcmp(kind, "yarn") == 0;
    const double usual = is_yarn ? number_or(config, "max_position_embeddings", 0) : 0,
                 original = number_or(config, "original_max_position_embeddings",
                                      number_or(rope, "original_max_position_embeddings", usual));
    static const char *const betas[][2] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                                           {"beta_slow", "rope.scaling.yarn_beta_slow"}};
    if (strcmp(kind, "linear") == 0 || is_yarn) {
        gguf_put_string(keys->w, key(keys, "rope.scaling.type"), kind, strlen(kind));
        gguf_put_f32(keys->w, key(keys, "rope.scaling.factor"),
                     (float)number_or(rope, "factor", 1));
    }
    if (original > 0 && strcmp(kind, "llama3") != 0)
        gguf_put_u32(keys->w, key(keys, "rope.scaling.original_context_length"),
                     (uint32_t)original);
    if (strcmp(kind, "longrope") == 0 || strcmp(kind, "su") == 0)
        gguf_put_f32(keys->w, key(keys, "rope.scaling.attn_factor"), c->rope_scale);
    for (int i = 0; i < 2 && is_yarn; i++)
        if (json_object_get(rope, betas[i][0]))
            gguf_put_f32(keys->w, key(keys, betas[i][1]), (float)number_or(rope, betas[i][0], 0));
}

/* Writes eps of norms, and what multiplies embeddings, scores, branches and logits. */
static void put_scales(struct keys *keys, const struct gguf_architecture *architecture,
                       const struct model_config *c, const json_t *config) {
    static const char *const multipliers[][2] = {{"embedding_multiplier", "embedding_scale"},
                                                 {"attention_multiplier", "attention.scale"},
                                                 {"residual_multiplier", "residual_scale"},
                                                 {"logits_scaling", "logit_scale"}};
    const bool is_layer_norm = architecture->traits & GGUF_LAYER_NORM;
    gguf_put_f32(keys->w,
                 key(keys, is_layer_norm ? "attention.layer_norm_epsilon"
                                         : "attention.layer_norm_rms_epsilon"),
                 (float)(c->eps_scale > 0 ? c->norm_eps / c->eps_scale : c->norm_eps));
    if (architecture->traits & GGUF_LOGIT_SCALE)
        gguf_put_f32(keys->w, key(keys, "logit_scale"), c->logit_scale);
    for (int i = 0; i < 4 && architecture->traits & GGUF_MULTIPLIERS; i++)
        gguf_put_f32(keys->w, key(keys, multipliers[i][1]),
                     (float)number_or(config, multipliers[i][0], 1));
}

void gguf_settings_put(struct gguf_writer *w, const struct gguf_architecture *architecture,
                       const struct model_config *c, const json_t *config) {
    struct keys keys = {.w = w, .architecture = architecture->name};
    const double local = local_theta_of(c, config);
    put_counts(&keys, c);
    put_scales(&keys, architecture, c, config);
    gguf_put_f32(w, key(&keys, "rope.freq_base"), (float)theta_of(c, config));
    if (local > 0) gguf_put_f32(w, key(&keys, "rope.freq_base_swa"), (float)local);
    if (c->attn_softcap > 0) gguf_put_f32(w, key(&keys, "attn_logit_softcapping"), c->attn_softcap);
    if (c->logit_softcap > 0)
        gguf_put_f32(w, key(&keys, "final_logit_softcapping"), c->logit_softcap);
    put_windows(&keys, c);
    put_scaling(&keys, c, config);
}

/* ---- the check ---- */

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-5 * fmax(fabs(a), fabs(b));
}

static bool are_near(const double *a, const double *b, uint32_t n) {
    for (uint32_t i = 0; a && b && i < n; i++)
        if (!near(a[i], b[i])) return false;
    return !a == !b;
}

static bool have_same_windows(const struct model_config *a, const struct model_config *b) {
    for (uint32_t i = 0; a->windows && b->windows && i < a->n_layers; i++)
        if (a->windows[i] != b->windows[i]) return false;
    return a->window == b->window && !a->windows == !b->windows;
}

static bool have_same_layers(const struct model_config *a, const struct model_config *b) {
    for (uint32_t i = 0; i < a->n_layers; i++)
        if (a->layers[i].kind != b->layers[i].kind ||
            a->layers[i].ffn_dim != b->layers[i].ffn_dim ||
            a->layers[i].n_experts != b->layers[i].n_experts)
            return false;
    return true;
}

static bool have_same_ropes(const struct model_config *a, const struct model_config *b) {
    for (uint32_t i = 0; i < a->n_layers && a->n_layers == b->n_layers; i++)
        if (a->layers[i].is_local != b->layers[i].is_local) return false;
    return true;
}

static bool has_ends(const struct model_config *a, const struct model_config *b) {
    for (uint32_t i = 0; i < b->n_eos; i++)
        if (!model_ends_with(a, b->eos[i])) return false;
    return true;
}

/* Returns what the file lacks of the model, or NULL. */
static const char *difference(const struct model_config *file, const struct model_config *c) {
    const struct {
        bool is_same;
        const char *what;
    } checks[] = {
        {gguf_architecture_for(file->architecture) == gguf_architecture_for(c->architecture),
         "architecture"},
        {file->n_vocab == c->n_vocab && file->dim == c->dim && file->n_layers == c->n_layers &&
             file->n_heads == c->n_heads && file->n_kv_heads == c->n_kv_heads &&
             file->head_dim == c->head_dim && file->max_position == c->max_position,
         "shape"},
        {file->n_layers == c->n_layers && have_same_layers(file, c), "feed-forward parts"},
        {near(file->norm_eps, c->norm_eps) && near(file->attn_scale, c->attn_scale) &&
             near(file->embed_scale, c->embed_scale) && near(file->logit_scale, c->logit_scale),
         "scales"},
        {near(file->attn_softcap, c->attn_softcap) && near(file->logit_softcap, c->logit_softcap),
         "softcaps"},
        {file->n_layers == c->n_layers && have_same_windows(file, c), "windows"},
        {file->n_freqs == c->n_freqs && near(file->rope_scale, c->rope_scale) &&
             are_near(file->inv_freq, c->inv_freq, c->n_freqs) &&
             are_near(file->local_freq, c->local_freq, c->n_freqs) && have_same_ropes(file, c),
         "rotary frequencies"},
        {file->positions == c->positions && file->softmax == c->softmax && file->gate == c->gate &&
             file->qk_norm == c->qk_norm && file->whole_qk_norm == c->whole_qk_norm &&
             file->no_pre_norms == c->no_pre_norms && file->post_norms == c->post_norms &&
             file->layer_norm == c->layer_norm && file->parallel == c->parallel &&
             file->qkv_bias == c->qkv_bias && file->o_bias == c->o_bias &&
             file->mlp_bias == c->mlp_bias,
         "parts of layers"},
        {file->tied_head == c->tied_head, "head"},
        {has_ends(file, c), "end tokens"}};
    for (size_t i = 0; i < sizeof(checks) / sizeof(*checks); i++)
        if (!checks[i].is_same) return checks[i].what;
    return NULL;
}

int gguf_settings_check(const struct gguf_writer *w, const struct model_config *c,
                        struct error *err) {
    struct model_config file;
    struct error why;
    if (model_config_load(&file, w->partial, 0, &why))
        return error_set(err, ERR_UNSUPPORTED, "the keys of GGUF cannot say what the model is: %s",
                         why.text);
    const char *what = difference(&file, c);
    model_config_fini(&file);
    if (!what) return 0;
    return error_set(
        err, ERR_UNSUPPORTED,
        "the keys of GGUF cannot say what the %s of this model are: write fp8, int8 or "
        "int4 instead",
        what);
}
