/* codes.cuh - how a block of Hopper's prefill attention (sm90.cuh) reads pages of 8 bits: it
 * converts them in shared memory, into the stages that its consumers read.
 *
 *   matrix    the 128 rows of one KV head in a pair of pages: 2 j are the keys of pair j, 2 j + 1
 *             its values
 *   codes     the copy engine brings them to a ring of N_CODE_STAGES matrices, scales beside them
 *   fillers   the producer's four warps; each thread converts one row of every matrix
 *
 *   codes of a matrix   lines of 128 bytes, one row or two, 128-byte swizzle; then the second page
 *
 *   filler   | await codes | await the stage | convert | arrive at both | by turns: ask for a
 *            matrix |
 *
 * The values are those of kv/prompt_copies.c, so results have the same bits.  Each tile converts
 * all that it reads.  A copy is made once for all tiles, so it pays where there are many
 * (docs/kv-cache-fp8.md).  Shared memory moves a third more bytes than with pages of 16 bits.
 *
 * Thread: device code, by whole blocks of THREADS; the map is made on the host.  Memory: a
 * codes_plan. */
#ifndef CUDA_ATTENTION_PREFILL_CODES_CUH
#define CUDA_ATTENTION_PREFILL_CODES_CUH

#include "cuda/attention/prefill/sm90.cuh"
#include "cuda/attention/prefill/split_tile.cuh"
#include "cuda/common/pages.cuh"

enum {
    N_CODE_STAGES = 4,
    CODE_LINE = 128, /* bytes */
    FILLER_WARPS = GROUP_THREADS / 32,
    /* Fillers need more registers than a producer, and get what consumers can spare. */
    FILLER_REGISTERS = 56,
    CODE_CONSUMER_REGISTERS = 224
};

static_assert((int)PAIR_KEYS == (int)GROUP_THREADS, "a filler has one row of a matrix");
static_assert((int)N_CODE_STAGES == (int)FILLER_WARPS, "a warp asks for the matrices of one stage");

template <int D> struct codes_plan {
    struct sm90_plan<D> pages;
    alignas(1024) unsigned char codes[N_CODE_STAGES][PAIR_KEYS * D];
    alignas(16) unsigned char scales[N_CODE_STAGES][PAIR_KEYS];
    uint64_t full[N_CODE_STAGES], empty[N_CODE_STAGES];
};

/* Makes the barriers, by one thread; a __syncthreads() must follow. */
template <int D> static __device__ void init_code_barriers(struct codes_plan<D> &plan) {
    for (int i = 0; i < N_CODE_STAGES; i++) {
        barrier_init(&plan.full[i], 1);
        barrier_init(&plan.empty[i], FILLER_WARPS);
    }
    init_barriers<own_stages>(plan.pages, FILLER_WARPS);
}

/* The pages that a matrix is copied from. */
struct page_pair {
    int first, second;
};

/* Looks up the pages of matrix m; there may be no such matrix. */
static __device__ __forceinline__ struct page_pair pages_of_matrix(const struct split_tile &t,
                                                                   uint32_t m) {
    const struct key_pair pair = t.pairs.at(min((int)m / 2, t.pairs.n - 1));
    return {page_of_block(t.rows, pair.first), page_of_block(t.rows, pair.second)};
}

/* Starts copying one head's keys or values of a page, codes and scales; first_row is their first
 * row in the page. */
template <int D>
static __device__ __forceinline__ void load_codes(struct codes_plan<D> &plan,
                                                  const CUtensorMap *map, const struct kv_pool &kv,
                                                  uint32_t stage, int half, int first_row,
                                                  int page) {
    uint64_t *full = &plan.full[stage];
    tensor_load(plan.codes[stage] + half * (PAGE_TOKENS * D), map, 0, first_row * D / CODE_LINE,
                page, full);
    bulk_load(plan.scales[stage] + half * PAGE_TOKENS, row_scale(kv, page, first_row), PAGE_TOKENS,
              full);
}

/* Starts copying matrix m, by one thread. */
template <int D>
static __device__ __forceinline__ void ask_matrix(struct codes_plan<D> &plan,
                                                  const CUtensorMap *map, const struct kv_pool &kv,
                                                  const struct split_tile &t, uint32_t m,
                                                  const struct page_pair &pages) {
    const uint32_t stage = m % N_CODE_STAGES;
    const int row = (int)(m % 2 * kv.n_kv_heads + t.kv_head) * PAGE_TOKENS;
    barrier_arrive_expect(&plan.full[stage], PAIR_KEYS * (D + 1));
    load_codes<D>(plan, map, kv, stage, 0, row, pages.first);
    load_codes<D>(plan, map, kv, stage, 1, row, pages.second);
}

