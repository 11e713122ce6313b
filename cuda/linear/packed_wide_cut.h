/* packed_wide_cut.h - which packed weights packed_wide.cuh multiplies, and how it cuts a product.
 *
 *   tile    rows of x against 64 outputs for each of a block's warpgroups; if gated, half of them
 *           are gate's and half up's
 *   wave    a tile for each block, at the same time
 *   split   in the last wave the blocks of a cluster have shares of a tile's columns, where tiles
 *           are too few
 *
 * All functions only calculate.  Thread: any.  Memory: none. */
#ifndef CUDA_LINEAR_PACKED_WIDE_CUT_H
#define CUDA_LINEAR_PACKED_WIDE_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/linear/product.h"
#include "engine/device/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The formats: elements and their scales.  A scale is of 16, 32, 64 or a multiple of 128 columns,
 * of a whole row, or of a block of rows and columns. */
enum packed_wide_format {
    PACKED_I4_ROWS,
    PACKED_I4_BF16,
    PACKED_I4_BF16_64,
    PACKED_I4_BF16_32,
    PACKED_I4_F16,
    PACKED_I4_F16_64,
    PACKED_I4_F16_32,
    PACKED_I4_F16_16,
    PACKED_I4_F32,
    PACKED_I4_F32_MIN,
    PACKED_I4_F32_64_MIN,
    PACKED_I4_F32_32_MIN,
    PACKED_I4_F16_32_MIN,
    PACKED_I4_F16_16_MIN,
    PACKED_I8_ROWS,
    PACKED_I8_BF16,
    PACKED_I8_F16,
    PACKED_I8_F16_32,
    PACKED_I8_F16_16,
    PACKED_I8_F16_32_MIN,
    PACKED_E4M3_ROWS,
    PACKED_E4M3_BLOCKS,
    PACKED_E2M1_32,
    N_PACKED_WIDE_FORMATS /* none of them */
};

/* Returns which of these formats weights in strips have; N_PACKED_WIDE_FORMATS: the kernels do not
 * take them. */
enum packed_wide_format packed_wide_find_format(const struct weight_format *format);

enum {
    N_PACKED_WIDE_TILES = 11,
    PACKED_WIDE_STAGE_COLUMNS = 128 /* of x and W that a block multiplies at a time, at most */
};
static const struct packed_wide_tile {
    uint32_t rows, groups;
} packed_wide_tiles[N_PACKED_WIDE_TILES] = {{16, 4},  {16, 2},  {32, 4},  {32, 2},
                                            {64, 4},  {64, 2},  {128, 4}, {128, 2},
                                            {160, 2}, {192, 2}, {256, 2}};

struct packed_wide_cut {
    uint32_t tile; /* of packed_wide_tiles */
    uint32_t n_splits;
};

/* Returns the tile and the number of shares with the least estimated time on this device.  It must
 * run the kernels, and they must take the product. */
struct packed_wide_cut packed_wide_choose_cut(const struct product *p,
                                              const struct packed_wide_device *device);

#ifdef __cplusplus
}
#endif

#endif
