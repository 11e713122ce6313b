/* activation.h - a function of feed-forward layers that only devices with float32 activations have;
 * backend.h has those that every device has.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_ACTIVATION_H
#define ENGINE_DEVICE_ACTIVATION_H

#include <stdbool.h>

#include "engine/device/backend.h"

/* The square of max(0, x), a value of act_kind.  It is also the function of experts without gates
 * (expert_matrices.gate NULL). */
#define ACT_RELU2 ((enum act_kind)(ACT_RELU + 1))

/* Returns true if the backend computes the function.  No GPU has a kernel for ACT_RELU2. */
static inline bool activation_is_known(const struct backend *be, enum act_kind kind) {
    return kind != ACT_RELU2 || be->act_dtype == DTYPE_F32;
}

#endif
