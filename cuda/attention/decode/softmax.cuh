/* softmax.cuh - the online softmax of a warp's units, in base 2, f32.
 *
 * The maxima that are subtracted from the heads' scores are raised only if a unit has a score, of
 * any head, that is larger by MAX_SLACK.  Most units then have nothing to reduce among lanes, and
 * no outputs to rescale.  A maximum is therefore the score of one of the warp's slots, but not
 * always of the largest.  But for rounding, results do not depend on that: sums and outputs are
 * relative to the same maximum.
 *
 * Thread: device code, by whole warps.  Memory: none. */
#ifndef CUDA_ATTENTION_DECODE_SOFTMAX_CUH
#define CUDA_ATTENTION_DECODE_SOFTMAX_CUH

#include "cuda/attention/decode/tile.cuh"

/* In log2: a probability is up to 2^3, and with 8 bits times 2^12 (SCALED_ONE) it still is an
 * f16. */
static constexpr float MAX_SLACK = 3.0f;

/* Hides a unit's slots before `first`, and from `end` on. */
template <class S>
static __device__ __forceinline__ void hide_slots(float (&s)[S::SLOT_TILES][S::N_TILES][4],
                                                  int first, int end, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * S::SLOT_TILES; i++) {
        const int slot = lane / 4 + i * 8;
        if (slot >= first && slot < end) continue;
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            s[i / 2][n][i % 2 * 2] = s[i / 2][n][i % 2 * 2 + 1] = -INFINITY;
    }
}

/* Finds the largest products that this lane has of each head in a unit.  Returns whether a score
 * exceeds its head's maximum by more than MAX_SLACK. */
template <class S>
static __device__ __forceinline__ bool find_top(const decode_state<S> &st,
                                                const float (&s)[S::SLOT_TILES][S::N_TILES][4],
                                                float (&top)[S::N_TILES][2]) {
    bool exceeds = false;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int m = 0; m < S::SLOT_TILES; m++) {
                const float larger = fmaxf(s[m][n][i], s[m][n][i + 2]);
                top[n][i] = m == 0 ? larger : fmaxf(top[n][i], larger);
            }
            /* The first maximum is -inf, which any score exceeds that is not hidden. */
            exceeds |= top[n][i] * st.scale_log2 - st.max[n][i] > MAX_SLACK;
        }
    }
    return exceeds;
}

/* Raises the maximum of each head to that of `top`, a lane's largest products, over all lanes.
 * Rescales sums and outputs, and multiplies outputs by `unit` too. */
template <class S>
static __device__ __forceinline__ void raise_maximum(decode_state<S> *st,
                                                     const float (&top)[S::N_TILES][2],
                                                     float unit) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            /* A unit has a slot that is not hidden, so the new maximum is finite. */
            const float max = fmaxf(st->max[n][i], column_max(top[n][i]) * st->scale_log2);
            factor[i] = exp2_fast(st->max[n][i] - max);
            st->max[n][i] = max;
            st->sum[n][i] *= factor[i];
        }
#pragma unroll
        for (int k = 0; k < S::K_STEPS; k++)
            for (int i = 0; i < 4; i++) st->out[n][k][i] *= factor[i % 2] * unit;
    }
}

/* Converts products of 16 slots to probabilities (unnormalised), and adds them to the sums. */
template <class S>
static __device__ __forceinline__ void soften(decode_state<S> *st, float (&s)[S::N_TILES][4]) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            s[n][i] = exp2_fast(s[n][i] * st->scale_log2 - st->max[n][i % 2]);
        st->sum[n][0] += s[n][0] + s[n][2];
        st->sum[n][1] += s[n][1] + s[n][3];
    }
}

#endif
