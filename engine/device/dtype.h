/* dtype.h - the types of elements on a device, and weights made of them.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_DTYPE_H
#define ENGINE_DEVICE_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* DTYPE_FP8 is for pages only: struct kv_pool. */
enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8 };

static inline size_t dtype_size(enum dtype dtype) {
    return dtype == DTYPE_F32 ? 4 : dtype == DTYPE_FP8 ? 1 : 2;
}

/* A weight on the device: rows x cols, row-major, rows = output features.  A vector is
 * one row. */
struct weight {
    const void *data; /* NULL: absent (an optional bias) */
    enum dtype dtype;
    uint32_t rows, cols;
};

static inline const struct weight *weight_if_present(const struct weight *weight) {
    return weight->data ? weight : NULL;
}

#endif
