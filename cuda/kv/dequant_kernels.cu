/* dequant_kernels.cu - dequantises pages whose elements are bytes with a scale a row
 * (engine/device/pages.h) to bf16 copies, which prompts' attention reads.
 *
 *   from   u8 [K, V][n_kv_heads][PAGE_TOKENS][head_dim], u8 [K, V][n_kv_heads][PAGE_TOKENS], states
 *   to     bf16 [K, V][n_kv_heads][PAGE_TOKENS][head_dim], states
 *
 * A copy's number is its page's place among all pages that the step's prompts have in the layer.
 * The prompts' lists come first (step.c), so a table that counts from 0 finds the copies
 * (dequant.c).
 *
 * Grid:   (pages, heads' keys and values, and one more for states; sequences).  A thread moves 16
 *         elements of a row at a time, or one where rows are no multiple of that.
 * Shared: none.          Bound: memory, 3 bytes an element.
 * Oracle: engine/cpu/fp8.c, exact. */
#include "cuda/kv/evict.cuh"
#include "engine/device/pages.h"

enum { THREADS = 256 };

struct item {
    uint32_t to;
    int32_t from;
};

/* Finds the block's page of the sequence; returns false if there is none or no row sees it. */
static __device__ __forceinline__ bool item_of(const struct dequant_params &p, struct item *item) {
    const struct device_step &s = *p.step;
    const uint32_t seq = s.n_decode + blockIdx.z;
    const size_t view = (size_t)p.layer * s.n_seqs + seq;
    const int first = (int)(blockIdx.x * PAGE_TOKENS), n_slots = s.n_slots[view];
    const int first_seen = p.window > 0 ? n_slots - s.seq_rows[seq] + 1 - (int)p.window : 0;
    /* Attention reads pages in pairs, so masked elements must be numbers, too. */
    const int pair_end = (int)(blockIdx.x / 2 + 1) * 2 * PAGE_TOKENS;
    if (first >= n_slots || pair_end <= first_seen) return false;
    item->to = (uint32_t)s.table_at[view] + blockIdx.x;
    item->from = pages_of(s, p.layer, seq)[blockIdx.x];
    return true;
}

static __device__ __forceinline__ void dequant_codes(__nv_bfloat16 *to, uint8_t code,
                                                     float factor) {
    store_as(to, fp8_values(code).x * factor);
}

static __device__ __forceinline__ void dequant_codes(__nv_bfloat16 *to, uint4 codes, float factor) {
    const uint32_t from[] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 x = fp8_values(from[i / 2] >> i % 2 * 16);
        words[i] = pack_bf16(x.x * factor, x.y * factor);
    }
    reinterpret_cast<uint4 *>(to)[0] = make_uint4(words[0], words[1], words[2], words[3]);
    reinterpret_cast<uint4 *>(to)[1] = make_uint4(words[4], words[5], words[6], words[7]);
}

static __device__ __forceinline__ void copy_states(const struct dequant_params &p,
                                                   const struct item &item) {
    const uint32_t n = p.from.n_kv_heads * sizeof(struct kv_page_state) / sizeof(uint32_t);
    const uint32_t *from = reinterpret_cast<const uint32_t *>(page_state(p.from, item.from, 0));
    uint32_t *to = reinterpret_cast<uint32_t *>(page_state(p.to, (int32_t)item.to, 0));
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) to[i] = from[i];
}

/* Dequantises one page's keys or values of a KV head, or its states.  Codes is what a thread moves
 * at a time: one code, or 16. */
template <typename Codes>
static __global__ void __launch_bounds__(THREADS) dequant_kernel(const struct dequant_params p) {
    const uint32_t dim = p.from.head_dim, n = dim / sizeof(Codes), head = blockIdx.y;
    struct item item;
    let_next_start();
    wait_for_previous();
    if (!item_of(p, &item)) return;
    if (head == 2 * p.from.n_kv_heads) {
        copy_states(p, item);
        return;
    }
    const size_t first = (size_t)head * PAGE_TOKENS * dim;
    const Codes *from = reinterpret_cast<const Codes *>(static_cast<const char *>(p.from.base) +
                                                        item.from * p.from.page_bytes + first);
    __nv_bfloat16 *to = reinterpret_cast<__nv_bfloat16 *>(static_cast<char *>(p.to.base) +
                                                          item.to * p.to.page_bytes) +
                        first;
    for (uint32_t i = threadIdx.x; i < PAGE_TOKENS * n; i += THREADS)
        dequant_codes(to + (size_t)i * sizeof(Codes), from[i],
                      row_factor(p.from, item.from, head * PAGE_TOKENS + i / n));
}

cudaError_t launch_dequant(const struct dequant_params *p, uint32_t n_seqs, uint32_t max_pages,
                           struct launch launch) {
    const dim3 grid(max_pages, 2 * p->from.n_kv_heads + (p->from.tracked ? 1 : 0), n_seqs);
    if (n_seqs == 0 || max_pages == 0) return cudaSuccess;
    return launch_kernel(
        launch, p->from.head_dim % 16 == 0 ? dequant_kernel<uint4> : dequant_kernel<uint8_t>, grid,
        THREADS, 0, *p);
}
