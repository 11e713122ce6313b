/* packed_block.cuh - what all roles of packed_stream.cu know: a block's shares of the work, where
 * they lie in shared memory, barriers, scales.
 *
 * Thread: device code.  Memory: the block's. */
#ifndef CUDA_LINEAR_PACKED_BLOCK_CUH
#define CUDA_LINEAR_PACKED_BLOCK_CUH

#include "cuda/common/sm90.cuh"
#include "cuda/linear/packed_codes.cuh"
#include "cuda/linear/packed_cut.h"
#include "cuda/linear/product.cuh"

typedef __nv_bfloat16 bf16;

enum {
    IN_FLIGHT = 6,                             /* stages */
    N_STORERS = 4,                             /* warps */
    N_CONSUMERS = PACKED_TEAMS * PACKED_WARPS, /* warps */
    N_WORKERS = N_STORERS + N_CONSUMERS,       /* warps that fetch x */
    THREADS = 32 * (1 + N_WORKERS),
    HALF_UNIT_BYTES = PACKED_UNIT_BYTES / 2
};

enum { BARRIER_X = 1, BARRIER_SUMS, BARRIER_STORERS }; /* named */

/* A cluster's tiles: its own number, and every n_clusters-th from there. */
struct packed_work {
    uint32_t n_tiles, n_clusters;
};

struct packed_barriers {
    uint64_t full[PACKED_MAX_STAGES], empty[PACKED_MAX_STAGES], norm_full;
    uint64_t scales_full[PACKED_MAX_SLOTS];
    uint64_t plan_full[PACKED_TEAMS][PACKED_PLANS], plan_empty[PACKED_TEAMS][PACKED_PLANS];
    uint64_t ready, done; /* where the blocks of a cluster meet */
};
static_assert(sizeof(struct packed_barriers) <= PACKED_BARRIER_BYTES, "they have a place");

/* A place in a ring of n stages, and the parity of its barriers in this round. */
struct ring {
    uint32_t n, stage, parity;
    /* Goes on by so many stages. */
    __device__ __forceinline__ void advance(uint32_t by = 1) {
        for (stage += by; stage >= n; stage -= n) parity ^= 1;
    }
};

/* What a block knows of its work. */
struct packed_block {
    const struct product &p;
    const struct packed_cut &cut;
    char *memory;
    uint32_t rank, first_unit, n_units; /* the block's shares */
    uint32_t first_group, n_groups;

    /* Finds the block's shares of a product that is cut so.  shared: the block's dynamic memory. */
    __device__ __forceinline__ packed_block(const struct product &product,
                                            const struct packed_cut &c, char *shared)
        : p(product), cut(c), memory(shared), rank(c.split > 1 ? blockIdx.x % c.split : 0),
          first_unit(rank * c.block_shares * c.share_units),
          n_units(min(c.block_shares * c.share_units, c.n_units - first_unit)) {
        const uint32_t last_unit = first_unit + n_units - 1, n = c.groups_a_unit;
        first_group = first_unit * n >> c.group_shift;
        n_groups = min((((last_unit + 1) * n - 1) >> c.group_shift) + 1, c.n_groups) - first_group;
    }

    template <typename T> __device__ __forceinline__ T *at(uint32_t offset) const {
        return reinterpret_cast<T *>(memory + offset);
    }
    __device__ __forceinline__ struct packed_barriers *barriers() const {
        return at<struct packed_barriers>(0);
    }
    __device__ __forceinline__ char *stage(uint32_t i) const {
        return memory + cut.stages_at + i * PACKED_STAGE_BYTES;
    }
    __device__ __forceinline__ char *slot(uint32_t i) const {
        return memory + cut.slots_at + i * cut.slot_bytes;
    }
    /* Returns the units of a share, and its stages. */
    __device__ __forceinline__ uint32_t units_of(uint32_t share) const {
        return min(cut.share_units, n_units - share * cut.share_units);
    }
    __device__ __forceinline__ uint32_t stages_of(uint32_t share) const {
        return (units_of(share) + PACKED_STAGE_UNITS - 1) / PACKED_STAGE_UNITS;
    }
    __device__ __forceinline__ uint32_t columns_of_unit() const {
        return (cut.x_pitch - 16) / 2 / (cut.block_shares * cut.share_units);
    }
};

/* Returns the part with strip *strip of the product, and sets *strip to its number in the part.  If
 * gated it is gate: the same strip of up belongs to it. */
static __device__ __forceinline__ const struct product_part *find_strip(const struct product &p,
                                                                        uint32_t *strip) {
    const struct product_part *part = p.parts;
#pragma unroll 1
    for (uint32_t i = 0; i + 1 < p.n_parts && !p.gated; i++, part++) {
        const uint32_t n = (part->n_out + PACKED_ROWS - 1) / PACKED_ROWS;
        if (*strip < n) break;
        *strip -= n;
    }
    return part;
}

/* Returns the bytes of a scale of this type, which is f32, f16, bf16 or E8M0. */
static __device__ __forceinline__ uint32_t bytes_of_scale(enum scale_type type) {
    return type == SCALE_F32 ? 4 : type == SCALE_E8M0 ? 1 : 2;
}

/* Returns where the warps of a team write their sums of a share: [PACKED_WARPS][PACKED_MAX_ROWS]
 * rows of PACKED_PLAN_ROW floats.  half: which of its PACKED_PLANS places, which it takes in
 * turn. */
static __device__ __forceinline__ float *plan_of(const struct packed_block &b, uint32_t team,
                                                 uint32_t half) {
    return b.at<float>(b.cut.plans_at) +
           (team * PACKED_PLANS + half) * PACKED_WARPS * PACKED_MAX_ROWS * PACKED_PLAN_ROW;
}

/* ---- scales ---- */

/* Returns at which byte of a part's scales those of the block's columns of a strip begin. */
static __device__ __forceinline__ size_t scales_from(const struct packed_block &b, uint32_t strip) {
    const uint32_t size = bytes_of_scale(b.p.w_format.scale), rows = b.p.w_format.block_rows;
    if (rows == 1) return ((size_t)strip * b.cut.n_groups + b.first_group) * PACKED_ROWS * size;
    return ((size_t)(strip * PACKED_ROWS / rows) * b.cut.n_groups + b.first_group) * size;
}

/* Holds a scale of weight row lane / 4, and one of the row 8 further on. */
struct alignas(8) scale_pair {
    float low, high;
};

/* Returns two scales of 16 bits each, f16 or bf16; the first one is in the low half of `pair`. */
static __device__ __forceinline__ struct scale_pair scales_of_16_bits(uint32_t pair, bool is_f16) {
    const float2 x = is_f16 ? unpack_pair<__half>(pair) : unpack_bf16(pair);
    return {x.x, x.y};
}

#endif
