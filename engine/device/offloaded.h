/* offloaded.h - experts of a layer that lie in the machine's memory, where the device reads them.
 *
 * Each matrix has memory of host_pool_ops.alloc(), which the device reads where it lies.  So it is
 * an argument of operations as others are: arrays lie in the device's own order, as weight_load()
 * left them.  What is said of the layer lies before the gate:
 *
 *   memory of the gate   [struct offloaded_layer, OFFLOADED_BYTES][gate]
 *   of up, of down       [up]   [down]
 *
 * The bits of results are those of experts that lie on the device.  The device finds a layer by the
 * address of its gate, and all layers by OFFLOADED_MARK.  It may fetch `next` while it computes
 * this one.
 *
 * Thread: engine; fetched_bytes: any.  Memory: the model's. */
#ifndef ENGINE_DEVICE_OFFLOADED_H
#define ENGINE_DEVICE_OFFLOADED_H

#include <stdint.h>

#include "engine/base/sizes.h"
#include "engine/device/weight.h"

#define OFFLOADED_MARK UINT64_C(0x7374726570786551)
enum { OFFLOADED_BYTES = 1024 };

struct offloaded_layer {
    uint64_t mark;
    uint64_t fetched_bytes; /* the device adds what it fetches of the layer */
    struct weight gate, up, down;
    /* The layer whose experts a step needs after these, for as many rows; NULL: there is none. */
    const struct offloaded_layer *next;
};

/* Returns the bytes of a copy of the largest matrix. */
static inline uint64_t offloaded_matrix_bytes(const struct offloaded_layer *layer) {
    const uint64_t up_down =
        max_u64(weight_copy_bytes(&layer->up), weight_copy_bytes(&layer->down));
    return max_u64(weight_copy_bytes(&layer->gate), up_down);
}

/* Returns the bytes of all matrices. */
static inline uint64_t offloaded_layer_bytes(const struct offloaded_layer *layer) {
    return weight_bytes(&layer->gate) + weight_bytes(&layer->up) + weight_bytes(&layer->down);
}

#endif
