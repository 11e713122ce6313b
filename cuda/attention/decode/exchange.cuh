/* exchange.cuh - how blocks merge the partial results of items that several of them attended.
 *
 *   block    | tile | tile | leaves a partial | the first to arrive end here, so that
 *   block        | tile | tile | leaves |                        the next kernel finds room
 *   block           | tile | leaves | waits, merges a share |    the last merge all items
 *
 * A partial is a row of vectors, 4 outputs of a head each, with the log-sum-exp beside every one.
 * It passes through L2.  There is no flag: memory without a vector holds MISSING, and the one
 * thread that reads a vector waits for its words to become something else, and makes them MISSING
 * again.  So a partial costs one write and one read, without a fence.  No block waits before it has
 * left its own partials, and all are resident at once (attn_plan.h), so each wait ends.
 *
 * If all blocks merged, none would end before the slowest.  A kernel that merges delays the next
 * product, and clusters find room for few (docs/benchmarks/gpu-kernels.md, "Partial results through
 * L2").
 *
 * Thread: device code, by whole blocks.  Memory: what attn_decode_params.partial_out says. */
#ifndef CUDA_ATTENTION_DECODE_EXCHANGE_CUH
#define CUDA_ATTENTION_DECODE_EXCHANGE_CUH

#include "cuda/attention/decode/ring.cuh"
#include "cuda/common/float4.cuh"

static __device__ __forceinline__ void store_bf16(__nv_bfloat16 *to, float4 x) {
    *reinterpret_cast<uint2 *>(to) =
        make_uint2(pack<__nv_bfloat16>(x.x, x.y), pack<__nv_bfloat16>(x.z, x.w));
}

/* A vector of a partial result as it is read. */
struct part {
    uint4 out;
    uint32_t lse;
    __device__ __forceinline__ bool is_missing() const { return !have_come(out) || lse == MISSING; }
};

/* Passes vector `at` of all partials on. */
static __device__ __forceinline__ void leave_part(const attn_decode_params &p, size_t at,
                                                  float4 out, float lse) {
    store_volatile(reinterpret_cast<float4 *>(p.partial_out) + at, out);
    store_volatile(p.partial_lse + at, lse);
}

static __device__ __forceinline__ part look_at_part(const attn_decode_params &p, size_t at) {
    return {load_volatile(reinterpret_cast<const uint4 *>(p.partial_out) + at),
            load_volatile(reinterpret_cast<const uint32_t *>(p.partial_lse) + at)};
}

static __device__ __forceinline__ void clear_part(const attn_decode_params &p, size_t at) {
    reinterpret_cast<uint4 *>(p.partial_out)[at] = make_uint4(MISSING, MISSING, MISSING, MISSING);
    reinterpret_cast<uint32_t *>(p.partial_lse)[at] = MISSING;
}

/* A sum of partial results: outputs and weights, relative to 2^max. */
struct merged {
    float4 out = {0.0f, 0.0f, 0.0f, 0.0f};
    float max = -INFINITY, weights = 0.0f;

    /* Makes them relative to 2^top.  A sum of nothing has maximum -inf. */
    __device__ __forceinline__ void raise(float top) {
        const float factor = exp2_fast(max - (top == -INFINITY ? 0.0f : top));
        out = scaled(out, factor);
        weights *= factor;
        max = top;
    }

    /* Adds a sink, in base 2. */
    __device__ __forceinline__ void add_sink(float sink) {
        raise(fmaxf(max, sink));
        weights += exp2_fast(sink - max);
    }
};

/* Parts whose reads a thread has in progress at the same time.  With 9 the code is slower at 1K. */
enum { PARTS_AT_ONCE = 5 };

/* Waits for every n_readers-th part of a vector from the i-th on, and adds them up. */
static __device__ __forceinline__ merged gather_parts(const attn_decode_params &p, size_t first,
                                                      int i, int n, int n_readers, int n_vectors) {
    merged sum;
#pragma unroll 1
    for (; i < n; i += PARTS_AT_ONCE * n_readers) {
        part x[PARTS_AT_ONCE];
        float top = sum.max;
#pragma unroll
        for (int b = 0; b < PARTS_AT_ONCE; b++)
            x[b] = {{}, i + b * n_readers < n ? MISSING : __float_as_uint(-INFINITY)};
        for (bool waits = true; waits;) { /* each time for all that are still missing */
            waits = false;
#pragma unroll
            for (int b = 0; b < PARTS_AT_ONCE; b++) {
                if (!x[b].is_missing()) continue;
                x[b] = look_at_part(p, first + (size_t)(i + b * n_readers) * n_vectors);
                waits = true;
            }
        }
#pragma unroll
        for (int b = 0; b < PARTS_AT_ONCE; b++) {
            if (i + b * n_readers < n)
                clear_part(p, first + (size_t)(i + b * n_readers) * n_vectors);
            top = fmaxf(top, __uint_as_float(x[b].lse));
        }
        sum.raise(top);
#pragma unroll
        for (int b = 0; b < PARTS_AT_ONCE; b++) {
            const float weight =
                exp2_fast(__uint_as_float(x[b].lse) - (top == -INFINITY ? 0.0f : top));
            sum.weights += weight;
            add_scaled(&sum.out,
                       make_float4(__uint_as_float(x[b].out.x), __uint_as_float(x[b].out.y),
                                   __uint_as_float(x[b].out.z), __uint_as_float(x[b].out.w)),
                       weight);
        }
    }
    return sum;
}

