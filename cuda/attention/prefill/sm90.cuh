/* sm90.cuh - how a block of Hopper attends to a tile of a prompt: tensor-map copies, wgmma, warp
 * specialisation (the schedule is FlashAttention-3's).
 *
 *   block      one tile: a matrix of 128 rows of Q, and the pairs of pages that they visit
 *   warps 0-3  producer: one warp copies Q, then K and V of one key pair after another
 *   warps 4-11 two consumer warpgroups of 64 rows each:  S = Q K^T, online softmax, O += P V;
 *              Q and P in registers
 *
 *   step j of a consumer   tensor cores   | Q K(j) | P(j-1) V(j-1) |
 *                          other units             | softmax of S(j) | scale O, round P(j) |
 *   The consumers issue products alternately: one's softmax runs during the other's products.
 *
 *   shared  | Q | K stage 0 .. | V stage 0 .. | barriers |
 *           each matrix 128 x D in 128-byte swizzle, as D / 64 columns of [128 rows][64]; the
 *           second page of a key pair follows the first in each column
 *
 *   pages   the pool is a stack of matrices, one per page, with rows (is_v * n_kv_heads + kv_head)
 *           * 64 + slot
 *
 *   stages  a block's own, or those of a cluster of two blocks that visit the same pairs: each
 *           copies one page of a pair to both, so L2 is read half as often
 *
 *      stage of block 0    | first page | second page |
 *      stage of block 1    | first page | second page |
 *               by block 0 ^            ^ by block 1
 *
 * Long prompts run at the card's power limit, where fewer reads make the clock faster.  So stages
 * are paired, and Q stays in registers (docs/benchmarks/gpu-kernels.md, "Prompt attention").
 *
 * Each kernel defines what a tile's rows are, which pairs they visit, what of a pair they may not
 * see (hide()), and where results go: sm90.cu (dense prompts), split_sm90.cu (few rows after many
 * keys), sparse/attend_sm90.cu (sparse prompts).  One block per multiprocessor.
 *
 * Thread: device code, by whole blocks of THREADS; maps are made on the host.  Memory: none of its
 * own. */
#ifndef CUDA_ATTENTION_PREFILL_SM90_CUH
#define CUDA_ATTENTION_PREFILL_SM90_CUH

#include "cuda/attention/prefill/attn_prefill.cuh"
#include "cuda/attention/prefill/tile.cuh"
#include "cuda/common/device.cuh"
#include "cuda/common/sm90.cuh"
#include "engine/device/pages.h"

enum {
    CONSUMERS = 2,
    GROUP_THREADS = 128,
    THREADS = (1 + CONSUMERS) * GROUP_THREADS,
    PAIR_KEYS = 2 * PAGE_TOKENS,
    COLUMN = 64, /* elements of a swizzled row */
    COLUMN_BYTES = PAIR_KEYS * COLUMN * 2,
    PAGE_COLUMN_BYTES = PAGE_TOKENS * COLUMN * 2,
    PAIRED_BLOCKS = 2, /* of a cluster */
    BATON_BARRIER = 1, /* named barriers 1 and 2: consumer 0 or 1 may issue its products */
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240
};

