/* fp8.cuh - units of 8 bits (PAGE_FP8) in decode attention: scores and outputs of codes.
 *
 * Codes are converted to f16 when they are read from shared memory.  One instruction converts two,
 * and f16 represents every code exactly.  A slot's scale is a power of two, so it multiplies the
 * slot's scores or probabilities instead, with the same result.
 *
 * Probabilities are f16 too, so they are multiplied by their scale relative to the largest that the
 * warp has met.  That largest scale is applied when outputs are handed over.  It is found anew
 * only together with the maximum of scores (softmax.cuh): when a unit exceeds either.
 *
 * ldmatrix does not handle bytes, so dimensions are permuted:
 *
 *   K   a lane takes four in a row where mma has 2, and 2 more 8 after them: code_column(); Q is
 *       read the same way
 *   V   ldmatrix.trans transposes pairs of dimensions as if each were one: rows lane / 4 and + 8 of
 *       mma are dimensions 2 (lane / 4) and the next
 *
 * Thread: device code, by whole warps.  Memory: none of its own. */
#ifndef CUDA_ATTENTION_DECODE_FP8_CUH
#define CUDA_ATTENTION_DECODE_FP8_CUH

#include "cuda/attention/decode/softmax.cuh"
#include "cuda/attention/decode/tile.cuh"
#include "cuda/common/rotation.cuh"
#include "engine/device/pages.h"

/* Converts two codes to f16; exact. */
static __device__ __forceinline__ uint32_t f16_of(uint16_t codes) {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* Converts four codes: the two in the lower bytes, and the two in the upper.  The instruction
 * that converts takes either half of a register, but nvcc does not see that in a shift. */
static __device__ __forceinline__ void to_f16(uint32_t codes, uint32_t &low, uint32_t &high) {
    uint16_t lower, upper;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(lower), "=h"(upper) : "r"(codes));
    low = f16_of(lower), high = f16_of(upper);
}

/* ---- scores ---- */

/* Returns the address of a row's codes from `column` on. */
template <class S>
static __device__ __forceinline__ uint32_t code_address(uint32_t unit, int row, int column) {
    return chunk_address<S>(unit, row, column / 16) + column % 16;
}

/* Loads a lane's codes of one row, of CODE_STEPS steps. */
template <class S>
static __device__ __forceinline__ void load_codes(uint32_t (&codes)[S::CODE_STEPS], uint32_t at) {
    if constexpr (S::CODE_STEPS == 4) load_shared(codes, at);
    else codes[0] = load_shared(at);
}

/* Returns the ranks of a lane's two slots; 0 past the tile's end. */
template <class S>
static __device__ __forceinline__ uint2 ranks_of(const attn_decode_params &p, const attn_tile &tile,
                                                 int slot, const int32_t *table, int lane) {
    const int page = __ldg(table + tile.pages + slot / PAGE_TOKENS), at = slot + lane / 4;
    const char *states = static_cast<const char *>(p.pool) + page * p.page_bytes +
                         page_states_at(S::FORMAT, p.n_kv_heads, S::D);
    const uint32_t *rank =
        reinterpret_cast<const kv_page_state *>(states)[tile.kv_head].rank + at % PAGE_TOKENS;
    return make_uint2(at < tile.end ? rank[0] : 0, at + 8 < tile.end ? rank[8] : 0);
}

/* Rotates the keys of step k in a lane's registers, as rotate_unit() does in shared memory.  The
 * other halves of the pairs are n_freqs dimensions before or after. */
template <class S>
static __device__ __forceinline__ void rotate_codes(uint32_t (&keys)[4],
                                                    const attn_decode_params &p, uint32_t unit,
                                                    int row, int k, uint2 ranks, int lane) {
    const int n = (int)p.rotations.n_freqs, column = code_column<S>(k, lane);
    if (column >= 2 * n) return;
    const bool is_first = column < n;
    const int pair = is_first ? column + n : column - n;
    const uint32_t at = code_address<S>(unit, row, pair), freq = is_first ? column : pair;
    uint32_t other[4];
    to_f16(load_shared(at), other[0], other[2]);
    to_f16(load_shared(at + 8 * S::PITCH), other[1], other[3]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t rank = i % 2 ? ranks.y : ranks.x;
        const float2 x = unpack_pair<__half>(keys[i]), y = unpack_pair<__half>(other[i]),
                     a = angle_of(p.rotations, freq + i / 2 * 2, rank),
                     b = angle_of(p.rotations, freq + i / 2 * 2 + 1, rank);
        const float s = is_first ? -1.0f : 1.0f;
        keys[i] = pack<__half>(x.x * a.x + s * y.x * a.y, x.y * b.x + s * y.y * b.y);
    }
}

