/* layer_group.h - which layers select tokens, and which follow their choice (select.h).
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_LAYER_GROUP_H
#define ENGINE_DEVICE_LAYER_GROUP_H

#include <stdbool.h>
#include <stdint.h>

/* A filter layer and the sparse layers that follow its choice: those of [first, end) that have no
 * window.  The filter has no window either, nor have layers first and end - 1 if the range is not
 * empty.  windows, here and below: as in struct step. */
struct layer_group {
    uint32_t filter, first, end;
};

enum { MAX_LAYER_GROUPS = 8 };

static inline bool layer_has_window(const uint32_t *windows, uint32_t layer) {
    return windows && windows[layer] > 0;
}

static inline bool group_has(const struct layer_group *group, const uint32_t *windows,
                             uint32_t layer) {
    return layer >= group->first && layer < group->end && !layer_has_window(windows, layer);
}

/* Returns how many sparse layers of the group come before `layer`. */
static inline uint32_t group_n_before(const struct layer_group *group, const uint32_t *windows,
                                      uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t l = group->first; l < group->end && l < layer; l++)
        n += !layer_has_window(windows, l);
    return n;
}

static inline uint32_t group_n_layers(const struct layer_group *group, const uint32_t *windows) {
    return group_n_before(group, windows, group->end);
}

/* Returns the number of sparse layers of n groups together. */
static inline uint32_t groups_n_layers(const struct layer_group *groups, uint32_t n,
                                       const uint32_t *windows) {
    uint32_t n_layers = 0;
    for (uint32_t i = 0; i < n; i++) n_layers += group_n_layers(&groups[i], windows);
    return n_layers;
}

#endif
