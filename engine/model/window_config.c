/* window_config.c - see window_config.h. */
#include "engine/model/window_config.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/model/family.h"
#include "engine/model/feed_forward.h"

enum { MAX_WINDOW = 1 << 30, USUAL_WINDOW_LAYERS = 28 };

/* Reads the window; 0: no layer has one. */
static int read_window(const struct config_reader *r, const struct model_family *family,
                       uint32_t *out) {
    bool used = family->window == WINDOW_AS_SAID;
    int rc = 0;
    if (family->window == WINDOW_IF_USED)
        rc = config_read_bool(r, r->root, "use_sliding_window", &used);
    if (rc || !used) return rc;
    if (!json_object_get(r->root, "sliding_window")) *out = family->usual_window;
    rc = config_read_count(r, r->root, "sliding_window", MAX_WINDOW, out);
    if (rc || *out > 0 || !family->needs_window) return rc;
    return config_refuse(r, ERR_UNSUPPORTED, "sliding_window", "is null");
}

/* Reads the first layer that may have a window. */
static int read_first_layer(const struct config_reader *r, const struct model_family *family,
                            uint32_t *out) {
    double first = family->window == WINDOW_IF_USED ? USUAL_WINDOW_LAYERS : 0;
    int rc = 0;
    if (family->window == WINDOW_IF_USED)
        rc = config_read_number(r, r->root, "max_window_layers", 0, CONFIG_MAX_LAYERS, &first);
    *out = (uint32_t)first;
    return rc;
}

/* Reads whether a layer has a window, as config.json says for each. */
static int read_type(const struct config_reader *r, const json_t *value, bool has_window,
                     bool *out) {
    const char *type = json_string_value(value);
    *out = has_window && type && strcmp(type, "sliding_attention") == 0;
    if (*out || (type && strcmp(type, "full_attention") == 0)) return 0;
    return config_refuse(r, ERR_UNSUPPORTED, "layer_types",
                         "has a layer that is not full_attention");
}

/* Which layers have a window, where config.json does not say it of each. */
struct periods {
    uint32_t first;          /* that may have one */
    uint32_t dense, n_dense; /* of layers in front, which are counted by themselves */
    uint32_t period;         /* of the others: every period-th has none; 0: all have one */
};

static bool has_usual_window(const struct periods *p, uint32_t layer) {
    if (layer < p->n_dense) return (layer + 1) % p->dense != 0;
    return layer >= p->first && (p->period == 0 || (layer - p->n_dense + 1) % p->period != 0);
}

/* Reads the period of the dense layers in front of those with experts.  If it is 1 dense layers
 * rotate. */
static int read_dense_period(const struct config_reader *r, const struct model_family *family,
                             struct model_config *c, struct periods *p) {
    p->dense = 1;
    if (!family->dense_window_period) return 0;
    while (p->n_dense < c->n_layers && c->layers[p->n_dense].n_experts == 0) p->n_dense++;
    const int rc =
        config_read_count(r, r->root, family->dense_window_period, CONFIG_MAX_LAYERS, &p->dense);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].rotates = c->layers[i].n_experts == 0 && p->dense == 1;
    return rc;
}

static int place_windows(const struct config_reader *r, uint32_t window, const struct periods *p,
                         uint32_t *windows, uint32_t n_layers) {
    const json_t *types = config_get(r->root, "layer_types");
    if (types && json_array_size(types) != n_layers)
        return config_refuse(r, ERR_INVALID, "layer_types", "is not a list of one for each layer");
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        bool windowed = window > 0 && has_usual_window(p, layer);
        const int rc =
            types ? read_type(r, json_array_get(types, layer), window > 0, &windowed) : 0;
        if (rc) return rc;
        windows[layer] = windowed ? window : 0;
    }
    return 0;
}

static bool is_placed(const struct model_config *c) {
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        if (c->windows[layer] > 0) return true;
    return false;
}

bool model_has_full_attention(const struct model_config *c) {
    for (uint32_t layer = 0; layer < c->n_layers && c->window > 0; layer++)
        if (c->windows[layer] == 0) return true;
    return c->window == 0;
}

/* Sets which layers rotate by local frequencies, where that depends on their windows. */
static void choose_ropes(const struct model_family *family, struct model_config *c) {
    for (uint32_t i = 0; i < c->n_layers && family->ropes != ROPES_ALIKE; i++)
        c->layers[i].is_local =
            !c->layers[i].rotates && (family->ropes == ROPES_BY_WINDOW) == (c->windows[i] > 0);
}

int window_config_read(const struct config_reader *r, struct model_config *c) {
    const struct model_family *family = family_find(c->architecture);
    struct periods periods = {.period = family->window_period};
    uint32_t window = 0;
    if (family->window == WINDOW_NEVER) return 0;
    int rc = read_window(r, family, &window);
    if (!rc) rc = read_first_layer(r, family, &periods.first);
    if (!rc) rc = read_dense_period(r, family, c, &periods);
    if (!rc && periods.period > 0 && !config_get(r->root, "layer_types"))
        rc = config_read_count(r, r->root, "sliding_window_pattern", CONFIG_MAX_LAYERS,
                               &periods.period);
    if (rc) return rc;
    c->windows = calloc(c->n_layers, sizeof(*c->windows));
    if (!c->windows)
        return error_set(r->err, ERR_NOMEM, "%.200s: no memory for the layers' windows", r->label);
    rc = place_windows(r, window, &periods, c->windows, c->n_layers);
    if (window > 0) choose_ropes(family, c);
    /* A window that no text exceeds is none, unless its layers differ in more. */
    const bool matters = window < c->max_position || family->ropes != ROPES_ALIKE;
    c->window = is_placed(c) && matters ? window : 0;
    if (rc || c->window > 0) return rc;
    free(c->windows);
    c->windows = NULL;
    return 0;
}
