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

/* ---- Nemotron-H ---- */

static const char mixer_act[] = "mamba_hidden_act", ffn_act[] = "mlp_hidden_act",
                  latent[] = "moe_latent_size", own_head_dim[] = "attention_head_dim",
                  types_key[] = "layers_block_type", usual_key[] = "layer_types",
                  pattern_key[] = "hybrid_override_pattern";

int mamba_read_nemotron(const struct config_reader *r, struct model_config *c,
                        struct recurrent_shape *shape) {
    static const struct mamba_keys keys = {"mamba_num_heads", "mamba_head_dim", "n_groups",
                                           "ssm_state_size",  "conv_kernel",    "use_conv_bias",
                                           "use_bias"};
    const json_t *act = config_get(r->root, mixer_act);
    *shape = (struct recurrent_shape){
        .n_k_heads = 8, .n_v_heads = 128, .k_dim = 128, .v_dim = 64, .width = 4};
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return config_refuse(r, ERR_UNSUPPORTED, mixer_act, "is not silu");
    return read_shape(r, &keys, c, shape);
}

/* What a layer may be: in a list, in lists of older files, and in a pattern of letters. */
static const struct part {
    const char *type, *other_type;
    char letter;
    enum mixer_kind mixer;
    enum ffn_kind ffn;
} parts[] = {{"linear_attention", "mamba", 'M', MIXER_RECURRENT, FFN_NONE},
             {"full_attention", "attention", '*', MIXER_ATTENTION, FFN_NONE},
             {"mlp", "mlp", '-', MIXER_NONE, FFN_PLAIN},
             {"moe", "moe", 'E', MIXER_NONE, FFN_PLAIN_EXPERTS}};

/* Returns what a layer is; NULL: its type, or its letter, is not known. */
static const struct part *part_of(const char *type, char letter) {
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const bool is_type =
            type && (strcmp(parts[i].type, type) == 0 || strcmp(parts[i].other_type, type) == 0);
        if (is_type || (!type && parts[i].letter == letter)) return &parts[i];
    }
    return NULL;
}

/* What config.json says of the layers: a list, or a pattern. */
struct layer_list {
    const char *key;
    const json_t *types;
    const char *pattern;
    size_t n;
};

static struct layer_list layer_list_of(const struct config_reader *r) {
    const char *key = config_get(r->root, types_key) ? types_key : usual_key,
               *pattern = json_string_value(config_get(r->root, pattern_key));
    const json_t *types = config_get(r->root, key);
    if (types) return (struct layer_list){key, types, NULL, json_array_size(types)};
    return (struct layer_list){pattern_key, NULL, pattern, pattern ? strlen(pattern) : 0};
}

uint32_t mamba_count_nemotron(const struct config_reader *r) {
    const size_t n = layer_list_of(r).n;
    return n <= CONFIG_MAX_LAYERS ? (uint32_t)n : 0;
}

static const struct part *part_at(const struct layer_list *list, uint32_t i) {
    const char *type = json_string_value(json_array_get(list->types, i));
    if (list->types) return type ? part_of(type, 0) : NULL;
    return part_of(NULL, list->pattern[i]);
}

/* Reads the experts into all layers, before those without any become what they are. */
static int read_plain_experts(const struct config_reader *r, struct model_config *c) {
    static const struct family_experts experts = {
        .count = "n_routed_experts",
        .width = "moe_intermediate_size",
        .shared_width = "moe_shared_expert_intermediate_size",
        .kind = ROUTE_SIGMOID,
        .normalises = true,
        .normalises_as_said = true,
        .has_factor = true,
        .has_groups = true,
        .choice_bias = true};
    if (config_get(r->root, latent))
        return config_refuse(r, ERR_UNSUPPORTED, latent,
                             "is not null: experts of another width are not supported");
    return experts_config_read(r, &experts, c);
}

int mamba_place_nemotron(const struct config_reader *r, struct model_config *c) {
    const struct layer_list list = layer_list_of(r);
    const struct layer_shape dense = c->layers[0];
    uint32_t n_recurrent = 0, n_experts = 0;
    if (list.n != c->n_layers)
        return config_refuse(r, ERR_INVALID, list.key, "does not say of each layer what it is");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const struct part *part = part_at(&list, i);
        if (!part)
            return config_refuse(r, ERR_UNSUPPORTED, list.key,
                                 "has a layer that is not mamba, attention, mlp or moe");
        n_recurrent += part->mixer == MIXER_RECURRENT;
        n_experts += part->ffn == FFN_PLAIN_EXPERTS;
    }
    if (n_recurrent == 0)
        return config_refuse(r, ERR_UNSUPPORTED, list.key, "has no layer of mamba");
    const int rc = n_experts > 0 ? read_plain_experts(r, c) : 0;
    for (uint32_t i = 0; i < c->n_layers && !rc; i++) {
        const struct part *part = part_at(&list, i);
        if (part->ffn != FFN_PLAIN_EXPERTS) c->layers[i] = dense;
        c->layers[i].mixer = part->mixer;
        c->layers[i].kind = part->ffn;
    }
    return rc;
}

int family_read_nemotron(const struct config_reader *r, struct model_config *c) {
    const json_t *act = config_get(r->root, ffn_act);
    bool has_experts = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].is_local = true; /* nothing rotates */
        has_experts |= c->layers[i].kind == FFN_PLAIN_EXPERTS;
    }
    if (has_experts && act &&
        (!json_is_string(act) || strcmp(json_string_value(act), "relu2") != 0))
        return config_refuse(r, ERR_UNSUPPORTED, ffn_act, "is not relu2, that of experts");
    if (config_get(r->root, "head_dim")) return 0;
    return config_read_count(r, r->root, own_head_dim, MAX_DIM, &c->head_dim);
}
