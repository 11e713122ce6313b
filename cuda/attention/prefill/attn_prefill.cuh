/* attn_prefill.cuh - causal attention of a prompt's query rows over paged keys and values.
 *
 *   slots   0 ............................ n_slots
 *   rows                     0 ....... n_rows         row i sees slots [0, n_slots - n_rows + i],
 *                                                     or of these the newest `window`
 *   tile                     |  |  |  |               ATTN_PREFILL_TILE rows of one sequence
 *
 * The work of a step is a flat list of (sequence, tile) items, made once per step on the host.  The
 * longest come first, so that the last blocks to start are the short ones.  Two kernels take it:
 *
 *   mma.cu    sm_80 and later, head_dim 64, 80, 96, 128, 256, bf16 and f16 pages
 *   sm90.cu   sm_90a, head_dim 64 and 128, bf16 pages, keys that are stored after RoPE, no ALiBi
 *
 * Prompts with few rows to compute after many keys may go to a second list, whose blocks share the
 * keys of a tile.  It has a kernel of both kinds, and a merge follows (split.h, mma.cu,
 * split_sm90.cu, split_merge.cu).  That of sm_90a takes pages of 8 bits, too (codes.cuh).
 *
 * In the first list, a row's bits depend on its own queries, keys and slot numbers only: not on the
 * batch, nor on how a prompt was cut into steps.  In the second they depend on how keys are cut.
 * Slots past n_slots may hold anything, NaN included.
 *
 * Thread: engine.  Memory: none of its own; launches do not allocate or synchronise. */
#ifndef CUDA_ATTENTION_PREFILL_ATTN_PREFILL_CUH
#define CUDA_ATTENTION_PREFILL_ATTN_PREFILL_CUH

#include <cuda_runtime.h>

#include <stddef.h>
#include <stdint.h>

#include "cuda/attention/prefill/split.h"
#include "cuda/host/kernels.h"
#include "engine/device/pages.h"

struct sparse_view; /* sparse_view.h */

enum { ATTN_PREFILL_TILE = 128, ATTN_PREFILL_MAX_ITEMS = 65535 };

struct attn_prefill_item {
    int32_t seq, tile; /* rows [tile * ATTN_PREFILL_TILE, + ATTN_PREFILL_TILE) of the sequence */
};

/* All pointers are device memory.  The arrays per sequence are those of the current layer. */
struct attn_prefill_params {
    const void *q;   /* bf16, row i at q + i * q_stride: [n_heads, head_dim]; 16-byte aligned */
    size_t q_stride; /* multiple of 8 */
    void *out; /* bf16 [n_total_rows, n_heads * head_dim]; only rows of listed items are written */
    struct kv_pool kv;         /* page = [K, V][kv_head][slot][head_dim], bf16 or f16; for
                                * launch_attn_split() also what attn_split_reads_codes() names */
    const int32_t *page_table; /* [table_at[seq] + slot / PAGE_TOKENS] */
    const int32_t *table_at, *first_row, *n_rows, *n_slots; /* [n_seqs] */
    const struct attn_prefill_item *items;                  /* [n_items] */
    uint32_t n_items;      /* 0 is allowed; at most ATTN_PREFILL_MAX_ITEMS */
    uint32_t n_total_rows; /* rows of the q matrix */
    uint32_t n_heads;      /* multiple of kv.n_kv_heads */
    struct score_scale scale;
    struct score_bias bias; /* with slopes no kernel of sm_90a is launched */
    struct head_sinks sinks;
    uint32_t window; /* 0: a row sees all; dense attention only */
    float *lse;      /* [n_total_rows][n_heads], base 2, of the rows that are written; or NULL */
    /* The items' keys are stored before RoPE (common/rotation.cuh); rotations.n_freqs is a
     * multiple of 8. */
    bool rotated;
    struct key_rotations rotations;
};

