/* fp8_tile.cuh - what all of linear_fp8.cu knows: a block's shared memory, and where tiles lie.
 *
 * Thread: device code.  Memory: the block's. */
#ifndef CUDA_LINEAR_FP8_TILE_CUH
#define CUDA_LINEAR_FP8_TILE_CUH

#include "cuda/linear/block_pair.cuh"
#include "cuda/linear/fp8_cut.h"
#include "cuda/linear/product.cuh"

enum {
    STAGE_COLUMNS = FP8_BLOCK,
    ROW_BYTES = STAGE_COLUMNS, /* of a stage */
    GROUP_ROWS = 64,           /* of x: a warpgroup's, and copied at a time */
    GROUP_BYTES = GROUP_ROWS * ROW_BYTES,
    GROUPS = FP8_TILE_ROWS / GROUP_ROWS,
    BOX_COLUMNS = FP8_STORE_COLUMNS, /* results, of which a row of a box has so many */
    BOX_BYTES = GROUP_ROWS * BOX_COLUMNS * 2,
    N_SLOTS = 2, /* tiles whose scales are held */
    N_CONSUMERS = GROUPS * GROUP_THREADS,
    N_THREADS = N_CONSUMERS + GROUP_THREADS,
    PRODUCER_REGISTERS = 40,
    CONSUMER_REGISTERS = 232
};

/* Shared memory of a block.  WIDTH: of a tile.  PARTS: of a stage's outputs, whose sums are made
 * one after the other.  BLOCKS: scales are of blocks, else of rows.  HALVES: the blocks of a
 * cluster have halves of a tile's columns. */
template <int WIDTH_, int PARTS_, bool BLOCKS_, bool HALVES_ = false> struct fp8_plan {
    static constexpr int WIDTH = WIDTH_, PARTS = PARTS_, PART = WIDTH / PARTS;
    static constexpr bool BLOCKS = BLOCKS_, HALVES = HALVES_;
    static constexpr int X_BYTES = GROUPS * GROUP_BYTES, HALF_ROWS = WIDTH / 2,
                         HALF_BYTES = HALF_ROWS * ROW_BYTES, W_BYTES = 2 * HALF_BYTES,
                         N_BOXES = WIDTH / BOX_COLUMNS, X_SCALES = BLOCKS ? FP8_TILE_ROWS : 0,
                         W_SCALES = BLOCKS ? 0 : WIDTH;
    static constexpr int FIT = (MEMORY_BYTES - 256 - N_BOXES * BOX_BYTES - N_SLOTS * W_SCALES * 4) /
                               (X_BYTES + W_BYTES + X_SCALES * 4);
    static constexpr int N_STAGES = FIT < 8 ? FIT : 8;
    typedef ring_place<N_STAGES> place;
    typedef float accumulator[WIDTH / 2];
    struct {
        unsigned char x[X_BYTES], w[W_BYTES];
    } stages[N_STAGES];
    unsigned char results[N_BOXES][BOX_BYTES]; /* of a warpgroup */
    float x_scales[N_STAGES][X_SCALES ? X_SCALES : 4];
    float w_scales[N_SLOTS][W_SCALES ? W_SCALES : 4];
    uint64_t full[N_STAGES], empty[N_STAGES];
    uint64_t slot_empty[N_SLOTS], results_full, results_empty[GROUPS];
    static_assert(HALF_BYTES % 1024 == 0, "swizzled matrices begin at multiples of 1024");
    static_assert(!HALVES || sizeof(stages) >= GROUP_THREADS * sizeof(accumulator),
                  "a warpgroup's sums of the other block fit where the ring has been");
};

static_assert((int)CLUSTER == 2, "tiles are counted in pairs");

struct fp8_params {
    CUtensorMap x, w[LINEAR_MAX_PARTS], y[LINEAR_MAX_PARTS];
    struct product p;
    struct fp8_cut cut;
};

/* A tile's part, and its first result there. */
struct fp8_place {
    uint32_t part, first;
};

template <class Plan>
static __device__ __forceinline__ struct fp8_place find_place(const struct fp8_params &f,
                                                              uint32_t tile) {
    tile = min(tile, f.cut.n_tiles - 1);
    const uint32_t part = find_part(f.p, Plan::WIDTH, &tile);
    return {part, tile * (f.p.gated ? Plan::WIDTH / 2 : Plan::WIDTH)};
}

/* The stages [begin, end) of a tile that a block multiplies. */
struct fp8_stages {
    uint32_t begin, end;
};

template <class Plan>
static __device__ __forceinline__ struct fp8_stages find_stages(const struct fp8_params &f) {
    const uint32_t n = f.p.n_in / STAGE_COLUMNS, rank = cluster_rank();
    if (!Plan::HALVES) return {0, n};
    return {n * rank / CLUSTER, n * (rank + 1) / CLUSTER};
}

#endif