/* Computes what unit_scores() does, from the codes of 16 slots, without their scales. */
template <class S, bool ROTATED>
static __device__ __forceinline__ void multiply_codes(float (&s)[S::N_TILES][4],
                                                      const decode_state<S> &st,
                                                      const attn_decode_params &p, uint32_t unit,
                                                      int row, uint2 ranks, int lane) {
    float odd[S::N_TILES][4] = {};
#pragma unroll
    for (int first = 0; first < S::K_STEPS; first += S::CODE_STEPS) {
        const uint32_t at = code_address<S>(unit, row, code_column<S>(first, lane));
        uint32_t low[S::CODE_STEPS], high[S::CODE_STEPS];
        load_codes<S>(low, at);
        load_codes<S>(high, at + 8 * S::PITCH);
#pragma unroll
        for (int i = 0; i < S::CODE_STEPS; i++) {
            const int k = first + i;
            uint32_t keys[4];
            to_f16(low[i], keys[0], keys[2]);
            to_f16(high[i], keys[1], keys[3]);
            if (ROTATED) rotate_codes<S>(keys, p, unit, row, k, ranks, lane);
            multiply_keys<S>(s, odd, st, keys, k);
        }
    }
    add_sums<S>(s, odd);
}

/* Returns the scale of a slot's key (kind 0) or value (1). */
template <class S>
static __device__ __forceinline__ uint32_t scale_of(uint32_t stage, int kind, int slot) {
    return load_shared_byte(stage + 2 * S::UNIT_BYTES + kind * S::UNIT_SLOTS + slot);
}

/* Computes what unit_scores() does, of each 16 slots of a unit of codes. */
template <class S, bool ROTATED>
static __device__ __forceinline__ void code_scores(float (&s)[S::SLOT_TILES][S::N_TILES][4],
                                                   const decode_state<S> &st,
                                                   const attn_decode_params &p,
                                                   const attn_tile &tile, int slot, uint32_t stage,
                                                   const int32_t *table, int lane) {
    /* Not unrolled: the code that rotates is large. */
#pragma unroll(ROTATED ? 1 : S::SLOT_TILES)
    for (int m = 0; m < S::SLOT_TILES; m++) {
        const int row = lane / 4 + m * 16;
        const float low = fp8_factor(scale_of<S>(stage, 0, row)),
                    high = fp8_factor(scale_of<S>(stage, 0, row + 8));
        uint2 ranks = {};
        if (ROTATED) ranks = ranks_of<S>(p, tile, slot + m * 16, table, lane);
        float x[S::N_TILES][4] = {};
        multiply_codes<S, ROTATED>(x, st, p, stage, row, ranks, lane);
#pragma unroll
        for (int to = 0; to < S::SLOT_TILES; to++)
            for (int i = 0; i < S::N_TILES * 4 && to == m; i++)
                s[to][i / 4][i % 4] = x[i / 4][i % 4] * (i % 4 < 2 ? low : high);
    }
}

/* ---- softmax ---- */

/* The scales of values: of slots lane / 4 and + 8 of each 16. */
template <class S> struct code_scales {
    uint32_t of[S::SLOT_TILES][2];
    __device__ __forceinline__ code_scales(uint32_t stage, int lane) {
#pragma unroll
        for (int i = 0; i < 2 * S::SLOT_TILES; i++)
            of[i / 2][i % 2] = scale_of<S>(stage, 1, lane / 4 + i * 8);
    }
    __device__ __forceinline__ uint32_t largest() const {
        uint32_t x = max(of[0][0], of[0][1]);
#pragma unroll
        for (int m = 1; m < S::SLOT_TILES; m++) x = max(x, max(of[m][0], of[m][1]));
        return x;
    }
};

