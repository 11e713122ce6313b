/* packed_cut.h - how a product of few rows with packed weights is cut for packed_stream.cu, and
 * whether that takes it.
 *
 *   unit     what a warp multiplies at a time: 16 rows of W in 1,024 bytes, which are 128 columns
 *            of 4 bits or 64 of 8
 *   share    at most PACKED_SHARE columns, which depend on n_in only.  Each is added up on its own,
 *            so that a row's sum has one order
 *   split    the blocks of a cluster: each takes the same number of shares.  1 unless x would leave
 *            too little of shared memory
 *   ring     stages of PACKED_STAGE_BYTES, as many as shared memory holds behind the rest
 *
 * All functions only calculate.  Thread: any.  Memory: none. */
#ifndef CUDA_LINEAR_PACKED_CUT_H
#define CUDA_LINEAR_PACKED_CUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda/linear/product.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PACKED_MAX_BYTES = 227 << 10, /* of shared memory, that a block can have */
    PACKED_MAX_ROWS = 8,          /* of x */
    PACKED_ROWS = 16,             /* of W in a strip */
    PACKED_UNIT_BYTES = 1024,
    PACKED_STAGE_UNITS = 16,
    PACKED_STAGE_BYTES = PACKED_STAGE_UNITS * PACKED_UNIT_BYTES,
    PACKED_MAX_STAGES = 12,
    PACKED_MAX_SLOTS = PACKED_MAX_STAGES, /* of strips' scales: a strip has a stage at least */
    PACKED_BARRIER_BYTES = 512,
    PACKED_SHARE = 4096,        /* columns */
    PACKED_MAX_SHARES = 8,      /* of n_in */
    PACKED_X_BYTES = 136 << 10, /* of shared memory, that a block has of x at most */
    PACKED_TEAMS = 2,           /* of warps, that multiply shares in turn */
    PACKED_WARPS = 8,           /* of a team */
    PACKED_PLANS = 2,           /* of a team: its warps' sums of two shares */
    PACKED_PLAN_ROW = 20,       /* floats: the sums of a row of x for a strip, and a gap */
    PACKED_EPOCH = 8            /* shares of strips that blocks have before their cluster meets */
};

struct packed_cut {
    uint32_t split, n_shares, block_shares; /* shares of a block */
    uint32_t n_units, share_units;          /* of n_in; of a share, the last one may have fewer */
    uint32_t n_slabs;                       /* of n_in; half units */
    uint32_t groups_a_unit; /* that have scales; 0: the scale is a row's, or the tensor's */
    uint32_t group_shift;   /* log2 of the units that share a scale, if groups_a_unit is 1 */
    uint32_t n_groups;      /* of n_in */
    uint32_t n_stages, n_slots;
    /* Shared memory, in bytes. */
    uint32_t x_pitch, slot_bytes, mins_at;
    uint32_t plans_at, squares_at, exchange_at, sums_at, norm_at, x_at, slots_at, stages_at, total;
};

/* Cuts a product for blocks of at most max_bytes of shared memory.  Returns false if the kernel
 * does not take it.  It takes elements of 4 and 8 bits, and groups of a power of two from 16 on.
 * E4M3 may have f32 scales of blocks of a multiple of 16 rows.  Minimums are of groups only.  n_in
 * is a multiple of 64, of at most PACKED_MAX_SHARES shares. */
bool packed_make_cut(const struct product *p, uint32_t max_bytes, struct packed_cut *cut);

#ifdef __cplusplus
}
#endif

#endif
