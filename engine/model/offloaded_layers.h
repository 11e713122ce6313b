/* offloaded_layers.h - chooses the layers whose experts lie in the machine's memory.
 *
 * Whole layers are chosen, evenly spread, so that there is something to compute while the next one
 * is fetched.  The last one is always among them: a step with prompts has few rows there.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_OFFLOADED_LAYERS_H
#define ENGINE_MODEL_OFFLOADED_LAYERS_H

#include <stdbool.h>
#include <stdint.h>

/* What is asked for: bytes, or as many as the device has no memory for. */
#define EXPERT_OFFLOAD_AUTO UINT64_MAX

/* What was chosen. */
struct offloaded_layers {
    uint32_t n_layers;
    uint64_t bytes;
};

/* Sets is_offloaded [n_layers]: the fewest layers whose experts have at least so many bytes, or all
 * that have any.  layer_bytes [n_layers]: of each layer's experts; 0: it has none. */
struct offloaded_layers offloaded_layers_choose(const uint64_t *layer_bytes, uint32_t n_layers,
                                                uint64_t least, bool *is_offloaded);

#endif
