/* recurrent_config.c - see recurrent_config.h. */
#include "engine/model/recurrent_config.h"

#include <string.h>

#include "engine/base/count.h"
#include "engine/base/error.h"
#include "engine/model/config_reader.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"

enum { MAX_HEADS = 1024, MAX_DIM = 256, MAX_LAYERS = 1024, USUAL_INTERVAL = 4 };

static int read_shape(const struct config_reader *r, struct recurrent_shape *shape) {
    const struct {
        const char *key;
        uint32_t max, *out;
    } counts[] = {{"linear_num_key_heads", MAX_HEADS, &shape->n_k_heads},
                  {"linear_num_value_heads", MAX_HEADS, &shape->n_v_heads},
                  {"linear_key_head_dim", MAX_DIM, &shape->k_dim},
                  {"linear_value_head_dim", MAX_DIM, &shape->v_dim},
                  {"linear_conv_kernel_dim", RECURRENT_MAX_WIDTH, &shape->width}};
    *shape = (struct recurrent_shape){
        .n_k_heads = 16, .n_v_heads = 32, .k_dim = 128, .v_dim = 128, .width = 4};
    for (size_t i = 0; i < COUNT(counts); i++) {
        const int rc = config_read_count(r, r->root, counts[i].key, counts[i].max, counts[i].out);
        if (rc) return rc;
    }
    if (shape->n_v_heads % shape->n_k_heads != 0)
        return config_refuse(r, ERR_INVALID, "linear_num_key_heads",
                             "does not divide 'linear_num_value_heads'");
    if (shape->width < 2)
        return config_refuse(r, ERR_UNSUPPORTED, "linear_conv_kernel_dim", "is less than 2");
    return 0;
}

/* Reads which layers are recurrent, as a list says it of each. */
static int place_types(const struct config_reader *r, const json_t *types, struct model_config *c) {
    static const char key[] = "layer_types";
    if (json_array_size(types) != c->n_layers)
        return config_refuse(r, ERR_INVALID, key, "is not a list of one for each layer");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        c->layers[i].is_recurrent = type && strcmp(type, "linear_attention") == 0;
        if (!c->layers[i].is_recurrent && (!type || strcmp(type, "full_attention") != 0))
            return config_refuse(r, ERR_UNSUPPORTED, key,
                                 "has a layer that is not full_attention or linear_attention");
    }
    return 0;
}

static int place(const struct config_reader *r, struct model_config *c) {
    const json_t *types = config_get(r->root, "layer_types");
    uint32_t interval = USUAL_INTERVAL;
    if (types) return place_types(r, types, c);
    const int rc = config_read_count(r, r->root, "full_attention_interval", MAX_LAYERS, &interval);
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i].is_recurrent = (i + 1) % interval != 0;
    return rc;
}

int recurrent_config_read(const struct config_reader *r, bool has_recurrent,
                          struct model_config *c) {
    int rc = has_recurrent ? read_shape(r, &c->recurrent) : 0;
    if (!rc && has_recurrent) rc = place(r, c);
    for (uint32_t i = 0; i < c->n_layers && !rc; i++)
        c->layers[i].number =
            c->layers[i].is_recurrent ? c->recurrent.n_layers++ : c->n_attention++;
    if (rc || c->n_attention > 0) return rc;
    return config_refuse(r, ERR_UNSUPPORTED, "layer_types", "has no layer of full_attention");
}