/* Converts a row's codes to bf16, into that row's place in a stage.  It loads 64 codes before it
 * converts any, which hides how long loads take. */
template <int D>
static __device__ __forceinline__ void convert_row(unsigned char *to, const unsigned char *codes,
                                                   uint32_t row, float factor) {
    const uint32_t at = row % PAGE_TOKENS * D, line = at / CODE_LINE;
    const unsigned char *from = codes + row / PAGE_TOKENS * (PAGE_TOKENS * D) + line * CODE_LINE;
    unsigned char *out = to + row * (COLUMN * 2);
#pragma unroll
    for (uint32_t column = 0; column < D / COLUMN; column++) {
        uint4 x[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            x[i] = *reinterpret_cast<const uint4 *>(
                from + ((at % CODE_LINE + (column * 4 + i) * 16) ^ line % 8 * 16));
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint4 &c = x[i / 2];
            *reinterpret_cast<uint4 *>(out + column * COLUMN_BYTES + (i ^ row % 8) * 16) =
                fp8_eight(i % 2 ? make_uint2(c.z, c.w) : make_uint2(c.x, c.y), factor);
        }
    }
}

/* Clears a row of a stage, of a slot past the end: its codes and its scale may be anything. */
template <int D> static __device__ void clear_row(unsigned char *to, uint32_t row) {
    for (uint32_t i = 0; i < D / 8; i++)
        *reinterpret_cast<uint4 *>(to + i / 8 * COLUMN_BYTES + row * (COLUMN * 2) + i % 8 * 16) =
            make_uint4(0, 0, 0, 0);
}

/* Fills the stages of all pairs, by the fillers; does what produce() does for pages of 16 bits.
 * Warp i asks for matrices i, i + N_CODE_STAGES and so on.  It asks after it has converted one
 * matrix more than the place needs, so it waits only for a warp that is more than a matrix
 * behind. */
template <int D>
static __device__ void fill_stages(struct codes_plan<D> &plan, const CUtensorMap *map,
                                   const struct kv_pool &kv, const struct split_tile &t) {
    constexpr uint32_t STAGES = sm90_plan<D>::STAGES;
    const uint32_t row = threadIdx.x, warp = __shfl_sync(~0u, row / 32, 0), n = 2 * t.pairs.n;
    const bool asks = elect_lane();
    struct page_pair pages = pages_of_matrix(t, warp);
    if (asks && warp < n) ask_matrix<D>(plan, map, kv, t, warp, pages);
    pages = pages_of_matrix(t, warp + N_CODE_STAGES);
#pragma unroll 1
    for (uint32_t m = 0; m < n; m++) {
        const uint32_t stage = m / 2 % STAGES, from = m % N_CODE_STAGES;
        const bool is_v = m % 2;
        unsigned char *to = is_v ? plan.pages.v[stage] : plan.pages.k[stage];
        barrier_wait(&plan.full[from], m / N_CODE_STAGES % 2);
        barrier_wait(is_v ? &plan.pages.v_empty[stage] : &plan.pages.k_empty[stage],
                     m / 2 / STAGES % 2 ^ 1);
        convert_row<D>(to, plan.codes[from], row, fp8_factor(plan.scales[from][row]));
        const struct key_pair pair = t.pairs.at((int)m / 2);
        const int block = row < PAGE_TOKENS ? pair.first : pair.second;
        if (is_v && block * PAGE_TOKENS + (int)row % PAGE_TOKENS >= t.rows.n_slots)
            clear_row<D>(to, row);
        fence_async_proxy();
        __syncwarp();
        if (asks) {
            barrier_arrive(&plan.empty[from]);
            barrier_arrive(is_v ? &plan.pages.v_full[stage] : &plan.pages.k_full[stage]);
        }
        const uint32_t coming = m + N_CODE_STAGES - 1; /* takes the place of the one before */
        if (m > 0 && coming < n && coming % N_CODE_STAGES == warp) {
            if (asks) {
                barrier_wait(&plan.empty[warp], (m - 1) / N_CODE_STAGES % 2);
                ask_matrix<D>(plan, map, kv, t, coming, pages);
            }
            pages = pages_of_matrix(t, coming + N_CODE_STAGES);
        }
    }
}

/* Describes the pool's codes as stacks of lines; a box is one head's keys or values of a page. */
template <int D> static cudaError_t map_codes(CUtensorMap *map, const struct kv_pool &kv) {
    const uint64_t page_lines = page_layout_of(&kv).scales_at / CODE_LINE;
    return tensor_map_stack(map, kv.base, kv.n_pages, kv.page_bytes, page_lines, COLUMN, CODE_LINE,
                            PAGE_TOKENS * D / CODE_LINE, 1, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

#endif
