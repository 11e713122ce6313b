/* direct_cut.h - how one row's products with packed weights are cut for the kernels of direct.cuh,
 * and which formats these take.
 *
 *   slab   64 columns of 4 bits, or 32 of 8 bits, of the 16 rows of a strip (strips.h)
 *   warp   slabs that follow each other, DIRECT_FEW or DIRECT_MANY at most
 *   block  all slabs of a tile: of a strip, or of one of gate and one of up
 *
 * All functions only calculate.  Thread: any.  Memory: none. */
#ifndef CUDA_LINEAR_DIRECT_CUT_H
#define CUDA_LINEAR_DIRECT_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DIRECT_ROWS = 16, /* of a strip */
    DIRECT_FEW = 4,   /* slabs of a warp, of each of the tile's strips */
    DIRECT_MANY = 12, /* of tiles of one strip */
    DIRECT_MAX_WARPS = 16
};

struct direct_cut {
    uint32_t n_slabs, n_groups; /* of n_in; n_groups: that have scales, 0: rows have them */
    uint32_t n_warps, warp_slabs;
    uint32_t x_bytes; /* shared memory of a warp, for its columns of x */
};

/* Returns the slabs of n_in columns; 0: there is a part of one. */
uint32_t direct_slabs(const struct weight_format *format, uint32_t n_in);
/* Says whether the kernels take weights of a format: those of packed_stream.cu but for minimums,
 * and for scales of groups in f32. */
bool direct_takes(const struct weight_format *format);
/* Cuts n_slabs slabs of a strip for warps that have warp_slabs each.  Returns false if a block has
 * too many warps then, or there are no slabs. */
bool direct_make_cut(const struct weight_format *format, uint32_t n_slabs, uint32_t warp_slabs,
                     struct direct_cut *cut);
/* Cuts n_in columns of tiles of n_strips strips, alike. */
bool direct_cut_columns(const struct weight_format *format, uint32_t n_in, uint32_t n_strips,
                        struct direct_cut *cut);

#ifdef __cplusplus
}
#endif

#endif
