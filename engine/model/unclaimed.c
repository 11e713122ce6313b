/* unclaimed.c - see unclaimed.h. */
#include "engine/model/unclaimed.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/model/weight_source.h"
#include "engine/model/weights.h"

/* The names of all tensors that rules read, sorted. */
struct claims {
    char (*names)[WEIGHTS_MAX_NAME];
    size_t n, capacity;
};

/* Where a name must have a text. */
enum place { AT_START, AT_END };

/* Why a tensor is ignored. */
enum reason {
    CHANGES_NOTHING,
    IS_KV_SCALE,
    GUESSES,   /* tokens; answers do not depend on them */
    FOR_IMAGES /* or sound: a part of a model of which only the text half is served */
};

struct ignored {
    enum place place;
    const char *text;
    enum reason reason;
};

static const struct ignored ignored[] = {
    /* Computed from the configuration. */
    {AT_END, ".inv_freq", CHANGES_NOTHING},
    {AT_END, ".rotary_emb.cos_cached", CHANGES_NOTHING},
    {AT_END, ".rotary_emb.sin_cached", CHANGES_NOTHING},
    /* Causal masks of GPT-NeoX and of models like it. */
    {AT_END, ".attention.bias", CHANGES_NOTHING},
    {AT_END, ".attention.masked_bias", CHANGES_NOTHING},
    {AT_END, ".attn.masked_bias", CHANGES_NOTHING},
    {AT_START, "mtp.", GUESSES},
    {AT_START, "model.mtp.", GUESSES},
    /* Each row of an fp8 page has a scale of its own. */
    {AT_END, ".k_scale", IS_KV_SCALE},
    {AT_END, ".v_scale", IS_KV_SCALE},
    {AT_END, ".q_scale", IS_KV_SCALE},
    {AT_END, ".kv_scale", IS_KV_SCALE},
    {AT_END, ".k_cache.scale", IS_KV_SCALE},
    {AT_END, ".v_cache.scale", IS_KV_SCALE},
    {AT_END, ".k_zero_point", IS_KV_SCALE},
    {AT_END, ".v_zero_point", IS_KV_SCALE},
    {AT_END, ".k_proj.output_scale", IS_KV_SCALE},
    {AT_END, ".v_proj.output_scale", IS_KV_SCALE},
    {AT_END, ".prob_scale", IS_KV_SCALE},
};

/* The parts of wrappers that are not their text model; also behind 'model.'. */
static const struct ignored other_parts[] = {
    {AT_START, "vision_tower.", FOR_IMAGES},
    {AT_START, "vision_model.", FOR_IMAGES},
    {AT_START, "visual.", FOR_IMAGES},
    {AT_START, "audio_tower.", FOR_IMAGES},
    {AT_START, "embed_vision.", FOR_IMAGES},
    {AT_START, "embed_audio.", FOR_IMAGES},
    {AT_START, "multi_modal_projector.", FOR_IMAGES},
};

static bool matches(const struct ignored *row, const char *name) {
    const size_t n = strlen(name), n_text = strlen(row->text);
    return n >= n_text &&
           memcmp(row->place == AT_START ? name : name + n - n_text, row->text, n_text) == 0;
}

static const struct ignored *find_in(const struct ignored *rows, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (matches(&rows[i], name)) return &rows[i];
    return NULL;
}

