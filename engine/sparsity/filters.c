/* filters.c - see filters.h. */
#include "engine/sparsity/filters.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/sparsity/provenance.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_LAYER = 1 << 16 };

#define FORMAT "quire-filters-1"

static int refuse(const char *label, const char *rule, struct error *err) {
    return error_set(err, ERR_INVALID, "%.200s: %s", label, rule);
}

static bool read_layer_number(const json_t *value, uint32_t *out) {
    const json_int_t x = json_integer_value(value);
    if (!json_is_integer(value) || x < 0 || x > MAX_LAYER) return false;
    *out = (uint32_t)x;
    return true;
}

static int read_layers(struct filters *out, const json_t *list, const char *label,
                       struct error *err) {
    const size_t n = json_array_size(list); /* 0 if it is not a list */
    if (n == 0 || n > MAX_LAYER_GROUPS)
        return error_set(err, ERR_INVALID, "%.200s: 'filters' is not a list of 1 to %d layers",
                         label, MAX_LAYER_GROUPS);
    for (size_t i = 0; i < n; i++)
        if (!read_layer_number(json_array_get(list, i), &out->layers[i]) ||
            (i > 0 && out->layers[i] <= out->layers[i - 1]))
            return refuse(label, "'filters' are not numbers of layers in ascending order", err);
    out->n = (uint32_t)n;
    return 0;
}

static int read_root(struct filters *out, const json_t *root, const char *label,
                     struct error *err) {
    struct filters filters = {0};
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, FORMAT) != 0)
        return refuse(label, "'format' is not " FORMAT, err);
    const int rc = read_layers(&filters, json_object_get(root, "filters"), label, err);
    if (rc) return rc;
    if (!read_layer_number(json_object_get(root, "wait"), &filters.n_wait))
        return refuse(label, "'wait' is not a number of layers", err);
    *out = filters;
    return 0;
}

int filters_parse(struct filters *out, const char *bytes, size_t size, const char *label,
                  struct error *err) {
    json_t *root = NULL;
    int rc = json_guard_parse(&root, bytes, size, label, err);
    if (!rc) rc = read_root(out, root, label, err);
    json_decref(root);
    return rc;
}

int filters_read(struct filters *out, const char *file, struct error *err) {
    json_t *root = NULL;
    int rc = json_guard_read(&root, file, MAX_FILE_BYTES, err);
    if (!rc) rc = read_root(out, root, file, err);
    json_decref(root);
    return rc;
}

static int write_members(FILE *file, const void *ctx) {
    const struct filters *filters = ctx;
    int failed = fputs("\"filters\": [", file) < 0;
    for (uint32_t i = 0; i < filters->n; i++)
        failed |= fprintf(file, "%s%" PRIu32, i ? ", " : "", filters->layers[i]) < 0;
    failed |= fprintf(file, "], \"wait\": %" PRIu32, filters->n_wait) < 0;
    return failed ? ERR_IO : 0;
}

int filters_save(const struct filters *filters, const struct provenance_note *notes, size_t n_notes,
                 const char *path, struct error *err) {
    return provenance_save(path, FORMAT, notes, n_notes, write_members, filters, err);
}

static int check_filter(uint32_t layer, const uint32_t *windows, uint32_t n_layers,
                        struct error *err) {
    if (layer >= n_layers)
        return error_set(err, ERR_INVALID,
                         "layer %" PRIu32 " cannot be a filter: the model has %" PRIu32 " layers",
                         layer, n_layers);
    if (layer_has_window(windows, layer))
        return error_set(err, ERR_INVALID,
                         "layer %" PRIu32 " cannot be a filter: it sees %" PRIu32
                         " tokens at most, and a filter must see all",
                         layer, windows[layer]);
    return 0;
}

/* Makes the filter's group of layers before `end`; returns false if there are none. */
static bool make_group(struct layer_group *group, uint32_t filter, uint32_t n_wait, uint32_t end,
                       const uint32_t *windows) {
    uint32_t first = filter + 1 + n_wait;
    while (first < end && layer_has_window(windows, first)) first++;
    if (first >= end) return false;
    while (layer_has_window(windows, end - 1)) end--;
    *group = (struct layer_group){filter, first, end};
    return true;
}

int filters_groups(const struct filters *filters, const uint32_t *windows, uint32_t n_layers,
                   struct layer_group groups[MAX_LAYER_GROUPS], struct error *err) {
    int n = 0;
    for (uint32_t i = 0; i < filters->n; i++) {
        const int rc = check_filter(filters->layers[i], windows, n_layers, err);
        if (rc) return rc;
    }
    for (uint32_t i = 0; i < filters->n; i++) {
        const uint32_t end = i + 1 < filters->n ? filters->layers[i + 1] : n_layers;
        n += make_group(&groups[n], filters->layers[i], filters->n_wait, end, windows);
    }
    return n;
}
