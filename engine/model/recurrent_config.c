/* recurrent_config.c - see recurrent_config.h. */
#include "engine/model/recurrent_config.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/model/config_reader.h"
#include "engine/model/feed_forward.h"
#include "engine/model/mamba_config.h"
#include "engine/model/model.h"

enum { MAX_HEADS = 1024, MAX_DIM = 256, USUAL_INTERVAL = 4 };

/* What a family has of recurrent layers. */
struct recurrent_family {
    /* What 'layer_types' calls such a layer; other_type NULL: nothing else.  type NULL: place()
     * reads that list, too. */
    const char *type, *other_type;
    const char *other_attention; /* and one of 'full_attention', likewise */
    int (*read_shape)(const struct config_reader *r, struct model_config *c,
                      struct recurrent_shape *shape);
    /* Places them where that list is missing, or is not read. */
    int (*place)(const struct config_reader *r, struct model_config *c);
};

static int check_width(const struct config_reader *r, const char *key, uint32_t width) {
    return width >= 2 ? 0 : config_refuse(r, ERR_UNSUPPORTED, key, "is less than 2");
}

/* ---- Gated DeltaNet ---- */

static int read_delta(const struct config_reader *r, struct model_config *c,
                      struct recurrent_shape *shape) {
    const struct {
        const char *key;
        uint32_t max, *out;
    } counts[] = {{"linear_num_key_heads", MAX_HEADS, &shape->n_k_heads},
                  {"linear_num_value_heads", MAX_HEADS, &shape->n_v_heads},
                  {"linear_key_head_dim", MAX_DIM, &shape->k_dim},
                  {"linear_value_head_dim", MAX_DIM, &shape->v_dim},
                  {"linear_conv_kernel_dim", RECURRENT_MAX_WIDTH, &shape->width}};
    (void)c;
    *shape = (struct recurrent_shape){
        .n_k_heads = 16, .n_v_heads = 32, .k_dim = 128, .v_dim = 128, .width = 4};
    for (size_t i = 0; i < COUNT(counts); i++) {
        const int rc = config_read_count(r, r->root, counts[i].key, counts[i].max, counts[i].out);
        if (rc) return rc;
    }
    if (shape->n_v_heads % shape->n_k_heads != 0)
        return config_refuse(r, ERR_INVALID, "linear_num_key_heads",
                             "does not divide 'linear_num_value_heads'");
    return check_width(r, "linear_conv_kernel_dim", shape->width);
}

static int place_by_interval(const struct config_reader *r, struct model_config *c) {
    uint32_t interval = USUAL_INTERVAL;
    const int rc =
        config_read_count(r, r->root, "full_attention_interval", CONFIG_MAX_LAYERS, &interval);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].mixer = (i + 1) % interval == 0 ? MIXER_ATTENTION : MIXER_RECURRENT;
    return rc;
}

/* ---- short convolutions ---- */

static int read_convolution(const struct config_reader *r, struct model_config *c,
                            struct recurrent_shape *shape) {
    static const char width[] = "conv_L_cache", bias[] = "conv_bias";
    bool has_bias = false;
    *shape = (struct recurrent_shape){
        .n_v_heads = c->dim, .v_dim = 1, .width = 3, .kind = RECURRENT_CONVOLUTION};
    int rc = config_read_count(r, r->root, width, RECURRENT_MAX_WIDTH, &shape->width);
    if (!rc) rc = config_read_bool(r, r->root, bias, &has_bias);
    if (!rc && has_bias)
        rc = config_refuse(r, ERR_UNSUPPORTED, bias, "is true: convolutions have no biases here");
    return rc ? rc : check_width(r, width, shape->width);
}

static int place_others(const struct config_reader *r, struct model_config *c) {
    static const char key[] = "full_attn_idxs";
    const json_t *list = config_get(r->root, key);
    if (!json_is_array(list))
        return config_refuse(r, ERR_INVALID, key, "is no list, and 'layer_types' is missing");
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i].mixer = MIXER_RECURRENT;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= c->n_layers)
            return config_refuse(r, ERR_INVALID, key, "has an element that is no layer");
        c->layers[json_integer_value(layer)].mixer = MIXER_ATTENTION;
    }
    return 0;
}

/* ---- Mamba-2 ---- */

static int place_nowhere(const struct config_reader *r, struct model_config *c) {
    (void)c;
    return config_refuse(r, ERR_INVALID, "layer_types", "is missing");
}

static const struct recurrent_family families[] = {
    [RECURRENT_LINEAR] = {.type = "linear_attention",
                          .read_shape = read_delta,
                          .place = place_by_interval},
    [RECURRENT_CONV] = {.type = "conv", .read_shape = read_convolution, .place = place_others},
    [RECURRENT_GRANITE] = {.type = "mamba",
                           .other_type = "linear_attention",
                           .other_attention = "attention",
                           .read_shape = mamba_read_granite,
                           .place = place_nowhere},
    [RECURRENT_NEMOTRON] = {.read_shape = mamba_read_nemotron, .place = mamba_place_nemotron}};

static bool is_type(const char *type, const char *name, const char *other) {
    return type && (strcmp(type, name) == 0 || (other && strcmp(type, other) == 0));
}

/* Reads which layers are recurrent, as a list says it of each. */
static int place_types(const struct config_reader *r, const json_t *types,
                       const struct recurrent_family *family, struct model_config *c) {
    static const char key[] = "layer_types";
    char why[96];
    if (json_array_size(types) != c->n_layers)
        return config_refuse(r, ERR_INVALID, key, "is not a list of one for each layer");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        const bool recurs = is_type(type, family->type, family->other_type);
        c->layers[i].mixer = recurs ? MIXER_RECURRENT : MIXER_ATTENTION;
        if (recurs || is_type(type, "full_attention", family->other_attention)) continue;
        snprintf(why, sizeof(why), "has a layer that is not full_attention or %s", family->type);
        return config_refuse(r, ERR_UNSUPPORTED, key, why);
    }
    return 0;
}

int recurrent_config_read(const struct config_reader *r, enum family_recurrent recurrent,
                          struct model_config *c) {
    const struct recurrent_family *family = &families[recurrent];
    const json_t *types = config_get(r->root, "layer_types");
    int rc = 0;
    if (recurrent != RECURRENT_NONE) {
        rc = family->read_shape(r, c, &c->recurrent);
        const bool is_listed = types && family->type;
        if (!rc) rc = is_listed ? place_types(r, types, family, c) : family->place(r, c);
    }
    for (uint32_t i = 0; i < c->n_layers && !rc; i++) {
        uint32_t *const counts[] = {
            [MIXER_ATTENTION] = &c->n_attention, [MIXER_RECURRENT] = &c->recurrent.n_layers};
        if (c->layers[i].mixer != MIXER_NONE) c->layers[i].number = (*counts[c->layers[i].mixer])++;
    }
    if (rc || c->n_attention > 0) return rc;
    return config_refuse(r, ERR_UNSUPPORTED, "layer_types", "has no layer of full_attention");
}