template <int D> struct sm90_plan {
    static constexpr int STAGES = D == 128 ? 2 : 4;
    static constexpr int TILE_BYTES = D / COLUMN * COLUMN_BYTES;
    unsigned char q[TILE_BYTES];
    unsigned char k[STAGES][TILE_BYTES], v[STAGES][TILE_BYTES];
    uint64_t q_full, tail_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

struct sm90_maps {
    CUtensorMap q, pool;
};

/* Makes the barriers, by one thread.  Stages::await_barriers() must follow in all threads.  A full
 * stage is announced by n_fillers arrivals. */
template <typename Stages, int D>
static __device__ void init_barriers(struct sm90_plan<D> &plan, uint32_t n_fillers = 1) {
    barrier_init(&plan.q_full, 1);
    barrier_init(&plan.tail_full, 1);
    for (int i = 0; i < sm90_plan<D>::STAGES; i++) {
        barrier_init(&plan.k_full[i], n_fillers);
        barrier_init(&plan.v_full[i], n_fillers);
        barrier_init(&plan.k_empty[i], Stages::BLOCKS * CONSUMERS);
        barrier_init(&plan.v_empty[i], Stages::BLOCKS * CONSUMERS);
    }
    barriers_publish();
}

/* --- stages: own_stages, or paired_stages, which copy and release in both blocks of a cluster; a
 * block waits at barriers of its own only --- */

/* Loads the rows from `row` on of both pages, for this block alone. */
template <int D>
static __device__ void load_pages(unsigned char *to, const CUtensorMap *pool, int row, int page0,
                                  int page1, uint64_t *bar) {
    barrier_arrive_expect(bar, sm90_plan<D>::TILE_BYTES);
    for (int c = 0; c < D / COLUMN; c++) {
        tensor_load(to + c * COLUMN_BYTES, pool, c * COLUMN, row, page0, bar);
        tensor_load(to + c * COLUMN_BYTES + PAGE_COLUMN_BYTES, pool, c * COLUMN, row, page1, bar);
    }
}

struct own_stages {
    static constexpr int BLOCKS = 1;

    static __device__ __forceinline__ void await_barriers() { __syncthreads(); }

    template <int D>
    static __device__ __forceinline__ void load(unsigned char *to, const CUtensorMap *pool, int row,
                                                int page0, int page1, uint64_t *full) {
        load_pages<D>(to, pool, row, page0, page1, full);
    }

    /* Releases a stage after a wait for wgmma.  One thread arrives for the warpgroup, whose
     * products complete together, and a second one for the other warpgroup if that does not take
     * the pair. */
    static __device__ __forceinline__ void release(uint64_t *empty, int thread, bool shared) {
        if (thread < (shared ? 1 : CONSUMERS)) barrier_arrive(empty);
    }

    /* Releases the last values of all: no producer waits for them. */
    static __device__ __forceinline__ void release_last(uint64_t *, int, bool) {}

    /* Ends the producer, after n pairs. */
    template <int D>
    static __device__ __forceinline__ void await_readers(struct sm90_plan<D> &, int) {}
};

/* The stages of two blocks that visit the same pairs.  A block's barrier of a full stage counts
 * what both blocks copy to it.  That of an empty stage counts the consumers of both, because its
 * copies go to both.  So the other block copies to a stage only after this block's consumers have
 * read it, and its bytes never count for the round before. */
struct paired_stages {
    static constexpr int BLOCKS = PAIRED_BLOCKS;

    static __device__ __forceinline__ uint32_t rank() { return blockIdx.x % PAIRED_BLOCKS; }

    /* A block may copy to the other and arrive there only after that has made its barriers. */
    static __device__ __forceinline__ void await_barriers() {
        cluster_arrive_relaxed();
        cluster_wait();
    }

    template <int D>
    static __device__ __forceinline__ void load(unsigned char *to, const CUtensorMap *pool, int row,
                                                int page0, int page1, uint64_t *full) {
        const int page = rank() == 0 ? page0 : page1;
        to += rank() * PAGE_COLUMN_BYTES;
        barrier_arrive_expect(full, sm90_plan<D>::TILE_BYTES);
        for (int c = 0; c < D / COLUMN; c++)
            tensor_load_shared(to + c * COLUMN_BYTES, pool, c * COLUMN, row, page, full,
                               (1 << PAIRED_BLOCKS) - 1);
    }

    /* Releases the stage as own_stages does, but in both blocks: a thread arrives at each. */
    static __device__ __forceinline__ void release(uint64_t *empty, int thread, bool shared) {
        if (thread < PAIRED_BLOCKS * (shared ? 1 : CONSUMERS))
            barrier_arrive_remote(empty, thread % PAIRED_BLOCKS);
    }

    static __device__ __forceinline__ void release_last(uint64_t *empty, int thread, bool shared) {
        release(empty, thread, shared);
    }

    /* Waits until the consumers of both blocks have read everything.  A block may not end before:
     * until then the other one copies to it and arrives at its barriers, and its own copies may
     * be on their way to the other. */
    template <int D>
    static __device__ __forceinline__ void await_readers(struct sm90_plan<D> &plan, int n) {
        constexpr int STAGES = sm90_plan<D>::STAGES;
        for (int j = n; j < n + STAGES; j++) {
            barrier_wait(&plan.k_empty[j % STAGES], j / STAGES % 2 ^ 1);
            barrier_wait(&plan.v_empty[j % STAGES], j / STAGES % 2 ^ 1);
        }
    }
};

/* --- producer: one warp, whose lane 0 starts the copies --- */

template <int D>
static __device__ void load_queries(struct sm90_plan<D> &plan, const CUtensorMap *queries,
                                    int first_row, int head) {
    barrier_arrive_expect(&plan.q_full, sm90_plan<D>::TILE_BYTES);
    for (int c = 0; c < D / COLUMN; c++)
        tensor_load(plan.q + c * COLUMN_BYTES, queries, head * D + c * COLUMN, first_row,
                    &plan.q_full);
}

/* Clears the values of slots past the end, which may hold anything: 0 times NaN would be NaN. */
template <int D>
static __device__ void clear_tail(unsigned char *v, struct key_pair pair, int n_slots, int lane) {
    for (int row = 0; row < PAIR_KEYS; row++) {
        const int block = row < PAGE_TOKENS ? pair.first : pair.second;
        if (block * PAGE_TOKENS + row % PAGE_TOKENS < n_slots) continue;
        for (int i = lane; i < D / 8; i += 32)
            *(uint4 *)(v + i / 8 * COLUMN_BYTES + row * 128 + i % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
}

/* Loads the values of a pair.  If slots past the end are to be cleared, the block loads both pages
 * itself: no other copy may come after that. */
template <int D, typename Stages>
static __device__ void load_values(struct sm90_plan<D> &plan, const CUtensorMap *pool, int stage,
                                   int row, int page0, int page1, struct key_pair pair, int n_slots,
                                   uint32_t &tail_parity, int lane) {
    if ((max(pair.first, pair.second) + 1) * PAGE_TOKENS <= n_slots) {
        if (lane == 0)
            Stages::template load<D>(plan.v[stage], pool, row, page0, page1, &plan.v_full[stage]);
        return;
    }
    if (lane == 0) load_pages<D>(plan.v[stage], pool, row, page0, page1, &plan.tail_full);
    barrier_wait(&plan.tail_full, tail_parity);
    tail_parity ^= 1;
    clear_tail<D>(plan.v[stage], pair, n_slots, lane);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(&plan.v_full[stage]);
}

/* Copies the keys and values of all pairs; each kernel starts the copy of Q itself. */
template <int D, typename Stages, typename Pairs>
static __device__ void produce(struct sm90_plan<D> &plan, const struct sm90_maps &maps,
                               const struct prefill_tile &t, const Pairs &pairs, int kv_head,
                               int n_kv_heads) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    const int lane = threadIdx.x % 32, keys = kv_head * PAGE_TOKENS,
              values = (n_kv_heads + kv_head) * PAGE_TOKENS;
    uint32_t tail_parity = 0;
    struct key_pair pair = pairs.at(0);
    int page0 = page_of_block(t, pair.first), page1 = page_of_block(t, pair.second);
    for (int j = 0; j < pairs.n; j++) {
        const int stage = j % STAGES;
        const uint32_t parity = j / STAGES % 2 ^ 1; /* the first round finds the stages empty */
        /* The next pair's page numbers are read while this one waits for its stage. */
        const struct key_pair next = pairs.at(min(j + 1, pairs.n - 1));
        const int next0 = page_of_block(t, next.first), next1 = page_of_block(t, next.second);
        barrier_wait(&plan.k_empty[stage], parity);
        if (lane == 0)
            Stages::template load<D>(plan.k[stage], &maps.pool, keys, page0, page1,
                                     &plan.k_full[stage]);
        barrier_wait(&plan.v_empty[stage], parity);
        load_values<D, Stages>(plan, &maps.pool, stage, values, page0, page1, pair, t.n_slots,
                               tail_parity, lane);
        pair = next, page0 = next0, page1 = next1;
    }
    Stages::await_readers(plan, pairs.n);
}

/* --- consumers --- */

/* Scores are those of a pair, or, half as many, of its first page.
 *
 * Hides the slots that the rows may not see: the first of the thread's rows sees `visible` slots,
 * the second `apart` more.  Element e of 4-tuple n of an accumulator fragment is row lane / 4 + e /
 * 2 * 8 of the warp's 16 rows, column n * 8 + lane % 4 * 2 + e % 2. */
template <int N>
static __device__ __forceinline__ void mask_scores(float (&s)[N], struct key_pair pair, int visible,
                                                   int apart = 8) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int block = i < 32 ? pair.first : pair.second;
        const int slot = block * PAGE_TOKENS + i % 32 / 4 * 8 + column + i % 2;
        if (slot >= visible + i % 4 / 2 * apart) s[i] = -INFINITY;
    }
}