/* Clears the scales of slots that hide_slots() hides: those bytes may be anything. */
template <class S>
static __device__ __forceinline__ void hide_scales(code_scales<S> *scales, int first, int end,
                                                   int lane) {
#pragma unroll
    for (int i = 0; i < 2 * S::SLOT_TILES; i++) {
        const int slot = lane / 4 + i * 8;
        if (slot < first || slot >= end) scales->of[i / 2][i % 2] = 0;
    }
}

/* Raises the scale of outputs to the largest `scale` of all lanes, if that is larger.  Returns the
 * factor by which that changes outputs. */
template <class S>
static __device__ __forceinline__ float raise_scale(decode_state<S> *st, uint32_t scale) {
    const int before = st->scale;
    st->scale = max(before, __reduce_max_sync(~0u, (int)scale));
    return fp8_factor(max(127 + before - st->scale, 0));
}

/* Converts a unit's scores to probabilities (unnormalised), times their values' scales, in the
 * layout of B. */
template <class S>
static __device__ __forceinline__ void soften_codes(
    decode_state<S> *st, float (&s)[S::SLOT_TILES][S::N_TILES][4], const code_scales<S> &scales,
    uint32_t (&prob)[S::SLOT_TILES][S::N_TILES][2]) {
    float top[S::N_TILES][2];
    bool grows = find_top<S>(*st, s, top);
    grows |= (int)scales.largest() > st->scale;
    if (__any_sync(~0u, grows)) raise_maximum<S>(st, top, raise_scale<S>(st, scales.largest()));
#pragma unroll
    for (int m = 0; m < S::SLOT_TILES; m++) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            factor[i] = fp8_factor(max(SCALED_ONE + (int)scales.of[m][i] - st->scale, 0));
        soften<S>(st, s[m]);
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++) {
            const float *const x = s[m][n];
            prob[m][n][0] = transpose_8x8(pack<__half>(x[0] * factor[0], x[1] * factor[0]));
            prob[m][n][1] = transpose_8x8(pack<__half>(x[2] * factor[1], x[3] * factor[1]));
        }
    }
}

/* ---- outputs ---- */

/* A unit's codes of values as a lane has them, two matrices, 32 dimensions, at a time: of slots
 * 0 - 7, 8 - 15, and the same of the next matrix. */
template <class S> struct value_codes {
    uint32_t of[S::SLOT_TILES][(S::K_STEPS + 1) / 2][4];
    __device__ __forceinline__ value_codes(uint32_t unit, int lane) {
#pragma unroll
        for (int m = 0; m < S::SLOT_TILES; m++) {
            const rows_at<S> at = {unit + chunk_address<S>(0, lane % 16 + m * 16, lane / 16)};
#pragma unroll
            for (int k = 0; k < S::K_STEPS; k += 2) {
                /* An odd last matrix is loaded twice. */
                const bool is_alone = k + 1 == S::K_STEPS;
                load_matrix_trans(of[m][k / 2], at(k / 2) - (is_alone ? lane / 16 * 16 : 0));
            }
        }
    }
};

/* Does what add_values() does, from codes. */
template <class S>
static __device__ __forceinline__ void add_codes(
    decode_state<S> *st, const uint32_t (&prob)[S::SLOT_TILES][S::N_TILES][2],
    const value_codes<S> &codes) {
#pragma unroll
    for (int m = 0; m < S::SLOT_TILES; m++) {
#pragma unroll
        for (int k = 0; k < S::K_STEPS; k++) {
            const uint32_t *const pair = &codes.of[m][k / 2][k % 2 * 2];
            uint32_t values[4];
            to_f16(__byte_perm(pair[0], 0, 0x3120), values[0], values[1]);
            to_f16(__byte_perm(pair[1], 0, 0x3120), values[2], values[3]);
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
                mma<typename S::T>(st->out[n][k], values, prob[m][n][0], prob[m][n][1]);
        }
    }
}

#endif
