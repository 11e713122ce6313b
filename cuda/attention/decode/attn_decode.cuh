/* attn_decode.cuh - attention of one query row per sequence over paged keys and values (split-KV).
 *
 * Which block reads which keys is data, from attn_plan.h; no argument changes between the
 * steps of a captured CUDA graph.  Thread: engine.  Memory: the caller's; nothing is allocated. */
#ifndef CUDA_ATTENTION_DECODE_ATTN_DECODE_CUH
#define CUDA_ATTENTION_DECODE_ATTN_DECODE_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/attention/attn_plan.h"
#include "cuda/host/kernels.h"
#include "engine/device/pages.h"

/* The query heads that share a KV head are the columns of one tile. */
enum { ATTN_DECODE_MAX_GROUP = 16 };
/* For 8-bit keys that are stored before RoPE, n_freqs is a multiple of this. */
enum { ATTN_DECODE_ROTATED = 16 };

/* How the copy engine finds a unit's keys and values in the pool; and their scales, with
 * PAGE_FP8. */
struct unit_maps {
    CUtensorMap elements, scales;
};

/* All pointers are device memory.  16-byte alignment: q rows, out, pool, partial_out, tiles. */
struct attn_decode_params {
    const void *q;    /* bf16, sequence s at q + s * q_stride: [n_heads, head_dim] */
    size_t q_stride;  /* elements */
    void *out;        /* bf16 [n_seqs, n_heads * head_dim] */
    const void *pool; /* pages [K, V][n_kv_heads][PAGE_TOKENS][head_dim] of kv_format; then, if
                         PAGE_FP8, their scales; then, if the pool is tracked, the page states */
    size_t page_bytes;
    enum page_format kv_format; /* PAGE_BF16, PAGE_F16 or PAGE_FP8 */
    uint32_t n_heads, n_kv_heads;
    uint32_t head_dim; /* 64, 80, 96, 128, 256 */
    struct score_scale scale;
    struct score_bias bias;
    struct head_sinks sinks;
    /* Says where the block tables lie.  The kernel reads it, because that may change from step to
     * step. */
    const struct device_step *step;
    uint32_t layer;

    uint32_t window; /* as in the plan's batch */

    const struct attn_tile *tiles; /* the plan of this layer's lengths */
    uint32_t n_blocks;             /* attn_plan_grid(); all must be resident at once */
    bool few;                      /* as in the plan's shape */
    const struct attn_merge *merges;
    const struct attn_plan_end *plan_end;
    /* All bytes are MISSING_BYTE before a launch, and after it. */
    float *partial_out;  /* [n_partials of the attn_plan_budget][group][head_dim] */
    float *partial_lse;  /* the same [n_partials][group][head_dim / 4], base 2 */
    uint32_t *n_arrived; /* the same */

    struct attn_stats attn_stats;
    bool selects; /* as in attn_args */
    bool awaited; /* right before, the stream waits for another one: do not overlap with that */
    bool rotates; /* some sequence's keys may be stored before RoPE */
    struct key_rotations rotations; /* n_freqs a multiple of 8 */

    /* Programmatic dependent launch (compute capability 9.0): the kernels start while the one
     * before ends.  Before they wait for it, they read the plan, the step and the block tables, and
     * prefetch pages into L2.  Those must be complete when the kernel before starts. */
    bool overlap;
    /* With overlap: kernels that wrote pages had ended before the step began, but for what this
     * layer appends.  So the first units are read before the wait, too. */
    bool settled;

    /* Filled by attn_decode_map_pool(); without it cp.async reads the pages. */
    bool use_map;
    unit_maps maps[2]; /* of units of 16 slots, and of 32, which only PAGE_FP8 has */
};

/* Lets the copy engine read the pool if the device and the shape allow it.  They do at compute
 * capability 9.0, head_dim 64, 128 or 256, groups of up to 8; otherwise use_map becomes false,
 * which is no error.  Needs the fields from pool to head_dim.  To be called once per pool, because
 * it calls the driver. */
cudaError_t attn_decode_map_pool(attn_decode_params *p, uint32_t n_pages);

/* Counts the blocks that are resident at once: shape->n_blocks, n_few and part_units.  Needs the
 * shape, kv_format and use_map. */
cudaError_t attn_decode_count_blocks(const attn_decode_params &p, struct attn_plan_shape *shape);

/* Launches the attention.  A sequence without a tile in the plan keeps its output as it was. */
cudaError_t launch_attn_decode(const attn_decode_params &p, cudaStream_t stream);

#endif
