/* strips.h - the order in which packed weights lie on the device: as tensor cores take them.
 *
 *   strip   16 rows; rows of the last one that the weight lacks are 0
 *   slab    64 columns of 4 bits, or 32 of 8 bits, of a strip: 512 bytes
 *   data    [strips][slabs][32 lanes][16 bytes]
 *   scales  [strips][column blocks][16]: row r of the strip is number 2 * (r % 8) + r / 8.  Scales
 *           of whole rows lie as in weight.h, and so do those of blocks of several rows, in f32
 *   mins    as scales
 *
 * The 16 columns of matrix A that mma.m16n8k16 takes are four registers of a lane:
 *
 *   registers 0, 2  row lane / 4, from columns lane % 4 * 2 and lane % 4 * 2 + 8 on
 *   registers 1, 3  row lane / 4 + 8, alike.  The next column is in the upper half
 *
 *   4 bits  a lane's word i is 16 columns: register k has nibbles k and k + 4
 *   8 bits  words 2 i and 2 i + 1 are 16 columns: a word's even register has bytes 1 and 3, its
 *           odd one bytes 0 and 2
 *
 * So strips that follow each other are one array.  A weight of 16 n rows and the weight behind it
 * are one weight.
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_LINEAR_STRIPS_H
#define CUDA_LINEAR_STRIPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/weight.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { STRIP_ROWS = 16 };

/* Says whether a weight is put into strips.  Its elements must be E4M3, I8, I4 or E2M1, none that
 * is packed with scales, as Q8_0 is.  It has a multiple of 64 columns; the matrices of a stack have
 * whole strips.  Blocks of its scales are whole rows or multiples of 8 columns.  With rounds_input
 * (weight.h) it says no: those kernels read rows. */
bool strips_take(const struct weight *w);
/* Says whether the scales of a weight in strips lie in strips, too. */
static inline bool strips_hold_scales(const struct weight_format *format) {
    return format->block_rows == 1 && format->block_cols > 0;
}

/* Rows of an array that are put into strips. */
struct strips {
    const void *from;                 /* [n_rows][row_bytes]; on the device, as `to` */
    void *to;                         /* [n_rows rounded up to whole strips][row_bytes] */
    uint32_t n_rows, row_bytes, bits; /* of an element, or of a scale; a row has whole words */
    bool are_scales;
};

#ifdef __cplusplus
}
#endif

#endif
