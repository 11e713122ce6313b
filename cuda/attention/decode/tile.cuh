/* tile.cuh - what the warps of decode attention hold of a tile, from its queries to its outputs.
 *
 * Each warp has the queries, and the maximum, sum and outputs of its own units, in registers.  At
 * the end of a tile the warps' results are combined in shared memory, in the one stage of each ring
 * that no copy is writing.
 *
 * Thread: device code, by whole warps; store_tile() by whole blocks.  Memory: the stages of the
 * rings that are free at a tile's end. */
#ifndef CUDA_ATTENTION_DECODE_TILE_CUH
#define CUDA_ATTENTION_DECODE_TILE_CUH

#include "cuda/attention/decode/exchange.cuh"
#include "cuda/attention/decode/ring.cuh"
#include "cuda/common/float4.cuh"

template <class S> struct decode_state {
    uint32_t q[S::N_TILES][S::K_STEPS][2];        /* Q^T: rows d, columns heads */
    float out[S::N_TILES][S::K_STEPS][4];         /* O^T */
    float max[S::N_TILES][2], sum[S::N_TILES][2]; /* sum: of this lane's slots */
    float scale_log2; /* by which products are to be multiplied for scores to base 2 */
    int scale; /* 8-bit: the largest scale of values so far, by which `out` is to be multiplied */
};

/* With 8-bit pages a probability is multiplied by its value's scale, relative to the largest one,
 * which counts as this scale, 2^12.  Probabilities are f16: numbers from 2^-24 to nearly 2^16. */
static constexpr int SCALED_ONE = 127 + 12;

/* Returns the first of the four dimensions in a row that a lane has in step k of products with
 * 8-bit keys.  A lane has all of a chunk's dimensions, and then of the next one's, so that it loads
 * 16 bytes at a time; of rows that are no multiple of 64 it has four in 16. */
template <class S> static __device__ __forceinline__ int code_column(int k, int lane) {
    constexpr int WORDS = S::D % 128 == 0 ? 8 : S::D % 64 == 0 ? 4 : 1;
    return k / WORDS * (16 * WORDS) + lane % 4 * (4 * WORDS) + k % WORDS * 4;
}

/* Multiplies a unit's keys of step k with all queries.  Odd steps have sums of their own, so that
 * no product waits for the one before. */
template <class S>
static __device__ __forceinline__ void multiply_keys(float (&even)[S::N_TILES][4],
                                                     float (&odd)[S::N_TILES][4],
                                                     const decode_state<S> &st,
                                                     const uint32_t (&keys)[4], int k) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        mma<typename S::T>(k % 2 ? odd[n] : even[n], keys, st.q[n][k][0], st.q[n][k][1]);
}

template <class S>
static __device__ __forceinline__ void add_sums(float (&to)[S::N_TILES][4],
                                                const float (&from)[S::N_TILES][4]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        for (int i = 0; i < 4; i++) to[n][i] += from[n][i];
}

/* Loads a lane's part of a head's queries for codes; clears it if that is no head.  The dimensions
 * of two steps lie in a row, so they are one load: every warp of a block loads the same queries,
 * and no product begins before they are there. */
template <class S>
static __device__ __forceinline__ void load_head_for_codes(uint32_t (&to)[S::K_STEPS][2],
                                                           const __nv_bfloat16 *q, bool is_head,
                                                           int lane) {
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k += 2) {
        uint4 x = {};
        if (is_head) x = *reinterpret_cast<const uint4 *>(q + code_column<S>(k, lane));
        to[k][0] = x.x, to[k][1] = x.y;
        to[k + 1][0] = x.z, to[k + 1][1] = x.w;
    }
}

/* Loads the queries of a tile; they are bf16 until convert_queries(). */
template <class S>
static __device__ __forceinline__ void load_queries(decode_state<S> *st,
                                                    const attn_decode_params &p,
                                                    const attn_tile &tile, int group, int lane) {
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(p.q) + tile.seq * p.q_stride +
                             (size_t)tile.kv_head * group * S::D + (S::FP8 ? 0 : lane % 4 * 2);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        const int head = n * 8 + lane / 4;
        if constexpr (S::FP8 && S::CODE_STEPS > 1) {
            load_head_for_codes<S>(st->q[n], q + (size_t)head * S::D, head < group, lane);
        } else {
#pragma unroll
            for (int k = 0; k < 2 * S::K_STEPS; k++) {
                const int column = S::FP8 ? code_column<S>(k / 2, lane) + k % 2 * 2 : k * 8;
                uint32_t x = 0;
                if (head < group)
                    x = *reinterpret_cast<const uint32_t *>(q + (size_t)head * S::D + column);
                st->q[n][k / 2][k % 2] = x;
            }
        }
    }
}