/* Adds up what the readers of a vector have, by halves: `sum` of the first becomes all of it.
 * sums: the thread's own, with that of the next reader n_at_once further on. */
static __device__ __forceinline__ void add_readers(merged *sum, merged *sums, int reader,
                                                   int n_readers, int n_at_once) {
    *sums = *sum;
#pragma unroll 1
    for (int half = n_readers / 2; half > 0; half /= 2) {
        __syncthreads();
        if (reader >= half) continue;
        merged other = sums[half * n_at_once];
        const float top = fmaxf(sum->max, other.max);
        sum->raise(top);
        other.raise(top);
        add_scaled(&sum->out, other.out, 1.0f);
        sum->weights += other.weights;
        *sums = *sum;
    }
}

/* The number of a block that arrives at the end of its last tile, and the plan's end. */
struct arrival {
    attn_plan_end plan;
    uint32_t number; /* thread 0: of the blocks that arrived before */
};

/* Counts a block, and asks for what it needs to merge.  To be called before the block adds up its
 * last tile, which takes as long. */
static __device__ __forceinline__ arrival arrive(const attn_decode_params &p, const attn_tile &last,
                                                 int lane) {
    arrival a = {};
    if (last.n_merges == 0) return a;
    if (threadIdx.x == 0)
        a.number = atomicAdd(p.n_arrived, 1u) + 1u; /* from MISSING, which is -1 */
    a.plan = {__ldg(&p.plan_end->n_blocks), __ldg(&p.plan_end->n_readers)};
    const int merge = lane * (int)(128 / sizeof(attn_merge)); /* one of each line */
    if (merge < last.n_merges) prefetch_l1(p.merges + merge);
    return a;
}

/* Merges a share of the cut items if this block is among the last to arrive.  n_readers threads
 * share the parts of a vector.  memory: of a `merged` for each thread. */
template <class S>
static __device__ __forceinline__ void merge_items(const attn_decode_params &p, const arrival &a,
                                                   int n_merges, int group, uint32_t *number,
                                                   char *memory) {
    const int n_vectors = group * (S::D / 4), n_all = n_merges * n_vectors,
              n_readers = a.plan.n_readers, n_at_once = S::N_WARPS * 32 / n_readers,
              n_mergers = min(a.plan.n_blocks, (n_all + n_at_once - 1) / n_at_once),
              lane = (int)threadIdx.x % n_at_once, reader = (int)threadIdx.x / n_at_once;
    merged *const sums = reinterpret_cast<merged *>(memory) + threadIdx.x;
    if (threadIdx.x == 0) {
        *number = a.number;
        if ((int)a.number == a.plan.n_blocks - 1) *p.n_arrived = MISSING; /* for the next launch */
    }
    __syncthreads();
    const int merger = (int)*number - (a.plan.n_blocks - n_mergers);
    if (merger < 0) return;
#pragma unroll 1
    for (int first = merger * n_at_once; first < n_all; first += n_mergers * n_at_once) {
        const int vector = first + lane, i = vector % n_vectors;
        attn_merge merge = {};
        merged sum;
        if (vector < n_all) {
            merge = p.merges[vector / n_vectors];
            sum = gather_parts(p, (size_t)merge.first_partial * n_vectors + i, reader,
                               merge.n_partials, n_readers, n_vectors);
        }
        add_readers(&sum, sums, reader, n_readers, n_at_once);
        if (vector < n_all && reader == 0) {
            const int head = i / (S::D / 4), d = i % (S::D / 4) * 4;
            const int of_all = merge.kv_head * group + head;
            const size_t row = (size_t)merge.seq * p.n_heads + of_all;
            if (p.sinks.are_there) sum.add_sink(sink_of(p.sinks, of_all));
            if (p.attn_stats.lse && d == 0) p.attn_stats.lse[row] = sum.max + log2f(sum.weights);
            store_bf16(static_cast<__nv_bfloat16 *>(p.out) + row * S::D + d,
                       scaled(sum.out, 1.0f / sum.weights));
        }
        __syncthreads(); /* the sums are read */
    }
}

#endif
