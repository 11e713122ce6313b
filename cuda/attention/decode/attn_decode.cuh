/* attn_decode.cuh - attention of one query row per sequence over paged keys and values (split-KV).
 *
 * Which block reads which keys comes as data, from attn_plan.h; no argument changes between the
 * steps of a captured graph.  Thread: engine.  Memory: the caller's; nothing is allocated. */
#ifndef CUDA_ATTENTION_DECODE_ATTN_DECODE_CUH
#define CUDA_ATTENTION_DECODE_ATTN_DECODE_CUH

#include <cuda.h>
#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/attention/attn_plan.h"
#include "cuda/host/kernels.h"
#include "engine/device/backend.h"

/* The query heads that share a KV head are the columns of one tile. */
enum { ATTN_DECODE_MAX_GROUP = 16 };
/* Of keys in 8 bits that are stored before RoPE, n_freqs is a multiple of these. */
enum { ATTN_DECODE_ROTATED = 16 };

/* All pointers are device memory.  16-byte alignment: q rows, out, pool, partial_out, tiles. */
struct attn_decode_params {
    const void *q;    /* bf16, sequence s at q + s * q_stride: [n_heads, head_dim] */
    size_t q_stride;  /* elements */
    void *out;        /* bf16 [n_seqs, n_heads * head_dim] */
    const void *pool; /* pages [K, V][n_kv_heads][PAGE_TOKENS][head_dim] of kv_dtype, of DTYPE_FP8
                         their scales, and the states of budgets where the step has any */
    size_t page_bytes;
    enum dtype kv_dtype; /* DTYPE_BF16, DTYPE_F16 or DTYPE_FP8 */
    uint32_t n_heads, n_kv_heads;
    uint32_t head_dim; /* 64, 80, 96, 128, 256 */
    struct score_scale scale;
    /* Where the page tables lie: read by the kernel, as it may change from step to step. */
    const struct device_step *step;
    uint32_t layer;

    uint32_t window; /* as in the plan's batch */

    const struct attn_tile *tiles; /* the plan of this layer's lengths */
    uint32_t n_blocks;             /* as in the plan's shape */
    const struct attn_merge *merges;
    uint32_t max_merges; /* room.n_merges: sizes the merge's grid, 0 leaves it out */
    float *partial_out;  /* [room.n_partials][group][head_dim] */
    float *partial_lse;  /* [room.n_partials][group], base 2 */

    struct attn_stats attn_stats;
    bool selects; /* as in attn_args */
    bool awaited; /* the stream waits for another one right before: no overlap with what is there */
    struct key_rotations rotations; /* n_freqs a multiple of 8 */

    /* Programmatic dependent launch (compute capability 9.0): the kernels start while the one
     * before ends.  They read the plan, the step and the page tables, and prefetch pages into L2,
     * before they wait for it: those must be complete when the kernel before starts. */
    bool overlap;

    /* Filled by attn_decode_map_pool(); without it cp.async reads the pages. */
    bool use_map;
    CUtensorMap map;
};

/* Lets the copy engine read the pool where the device and the shape allow (compute capability 9.0,
 * head_dim 64, 128 or 256 of 16 bits, groups of up to 8); otherwise use_map stays false, which is
 * no error.  Needs the fields from pool to head_dim.  Once per pool: it asks the driver. */
cudaError_t attn_decode_map_pool(attn_decode_params *p, uint32_t n_pages);

/* Blocks that are resident at once on the device, for attn_plan_shape.n_blocks and p.n_blocks.
 * Needs the shape, kv_dtype and use_map. */
cudaError_t attn_decode_count_blocks(const attn_decode_params &p, uint32_t *n_blocks);

/* The attention, and the merge after it.  Empty tiles and partials weigh nothing; a sequence that
 * the plan gives no tile keeps its output as it was. */
cudaError_t launch_attn_decode(const attn_decode_params &p, cudaStream_t stream);

/* The merge alone, of partials that the attention before it in the stream writes. */
cudaError_t launch_attn_merge(const attn_decode_params &p, cudaStream_t stream);

#endif
