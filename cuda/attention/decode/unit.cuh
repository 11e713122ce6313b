/* unit.cuh - a warp's attention to one unit: 16 slots (8-bit: 16 or 32), their keys and values.
 *
 * It is computed transposed, so that a group of up to 8 query heads fills the 8 columns of
 * mma.m16n8k16 (9 to 16 heads: two such tiles):
 *
 *   S^T [16 slots, 8 heads] = K [16, d] Q^T [d, 8]         A: ldmatrix       B: registers
 *   O^T [d, 8 heads]       += V^T [d, 16] P^T [16, 8]      A: ldmatrix.trans B: movmatrix of S^T
 *
 * Slots past the tile's end are masked, and their values replaced by zeros: a page's unused slots
 * may hold anything, NaN too.  Slots of a unit that lie before the window are only masked.
 *
 * Thread: device code, by whole warps.  Memory: the unit's stage, in which keys that are stored
 * before RoPE are rotated. */
#ifndef CUDA_ATTENTION_DECODE_UNIT_CUH
#define CUDA_ATTENTION_DECODE_UNIT_CUH

#include "cuda/attention/decode/fp8.cuh"
#include "cuda/attention/decode/scores.cuh"
#include "cuda/attention/decode/softmax.cuh"
#include "cuda/attention/decode/tile.cuh"
#include "cuda/common/bias.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/step.cuh"
#include "engine/device/pages.h"

/* The work of a tile beside full attention: for its layer's window, for its sequence's budget, or
 * for a selection. */
struct tile_duties {
    float *scores;  /* of the item: [slot][group]; NULL: none */
    bool rotated;   /* keys are stored before RoPE */
    int first_seen; /* slot */
    uint32_t query; /* with slopes: its position */
    bool plain;     /* scores are as products make them and not stored; no slot is before
                       first_seen */
};

template <class S>
static __device__ __forceinline__ tile_duties duties_of(const attn_decode_params &p,
                                                        const attn_tile &tile, int group) {
    tile_duties d = {nullptr, false, 0, 0, false};
    if (p.window > 0)
        d.first_seen = p.step->n_slots[(size_t)p.layer * p.step->n_seqs + tile.seq] - (int)p.window;
    const device_budget *budget = budget_of(*p.step, tile.seq, p.layer);
    d.rotated = budget && budget->cache_positions;
    const int32_t at =
        p.attn_stats.scores ? scores_place(*p.step, tile.seq, p.layer, p.selects) : -1;
    if (at >= 0)
        d.scores =
            p.attn_stats.scores + (tile.kv_head * p.attn_stats.score_stride + (size_t)at) * group;
    if (S::PLACED && p.bias.slopes)
        d.query = query_place(p.bias, tile.seq, (uint32_t)p.step->first_row[tile.seq]);
    d.plain = !d.scores && p.scale.inner <= 0 && !p.bias.slopes && tile.begin >= d.first_seen;
    return d;
}

/* ---- scores ---- */

/* Rotates a unit's keys in place, two lanes to a row.  A fence follows, because the copy engine
 * later writes there again. */
template <class S>
static __device__ __forceinline__ void rotate_unit(const attn_decode_params &p,
                                                   const attn_tile &tile, int slot, uint32_t unit,
                                                   const int32_t *table, const unit_ring &r) {
    const int row = r.lane % ATTN_UNIT_SLOTS, n = (int)p.rotations.n_freqs / 8;
    const int page = __ldg(table + tile.pages + slot / PAGE_TOKENS);
    const char *states = static_cast<const char *>(p.pool) + page * p.page_bytes +
                         page_states_at(S::FORMAT, p.n_kv_heads, S::D);
    const kv_page_state *state = reinterpret_cast<const kv_page_state *>(states) + tile.kv_head;
    if (slot + row < tile.end) {
        const uint32_t rank = state->rank[slot % PAGE_TOKENS + row];
#pragma unroll 1
        for (int i = r.lane / ATTN_UNIT_SLOTS; i < n; i += 2) {
            uint4 *const a = chunk_at<S>(unit, row, i), *const b = chunk_at<S>(unit, row, i + n);
            uint4 x = *a, y = *b;
            rotate_pairs<typename S::T>(&x, &y, p.rotations, i * 8, rank);
            *a = x;
            *b = y;
        }
    }
    if (S::BULK) fence_async_proxy();
    __syncwarp();
}

/* Computes s [slots lane / 4 and + 8][heads lane % 4 * 2 and + 1] = q.k of a unit. */
template <class S>
static __device__ __forceinline__ void unit_scores(float (&s)[S::N_TILES][4],
                                                   const decode_state<S> &st, uint32_t stage,
                                                   const unit_ring &r) {
    float odd[S::N_TILES][4] = {};
    const rows_at<S> at = {stage + r.key_row};
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t keys[4];
        load_matrix(keys, at(k));
        multiply_keys<S>(s, odd, st, keys, k);
    }
    add_sums<S>(s, odd);
}

/* ---- softmax ---- */

