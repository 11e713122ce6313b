/* merge.cu - merges the partial results of each item of decode attention.
 *
 *   partial_out  f32 [n_partials][group][head_dim]    those of a merge are consecutive
 *   partial_lse  f32 [n_partials][group]              base 2; -inf: empty, weighs nothing
 *   out          bf16 [n_seqs, n_heads * head_dim]
 *
 * This is a separate kernel, started while the attention ends, for items that clusters do not suit
 * (attn_plan_cluster()).  The alternative, that the last block to finish a part of an item merges,
 * was measured: 3 us less if no item is cut, 4 us more if one is cut in 66.
 *
 * Grid:   one block per (merge, query head), up to 4 * n_blocks of them, which then take several.
 * Shared: a merge_row.          Bound: memory, 4 * n_partials * group * head_dim bytes.
 * Oracle: sums in double (tests/cuda/kernels/attn_decode_test.cu). */
#include "cuda/attention/decode/attn_decode.cuh"

#include "cuda/common/device.cuh"
#include "cuda/common/float4.cuh"

/* Together 72 partials are read at the same time: two KV heads of one sequence have 66 and 67 on a
 * device of 132 multiprocessors. */
enum { MERGE_WARPS = 8, MERGE_BATCH = 9 };

/* One query head: warp w takes partials w, w + MERGE_WARPS, ...; lanes lie along head_dim. */
template <int D> struct merge_row {
    static constexpr int VECS = (D / 4 + 31) / 32;
    float out[MERGE_WARPS][D];
    float max[MERGE_WARPS], sum[MERGE_WARPS];

    /* Adds up a warp's share, in batches whose reads are all in progress at once.  An empty partial
     * (-inf) weighs nothing. */
    __device__ __forceinline__ void gather(const float *rows, const float *lses, int n, int group,
                                           int warp, int lane) {
        float4 acc[VECS] = {};
        float m = -INFINITY, weights = 0.0f;
        for (int first = warp; first < n; first += MERGE_WARPS * MERGE_BATCH) {
            float lse[MERGE_BATCH];
            float4 x[MERGE_BATCH][VECS] = {};
#pragma unroll
            for (int b = 0; b < MERGE_BATCH; b++) {
                const int i = first + b * MERGE_WARPS;
                lse[b] = i < n ? lses[(size_t)i * group] : -INFINITY;
                const float4 *from = reinterpret_cast<const float4 *>(rows + (size_t)i * group * D);
#pragma unroll
                for (int v = 0; v < VECS; v++)
                    if (i < n && lane + 32 * v < D / 4) x[b][v] = from[lane + 32 * v];
            }
            float new_max = m;
#pragma unroll
            for (int b = 0; b < MERGE_BATCH; b++) new_max = fmaxf(new_max, lse[b]);
            const float base = new_max == -INFINITY ? 0.0f : new_max, old = exp2_fast(m - base);
            weights *= old;
#pragma unroll
            for (int v = 0; v < VECS; v++) acc[v] = scaled(acc[v], old);
#pragma unroll
            for (int b = 0; b < MERGE_BATCH; b++) {
                const float w = exp2_fast(lse[b] - base);
                weights += w;
#pragma unroll
                for (int v = 0; v < VECS; v++) add_scaled(&acc[v], x[b][v], w);
            }
            m = new_max;
        }
#pragma unroll
        for (int v = 0; v < VECS; v++)
            if (lane + 32 * v < D / 4)
                reinterpret_cast<float4 *>(out[warp])[lane + 32 * v] = acc[v];
        if (lane == 0) {
            max[warp] = m;
            sum[warp] = weights;
        }
    }

    __device__ __forceinline__ void store(__nv_bfloat16 *to, float *lse) const {
        float top = -INFINITY, weights = 0.0f, weight[MERGE_WARPS];
#pragma unroll
        for (int w = 0; w < MERGE_WARPS; w++) top = fmaxf(top, max[w]);
        if (top == -INFINITY) top = 0.0f;
#pragma unroll
        for (int w = 0; w < MERGE_WARPS; w++)
            weights += sum[w] * (weight[w] = exp2_fast(max[w] - top));
        const float scale = weights > 0.0f ? 1.0f / weights : 0.0f;
        for (int d = threadIdx.x; d < D; d += MERGE_WARPS * 32) {
            float x = 0.0f;
#pragma unroll
            for (int w = 0; w < MERGE_WARPS; w++) x += out[w][d] * weight[w];
            to[d] = __float2bfloat16(x * scale);
        }
        if (lse && threadIdx.x == 0) *lse = top + log2f(weights);
    }
};

template <int D>
static __global__ void __launch_bounds__(MERGE_WARPS * 32)
    attn_merge_kernel(const __grid_constant__ attn_decode_params p) {
    __shared__ __align__(16) merge_row<D> row;
    const int group = p.n_heads / p.n_kv_heads;
    int job = blockIdx.x;
    const int n_jobs = __ldg(&p.tiles->n_merges) * group;
    attn_merge merge = p.merges[job / group];
    let_next_start();
    wait_for_previous();
    while (job < n_jobs) {
        const int head = job % group;
        const size_t first = (size_t)merge.first_partial * group + head;
        row.gather(p.partial_out + first * D, p.partial_lse + first, merge.n_partials, group,
                   threadIdx.x / 32, threadIdx.x % 32);
        __syncthreads();
        const size_t at = (size_t)merge.seq * p.n_heads + merge.kv_head * group + head;
        row.store(static_cast<__nv_bfloat16 *>(p.out) + at * D,
                  p.attn_stats.lse ? p.attn_stats.lse + at : nullptr);
        job += gridDim.x;
        if (job < n_jobs) merge = p.merges[job / group];
        __syncthreads(); /* row is read */
    }
}

template <int D> static cudaError_t launch_dim(const attn_decode_params &p, cudaStream_t stream) {
    const uint32_t n_jobs = p.max_merges * (p.n_heads / p.n_kv_heads), most = 4 * p.n_blocks;
    if (n_jobs == 0) return cudaSuccess;
    return launch_kernel({stream, p.overlap, 0}, attn_merge_kernel<D>,
                         n_jobs < most ? n_jobs : most, MERGE_WARPS * 32, 0, p);
}

cudaError_t launch_attn_merge(const attn_decode_params &p, cudaStream_t stream) {
    switch (p.head_dim) {
    case 64: return launch_dim<64>(p, stream);
    case 80: return launch_dim<80>(p, stream);
    case 96: return launch_dim<96>(p, stream);
    case 128: return launch_dim<128>(p, stream);
    case 256: return launch_dim<256>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}