template <class S> static __device__ __forceinline__ void convert_queries(decode_state<S> *st) {
    if constexpr (std::is_same_v<typename S::T, __half>) {
#pragma unroll
        for (int i = 0; i < S::N_TILES * S::K_STEPS * 2; i++) {
            uint32_t *x = &st->q[i / 2 / S::K_STEPS][i / 2 % S::K_STEPS][i % 2];
            *x = pack<__half>(__uint_as_float(*x << 16), __uint_as_float(*x & 0xffff0000));
        }
    }
}

template <class S> static __device__ __forceinline__ void clear_results(decode_state<S> *st) {
    st->scale = 0;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
        for (int k = 0; k < S::K_STEPS; k++)
            st->out[n][k][0] = st->out[n][k][1] = st->out[n][k][2] = st->out[n][k][3] = 0.0f;
        st->max[n][0] = st->max[n][1] = -INFINITY;
        st->sum[n][0] = st->sum[n][1] = 0.0f;
    }
}

/* ---- the end of a tile ---- */

/* A warp's result for a tile, which the other warps read in its free stage. */
template <class S> struct warp_result {
    float out[S::HEADS][S::OUT_STRIDE];
    float max[S::HEADS], sum[S::HEADS];
};

/* Returns the maximum over the lanes that hold the same columns (lane % 4) of an accumulator. */
static __device__ __forceinline__ float column_max(float x) {
    for (int i = 4; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

static __device__ __forceinline__ float column_sum(float x) {
    for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

template <class S>
static __device__ __forceinline__ void hand_over(warp_result<S> *to, const decode_state<S> &st,
                                                 int lane) {
    const float unit = S::FP8 ? fp8_factor(st.scale) / (1 << (SCALED_ONE - 127)) : 1.0f;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int head = n * 8 + lane % 4 * 2 + i;
            const float sum = column_sum(st.sum[n][i]);
#pragma unroll
            for (int k = 0; k < S::K_STEPS; k++) {
                /* The dimensions that the rows of mma stand for. */
                float *row = &to->out[head][k * 16 + lane / 4 * (S::FP8 ? 2 : 1)];
                row[0] = st.out[n][k][i] * unit;
                row[S::FP8 ? 1 : 8] = st.out[n][k][i + 2] * unit;
            }
            if (lane < 4) {
                to->max[head] = st.max[n][i];
                to->sum[head] = sum;
            }
        }
    }
}

/* Combines what the warps handed over, and a sink, into four outputs of a head, and its
 * log-sum-exp.  A warp without a unit has maximum -inf and weighs 0, like a sink of -inf; at least
 * one warp had a unit. */
template <class S>
static __device__ __forceinline__ float4 combine(const char *ring, const int *free_stage, int head,
                                                 int d, float sink, float *lse) {
    float max = sink;
    float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const warp_result<S> *r[S::N_WARPS];
#pragma unroll
    for (int w = 0; w < S::N_WARPS; w++) {
        r[w] = reinterpret_cast<const warp_result<S> *>(
            ring + (size_t)(w * S::N_STAGES + free_stage[w]) * S::STAGE_BYTES);
        max = fmaxf(max, r[w]->max[head]);
    }
    float sum = exp2_fast(sink - max);
#pragma unroll
    for (int w = 0; w < S::N_WARPS; w++) {
        const float weight = exp2_fast(r[w]->max[head] - max);
        sum += r[w]->sum[head] * weight;
        add_scaled(&out, *reinterpret_cast<const float4 *>(&r[w]->out[head][d]), weight);
    }
    *lse = max + log2f(sum);
    return scaled(out, 1.0f / sum);
}

template <class S>
static __device__ __forceinline__ void store_tile(const attn_decode_params &p,
                                                  const attn_tile &tile, const char *ring,
                                                  const int *free_stage, int group) {
#pragma unroll 1
    for (int i = threadIdx.x; i < group * (S::D / 4); i += S::N_WARPS * 32) {
        const int head = i / (S::D / 4), d = i % (S::D / 4) * 4,
                  of_all = tile.kv_head * group + head;
        /* Of parts of an item, the sink joins their sum (exchange.cuh). */
        const float sink = tile.partial < 0 ? sink_of(p.sinks, of_all) : -INFINITY;
        float lse;
        const float4 out = combine<S>(ring, free_stage, head, d, sink, &lse);
        if (tile.partial < 0) {
            const size_t row = (size_t)tile.seq * p.n_heads + of_all;
            if (p.attn_stats.lse && d == 0) p.attn_stats.lse[row] = lse;
            store_bf16(static_cast<__nv_bfloat16 *>(p.out) + row * S::D + d, out);
        } else {
            leave_part(p, (size_t)tile.partial * group * (S::D / 4) + i, out, lse);
        }
    }
}

#endif