/* Converts a unit's scores to probabilities (unnormalised), in the layout of B. */
template <class S>
static __device__ __forceinline__ void soften_unit(decode_state<S> *st,
                                                   float (&s)[S::SLOT_TILES][S::N_TILES][4],
                                                   uint32_t (&prob)[S::N_TILES][2]) {
    float top[S::N_TILES][2];
    const bool exceeds = find_top<S>(*st, s, top);
    if (__any_sync(~0u, exceeds)) raise_maximum<S>(st, top, 1.0f);
    soften<S>(st, s[0]);
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        prob[n][0] = transpose_8x8(pack<typename S::T>(s[0][n][0], s[0][n][1]));
        prob[n][1] = transpose_8x8(pack<typename S::T>(s[0][n][2], s[0][n][3]));
    }
}

/* ---- outputs ---- */

/* Adds a unit's values, times their probabilities, to the outputs. */
template <class S>
static __device__ __forceinline__ void add_values(decode_state<S> *st,
                                                  const uint32_t (&prob)[S::N_TILES][2],
                                                  uint32_t stage, const unit_ring &r) {
    const rows_at<S> at = {stage + r.value_row};
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t values[4];
        load_matrix_trans(values, at(k));
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            mma<typename S::T>(st->out[n][k], values, prob[n][0], prob[n][1]);
    }
}

/* Takes from a unit's products what the distances of its keys cost. */
template <class S>
static __device__ __forceinline__ void add_bias(float (&s)[S::SLOT_TILES][S::N_TILES][4],
                                                const attn_decode_params &p, const attn_tile &tile,
                                                const tile_duties &d, int slot, int group,
                                                int lane) {
    const key_places places = places_of(p.bias, tile.seq, tile.kv_head, slot);
    const float *slopes = p.bias.slopes + tile.kv_head * group;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int head = n * 8 + lane % 4 * 2 + i;
            const float slope = head < group ? slopes[head] / p.scale.outer : 0.0f;
#pragma unroll
            for (int j = 0; j < 2 * S::SLOT_TILES; j++)
                s[j / 2][n][j % 2 * 2 + i] -=
                    distance_cost(slope, d.query, places.of(lane / 4 + j * 8));
        }
}

/* Makes scores of a unit's products where that is more than a factor, and stores them, if the tile
 * has such duties. */
template <class S>
static __device__ __forceinline__ void bend_and_store(float (&s)[S::SLOT_TILES][S::N_TILES][4],
                                                      const attn_decode_params &p,
                                                      const attn_tile &tile, const tile_duties &d,
                                                      int slot, int group, const unit_ring &r) {
    if (p.scale.inner > 0) cap_products(s, p.scale.inner);
    if (S::PLACED && p.bias.slopes) add_bias<S>(s, p, tile, d, slot, group, r.lane);
#pragma unroll
    for (int m = 0; m < S::SLOT_TILES; m++) {
        if (d.scores) store_scores<S>(d.scores, p, tile, s[m], slot + m * 16, group, r);
    }
}

/* Does what attend_unit() does, for codes. */
template <class S>
static __device__ __forceinline__ void attend_codes(decode_state<S> *st,
                                                    const attn_decode_params &p,
                                                    const attn_tile &tile, const tile_duties &d,
                                                    int slot, uint32_t stage, int group,
                                                    const int32_t *table, const unit_ring &r) {
    float s[S::SLOT_TILES][S::N_TILES][4] = {};
    uint32_t prob[S::SLOT_TILES][S::N_TILES][2];
    if (S::PLACED && d.rotated) code_scores<S, true>(s, *st, p, tile, slot, stage, table, r.lane);
    else code_scores<S, false>(s, *st, p, tile, slot, stage, table, r.lane);
    code_scales<S> scales(stage, r.lane);
    bend_and_store<S>(s, p, tile, d, slot, group, r);
    const int first = max(d.first_seen, tile.begin) - slot, end = tile.end - slot;
    if (first > 0 || end < S::UNIT_SLOTS) {
        hide_slots<S>(s, first, end, r.lane);
        hide_scales<S>(&scales, first, end, r.lane);
    }
    /* Asked for before the softmax, which hides how long they take to come and to be converted. */
    const value_codes<S> values(stage + S::UNIT_BYTES, r.lane);
    soften_codes<S>(st, s, scales, prob);
    add_codes<S>(st, prob, values);
}

template <class S>
static __device__ __forceinline__ void attend_unit(decode_state<S> *st, const attn_decode_params &p,
                                                   const attn_tile &tile, const tile_duties &d,
                                                   int slot, uint32_t stage, int group,
                                                   const int32_t *table, const unit_ring &r) {
    if constexpr (S::FP8) return attend_codes<S>(st, p, tile, d, slot, stage, group, table, r);
    float s[S::SLOT_TILES][S::N_TILES][4] = {};
    if (S::PLACED && d.rotated) rotate_unit<S>(p, tile, slot, stage, table, r);
    unit_scores<S>(s[0], *st, stage, r);
    const int first = d.first_seen - slot, end = tile.end - slot;
    if (!d.plain || end < S::UNIT_SLOTS) { /* one branch for what few units need */
        bend_and_store<S>(s, p, tile, d, slot, group, r);
        if (first > 0 || end < S::UNIT_SLOTS) hide_slots<S>(s, first, end, r.lane);
    }
    uint32_t prob[S::N_TILES][2];
    soften_unit<S>(st, s, prob);
    add_values<S>(st, prob, stage, r);
}

#endif
