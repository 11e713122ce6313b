/* scores.cuh - the scores of a decoding row, for budgets and selections (struct attn_stats).
 *
 * A slot's scores of a group lie together, and neighbouring slots too: whole cache lines are
 * written.
 *
 * The cost of scores is that of memory writes among reads, not of instructions.  Neither cache
 * policies nor staging in shared memory nor a kernel of its own change it: only fewer bytes do
 * (docs/benchmarks/gpu.md).
 *
 * Thread: device code, by whole warps.  Memory: none of its own. */
#ifndef CUDA_ATTENTION_DECODE_SCORES_CUH
#define CUDA_ATTENTION_DECODE_SCORES_CUH

#include "cuda/attention/decode/ring.cuh"

/* Stores a unit's scores.  s: as unit_scores() returns them, before a window hides slots; item:
 * `scores` of struct tile_duties. */
template <class S>
static __device__ __forceinline__ void store_scores(float *item, const attn_decode_params &p,
                                                    const attn_tile &tile,
                                                    const float (&s)[S::N_TILES][4], int slot,
                                                    int group, const unit_ring &r) {
    const int lane = r.lane;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        const int head = n * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = slot + lane / 4 + i * 8;
            if (at >= tile.end || head >= group) continue;
            if (S::UNIT_SLOTS > ATTN_UNIT_SLOTS && at < tile.begin) continue; /* another tile's */
            float *const to = item + (size_t)at * group + head;
            const float2 x =
                make_float2(s[n][i * 2] * p.scale.outer, s[n][i * 2 + 1] * p.scale.outer);
            if (group % 2 == 0) {
                store_global(to, x, r.policy);
            } else {
                to[0] = x.x;
                if (head + 1 < group) to[1] = x.y;
            }
        }
    }
}

#endif
