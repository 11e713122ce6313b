/* scores.cuh - the scores of a decoding row, for budgets and selections (struct attn_stats).
 *
 * A slot's scores of a group lie together, and neighbouring slots too: whole cache lines are
 * written.
 *
 * The cost of scores is that of memory writes among reads; the instructions cost 0.5 %.  On an H100
 * a bare kernel that reads 1 GiB in 351 us needs 10 % more when it also writes a 32nd of that.  The
 * same bytes, for 32 x 8192 slots of 32/8 heads, cost 10 % here:
 *
 *   bare kernel, 1 GiB read    writes a 64th: 6.7 %  a 32nd: 10.1  a 16th: 11.7  an 8th: 21.7
 *                              8 MB, over and over, which stay in L2: 0.7 to 2.7
 *   attention, a 32nd          1 x 131072: 5.7 %   64 x 2048: 6.5 to 7.2   32 x 8192: 10.2
 *                              4 x 65536: 10       64 x 8192: 9.3
 *
 * No other way of writing them changed that: any cache policy, at the kernel's end, in a separate
 * kernel (9 to 12 % beside bare reads), staged in shared memory and written by all blocks at a
 * time, rows padded, a part of L2 set aside.  Only fewer bytes do: 2 bytes a score cost 3.5 to
 * 7.9 %.  Evicting scores from L2 first helps small batches: 5 % instead of 7.5 % of 1 x 131072.
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
