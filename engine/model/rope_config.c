/* rope_config.c - see rope_config.h. */
#include "engine/model/rope_config.h"

#include <math.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/model/family.h"
#include "engine/model/family_names.h"

enum { MAX_CONTEXT = 1 << 30 };

/* The settings that are read, and the configuration that they go to. */
struct rope_reader {
    const struct config_reader *config;
    const json_t *rope; /* the object of settings, or NULL */
    struct model_config *c;
    struct rope_params *p;
    uint32_t max_position; /* as config.json has it */
};

static int refuse(const struct rope_reader *r, int code, const char *key, const char *why) {
    return config_refuse(r->config, code, key, why);
}

static int read_number(const struct rope_reader *r, const char *key, double min, double max,
                       double *out) {
    return config_read_number(r->config, r->rope, key, min, max, out);
}

static const struct model_family *family_of(const struct rope_reader *r) {
    return family_find(r->c->architecture);
}

/* Finds the settings: transformers 4 writes rope_theta and "rope_scaling", 5 both inside
 * "rope_parameters". */
static int find_rope(struct rope_reader *r) {
    const json_t *root = r->config->root, *scaling = config_get(root, "rope_scaling"),
                 *parameters = config_get(root, "rope_parameters");
    if (scaling && parameters)
        return refuse(r, ERR_INVALID, "rope_scaling", "is given beside 'rope_parameters'");
    r->rope = scaling ? scaling : parameters;
    if (config_get(parameters, "full_attention") && family_of(r)->ropes == ROPES_BY_WINDOW)
        r->rope = config_get(parameters, "full_attention");
    if (r->rope && !json_is_object(r->rope))
        return refuse(r, ERR_INVALID, scaling ? "rope_scaling" : "rope_parameters",
                      "is not an object");
    return 0;
}

static int check_keys(const struct rope_reader *r) {
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "partial_rotary_factor",
                                        "factor",
                                        "original_max_position_embeddings",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "attention_factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "mscale",
                                        "mscale_all_dim",
                                        "truncate",
                                        "short_factor",
                                        "long_factor",
                                        "llama_4_scaling_beta",
                                        "max_position_embeddings", /* repeated from beside it */
                                        "finetuned" /* how it was made, not how it is run */};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->rope, key, value) {
        size_t i = 0;
        while (i < sizeof(known) / sizeof(known[0]) && strcmp(key, known[i]) != 0) i++;
        if (family_of(r)->has_mrope && strncmp(key, "mrope_", strlen("mrope_")) == 0) continue;
        if (i == sizeof(known) / sizeof(known[0]))
            return refuse(r, ERR_UNSUPPORTED, key, "is not a known rotary setting");
    }
    return 0;
}

/* Reads the base of layers with a window where they have frequencies of their own, which must be
 * unscaled. */
static int read_local(const struct rope_reader *r) {
    const json_t *root = r->config->root,
                 *local = config_get(config_get(root, "rope_parameters"), "sliding_attention");
    const char *type = json_string_value(config_get(local, "rope_type"));
    const size_t n_known = (type != NULL) + (config_get(local, "rope_theta") != NULL);
    if (family_of(r)->ropes != ROPES_BY_WINDOW) return 0;
    const double usual_theta = family_of(r)->usual_local_theta;
    r->p->local_theta = usual_theta > 0 ? usual_theta : r->p->theta;
    if ((type && strcmp(type, "default") != 0) || json_object_size(local) != n_known)
        return refuse(r, ERR_UNSUPPORTED, "sliding_attention", "has scaled rotary frequencies");
    const int rc =
        config_read_number(r->config, root, "rope_local_base_freq", 1.0, 1e15, &r->p->local_theta);
    if (rc) return rc;
    return config_read_number(r->config, local, "rope_theta", 1.0, 1e15, &r->p->local_theta);
}

