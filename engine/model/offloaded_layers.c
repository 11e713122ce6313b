/* offloaded_layers.c - see offloaded_layers.h. */
#include "engine/model/offloaded_layers.h"

/* Chooses n of the n_all layers that have experts. */
static struct offloaded_layers choose(const uint64_t *layer_bytes, uint32_t n_layers, uint64_t n,
                                      uint64_t n_all, bool *is_offloaded) {
    struct offloaded_layers chosen = {0};
    uint64_t k = 0; /* layers with experts so far */
    for (uint32_t i = 0; i < n_layers; i++) {
        is_offloaded[i] = false;
        if (layer_bytes[i] == 0) continue;
        is_offloaded[i] = (k + 1) * n / n_all > k * n / n_all;
        k++;
        if (!is_offloaded[i]) continue;
        chosen.n_layers++;
        chosen.bytes += layer_bytes[i];
    }
    return chosen;
}

struct offloaded_layers offloaded_layers_choose(const uint64_t *layer_bytes, uint32_t n_layers,
                                                uint64_t least, bool *is_offloaded) {
    struct offloaded_layers chosen = {0};
    uint64_t n_all = 0, n = 0;
    for (uint32_t i = 0; i < n_layers; i++) n_all += layer_bytes[i] > 0;
    do chosen = choose(layer_bytes, n_layers, n, n_all, is_offloaded);
    while (chosen.bytes < least && n++ < n_all);
    return chosen;
}
