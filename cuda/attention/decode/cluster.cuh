/* cluster.cuh - how the blocks of a cluster merge their parts of an item, in place of merge.cu.
 *
 *   block 0   |part| ──┬─> vectors 0 ..       of the group's outputs, from every block
 *   block 1   |part| ──┼─> vectors share ..
 *   ...                └─> ...
 *
 * Each block owns an equal share of the outputs.  It sends its own parts of the other shares to
 * their owners' shared memory, and merges what it is sent.  A kernel that merges costs 5 us, the
 * step to it included; this costs one to two, part of them to fetch its instructions.
 *
 * Thread: device code, by whole blocks.  Memory: a cluster_exchange a block. */
#ifndef CUDA_ATTENTION_DECODE_CLUSTER_CUH
#define CUDA_ATTENTION_DECODE_CLUSTER_CUH

#include "cuda/attention/decode/tile.cuh"

/* The memory in which a block receives parts: vector i of its share, from block b, is at
 * b * share + i.  The struct is empty where no cluster can be. */
template <class S, bool BULK = S::BULK> struct cluster_exchange {
    static constexpr int ROOM = S::HEADS * S::D / 4 + ATTN_MAX_CLUSTER;
    float4 out[ROOM];
    float lse[ROOM]; /* base 2; -inf: the block has no slot, and its out is 0 */
};
template <class S> struct cluster_exchange<S, false> {};

/* Blocks whose parts are read at the same time: all, where eight KV heads share an H100. */
enum { MERGE_BATCH = 9 };

/* Merges output vector i of this block's share, of all blocks' parts. */
template <class S>
static __device__ __forceinline__ void merge_parts(const attn_decode_params &p,
                                                   const attn_tile &tile, int group, int vector,
                                                   int i, int share,
                                                   const cluster_exchange<S> *exchange) {
    const int n = (int)p.n_cluster, head = vector / (S::D / 4), d = vector % (S::D / 4) * 4;
    const size_t row = (size_t)tile.seq * p.n_heads + tile.kv_head * group + head;
    float max = -INFINITY, sum = 0.0f;
    float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
    for (int first = 0; first < n; first += MERGE_BATCH) {
        float lse[MERGE_BATCH], top = max;
        float4 x[MERGE_BATCH];
#pragma unroll
        for (int b = 0; b < MERGE_BATCH; b++) {
            const int at = (first + b) * share + i;
            lse[b] = first + b < n ? exchange->lse[at] : -INFINITY;
            x[b] = first + b < n ? exchange->out[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            top = fmaxf(top, lse[b]);
        }
        if (top == -INFINITY) continue; /* no slot so far */
        const float old = exp2_fast(max - top);
        max = top;
        sum *= old;
        out = scaled(out, old);
#pragma unroll
        for (int b = 0; b < MERGE_BATCH; b++) {
            const float weight = exp2_fast(lse[b] - max);
            sum += weight;
            add_scaled(&out, x[b], weight);
        }
    }
    if (max == -INFINITY) return; /* the item has no slot */
    if (p.attn_stats.lse && d == 0) p.attn_stats.lse[row] = max + log2f(sum);
    store_bf16(static_cast<__nv_bfloat16 *>(p.out) + row * S::D + d, scaled(out, 1.0f / sum));
}

/* Ends a block's part of an item: see above.  Before it, cluster_arrive() has been called once. */
template <class S>
static __device__ __forceinline__ void merge_in_cluster(const attn_decode_params &p,
                                                        const attn_tile &tile, const char *ring,
                                                        const int *free_stage, int group,
                                                        cluster_exchange<S> *exchange) {
    if constexpr (S::BULK) {
        const int n = (int)p.n_cluster, rank = (int)blockIdx.x % n, n_vectors = group * (S::D / 4),
                  share = (n_vectors + n - 1) / n;
        cluster_wait(); /* all blocks have started */
#pragma unroll 1
        for (int v = threadIdx.x; v < n_vectors; v += S::N_WARPS * 32) {
            float lse = -INFINITY;
            float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (tile.begin < tile.end)
                out = combine<S>(ring, free_stage, v / (S::D / 4), v % (S::D / 4) * 4, &lse);
            const int at = rank * share + v % share;
            cluster_store(&exchange->out[at], v / share, out);
            cluster_store(&exchange->lse[at], v / share, lse);
        }
        cluster_arrive();
        cluster_wait();
#pragma unroll 1
        for (int i = threadIdx.x; i < share && rank * share + i < n_vectors; i += S::N_WARPS * 32)
            merge_parts<S>(p, tile, group, rank * share + i, i, share, exchange);
    }
}

#endif