/* Hides what lies before the rows' windows.  The window of the thread's first row begins at slot
 * `first`, that of the second `apart` later. */
template <int N>
static __device__ __forceinline__ void mask_before(float (&s)[N], struct key_pair pair, int first,
                                                   int apart = 8) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int block = i < 32 ? pair.first : pair.second;
        const int slot = block * PAGE_TOKENS + i % 32 / 4 * 8 + column + i % 2;
        if (slot < first + i % 4 / 2 * apart) s[i] = -INFINITY;
    }
}

/* Converts scores to weights; factor[h] is what earlier sums and outputs are multiplied by.  A row
 * that has seen nothing keeps the maximum -inf, from which -inf must not be subtracted.  If the
 * maximum does not change, the factor is exactly 1, so a masked block changes nothing. */
template <int N>
static __device__ __forceinline__ void update_softmax(float (&s)[N], float (&top)[2],
                                                      float (&sum)[2], float (&factor)[2],
                                                      float scale) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = top[h];
#pragma unroll
        for (int i = 2 * h; i < N; i += 4) m = fmaxf(m, fmaxf(s[i], s[i + 1]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        const float base = m == -INFINITY ? 0.0f : m;
        factor[h] = exp2_fast((top[h] - base) * scale);
        top[h] = m;
        const float shift = base * scale;
        float total = 0.0f;
#pragma unroll
        for (int i = 2 * h; i < N; i += 4) {
            s[i] = exp2_fast(fmaf(s[i], scale, -shift));
            s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -shift));
            total += s[i] + s[i + 1];
        }
        sum[h] = fmaf(sum[h], factor[h], total);
    }
}