/* Returns how many matrix rows a block of any of the kernels multiplies. */
static constexpr uint32_t attn_prefill_block_rows(uint32_t head_dim) {
    return head_dim <= 128 ? ATTN_PREFILL_TILE : ATTN_PREFILL_TILE / 2;
}

/* A plan of split prompts and the space for its partial results, on the device. */
struct attn_split_view {
    const struct attn_split_item *items; /* [n_items], those to be merged first */
    uint32_t n_items, n_merges;
    float *partial_out; /* 16-byte aligned: split_tile.cuh */
    float *partial_lse;
};

/* Lists the items of sequences [first_seq, n_seqs) on the host, longest first.  Returns their
 * number, at most attn_prefill_max_items(), for which `items` has space. */
uint32_t attn_prefill_plan(const uint32_t *n_rows, const uint32_t *n_slots, uint32_t first_seq,
                           uint32_t n_seqs, struct attn_prefill_item *items);

/* Returns an upper bound on the items of any step of n_rows rows in n_seqs sequences. */
static inline uint32_t attn_prefill_max_items(uint32_t n_rows, uint32_t n_seqs) {
    return n_rows / ATTN_PREFILL_TILE + n_seqs;
}

/* Picks the kernel and launches it.  Returns cudaErrorInvalidValue for a shape or type that no
 * kernel has. */
cudaError_t launch_attn_prefill(const struct attn_prefill_params &p, struct launch launch);

/* Attends the rows of the plan's items, and merges; it does not read p.items and p.n_items.  Keys
 * must be stored after RoPE. */
cudaError_t launch_attn_split(const struct attn_prefill_params &p, const struct attn_split_view &s,
                              struct launch launch);

/* Says whether launch_attn_split() takes pages of these 8 bits as they are. */
bool attn_split_reads_codes(const struct kv_pool &kv);

/* Describes to plans the kernel that this shape gets on the current device.  There are no plans
 * (max_blocks 0) if a group of query heads does not fit a block. */
cudaError_t attn_split_shape_of(const struct kv_pool &kv, uint32_t n_heads,
                                struct attn_split_shape *shape);

/* Attends the items' rows to what the index lists.  The index describes the current layer of their
 * sequence, and its tiles are the items' tiles.  Keys must be stored after RoPE. */
cudaError_t launch_attn_prefill_sparse(const struct attn_prefill_params &p,
                                       const struct sparse_view &s, cudaStream_t stream);

/* Returns whether the sm90 kernels can run: they are compiled for compute capability 9.0 alone.
 * From here on the kernels have their own names, for their tests; the backend calls those above. */
bool attn_prefill_sm90_is_there(void);
cudaError_t launch_attn_prefill_mma(const struct attn_prefill_params &p, struct launch launch);
cudaError_t launch_attn_prefill_sm90(const struct attn_prefill_params &p, struct launch launch);
cudaError_t launch_attn_split_mma(const struct attn_prefill_params &p,
                                  const struct attn_split_view &s, struct launch launch);
cudaError_t launch_attn_split_sm90(const struct attn_prefill_params &p,
                                   const struct attn_split_view &s, struct launch launch);
cudaError_t launch_attn_split_merge(const struct attn_prefill_params &p,
                                    const struct attn_split_view &s, struct launch launch);
/* Counts the blocks of launch_attn_split_mma()'s kernel that one multiprocessor holds. */
cudaError_t attn_split_mma_residents(const struct kv_pool &kv, int *n_blocks);
cudaError_t launch_attn_sparse_mma(const struct attn_prefill_params &p, const struct sparse_view &s,
                                   cudaStream_t stream);
/* Returns false if the index has space for more columns than a block can list. */
bool attn_sparse_sm90_fits(const struct sparse_view &s, uint32_t head_dim);
cudaError_t launch_attn_sparse_sm90(const struct attn_prefill_params &p,
                                    const struct sparse_view &s, cudaStream_t stream);

#endif