static int read_kind(const struct rope_reader *r) {
    static const char *const names[ROPE_N_KINDS] = {
        [ROPE_DEFAULT] = "default",          [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3",
        [ROPE_DYNAMIC] = "dynamic",          [ROPE_YARN] = "yarn",     [ROPE_LONGROPE] = "longrope",
        [ROPE_PROPORTIONAL] = "proportional"};
    const json_t *value = config_get(r->rope, "rope_type");
    if (!value) value = config_get(r->rope, "type"); /* the older spelling */
    if (!value) return 0;
    const char *name = json_string_value(value);
    if (name && strcmp(name, "su") == 0) name = "longrope"; /* Phi-3's older name for it */
    for (int i = 0; name && i < ROPE_N_KINDS; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        r->p->kind = (enum rope_kind)i;
        return 0;
    }
    return error_set(r->config->err, ERR_UNSUPPORTED,
                     "%.200s: config.json: 'rope_type' '%.60s' is not default, linear, llama3, "
                     "dynamic, yarn, longrope or proportional",
                     r->config->label, name ? name : "");
}

/* Reads the share of a head that rotates: of its elements or, where it is proportional, of its
 * pairs. */
static int read_share(const struct rope_reader *r) {
    const double usual = family_of(r)->partial_rotary;
    double share = usual > 0 ? usual : 1.0;
    const char *key = family_own_name(family_of(r)->keys, "partial_rotary_factor");
    int rc = config_read_number(r->config, r->config->root, key, 0.0, 1.0, &share);
    if (!rc) rc = read_number(r, "partial_rotary_factor", 0.0, 1.0, &share);
    if (rc) return rc;
    if (usual == 0 && share != 1.0)
        return refuse(r, ERR_UNSUPPORTED, "partial_rotary_factor", "is not 1");
    const uint32_t n_rotated = (uint32_t)(r->c->head_dim * share);
    r->p->n_rotated = n_rotated / 2;
    if (n_rotated == 0 || (n_rotated % 2 != 0 && r->p->kind != ROPE_PROPORTIONAL))
        return refuse(r, ERR_UNSUPPORTED, key, "rotates no elements, or an odd number of them");
    r->c->n_freqs = r->p->kind == ROPE_PROPORTIONAL ? r->c->head_dim / 2 : n_rotated / 2;
    return 0;
}

/* Reads by what queries are scaled.  Texts within the original context are not scaled. */
static int read_query_scale(const struct rope_reader *r) {
    static const char key[] = "llama_4_scaling_beta";
    const uint32_t longest = r->config->context ? r->config->context : r->c->max_position;
    double beta = 0, period = 0;
    int rc = read_number(r, key, 0.0, 1e3, &beta);
    if (!rc) rc = read_number(r, "original_max_position_embeddings", 1.0, MAX_CONTEXT, &period);
    if (rc || beta == 0) return rc;
    if (!family_of(r)->scales_queries)
        return refuse(r, ERR_UNSUPPORTED, key, "is not of this architecture");
    if (period == 0) return refuse(r, ERR_INVALID, key, "needs original_max_position_embeddings");
    r->c->query_period = (uint32_t)period;
    r->c->query_beta = longest > r->c->query_period ? (float)beta : 0;
    return 0;
}

static int read_factor(const struct rope_reader *r) {
    const int rc = read_number(r, "factor", 1.0, 1e6, &r->p->factor);
    if (rc || r->p->factor != 0) return rc;
    return refuse(r, ERR_INVALID, "factor", "is missing from the rope settings");
}

/* Reads the original context, which stands beside the rotary settings or among them; the former
 * wins. */
static int read_original(const struct rope_reader *r) {
    static const char key[] = "original_max_position_embeddings";
    double *out = &r->p->original_max_position;
    int rc = read_number(r, key, 1.0, MAX_CONTEXT, out);
    if (!rc) rc = config_read_number(r->config, r->config->root, key, 1.0, MAX_CONTEXT, out);
    if (rc || *out != 0) return rc;
    return refuse(r, ERR_INVALID, "rope_type", "needs original_max_position_embeddings");
}

static int read_llama3(const struct rope_reader *r) {
    struct rope_params *p = r->p;
    int rc = read_factor(r);
    if (!rc) rc = read_number(r, "low_freq_factor", 1e-3, 1e6, &p->low_freq_factor);
    if (!rc) rc = read_number(r, "high_freq_factor", 1e-3, 1e6, &p->high_freq_factor);
    if (rc) return rc;
    if (p->low_freq_factor == 0 || p->high_freq_factor == 0)
        return refuse(r, ERR_INVALID, "rope_type", "needs low_freq_factor and high_freq_factor");
    if (p->high_freq_factor <= p->low_freq_factor)
        return refuse(r, ERR_INVALID, "high_freq_factor", "is not above 'low_freq_factor'");
    return read_original(r);
}

static int read_dynamic(const struct rope_reader *r) {
    const int rc = read_factor(r);
    if (rc) return rc;
    if (r->c->n_freqs < 2)
        return refuse(r, ERR_UNSUPPORTED, "rope_type", "dynamic needs two rotary pairs");
    const double limit = fmin(floor(r->max_position * r->p->factor), MAX_CONTEXT);
    r->p->stretch = 1.0;
    if (r->config->context <= r->max_position) return 0;
    r->c->max_position = r->config->context < limit ? r->config->context : (uint32_t)limit;
    r->p->stretch = (double)r->c->max_position / r->max_position;
    return 0;
}

static double yarn_scale(double factor, double mscale) {
    return factor > 1.0 ? 0.1 * mscale * log(factor) + 1.0 : 1.0;
}

/* Reads what cosines and sines are multiplied with; `usual` unless config.json says so. */
static int read_attention_factor(const struct rope_reader *r, double usual) {
    const int rc = read_number(r, "attention_factor", 1e-3, 1e3, &usual);
    r->c->rope_scale = (float)usual;
    return rc;
}

static int read_yarn(const struct rope_reader *r) {
    struct rope_params *p = r->p;
    double mscale = 0, mscale_all = 0;
    p->original_max_position = r->max_position;
    p->beta_fast = 32;
    p->beta_slow = 1;
    p->truncate = true;
    int rc = read_factor(r);
    if (!rc) rc = read_original(r);
    if (!rc) rc = read_number(r, "beta_fast", 1e-3, 1e6, &p->beta_fast);
    if (!rc) rc = read_number(r, "beta_slow", 1e-3, 1e6, &p->beta_slow);
    if (!rc) rc = config_read_bool(r->config, r->rope, "truncate", &p->truncate);
    if (!rc) rc = read_number(r, "mscale", 0.0, 1e3, &mscale);
    if (!rc) rc = read_number(r, "mscale_all_dim", 0.0, 1e3, &mscale_all);
    if (rc) return rc;
    if (p->beta_fast <= p->beta_slow)
        return refuse(r, ERR_INVALID, "beta_fast", "is not above 'beta_slow'");
    if (p->theta <= 1.0) return refuse(r, ERR_INVALID, "rope_theta", "is not above 1");
    const double stretched = fmin(floor(p->original_max_position * p->factor), MAX_CONTEXT);
    if (stretched > r->max_position) r->c->max_position = (uint32_t)stretched;
    if (mscale == 0 || mscale_all == 0) return read_attention_factor(r, yarn_scale(p->factor, 1));
    return read_attention_factor(r,
                                 yarn_scale(p->factor, mscale) / yarn_scale(p->factor, mscale_all));
}

/* Reads a list of one number for each pair. */
static int read_divisors(const struct rope_reader *r, const char *key) {
    const json_t *list = config_get(r->rope, key);
    if (json_array_size(list) != r->c->n_freqs)
        return refuse(r, ERR_INVALID, key, "is not a list of one number for each rotary pair");
    for (uint32_t i = 0; i < r->c->n_freqs; i++) {
        const json_t *value = json_array_get(list, i);
        const double n = json_number_value(value);
        if (!json_is_number(value) || !(n >= 1e-2 && n <= 1e6))
            return refuse(r, ERR_INVALID, key,
                          "has an element that is not a number from 0.01 to 1e6");
        r->p->divisors[i] = n;
    }
    return 0;
}

static int read_longrope(const struct rope_reader *r) {
    const uint32_t longest = r->config->context ? r->config->context : r->c->max_position;
    int rc = read_original(r);
    if (rc) return rc;
    const double original = r->p->original_max_position;
    const bool is_long = longest > original;
    double factor = r->max_position / original;
    rc = read_number(r, "factor", 1e-3, 1e6, &factor);
    /* Both lists are checked; the second one overwrites the first. */
    if (!rc) rc = read_divisors(r, is_long ? "short_factor" : "long_factor");
    if (!rc) rc = read_divisors(r, is_long ? "long_factor" : "short_factor");
    if (rc) return rc;
    if (!is_long && r->c->max_position > original) r->c->max_position = (uint32_t)original;
    if (factor > 1.0 && original <= 1.0)
        return refuse(r, ERR_INVALID, "original_max_position_embeddings", "is not above 1");
    return read_attention_factor(r, factor > 1.0 ? sqrt(1.0 + log(factor) / log(original)) : 1.0);
}

static int read_proportional(const struct rope_reader *r) {
    r->p->factor = 1;
    return read_number(r, "factor", 1.0, 1e6, &r->p->factor);
}

static int read_scaling(const struct rope_reader *r) {
    switch (r->p->kind) {
    case ROPE_LINEAR: return read_factor(r);
    case ROPE_LLAMA3: return read_llama3(r);
    case ROPE_DYNAMIC: return read_dynamic(r);
    case ROPE_YARN: return read_yarn(r);
    case ROPE_LONGROPE: return read_longrope(r);
    case ROPE_PROPORTIONAL: return read_proportional(r);
    case ROPE_DEFAULT:
    case ROPE_N_KINDS: break;
    }
    return 0;
}

int rope_config_read(const struct config_reader *config, struct model_config *c,
                     struct rope_params *p) {
    struct rope_reader r = {.config = config, .c = c, .p = p, .max_position = c->max_position};
    const double usual = family_of(&r)->usual_theta;
    double ratio = 1.0;
    *p = (struct rope_params){.theta = usual > 0 ? usual : 10000.0};
    c->rope_scale = 1.0f;
    int rc = find_rope(&r);
    if (!rc) rc = check_keys(&r);
    const char *theta = family_own_name(family_of(&r)->keys, "rope_theta");
    if (!rc) rc = config_read_number(config, config->root, theta, 1.0, 1e15, &p->theta);
    if (!rc) rc = read_number(&r, "rope_theta", 1.0, 1e15, &p->theta);
    if (!rc && family_of(&r)->has_rope_ratio)
        rc = config_read_number(config, config->root, "rope_ratio", 1.0, 1e9, &ratio);
    p->theta *= ratio;
    if (!rc) rc = read_local(&r);
    if (!rc) rc = read_kind(&r);
    if (!rc) rc = read_share(&r);
    if (rc) return rc;
    if (p->kind != ROPE_LONGROPE &&
        (config_get(r.rope, "short_factor") || config_get(r.rope, "long_factor")))
        return refuse(&r, ERR_UNSUPPORTED, "rope_type",
                      "is not longrope, but there are longrope's factors");
    rc = read_scaling(&r);
    return rc ? rc : read_query_scale(&r);
}
