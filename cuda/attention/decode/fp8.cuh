/* fp8.cuh - units of 8 bits (DTYPE_FP8) in decode attention: scores and outputs of codes.
 *
 * Such pages are copied by cp.async, and converted to f16 when they are read from shared memory.
 * One instruction converts two codes, and f16 represents every code exactly.  A slot's scale is a
 * power of two, so it multiplies the slot's scores or probabilities instead, with the same result.
 *
 * Probabilities are f16 too, so they are multiplied by their scale relative to the largest that the
 * warp has met.  That largest scale is applied when outputs are handed over.
 *
 * ldmatrix does not handle bytes, so dimensions are permuted:
 *
 *   K   a lane takes four in a row, from 4 (lane % 4) of 16 on, where mma has 2, and 2 more 8 after
 *       them; Q is read the same way
 *   V   ldmatrix.trans transposes pairs of dimensions as if each were one: rows lane / 4 and + 8 of
 *       mma are dimensions 2 (lane / 4) and the next
 *
 * Thread: device code, by whole warps.  Memory: none of its own. */
#ifndef CUDA_ATTENTION_DECODE_FP8_CUH
#define CUDA_ATTENTION_DECODE_FP8_CUH

#include "cuda/attention/decode/tile.cuh"
#include "cuda/kv/evict.cuh"
#include "engine/device/pages.h"

/* Converts the two codes in the lower bytes to f16; exact. */
static __device__ __forceinline__ uint32_t f16_of(uint32_t codes) {
    const __half2_raw pair = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)codes, __NV_E4M3);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

/* Loads a lane's keys of a 16 x 16 matrix: slots lane / 4 (registers 0, 2) and + 8, dimensions from
 * 16 k + 4 (lane % 4) on. */
template <class S>
static __device__ __forceinline__ void load_codes(uint32_t (&keys)[4], uint32_t unit, int k,
                                                  int lane) {
    const uint32_t at = unit + lane / 4 * S::ROW_BYTES + k * 16 + lane % 4 * 4;
    const uint32_t low = load_shared(at), high = load_shared(at + 8 * S::ROW_BYTES);
    keys[0] = f16_of(low), keys[1] = f16_of(high);
    keys[2] = f16_of(low >> 16), keys[3] = f16_of(high >> 16);
}

/* Returns the ranks of a lane's two slots; 0 past the tile's end. */
template <class S>
static __device__ __forceinline__ uint2 ranks_of(const attn_decode_params &p, const attn_tile &tile,
                                                 int slot, const int32_t *table, int lane) {
    const int page = __ldg(table + tile.pages + slot / PAGE_TOKENS), at = slot + lane / 4;
    const char *states = static_cast<const char *>(p.pool) + page * p.page_bytes +
                         (size_t)p.n_kv_heads * 2 * PAGE_TOKENS * (S::D + 1);
    const uint32_t *rank =
        reinterpret_cast<const kv_page_state *>(states)[tile.kv_head].rank + at % PAGE_TOKENS;
    return make_uint2(at < tile.end ? rank[0] : 0, at + 8 < tile.end ? rank[8] : 0);
}

/* Rotates the keys of matrix k in a lane's registers, as rotate_unit() does in shared memory.
 * `other` are the other halves of the pairs, n_freqs dimensions before or after. */
template <class S>
static __device__ __forceinline__ void rotate_codes(uint32_t (&keys)[4],
                                                    const attn_decode_params &p, uint32_t unit,
                                                    int k, uint2 ranks, int lane) {
    const int n = (int)p.rotations.n_freqs / ATTN_DECODE_ROTATED;
    if (k >= 2 * n) return;
    const bool is_first = k < n;
    const uint32_t freq = (is_first ? k : k - n) * 16 + lane % 4 * 4;
    uint32_t other[4];
    load_codes<S>(other, unit, is_first ? k + n : k - n, lane);
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

/* Returns the scales of slots lane / 4 (x) and + 8 (y), of keys or of values. */
template <class S>
static __device__ __forceinline__ uint2 unit_scales(uint32_t stage, bool values, int lane) {
    const uint32_t at = stage + 2 * S::UNIT_BYTES + values * ATTN_UNIT_SLOTS + lane / 4;
    return make_uint2(load_shared_byte(at), load_shared_byte(at + 8));
}

/* Computes what unit_scores() does, from codes. */
template <class S, bool ROTATED>
static __device__ __forceinline__ void code_scores(float (&s)[S::N_TILES][4],
                                                   const decode_state<S> &st,
                                                   const attn_decode_params &p,
                                                   const attn_tile &tile, int slot, uint32_t stage,
                                                   const int32_t *table, int lane) {
    const uint2 scales = unit_scales<S>(stage, false, lane);
    float odd[S::N_TILES][4] = {};
    uint2 ranks = {};
    if (ROTATED) ranks = ranks_of<S>(p, tile, slot, table, lane);
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t keys[4];
        load_codes<S>(keys, stage, k, lane);
        if (ROTATED) rotate_codes<S>(keys, p, stage, k, ranks, lane);
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            mma<typename S::T>(k % 2 ? odd[n] : s[n], keys, st.q[n][k][0], st.q[n][k][1]);
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        for (int i = 0; i < 4; i++)
            s[n][i] = (s[n][i] + odd[n][i]) * fp8_factor(i < 2 ? scales.x : scales.y);
}

/* Returns the factors of a unit's probabilities, for slots lane / 4 (x) and + 8 (y).  z is the
 * factor of the outputs before the unit is added. */
template <class S>
static __device__ __forceinline__ float3 value_factors(decode_state<S> *st, uint32_t stage,
                                                       int n_valid, int lane) {
    uint2 scales = unit_scales<S>(stage, true, lane);
    if (lane / 4 >= n_valid) scales.x = 0; /* a masked slot may have any scale */
    if (lane / 4 + 8 >= n_valid) scales.y = 0;
    const int before = st->scale,
              largest = max(before, __reduce_max_sync(~0u, (int)max(scales.x, scales.y)));
    st->scale = largest;
    return make_float3(fp8_factor(max(SCALED_ONE + (int)scales.x - largest, 0)),
                       fp8_factor(max(SCALED_ONE + (int)scales.y - largest, 0)),
                       fp8_factor(max(127 + before - largest, 0)));
}

/* Does what add_values() does, from codes: two matrices, 32 dimensions, at a time. */
template <class S>
static __device__ __forceinline__ void add_codes(decode_state<S> *st,
                                                 const uint32_t (&prob)[S::N_TILES][2],
                                                 uint32_t unit, int lane) {
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k += 2) {
        const int mine = min(k + lane / 16, S::K_STEPS - 1);
        uint32_t codes[4]; /* of slots 0 - 7, 8 - 15, and the same of the next matrix */
        load_matrix_trans(codes, unit + lane % 16 * S::ROW_BYTES + mine * 16);
#pragma unroll
        for (int j = 0; j < 2 && k + j < S::K_STEPS; j++) {
            const uint32_t *c = codes + 2 * j;
            const uint32_t values[4] = {
                f16_of(__byte_perm(c[0], 0, 0x4420)), f16_of(__byte_perm(c[0], 0, 0x4431)),
                f16_of(__byte_perm(c[1], 0, 0x4420)), f16_of(__byte_perm(c[1], 0, 0x4431))};
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
                mma<typename S::T>(st->out[n][k + j], values, prob[n][0], prob[n][1]);
        }
    }
}

#endif
