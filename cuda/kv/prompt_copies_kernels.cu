/* prompt_copies_kernels.cu - copies the pages of prompts to 16-bit ones that attention reads as
 * they are: elements of 8 bits are dequantised, and keys that are stored before RoPE are rotated.
 *
 *   from   [K, V][n_kv_heads][PAGE_TOKENS][head_dim]; with 8 bits scales follow
 *   to     the same, bf16 for 8 bits, otherwise of the same type
 *
 * A copy's number is its page's place among the layer's lists.  The lists of those that are copied
 * come first (step.c), so a table that counts from 0 finds the copies (prompt_copies.c).  In a
 * prompt a slot's number is its rank, by which its key is rotated.
 *
 * Grid:   (pages, heads' keys and values, sequences).  A thread moves 8 elements of a row at a
 *         time, or one where rows are no multiple of that.
 * Shared: none.          Bound: memory, 3 or 4 bytes an element.
 * Oracle: engine/cpu/fp8.c, exact; engine/cpu/attention.c for rotated keys. */
#include "cuda/common/pages.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/step.cuh"
#include "engine/device/pages.h"

enum { THREADS = 256 };

/* A block's work: the keys or the values of one head in a page. */
struct item {
    size_t first; /* element of both pages */
    const void *from;
    void *to;
    int32_t page; /* that is copied */
    uint32_t row; /* the scale of its first row, as row_scale() counts */
    uint32_t slot;
    bool rotates;
};

/* Finds the block's work; returns false if it has none, or no row sees the page. */
static __device__ __forceinline__ bool item_of(const struct prompt_copies_params &p,
                                               struct item *item) {
    const struct device_step &s = *p.step;
    const uint32_t seq = s.n_decode + blockIdx.z;
    const size_t view = (size_t)p.layer * s.n_seqs + seq;
    const struct device_budget *budget = budget_of(s, seq, p.layer);
    const bool ranked = budget && budget->cache_positions;
    const int first = (int)(blockIdx.x * PAGE_TOKENS), n_slots = s.n_slots[view];
    const int first_seen =
        p.window > 0 && !ranked ? n_slots - s.seq_rows[seq] + 1 - (int)p.window : 0;
    /* Attention reads pages in pairs, so masked elements must be numbers, too. */
    const int pair_end = (int)(blockIdx.x / 2 + 1) * 2 * PAGE_TOKENS;
    if (first >= n_slots || pair_end <= first_seen || (p.ranked_only && !ranked)) return false;
    const size_t to = (size_t)s.table_at[view] + blockIdx.x;
    item->page = pages_of(s, p.layer, seq)[blockIdx.x];
    item->from = page_at(p.from, item->page);
    item->to = page_at(p.to, to);
    item->row = blockIdx.y * PAGE_TOKENS;
    item->first = (size_t)item->row * p.from.head_dim;
    item->slot = (uint32_t)first;
    item->rotates = ranked && p.rotates && blockIdx.y < p.from.n_kv_heads;
    return true;
}

/* Returns eight elements of a row as 16-bit numbers of type T. */
template <typename T> static __device__ __forceinline__ uint4 load_eight(const T *from, float) {
    return *reinterpret_cast<const uint4 *>(from);
}

template <typename T>
static __device__ __forceinline__ uint4 load_eight(const uint8_t *from, float factor) {
    return fp8_eight(*reinterpret_cast<const uint2 *>(from), factor);
}

/* From: the elements of the pool, uint8_t for PAGE_FP8.  T: those of the copies. */
template <typename From, typename T>
static __global__ void __launch_bounds__(THREADS)
    copy_prompts_kernel(const struct prompt_copies_params p) {
    const uint32_t dim = p.from.head_dim, n = dim / 8, n_freqs = p.rotations.n_freqs;
    struct item item;
    let_next_start();
    wait_for_previous();
    if (!item_of(p, &item)) return;
    const From *from = static_cast<const From *>(item.from) + item.first;
    T *to = static_cast<T *>(item.to) + item.first;
    const auto load = [&](uint32_t row, uint32_t d) {
        return load_eight<T>(from + row * dim + d, row_factor(p.from, item.page, item.row + row));
    };
    const auto store = [&](uint32_t row, uint32_t d, uint4 x) {
        *reinterpret_cast<uint4 *>(to + row * dim + d) = x;
    };
    const uint32_t n_pairs = item.rotates ? n_freqs / 8 : 0, n_rest = n - 2 * n_pairs;
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * n_pairs; i += THREADS) {
        const uint32_t row = i / n_pairs, freq = i % n_pairs * 8;
        uint4 a = load(row, freq), b = load(row, freq + n_freqs);
        rotate_pairs<T>(&a, &b, p.rotations, freq, item.slot + row);
        store(row, freq, a);
        store(row, freq + n_freqs, b);
    }
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * n_rest; i += THREADS) {
        const uint32_t row = i / n_rest, d = (2 * n_pairs + i % n_rest) * 8;
        store(row, d, load(row, d));
    }
}

/* Dequantises pages of any shape; it rotates nothing. */
static __global__ void __launch_bounds__(THREADS)
    dequantise_kernel(const struct prompt_copies_params p) {
    struct item item;
    let_next_start();
    wait_for_previous();
    if (!item_of(p, &item)) return;
    __nv_bfloat16 *to = static_cast<__nv_bfloat16 *>(item.to) + item.first;
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * p.from.head_dim; i += THREADS)
        store_as(to + i, load_element(item.from, item.first + i, p.from.format) *
                             row_factor(p.from, item.page, item.row + i / p.from.head_dim));
}

cudaError_t launch_prompt_copies(const struct prompt_copies_params *p, uint32_t n_seqs,
                                 uint32_t max_pages, struct launch launch) {
    const dim3 grid(max_pages, 2 * p->from.n_kv_heads, n_seqs);
    if (n_seqs == 0 || max_pages == 0) return cudaSuccess;
    if (p->from.head_dim % 8 != 0 && page_is_scaled(p->from.format) && !p->rotates)
        return launch_kernel(launch, dequantise_kernel, grid, THREADS, 0, *p);
    if (p->from.head_dim % 8 != 0) return cudaErrorInvalidValue;
    switch (p->from.format) {
    case PAGE_FP8:
        return launch_kernel(launch, copy_prompts_kernel<uint8_t, __nv_bfloat16>, grid, THREADS, 0,
                             *p);
    case PAGE_BF16:
        return launch_kernel(launch, copy_prompts_kernel<__nv_bfloat16, __nv_bfloat16>, grid,
                             THREADS, 0, *p);
    case PAGE_F16:
        return launch_kernel(launch, copy_prompts_kernel<__half, __half>, grid, THREADS, 0, *p);
    default: return cudaErrorInvalidValue;
    }
}
