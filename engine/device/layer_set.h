/* layer_set.h - a set of a model's layers.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_LAYER_SET_H
#define ENGINE_DEVICE_LAYER_SET_H

#include <stdbool.h>
#include <stdint.h>

/* More layers than any model has that the loader takes (model.h). */
enum { LAYER_SET_MAX = 1024 };

struct layer_set {
    uint64_t words[LAYER_SET_MAX / 64]; /* bit layer % 64 of word layer / 64; zeroed: empty */
};

static inline void layer_set_add(struct layer_set *set, uint32_t layer) {
    set->words[layer / 64] |= UINT64_C(1) << layer % 64;
}

static inline bool layer_set_has(const struct layer_set *set, uint32_t layer) {
    return set->words[layer / 64] >> layer % 64 & 1;
}

static inline bool layer_set_is_empty(const struct layer_set *set) {
    for (uint32_t i = 0; i < LAYER_SET_MAX / 64; i++)
        if (set->words[i]) return false;
    return true;
}

/* Returns the first layer from this one on that is in the set, LAYER_SET_MAX if there is none. */
static inline uint32_t layer_set_next(const struct layer_set *set, uint32_t layer) {
    while (layer < LAYER_SET_MAX && !layer_set_has(set, layer)) layer++;
    return layer;
}

/* Returns the first layer from this one on that is not in the set, LAYER_SET_MAX if there is
 * none. */
static inline uint32_t layer_set_end(const struct layer_set *set, uint32_t layer) {
    while (layer < LAYER_SET_MAX && layer_set_has(set, layer)) layer++;
    return layer;
}

#endif