template <int N>
static __device__ __forceinline__ void scale_rows(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= factor[i % 4 / 2];
}

/* Rounds the weights to bf16.  The accumulator's layout, two 8-column tuples at a time, is wgmma's
 * layout for A in registers. */
template <int N>
static __device__ __forceinline__ void round_weights(uint32_t (&w)[N / 2], const float (&s)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) w[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

/* Loads a thread's part of its consumer's 64 rows of Q.  Words 4 i .. 4 i + 3 are wgmma's A of
 * columns 16 i and on: rows lane / 4 and that + 8 of the warp's 16, at columns lane % 4 * 2, then
 * both at 8 more. */
template <int D>
static __device__ __forceinline__ void keep_queries(uint32_t (&q)[D / 4], const unsigned char *rows,
                                                    int thread) {
    const int row = thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
        const int chunk = i / 4 * 2 + i % 4 / 2; /* of 16 bytes, in a row of Q */
        q[i] = *(const uint32_t *)(rows + chunk / 8 * COLUMN_BYTES + (row + i % 2 * 8) * 128 +
                                   (chunk % 8 ^ row % 8) * 16 + thread % 4 * 4);
    }
}

template <int D>
static __device__ __forceinline__ void issue_scores(float (&s)[64], const uint32_t (&q)[D / 4],
                                                    uint64_t k) {
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const int at = d / COLUMN * COLUMN_BYTES + d % COLUMN * 2;
        wgmma_register_a_k_major(s, q + d / 4, wgmma_advance(k, at), d > 0);
    }
    wgmma_commit();
}

