/* dtype.h - the types of activations.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_DTYPE_H
#define ENGINE_DEVICE_DTYPE_H

#include <stddef.h>

enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16 };

static inline size_t dtype_size(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 4 : 2;
}

/* Returns the bytes of n activations. */
static inline size_t activation_bytes(enum dtype dtype, size_t n) {
    return n * dtype_size(dtype);
}

#endif
