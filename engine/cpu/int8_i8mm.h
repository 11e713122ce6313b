/* int8_i8mm.h - sums of two rows of x at a time, by the matrix instruction of NEON.
 *
 * It multiplies 8 columns of 2 rows by those of 2 outputs, and adds to 4 sums.  Two steps of 4
 * outputs give two such pairs of outputs.
 *
 * Included by int8_kernels.c alone.
 *
 * Source: Arm Architecture Reference Manual for A-profile, SMMLA (vector). */
#ifndef ENGINE_CPU_INT8_I8MM_H
#define ENGINE_CPU_INT8_I8MM_H

#include "engine/cpu/int8_tile.h"

#if defined(INT8_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
/* Returns 8 codes of each of two rows. */
INLINE int8x16_t x_of_pair(const struct input *in, uint32_t row, uint32_t block, uint32_t j) {
    const int8_t *codes = in->codes + row * in->stride + block * INT8_BLOCK + 4 * j;
    return vcombine_s8(vld1_s8(codes), vld1_s8(codes + in->stride));
}

/* Adds sums [pairs of rows][VECS][pairs of outputs], of 2 by 2, to those of sum_span(). */
INLINE void add_pairs(whole (*sums)[VECS], int32x4_t (*pairs)[VECS][2], uint32_t rows) {
#pragma GCC unroll UNROLLED
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++) {
            const int64x2_t low = (int64x2_t)pairs[r / 2][v][0],
                            high = (int64x2_t)pairs[r / 2][v][1];
            sums[r][v] += (whole)(r % 2 ? vzip2q_s64(low, high) : vzip1q_s64(low, high));
        }
    }
}

/* Does what sum_span() does, for an even number of rows. */
INLINE void sum_pairs(whole (*sums)[VECS], const struct tile *t, uint32_t rows, uint32_t b,
                      uint32_t half, uint32_t first, struct code_shape shape) {
    const uint32_t steps = shape.span / 4;
    int32x4_t pairs[TILE_ROWS / 2][VECS][2] = {0};
#pragma GCC unroll UNROLLED
    for (uint32_t j = half * steps; j < (half + 1) * steps; j += 2) {
        int8x16_t x[TILE_ROWS / 2];
#pragma GCC unroll UNROLLED
        for (uint32_t p = 0; p < rows / 2; p++) x[p] = x_of_pair(&t->x, 2 * p, first + b, j);
#pragma GCC unroll UNROLLED
        for (uint32_t v = 0; v < VECS; v++) {
            const uint8_t *block = t->codes[v] + b * t->block_bytes;
            const int32x4_t even = (int32x4_t)codes_of_step(block, j, shape, t->table),
                            odd = (int32x4_t)codes_of_step(block, j + 1, shape, t->table);
            const int8x16_t low = (int8x16_t)kept((whole)vzip1q_s32(even, odd)),
                            high = (int8x16_t)kept((whole)vzip2q_s32(even, odd));
#pragma GCC unroll UNROLLED
            for (uint32_t p = 0; p < rows / 2; p++) {
                pairs[p][v][0] = vmmlaq_s32(pairs[p][v][0], x[p], low);
                pairs[p][v][1] = vmmlaq_s32(pairs[p][v][1], x[p], high);
            }
        }
    }
    add_pairs(sums, pairs, rows);
}
#endif

#endif