template <int D>
static __device__ __forceinline__ void issue_values(float (&o)[D / 2], const uint32_t (&w)[32],
                                                    uint64_t v) {
#pragma unroll
    for (int k = 0; k < PAIR_KEYS / 16; k++)
        wgmma_register_a(o, w + 4 * k, wgmma_advance(v, k * 16 * 128));
    wgmma_commit();
}

struct consumer {
    int me, thread; /* warpgroup 0 or 1, thread in it */
};

/* A consumer thread's share of its rows: scores, weights, output, and for each of two rows the
 * maximum, the sum and the last factor. */
template <int D> struct rows_state {
    float s[64], o[D / 2], top[2], sum[2], factor[2];
    uint32_t w[32], q[D / 4];
};

/* Computes the first pair's weights; there are no products yet to run beside the softmax. */
template <int D, typename Stages, typename Weigh>
static __device__ __forceinline__ void first_pair(struct sm90_plan<D> &plan,
                                                  struct rows_state<D> &r, const struct consumer &c,
                                                  const Weigh &weigh) {
    barrier_wait(&plan.q_full, 0);
    keep_queries<D>(r.q, plan.q + c.me * 64 * 128, c.thread);
    barrier_wait(&plan.k_full[0], 0);
    wgmma_fence();
    issue_scores<D>(r.s, r.q, wgmma_matrix(plan.k[0], 0));
    wgmma_wait<0>();
    wgmma_pin(r.s);
    Stages::release(&plan.k_empty[0], c.thread, true); /* the first pair is for both */
    weigh(r.s, 0);
    round_weights(r.w, r.s);
}

/* Computes pair j's scores and softmax while the values of the pair before are multiplied. */
template <int D, typename Stages, typename Pairs, typename Weigh>
static __device__ __forceinline__ void next_pair(struct sm90_plan<D> &plan, struct rows_state<D> &r,
                                                 const struct consumer &c, const Pairs &pairs,
                                                 int j, const Weigh &weigh) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    const int last = pairs.before(j), stage = j % STAGES, before = last % STAGES;
    barrier_wait(&plan.k_full[stage], j / STAGES % 2);
    named_sync(BATON_BARRIER + c.me, CONSUMERS * GROUP_THREADS);
    wgmma_pin(r.s);
    wgmma_pin(r.o);
    wgmma_fence();
    issue_scores<D>(r.s, r.q, wgmma_matrix(plan.k[stage], 0));
    barrier_wait(&plan.v_full[before], last / STAGES % 2);
    wgmma_fence(); /* again: after the wait's branches the compiler would serialise */
    issue_values<D>(r.o, r.w, wgmma_matrix(plan.v[before], COLUMN_BYTES));
    /* Every arrival must meet a wait: there is none after the last products of all. */
    if (j + 1 < pairs.n || (c.me == 0 && pairs.is_shared(j)))
        named_arrive(BATON_BARRIER + 1 - c.me, CONSUMERS * GROUP_THREADS);
    wgmma_wait<1>();
    wgmma_pin(r.s);
    Stages::release(&plan.k_empty[stage], c.thread, pairs.is_shared(j));
    weigh(r.s, j);
    wgmma_wait<0>();
    wgmma_pin(r.o);
    Stages::release(&plan.v_empty[before], c.thread, pairs.is_shared(last));
    scale_rows(r.o, r.factor);
    round_weights(r.w, r.s);
}