static const struct ignored *find_ignored(const struct model_config *c, const char *name) {
    static const char usual[] = "model.";
    const struct ignored *row = find_in(ignored, COUNT(ignored), name);
    if (row || !c->is_text_half) return row;
    if (strncmp(name, usual, strlen(usual)) == 0) name += strlen(usual);
    return find_in(other_parts, COUNT(other_parts), name);
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

/* Returns true if checkpoints may have the tensor though the layer reads another one's keys. */
static bool is_of_borrower(const struct weight_rule *rule, const struct layer_shape *shape) {
    return shape && shape->borrows_kv && rule->without & TRAIT_BORROWS_KV;
}

static int claim_rules(struct claims *claims, const struct weight_rules *rules,
                       const struct model_config *c, const struct layer_shape *shape,
                       uint32_t layer, struct error *err) {
    for (size_t i = 0; i < rules->n; i++) {
        const struct weight_rule *rule = &rules->rules[i];
        if (!weights_rule_applies(rule, c, shape) && !is_of_borrower(rule, shape)) continue;
        const uint32_t n =
            rule->stacked && strchr(rule->name, '@') ? weights_side(rule->stacked, c, shape) : 1;
        const int rc = grow(claims, n, err);
        if (rc) return rc;
        for (uint32_t expert = 0; expert < n; expert++)
            weights_file_name(claims->names[claims->n++], c, rule->name, layer, expert);
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
    weights_file_name(claims->names[claims->n++], c, "lm_head.weight", 0, 0);
    for (uint32_t i = 0; !rc && i < c->n_layers; i++)
        rc = claim_rules(claims, &weights_of_layer, c, &c->layers[i], i, err);
    qsort(claims->names, claims->n, sizeof(*claims->names), by_text);
    return rc;
}

static bool is_claimed(const struct claims *claims, const char *name) {
    return bsearch(name, claims->names, claims->n, sizeof(*claims->names), by_text) != NULL;
}

/* Notes a tensor that is not loaded, with the name of its part. */
static void note_ignored(struct weight_tally *tally, const struct ignored *row) {
    char part[sizeof(tally->left_out)];
    const size_t n = strlen(tally->left_out);
    if (row->reason == IS_KV_SCALE) tally->has_kv_scales = true;
    if (row->reason != GUESSES && row->reason != FOR_IMAGES) return;
    tally->n_left_out++;
    snprintf(part, sizeof(part), "%.*s", (int)strlen(row->text) - 1, row->text);
    if (strstr(tally->left_out, part)) return;
    snprintf(tally->left_out + n, sizeof(tally->left_out) - n, "%s%s", n ? ", " : "", part);
}

/* Returns true if a layer that guesses tokens has the tensor.  Answers do not depend on it. */
static bool is_of_guess_layer(const struct model_config *c, const char *name) {
    uint32_t layer;
    const bool is_of_layer = sscanf(name, "model.layers.%9" SCNu32 ".", &layer) == 1 ||
                             sscanf(name, "blk.%9" SCNu32 ".", &layer) == 1; /* of GGUF */
    return is_of_layer && layer >= c->n_layers && layer - c->n_layers < c->n_guess_layers;
}

/* Returns true if the tensor is a bias of zeros, which changes nothing.  Cohere's checkpoints have
 * such ones of norms and products that have no bias. */
static bool adds_nothing(const struct weight_source *files, const char *name) {
    static const char suffix[] = ".bias", *const dtypes[] = {"F32", "F16", "BF16"};
    const size_t n = strlen(name), n_suffix = sizeof(suffix) - 1;
    struct safetensors_view view;
    struct error why;
    bool is_float = false;
    if (n < n_suffix || strcmp(name + n - n_suffix, suffix) != 0 || !files->ops->view ||
        files->ops->view(files, name, &view, &why) || view.n_dims != 1)
        return false;
    for (size_t i = 0; i < COUNT(dtypes); i++) is_float |= strcmp(view.dtype, dtypes[i]) == 0;
    for (size_t i = 0; i < view.size_bytes && is_float; i++)
        is_float = ((const char *)view.data)[i] == 0;
    return is_float;
}

int unclaimed_check(const struct weight_source *files, const struct model_config *config,
                    struct weight_tally *tally, struct error *err) {
    struct claims claims = {0};
    char name[WEIGHT_SOURCE_NAME], first[WEIGHT_SOURCE_NAME];
    uint32_t n_unclaimed = 0;
    int rc = claim_all(&claims, config, err);
    for (uint32_t i = 0; !rc && files->ops->name(files, i, name); i++) {
        if (name[0] == '\0' || is_claimed(&claims, name) || is_of_guess_layer(config, name))
            continue;
        const struct ignored *row = find_ignored(config, name);
        if (row) note_ignored(tally, row);
        else if (!adds_nothing(files, name) && n_unclaimed++ == 0)
            snprintf(first, sizeof(first), "%s", name);
    }
    free(claims.names);
    if (rc || n_unclaimed == 0) return rc;
    return error_set(err, ERR_UNSUPPORTED,
                     "tensor '%.160s' (%" PRIu32 " in all) is nothing that config.json describes "
                     "for %.60s: the model would be served without some of its weights",
                     first, n_unclaimed, config->architecture);
}
