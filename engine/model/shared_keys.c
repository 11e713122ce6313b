/* shared_keys.c - see shared_keys.h. */
#include "engine/model/shared_keys.h"

#include "engine/base/error.h"
#include "engine/device/layer_group.h"
#include "engine/model/feed_forward.h"

static const char key[] = "num_kv_shared_layers";

int shared_keys_read(const struct config_reader *r, struct model_config *c) {
    double n = 0;
    const int rc = config_read_number(r, r->root, key, 0, UINT16_MAX, &n);
    if (rc) return rc;
    if (n >= c->n_layers)
        return config_refuse(r, ERR_UNSUPPORTED, key,
                             "leaves no layer with keys: such a model reads those of another one");
    if (n != (uint32_t)n) return config_refuse(r, ERR_INVALID, key, "is not a whole number");
    c->n_kv_shared = (uint32_t)n;
    return 0;
}

/* Returns the last layer before `end` with a window where `layer` has one, or without; `end`: there
 * is none. */
static uint32_t owner_of(const struct model_config *c, uint32_t layer, uint32_t end) {
    const bool has_window = layer_has_window(c->windows, layer);
    for (uint32_t i = end; i-- > 0;)
        if (layer_has_window(c->windows, i) == has_window) return i;
    return end;
}

int shared_keys_place(const struct config_reader *r, struct model_config *c) {
    const uint32_t n_writing = shared_keys_n_writing(c);
    for (uint32_t i = n_writing; i < c->n_layers; i++) {
        const uint32_t owner = owner_of(c, i, n_writing);
        if (owner == n_writing)
            return config_refuse(r, ERR_INVALID, key,
                                 "has a layer of a type that no layer before has");
        c->layers[i].borrows_kv = true;
        c->layers[i].number = c->layers[owner].number;
    }
    c->n_attention -= c->n_kv_shared;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t later = i + 1;
        while (later < c->n_layers && (c->layers[later].mixer != MIXER_ATTENTION ||
                                       c->layers[later].number != c->layers[i].number))
            later++;
        c->layers[i].is_last_reader = later == c->n_layers;
    }
    return 0;
}

uint32_t shared_keys_n_writing(const struct model_config *c) {
    return c->n_layers - c->n_kv_shared;
}
