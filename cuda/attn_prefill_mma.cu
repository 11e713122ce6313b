/* attn_prefill_mma.cu - prefill attention with mma.sync and cp.async, for sm_80 and later.
 *
 *   block   4 warps, 64 query rows of one head; a warp owns 16 rows
 *   step    one key block (a page): S = Q K^T, online softmax in base 2, O += P V
 *
 *   shared  | Q 64 x (D + 8) | K 64 x (D + 8) | V 64 x (D + 8) |     16 bytes of padding per row keep
 *                                                                    ldmatrix free of bank conflicts
 *   loads   V of this block flies while S is computed, K of the next while P V is
 *
 * Grid:   (2 halves of a tile x heads, items).   Bound: tensor cores.
 * Oracle: engine/cpu/attention.c in plain C; the test's oracle is in double. */
#include "cuda/attn_prefill.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/attn_prefill_tile.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, ROWS = WARPS * 16, KEYS = PAGE_TOKENS };

template <typename T, int D> struct mma_plan {
    static constexpr int STRIDE = D + 8; /* elements */
    T q[ROWS * STRIDE], k[KEYS * STRIDE], v[KEYS * STRIDE];
};

static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* 16 bytes to shared memory; zeros when !valid, and then `from` is not read. */
static __device__ __forceinline__ void copy16(void *to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid ? 16 : 0) : "memory");
}

static __device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int N> static __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

template <bool TRANSPOSED>
static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void *p) {
    if constexpr (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}

static __device__ __forceinline__ void mma(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                           const __nv_bfloat16 *) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma(float *d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                           const __half *) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ uint32_t pack(float lo, float hi, const __nv_bfloat16 *) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

static __device__ __forceinline__ uint32_t pack(float lo, float hi, const __half *) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* Queries are bf16 whatever the pages are; f16 mma wants them as f16 (exact between 2^-14 and 2^16). */
template <typename T, int D>
static __device__ void load_queries(T *to, const struct attn_prefill_params &p, int first_row, int n_rows, int head) {
    const __nv_bfloat16 *q = (const __nv_bfloat16 *)p.q + (size_t)first_row * p.q_stride + (size_t)head * D;
    for (int i = threadIdx.x; i < ROWS * (D / 8); i += THREADS) {
        const int row = i / (D / 8), col = i % (D / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < n_rows) v = *(const uint4 *)(q + row * p.q_stride + col);
        if constexpr (sizeof(T) == 2 && !__is_same(T, __nv_bfloat16)) {
            uint32_t *w = &v.x;
            for (int j = 0; j < 4; j++) {
                const float2 f = __bfloat1622float2(*(const __nv_bfloat162 *)&w[j]);
                w[j] = pack(f.x, f.y, (const T *)nullptr);
            }
        }
        *(uint4 *)(to + row * mma_plan<T, D>::STRIDE + col) = v;
    }
}

/* Starts the copy of one block's keys or values; slots from n_valid on become zeros. */
template <typename T, int D>
static __device__ void load_block(T *to, const T *from, int n_valid) {
    for (int i = threadIdx.x; i < KEYS * (D / 8); i += THREADS) {
        const int slot = i / (D / 8), col = i % (D / 8) * 8;
        copy16(to + slot * mma_plan<T, D>::STRIDE + col, from + slot * D + col, slot < n_valid);
    }
    copies_commit();
}

/* S[16 x 64] of the warp's rows: s[n][0..1] is row lane / 4, s[n][2..3] the row 8 below. */
template <typename T, int D>
static __device__ __forceinline__ void scores(float (&s)[KEYS / 8][4], const T *q, const T *k, int lane) {
    constexpr int STRIDE = mma_plan<T, D>::STRIDE;
    const T *qa = q + (lane % 16) * STRIDE + lane / 16 * 8;
    const T *ka = k + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        uint32_t a[4], b[4];
        load_matrices<false>(a, qa + d);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            load_matrices<false>(b, ka + n * 16 * STRIDE + d);
            mma(s[2 * n], a, b[0], b[1], q);
            mma(s[2 * n + 1], a, b[2], b[3], q);
        }
    }
}

template <typename T, int D>
static __device__ __forceinline__ void add_values(float (&o)[D / 8][4], const float (&s)[KEYS / 8][4],
                                                  const T *v, int lane) {
    constexpr int STRIDE = mma_plan<T, D>::STRIDE;
    const T *va = v + (lane % 16) * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        const float *lo = s[2 * k], *hi = s[2 * k + 1];
        const uint32_t a[4] = {pack(lo[0], lo[1], v), pack(lo[2], lo[3], v), pack(hi[0], hi[1], v),
                               pack(hi[2], hi[3], v)};
#pragma unroll
        for (int d = 0; d < D / 16; d++) {
            uint32_t b[4];
            load_matrices<true>(b, va + k * 16 * STRIDE + d * 16);
            mma(o[2 * d], a, b[0], b[1], v);
            mma(o[2 * d + 1], a, b[2], b[3], v);
        }
    }
}

/* Hides what the rows may not see: column c of the block is visible while c < limit. */
static __device__ __forceinline__ void mask_scores(float (&s)[KEYS / 8][4], int limit, int lane) {
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (n * 8 + lane % 4 * 2 + e % 2 >= limit + e / 2 * 8) s[n][e] = -INFINITY;
}

/* Turns scores into weights against the new running maximum and returns in `factor` what the older
 * sums and outputs are multiplied by.  h: 0 for the upper row, 1 for the lower.  A row that has seen
 * nothing yet keeps the maximum -inf, which must not meet another -inf in a subtraction. */
