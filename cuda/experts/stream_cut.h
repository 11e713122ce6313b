/* stream_cut.h - how the products of few rows with the experts' matrices are cut for stream.cu, and
 * whether that takes them.
 *
 *   strip   16 rows of W (strips.h); gate and up: 16 of each
 *   step    the columns of a strip that a warp multiplies at a time: 64 of 4 bits, 32 of 8 or 16
 *   share   the steps of a warp: n_in is cut for k_warps warps, as n_in and the elements say.  So a
 *           sum has one order, whatever the number of rows is
 *   piece   some steps of a share, of gate and up if there are both, which are copied
 *           to shared memory together
 *   block   o_warps strips at a time, block_strips times, of one expert
 *
 * All functions only calculate.  Thread: any.  Memory: none. */
#ifndef CUDA_EXPERTS_STREAM_CUT_H
#define CUDA_EXPERTS_STREAM_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/experts/expert_product.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    STREAM_STRIP = 16,     /* rows of W */
    STREAM_X_TILE = 8,     /* rows of x that are multiplied together */
    STREAM_MAX_TILES = 2,  /* of x, that a block has in shared memory */
    STREAM_MAX_WARPS = 16, /* of a block */
    STREAM_MAX_K_WARPS = 8,
    STREAM_MAX_O_WARPS = 7, /* each strip's warps have two named barriers */
    STREAM_MAX_SLOTS = 8,   /* pieces that are on their way to a warp */
    STREAM_MAX_ROWS = 6,    /* from more rows on other kernels are faster */
    STREAM_FIND_PAIRS = 32  /* up to so many pairs a block finds its own by itself */
};

struct stream_cut {
    uint32_t rows, x_tiles; /* rows that a block has at a time; tiles of STREAM_X_TILE */
    uint32_t k_warps, o_warps, blocks_at_once;  /* blocks_at_once: on a multiprocessor */
    uint32_t n_steps, share_steps, piece_steps; /* of n_in; of a warp, the last ones have fewer */
    uint32_t n_strips, block_strips, n_blocks;  /* of an expert; of a warp; blocks of an expert */
    uint32_t n_groups;                          /* scales of a row, or of a block of rows */
    uint32_t scale_bytes;         /* of a scale; 0: they are not of groups, or there are none */
    uint32_t block_rows;          /* rows that share a scale, if more than 1; else 0 */
    uint32_t row_blocks;          /* such blocks of rows that a block meets at most */
    uint32_t n_slots, slot_bytes; /* a slot has a piece of gate, and behind it one of up */
    uint32_t stack_bytes, scales_at, mins_at, x_pitch;
    uint32_t sums_at, blocks_at, plans_at, x_at, slots_at, total; /* shared memory */
};

/* What the device has. */
struct stream_device {
    uint32_t n_multiprocessors, max_bytes; /* max_bytes: of shared memory, of a block */
};

/* Says whether the kernel takes a product of any number of rows, but for its cut. */
bool stream_takes(const struct expert_product *p);
/* Cuts a product that stream_takes() for blocks of the device.  Returns false if x is too large for
 * shared memory. */
bool stream_make_cut(const struct expert_product *p, const struct stream_device *device,
                     struct stream_cut *cut);

#ifdef __cplusplus
}
#endif

#endif
