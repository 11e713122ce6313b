/* unclaimed.c - see unclaimed.h. */
#include "engine/model/unclaimed.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"

/* The names of all tensors that rules read, sorted. */
struct claims {
    char (*names)[WEIGHTS_MAX_NAME];
    size_t n, capacity;
};

/* Where a name must have a text. */
enum place { AT_START, AT_END };

struct ignored {
    enum place place;
    const char *text;
    bool is_kv_scale;
};

static const struct ignored ignored[] = {
    /* Computed from the configuration. */
    {AT_END, ".inv_freq", false},
    {AT_END, ".rotary_emb.cos_cached", false},
    {AT_END, ".rotary_emb.sin_cached", false},
    /* Causal masks of GPT-NeoX and of models like it. */
    {AT_END, ".attention.bias", false},
    {AT_END, ".attention.masked_bias", false},
    {AT_END, ".attn.masked_bias", false},
    /* Guess tokens; answers do not depend on them. */
    {AT_START, "mtp.", false},
    {AT_START, "model.mtp.", false},
    /* Each row of an fp8 page has a scale of its own. */
    {AT_END, ".k_scale", true},
    {AT_END, ".v_scale", true},
    {AT_END, ".q_scale", true},
    {AT_END, ".kv_scale", true},
    {AT_END, ".k_cache.scale", true},
    {AT_END, ".v_cache.scale", true},
    {AT_END, ".k_zero_point", true},
    {AT_END, ".v_zero_point", true},
    {AT_END, ".k_proj.output_scale", true},
    {AT_END, ".v_proj.output_scale", true},
    {AT_END, ".prob_scale", true},
};

static bool matches(const struct ignored *row, const char *name) {
    const size_t n = strlen(name), n_text = strlen(row->text);
    return n >= n_text &&
           memcmp(row->place == AT_START ? name : name + n - n_text, row->text, n_text) == 0;
}

static const struct ignored *find_ignored(const char *name) {
    for (size_t i = 0; i < sizeof(ignored) / sizeof(*ignored); i++)
        if (matches(&ignored[i], name)) return &ignored[i];
    return NULL;
}

/* Makes space for n more names. */
static int grow(struct claims *claims, size_t n, struct error *err) {
    if (claims->n + n <= claims->capacity) return 0;
    const size_t capacity = 2 * (claims->n + n);
    void *names = realloc(claims->names, capacity * sizeof(*claims->names));
    if (!names) return error_set(err, ERR_NOMEM, "no memory for the names of weights");
    claims->names = names;
    claims->capacity = capacity;
    return 0;
}

static int claim_rules(struct claims *claims, const struct weight_rules *rules,
                       const struct model_config *c, const struct layer_shape *shape,
                       uint32_t layer, struct error *err) {
    for (size_t i = 0; i < rules->n; i++) {
        const struct weight_rule *rule = &rules->rules[i];
        if (!weights_rule_applies(rule, c, shape)) continue;
        const uint32_t n =
            rule->stacked && strchr(rule->name, '@') ? weights_side(rule->stacked, c, shape) : 1;
        const int rc = grow(claims, n, err);
        if (rc) return rc;
        for (uint32_t expert = 0; expert < n; expert++)
            weights_tensor_name(claims->names[claims->n++], c->tensors, rule->name, layer, expert);
    }
    return 0;
}

static int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Claims what the model's rules read.  A head of its own that a tied model has was looked at. */
static int claim_all(struct claims *claims, const struct model_config *c, struct error *err) {
    int rc = claim_rules(claims, &weights_of_model, c, NULL, 0, err);
    if (!rc) rc = grow(claims, 1, err);
    if (rc) return rc;
    weights_tensor_name(claims->names[claims->n++], c->tensors, "lm_head.weight", 0, 0);
    for (uint32_t i = 0; !rc && i < c->n_layers; i++)
        rc = claim_rules(claims, &weights_of_layer, c, &c->layers[i], i, err);
    qsort(claims->names, claims->n, sizeof(*claims->names), by_text);
    return rc;
}

static bool is_claimed(const struct claims *claims, const char *name) {
    return bsearch(name, claims->names, claims->n, sizeof(*claims->names), by_text) != NULL;
}

int unclaimed_check(const struct weight_source *files, const struct model_config *config,
                    bool *has_kv_scales, struct error *err) {
    struct claims claims = {0};
    char name[WEIGHT_SOURCE_NAME], first[WEIGHT_SOURCE_NAME];
    uint32_t n_unclaimed = 0;
    int rc = claim_all(&claims, config, err);
    for (uint32_t i = 0; !rc && files->ops->name(files, i, name); i++) {
        if (name[0] == '\0' || is_claimed(&claims, name)) continue;
        const struct ignored *row = find_ignored(name);
        if (row && row->is_kv_scale) *has_kv_scales = true;
        if (!row && n_unclaimed++ == 0) snprintf(first, sizeof(first), "%s", name);
    }
    free(claims.names);
    if (rc || n_unclaimed == 0) return rc;
    return error_set(err, ERR_UNSUPPORTED,
                     "tensor '%.160s' (%" PRIu32 " in all) is nothing that config.json describes "
                     "for %.60s: the model would be served without some of its weights",
                     first, n_unclaimed, config->architecture);
}
