/* product_tile.h - what kernels of products by vector registers share: their tiles of outputs.
 *
 * Included by a file that is compiled for one instruction set. */
#ifndef ENGINE_CPU_PRODUCT_TILE_H
#define ENGINE_CPU_PRODUCT_TILE_H

#include "engine/base/sizes.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/vec.h"

/* A tile has TILE_ROWS x TILE_COLS accumulators and an operand of each kind.  AVX-512 and NEON have
 * 32 registers, the others 16. */
#if defined(__AVX512F__) || defined(__aarch64__)
enum { TILE_ROWS = 4, TILE_COLS = 6 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 3, TILE_COLS = 4 };
#else
enum { TILE_ROWS = 2, TILE_COLS = 4 };
#endif

#define INLINE static inline __attribute__((always_inline))

struct out_tile {
    const float *bias;
    float *y;
    size_t stride;
    bool accumulate;
};

INLINE void store_output(const struct out_tile *t, uint32_t r, uint32_t c, float sum) {
    float *y = t->y + r * t->stride + c;
    if (t->bias) sum += t->bias[c];
    *y = t->accumulate ? *y + sum : sum;
}

/* Sums every accumulator, LANES of them at a time, and stores them. */
INLINE void store_tile(vecf (*acc)[TILE_COLS], uint32_t rows, uint32_t cols,
                       const struct out_tile *out, uint32_t col) {
    float sums[TILE_ROWS * TILE_COLS + LANES];
#pragma GCC unroll 8
    for (uint32_t first = 0; first < rows * cols; first += LANES) {
        vecf group[LANES];
#pragma GCC unroll 16
        for (uint32_t i = 0; i < LANES; i++) {
            uint32_t at = first + i;
            group[i] = at < rows * cols ? acc[at / cols][at % cols] : (vecf){0};
        }
        vec_store(sums + first, vec_reduce(group));
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t c = 0; c < cols; c++) store_output(out, r, col + c, sums[r * cols + c]);
    }
}

/* Prefetches the next tile's columns while this tile's are multiplied for the first time.  The
 * processor's own prefetching stops at the end of each of these many short streams. */
INLINE void prefetch_weight(const void *w, size_t at, enum element element) {
    __builtin_prefetch((const char *)w + element_bytes(element, at), 0, 2);
}

/* Twelve independent chains hide the latency of two multiply-adds a cycle. */
enum { CHAINS = 12 };

/* row_unit and col_unit divide into every register tile; `pairs` numbers each lane's
 * multiply-adds. */
#define PRODUCTS(label, of, pack_fn, dot_fn, burst_fn, pairs, size)                                \
    {                                                                                              \
        .name = label, .format = {.element = of}, .pack = pack_fn, .dot = dot_fn,                  \
        .burst = burst_fn, .burst_size = CHAINS * LANES * (pairs), .packed_size = size,            \
        .row_unit = 12, .col_unit = 12, .block_cols = 48, .block_bytes = 640 << 10                 \
    }

#endif