static __device__ __forceinline__ float update_softmax(float (&s)[KEYS / 8][4], int h, float scale,
                                                       float &max, float &sum) {
    float top = max;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++) top = fmaxf(top, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;
    const float factor = exp2_approx((max - base) * scale); /* exactly 1 where nothing changes */
    float total = 0.0f;
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; e++) {
            s[n][e] = exp2_approx(fmaf(s[n][e], scale, -base * scale));
            total += s[n][e];
        }
    max = top;
    sum = sum * factor + total;
    return factor;
}

template <int D>
static __device__ void store_rows(const struct attn_prefill_params &p, const float (&o)[D / 8][4], float *sum,
                                  int first_row, int n_rows, int head, int row, int lane) {
    for (int h = 0; h < 2; h++, row += 8) {
        float total = sum[h] + __shfl_xor_sync(~0u, sum[h], 1);
        total += __shfl_xor_sync(~0u, total, 2);
        if (row >= n_rows) continue;
        const float inverse = 1.0f / total;
        __nv_bfloat16 *to = (__nv_bfloat16 *)p.out + ((size_t)(first_row + row) * p.n_heads + head) * D;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *(uint32_t *)(to + n * 8 + lane % 4 * 2) =
                pack(o[n][2 * h] * inverse, o[n][2 * h + 1] * inverse, (const __nv_bfloat16 *)nullptr);
    }
}

template <typename T, int D>
static __global__ void __launch_bounds__(THREADS) attn_prefill_mma_kernel(const struct attn_prefill_params p) {
    extern __shared__ __align__(16) unsigned char shared[];
    struct mma_plan<T, D> &plan = *reinterpret_cast<struct mma_plan<T, D> *>(shared);
    const int head = blockIdx.x / 2, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    const int skip = blockIdx.x % 2 * ROWS; /* this block's half of the tile */
    t.first_row += skip, t.first_visible += skip, t.n_rows = min(t.n_rows - skip, (int)ROWS);
    if (t.n_rows <= 0) return;

    const size_t head_elements = (size_t)KEYS * D;
    const T *keys = (const T *)p.kv.base + head / (p.n_heads / p.kv.n_kv_heads) * head_elements;
    const size_t page_elements = p.kv.page_bytes / sizeof(T), to_values = p.kv.n_kv_heads * head_elements;
    const struct dense_pairs pairs = dense_pairs_of(t);
    /* Block i of the plan; a pair's second block may lie past the end and is skipped by the mask. */
    const auto block_at = [&](int i) { return i % 2 ? pairs.at(i / 2).first : pairs.at(i / 2).second; };
    const auto page_at = [&](int i) { return keys + page_of_block(t, block_at(i)) * page_elements; };
    const auto valid_at = [&](int i) { return t.n_slots - block_at(i) * KEYS; };

    load_queries<T, D>(plan.q, p, t.first_row, t.n_rows, head);
    load_block<T, D>(plan.k, page_at(0), valid_at(0));
    float o[D / 8][4] = {}, max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
    const float scale = p.scale * 1.44269504f;
    const int row = warp * 16 + lane / 4;
    for (int i = 0; i < 2 * pairs.n; i++) {
        float s[KEYS / 8][4];
        copies_wait<0>();
        __syncthreads(); /* K(i) is there, and everyone is done with V(i - 1) */
        load_block<T, D>(plan.v, page_at(i) + to_values, valid_at(i));
        scores<T, D>(s, plan.q + warp * 16 * mma_plan<T, D>::STRIDE, plan.k, lane);
        copies_wait<0>();
        __syncthreads(); /* V(i) is there, and everyone is done with K(i) */
        if (i + 1 < 2 * pairs.n) load_block<T, D>(plan.k, page_at(i + 1), valid_at(i + 1));
        const int limit = t.first_visible - block_at(i) * KEYS; /* of row 0 */
        if (limit < KEYS) mask_scores(s, limit + row, lane);
        for (int h = 0; h < 2; h++) {
            const float factor = update_softmax(s, h, scale, max[h], sum[h]);
#pragma unroll
            for (int n = 0; n < D / 8; n++) o[n][2 * h] *= factor, o[n][2 * h + 1] *= factor;
        }
        add_values<T, D>(o, s, plan.v, lane);
    }
    store_rows<D>(p, o, sum, t.first_row, t.n_rows, head, row, lane);
}

template <typename T, int D>
static cudaError_t launch(const struct attn_prefill_params &p, cudaStream_t stream) {
    const int bytes = sizeof(struct mma_plan<T, D>);
    const cudaError_t status =
        cudaFuncSetAttribute(attn_prefill_mma_kernel<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    const dim3 grid(2 * p.n_heads, p.n_items);
    attn_prefill_mma_kernel<T, D><<<grid, THREADS, bytes, stream>>>(p);
    return cudaGetLastError();
}

template <typename T> static cudaError_t launch_dim(const struct attn_prefill_params &p, cudaStream_t stream) {
    switch (p.kv.head_dim) {
    case 64: return launch<T, 64>(p, stream);
    case 80: return launch<T, 80>(p, stream);
    case 96: return launch<T, 96>(p, stream);
    case 128: return launch<T, 128>(p, stream);
    case 256: return launch<T, 256>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_attn_prefill_mma(const struct attn_prefill_params &p, cudaStream_t stream) {
    if (p.n_items == 0) return cudaSuccess; /* an empty grid is a launch error */
    switch (p.kv.dtype) {
    case DTYPE_BF16: return launch_dim<__nv_bfloat16>(p, stream);
    case DTYPE_F16: return launch_dim<__half>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}
