/* fuzz_filters.c - any bytes at all as a file of filters.
 *
 * What is accepted must give groups that are layers of the model, in order and apart, without
 * windows where they must have none: decoder and pages are laid out by them. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/device/layer_group.h"
#include "engine/sparsity/filters.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LAYERS = 100 };

static void check(const struct layer_group *groups, uint32_t n, const uint32_t *windows,
                  uint32_t n_layers) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct layer_group *group = &groups[i];
        if (group->filter < end || group->first <= group->filter) abort();
        if (group->end <= group->first || group->end > n_layers) abort();
        if (layer_has_window(windows, group->filter) || !group_has(group, windows, group->first) ||
            !group_has(group, windows, group->end - 1))
            abort();
        end = group->end;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct layer_group groups[MAX_LAYER_GROUPS];
    struct error err = {0};
    struct filters filters;
    if (filters_parse(&filters, (const char *)data, size, "fuzz", &err)) return err.text[0] ? 0 : 1;
    if (filters.n == 0 || filters.n > MAX_LAYER_GROUPS) abort();
    for (uint32_t i = 0; i < 4 * MAX_LAYERS; i++) {
        uint32_t windows[MAX_LAYERS];
        const uint32_t n_layers = 1 + i / 4;
        for (uint32_t l = 0; l < n_layers; l++) windows[l] = l % 4 < i % 4 ? 64 : 0;
        const int n = filters_groups(&filters, windows, n_layers, groups, &err);
        if (n < 0 && n != ERR_INVALID) abort();
        if (n > (int)filters.n) abort();
        if (n > 0) check(groups, (uint32_t)n, windows, n_layers);
    }
    return 0;
}
