/* experts_config.c - see experts_config.h. */
#include "engine/model/experts_config.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/model/config_reader.h"
#include "engine/model/feed_forward.h"
#include "engine/model/model.h"

enum { MAX_WIDTH = 1 << 20, MAX_SHARED = 64 };

/* Reads a whole number that may be 0.  key NULL: leaves *out alone. */
static int read_number(const struct config_reader *r, const char *key, uint32_t most,
                       uint32_t *out) {
    double n = *out;
    const int rc = key ? config_read_number(r, r->root, key, 0, most, &n) : 0;
    if (rc) return rc;
    *out = (uint32_t)n;
    return *out == n ? 0 : config_refuse(r, ERR_INVALID, key, "is not a whole number");
}

/* Makes a layer's feed-forward part that of `from`. */
static void place_shape(struct layer_shape *layer, const struct layer_shape *from) {
    layer->kind = from->kind;
    layer->ffn_dim = from->ffn_dim;
    layer->n_experts = from->n_experts;
    layer->n_used = from->n_used;
    layer->shared_dim = from->shared_dim;
}

static int read_required(const struct config_reader *r, const char *key, uint32_t most,
                         uint32_t *out) {
    if (!config_get(r->root, key)) return config_refuse(r, ERR_INVALID, key, "is missing");
    return config_read_count(r, r->root, key, most, out);
}

/* Returns the key that config.json has for the number of experts: that of the family, or the name
 * that transformers 5 has for all. */
static const char *count_key(const struct config_reader *r, const struct family_experts *f) {
    static const char common[] = "num_local_experts";
    return !config_get(r->root, f->count) && config_get(r->root, common) ? common : f->count;
}

static int read_shape(const struct config_reader *r, const struct family_experts *f,
                      struct layer_shape *shape) {
    const char *used = f->used ? f->used : "num_experts_per_tok";
    uint32_t n_shared = 0;
    *shape = (struct layer_shape){.kind = FFN_EXPERTS};
    int rc = read_required(r, count_key(r, f), EXPERTS_MAX, &shape->n_experts);
    if (!rc) rc = read_required(r, used, EXPERTS_MAX_USED, &shape->n_used);
    if (!rc) rc = read_required(r, f->width, MAX_WIDTH, &shape->ffn_dim);
    if (!rc) rc = read_number(r, f->shared_width, MAX_WIDTH, &shape->shared_dim);
    if (!rc) rc = read_number(r, f->shared_count, MAX_SHARED, &n_shared);
    if (rc) return rc;
    if (shape->n_used > shape->n_experts)
        return config_refuse(r, ERR_INVALID, used, "is more than there are");
    if (f->shared_count) shape->shared_dim = n_shared * shape->ffn_dim;
    return 0;
}

static int read_groups(const struct config_reader *r, const struct layer_shape *shape,
                       struct routing *routing) {
    int rc = config_read_count(r, r->root, "n_group", EXPERTS_MAX, &routing->n_groups);
    if (!rc) rc = config_read_count(r, r->root, "topk_group", EXPERTS_MAX, &routing->n_used_groups);
    if (rc || routing->n_groups == 1) return rc;
    const uint32_t size = shape->n_experts / routing->n_groups;
    if (size < 2 || shape->n_experts % routing->n_groups != 0)
        return config_refuse(r, ERR_INVALID, "n_group",
                             "does not cut the experts into groups of 2 "
                             "or more");
    if (routing->n_used_groups > routing->n_groups || shape->n_used > routing->n_used_groups * size)
        return config_refuse(r, ERR_INVALID, "topk_group",
                             "is more than 'n_group', or has too few experts");
    return 0;
}

static int read_route(const struct config_reader *r, const struct family_experts *f,
                      const struct layer_shape *shape, struct routing *routing) {
    double factor = 1;
    *routing = (struct routing){.kind = f->kind,
                                .normalises = f->normalises,
                                .shared = 1,
                                .n_groups = 1,
                                .n_used_groups = 1};
    int rc = f->normalises_as_said
                 ? config_read_bool(r, r->root, "norm_topk_prob", &routing->normalises)
                 : 0;
    if (!rc && f->has_factor)
        rc = config_read_number(r, r->root, "routed_scaling_factor", 1e-6, 1e6, &factor);
    if (!rc && f->has_groups) rc = read_groups(r, shape, routing);
    routing->factor = (float)factor;
    return rc;
}

/* Makes the layers of a list dense. */
static int read_dense_layers(const struct config_reader *r, struct model_config *c,
                             const struct layer_shape *dense) {
    static const char key[] = "mlp_only_layers";
    const json_t *list = config_get(r->root, key);
    if (list && !json_is_array(list)) return config_refuse(r, ERR_INVALID, key, "is not a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *layer = json_array_get(list, i);
        if (!json_is_integer(layer) || json_integer_value(layer) < 0 ||
            json_integer_value(layer) >= c->n_layers)
            return config_refuse(r, ERR_INVALID, key, "has an element that is no layer");
        place_shape(&c->layers[json_integer_value(layer)], dense);
    }
    return 0;
}

/* Gives layers their experts as a list says. */
static int place_types(const struct config_reader *r, const char *key, const json_t *list,
                       const struct layer_shape *shape, struct model_config *c) {
    if (json_array_size(list) != c->n_layers)
        return config_refuse(r, ERR_INVALID, key, "is not a list of one for each layer");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        const bool is_sparse = type && strcmp(type, "sparse") == 0;
        if (!is_sparse && (!type || strcmp(type, "dense") != 0))
            return config_refuse(r, ERR_UNSUPPORTED, key,
                                 "has a layer that is not dense or sparse");
        if (is_sparse) place_shape(&c->layers[i], shape);
    }
    return 0;
}

static int place_experts(const struct config_reader *r, const struct family_experts *f,
                         const struct layer_shape *shape, struct model_config *c) {
    const json_t *types = f->types ? config_get(r->root, f->types) : NULL;
    struct layer_shape dense = c->layers[0];
    uint32_t n_dense = 0, step = 1;
    int rc = f->dense_width
                 ? config_read_count(r, r->root, f->dense_width, MAX_WIDTH, &dense.ffn_dim)
                 : 0;
    for (uint32_t i = 0; !rc && i < c->n_layers; i++) place_shape(&c->layers[i], &dense);
    if (!rc && types) return place_types(r, f->types, types, shape, c);
    if (!rc) rc = read_number(r, f->first_dense, CONFIG_MAX_LAYERS, &n_dense);
    if (!rc && f->has_step)
        rc = config_read_count(r, r->root, "decoder_sparse_step", CONFIG_MAX_LAYERS, &step);
    for (uint32_t i = 0; !rc && i < c->n_layers; i++)
        if (i >= n_dense && (i + 1) % step == 0) place_shape(&c->layers[i], shape);
    return rc || !f->has_step ? rc : read_dense_layers(r, c, &dense);
}

int experts_config_read(const struct config_reader *r, const struct family_experts *f,
                        struct model_config *c) {
    struct layer_shape shape;
    int rc = read_shape(r, f, &shape);
    if (!rc) rc = read_route(r, f, &shape, &c->routing);
    if (!rc) rc = place_experts(r, f, &shape, c);
    c->has_router_bias = f->router_bias;
    c->has_choice_bias = f->choice_bias;
    c->has_shared_gate = f->shared_gate;
    return rc;
}