template <int D, typename Stages, typename Pairs>
static __device__ __forceinline__ void last_values(struct sm90_plan<D> &plan,
                                                   struct rows_state<D> &r,
                                                   const struct consumer &c, const Pairs &pairs,
                                                   int last) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    barrier_wait(&plan.v_full[last % STAGES], last / STAGES % 2);
    wgmma_pin(r.o);
    wgmma_fence();
    issue_values<D>(r.o, r.w, wgmma_matrix(plan.v[last % STAGES], COLUMN_BYTES));
    wgmma_wait<0>();
    wgmma_pin(r.o);
    Stages::release_last(&plan.v_empty[last % STAGES], c.thread, pairs.is_shared(last));
}

/* Attends a consumer's rows to its pairs.  Then it calls store(row of the matrix, largest score in
 * base 2, sum of weights, accumulators as store_row() takes them). */
template <int D, bool CAPPED, typename Stages, typename Pairs, typename Store>
static __device__ __forceinline__ void consume(struct sm90_plan<D> &plan,
                                               const struct attn_prefill_params &p,
                                               const struct prefill_tile &t, const Pairs &pairs,
                                               const int32_t *columns, int me, const Store &store) {
    const int thread = threadIdx.x % GROUP_THREADS;
    const int row =
        me * 64 + thread / 32 * 16 + thread % 32 / 4; /* of the matrix: the thread's first */
    const int first_visible =
        t.first_visible + row_of(pairs, me * 64); /* of this consumer's first row */
    const float scale = p.scale.outer * LOG2_E;   /* softmax in base 2 */
    const struct consumer c = {me, thread};
    struct rows_state<D> r;
    const auto weigh = [&](float(&s)[64], int j) {
        if constexpr (CAPPED) cap_products(s, p.scale.inner);
        hide(s, pairs, j, t, columns, row, first_visible);
        update_softmax(s, r.top, r.sum, r.factor, scale);
    };
#pragma unroll
    for (int i = 0; i < D / 2; i++) r.o[i] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) r.top[h] = -INFINITY, r.sum[h] = 0.0f;

    if (me == 1 && pairs.n > 1)
        named_arrive(BATON_BARRIER, CONSUMERS * GROUP_THREADS); /* consumer 0 begins */
    first_pair<D, Stages>(plan, r, c, weigh);
    int j = pairs.after(0, me);
    for (; j < pairs.n; j = pairs.after(j, me)) next_pair<D, Stages>(plan, r, c, pairs, j, weigh);
    last_values<D, Stages>(plan, r, c, pairs, pairs.before(j));
#pragma unroll
    for (int h = 0; h < 2; h++)
        store(row + 8 * h, r.top[h] * scale, r.sum[h],
              [&](int n) { return make_float2(r.o[4 * n + 2 * h], r.o[4 * n + 2 * h + 1]); });
}

/* --- maps --- */

template <int D>
static cudaError_t map_queries(CUtensorMap *map, const struct attn_prefill_params &p) {
    return tensor_map_matrix(map, p.q, p.n_total_rows, (uint64_t)p.n_heads * D, p.q_stride * 2,
                             ATTN_PREFILL_TILE);
}

template <int D>
static cudaError_t map_pool(CUtensorMap *map, const struct kv_pool &kv, uint32_t box_rows) {
    const uint64_t page_rows = (uint64_t)2 * kv.n_kv_heads * PAGE_TOKENS;
    return tensor_map_stack(map, kv.base, kv.n_pages, kv.page_bytes, page_rows, D,
                            page_row_bytes(kv.format, D), box_rows);
}

#endif
