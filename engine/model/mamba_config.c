/* mamba_config.c - see mamba_config.h. */
#include "engine/model/mamba_config.h"

#include <math.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/model/config_reader.h"
#include "engine/model/experts_config.h"
#include "engine/model/family_config.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"

enum { MAX_HEADS = 1024, MAX_DIM = 256, MAX_WIDTH = 1 << 20, MAX_EXPAND = 64 };

/* A family's names for the sizes of its layers. */
struct mamba_keys {
    const char *n_heads, *head_dim, *n_groups, *state, *width, *conv_bias, *proj_bias;
};

/* Reads the limits of dt, of which the second may be infinite.  JSON has no number for that: files
 * say Infinity (model_document.h), or {"__float__": "Infinity"}. */
static int read_limits(const struct config_reader *r, struct recurrent_shape *shape) {
    static const char key[] = "time_step_limit";
    const json_t *list = config_get(r->root, key), *least = json_array_get(list, 0),
                 *most = json_array_get(list, 1);
    shape->dt_least = 0;
    shape->dt_most = INFINITY;
    if (!list) return 0;
    if (json_array_size(list) != 2 || !json_is_number(least) || json_number_value(least) < 0)
        return config_refuse(r, ERR_INVALID, key, "is no list of two limits");
    shape->dt_least = (float)json_number_value(least);
    if (json_is_number(most)) shape->dt_most = (float)json_number_value(most);
    if (shape->dt_most >= shape->dt_least) return 0;
    return config_refuse(r, ERR_INVALID, key, "has a largest time step below the smallest");
}

static int read_biases(const struct config_reader *r, const struct mamba_keys *keys,
                       struct model_config *c) {
    bool has_bias = false;
    c->conv_bias = true;
    int rc = config_read_bool(r, r->root, keys->conv_bias, &c->conv_bias);
    if (!rc) rc = config_read_bool(r, r->root, keys->proj_bias, &has_bias);
    if (rc || !has_bias) return rc;
    return config_refuse(r, ERR_UNSUPPORTED, keys->proj_bias,
                         "is true: products of Mamba-2 layers have no biases here");
}

/* Reads the sizes; those in *shape are the usual ones. */
static int read_shape(const struct config_reader *r, const struct mamba_keys *keys,
                      struct model_config *c, struct recurrent_shape *shape) {
    const struct {
        const char *key;
        uint32_t max, *out;
    } counts[] = {{keys->n_heads, MAX_HEADS, &shape->n_v_heads},
                  {keys->head_dim, MAX_DIM, &shape->v_dim},
                  {keys->n_groups, MAX_HEADS, &shape->n_k_heads},
                  {keys->state, MAX_DIM, &shape->k_dim},
                  {keys->width, RECURRENT_MAX_WIDTH, &shape->width}};
    shape->kind = RECURRENT_MAMBA;
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        const int rc = config_read_count(r, r->root, counts[i].key, counts[i].max, counts[i].out);
        if (rc) return rc;
    }
    if (shape->n_v_heads % shape->n_k_heads != 0)
        return config_refuse(r, ERR_INVALID, keys->n_groups, "does not divide the heads");
    if (shape->width < 2) return config_refuse(r, ERR_UNSUPPORTED, keys->width, "is less than 2");
    const int rc = read_limits(r, shape);
    return rc ? rc : read_biases(r, keys, c);
}

/* ---- Granite 4 ---- */

int mamba_read_granite(const struct config_reader *r, struct model_config *c,
                       struct recurrent_shape *shape) {
    struct mamba_keys keys = {"mamba_n_heads", "mamba_d_head",    "mamba_n_groups", "mamba_d_state",
                              "mamba_d_conv",  "mamba_conv_bias", "mamba_proj_bias"};
    const char *head = json_string_value(config_get(r->root, keys.head_dim));
    uint32_t expand = 2;
    *shape = (struct recurrent_shape){.n_k_heads = 1, .n_v_heads = 128, .k_dim = 256, .width = 4};
    int rc = config_read_count(r, r->root, "mamba_expand", MAX_EXPAND, &expand);
    if (!rc) rc = config_read_count(r, r->root, keys.n_heads, MAX_HEADS, &shape->n_v_heads);
    if (rc) return rc;
    const uint32_t width = expand * c->dim;
    shape->v_dim = width / shape->n_v_heads;
    if (head && strcmp(head, "auto") == 0) keys.head_dim = "";
    rc = read_shape(r, &keys, c, shape);
    if (rc || shape->n_v_heads * shape->v_dim == width) return rc;
    return config_refuse(r, ERR_INVALID, keys.n_heads,
                         "times the size of a head is not 'mamba_expand' times 'hidden_size'");
}

/* Reads whether the layers that attend rotate queries and keys. */
static int read_positions(const struct config_reader *r, struct model_config *c) {
    static const char key[] = "position_embedding_type";
    const json_t *value = config_get(r->root, key);
    const char *type = value ? json_string_value(value) : "nope";
    const bool rotates = type && strcmp(type, "rope") == 0;
    if (!rotates && (!type || strcmp(type, "nope") != 0))
        return config_refuse(r, ERR_UNSUPPORTED, key, "is not null, nope or rope");
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i].is_local = !rotates;
    return 0;
}

/* Gives the layers the experts that config.json has, beside the dense part that all have. */
static int read_experts(const struct config_reader *r, struct model_config *c) {
    static const struct family_experts experts = {.count = "num_local_experts",
                                                  .width = "intermediate_size",
                                                  .shared_width = "shared_intermediate_size",
                                                  .kind = ROUTE_SOFTMAX_CHOSEN};
    double n = 8;
    uint32_t dense = 1024;
    int rc = config_read_number(r, r->root, experts.count, 0, EXPERTS_MAX, &n);
    if (rc || n > 0) return rc ? rc : experts_config_read(r, &experts, c);
    rc = config_read_count(r, r->root, experts.shared_width, MAX_WIDTH, &dense);
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i].ffn_dim = dense;
    return rc;
}

int family_read_granite_hybrid(const struct config_reader *r, struct model_config *c) {
    c->fused_gate_up = c->fused_shared = true;
    int rc = family_read_granite(r, c);
    if (!rc) rc = read_positions(r, c);
    return rc ? rc : read_experts(r, c);
}
