/* sm90_wide.cu - prefill attention for Hopper with heads of 256: the schedule of sm90.cuh, with
 * other places for what no longer fits.
 *
 *   Q        stays in shared memory, from which wgmma reads it: a thread's registers have 128 sums
 *            of its output
 *   step     one page of 64 keys, where smaller heads take two
 *   cluster  two neighbouring heads of a tile, if a group has an even number of them.  Each block
 *            copies half of the columns of a page to both
 *
 *   shared  | Q | K stage 0 | K stage 1 | V stage 0 | V stage 1 | barriers |
 *           Q is 4 columns of [128 rows][64], a page 4 columns of [64 slots][64], all in 128-byte
 *           swizzle
 *
 * Grid:   (heads, items): heads of one tile run together and share pages in L2.
 * Shared: a wide_plan.
 * Bound:  tensor cores, 4 * 256 operations per visible (row, slot) and head.
 * Oracle: engine/cpu/attention.c in plain C; the test's oracle is in double. */
#include "cuda/attention/prefill/sm90_wide.cuh"

#include "cuda/attention/prefill/sm90.cuh"
#include "engine/device/pages.h"

namespace {

enum {
    DIM = 256,
    N_COLUMNS = DIM / COLUMN,
    STAGES = 2,
    Q_COLUMN_BYTES = ATTN_PREFILL_TILE * COLUMN * 2,
    HALVES = 2 /* of a row of output: accumulators of 128 columns */
};

struct wide_plan {
    unsigned char q[N_COLUMNS * Q_COLUMN_BYTES];
    unsigned char k[STAGES][N_COLUMNS * PAGE_COLUMN_BYTES];
    unsigned char v[STAGES][N_COLUMNS * PAGE_COLUMN_BYTES];
    uint64_t q_full, tail_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* The pages that a tile visits, last one first. */
struct visited {
    int n, last;
    __device__ __forceinline__ int at(int i) const { return last - i; }
};

template <bool WINDOW>
__device__ __forceinline__ visited visited_of(const struct attn_prefill_params &p,
                                              const struct prefill_tile &t) {
    const int end = (t.first_visible + t.n_rows - 1 + PAGE_TOKENS - 1) / PAGE_TOKENS,
              first = WINDOW ? max(t.first_visible - (int)p.window, 0) / PAGE_TOKENS : 0;
    return {end - first, end - 1};
}

template <typename Stages> __device__ void make_barriers(wide_plan &plan) {
    barrier_init(&plan.q_full, 1);
    barrier_init(&plan.tail_full, 1);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(&plan.k_full[i], 1);
        barrier_init(&plan.v_full[i], 1);
        barrier_init(&plan.k_empty[i], Stages::BLOCKS * CONSUMERS);
        barrier_init(&plan.v_empty[i], Stages::BLOCKS * CONSUMERS);
    }
    barriers_publish();
}

/* ---- producer ---- */

__device__ void load_tile(wide_plan &plan, const CUtensorMap *queries, int first_row, int head) {
    barrier_arrive_expect(&plan.q_full, sizeof(plan.q));
    for (int c = 0; c < N_COLUMNS; c++)
        tensor_load(plan.q + c * Q_COLUMN_BYTES, queries, head * DIM + c * COLUMN, first_row,
                    &plan.q_full);
}

/* Loads a page's rows from `row` on, for this block alone. */
__device__ void load_page(unsigned char *to, const CUtensorMap *pool, int row, int page,
                          uint64_t *full) {
    barrier_arrive_expect(full, N_COLUMNS * PAGE_COLUMN_BYTES);
    for (int c = 0; c < N_COLUMNS; c++)
        tensor_load(to + c * PAGE_COLUMN_BYTES, pool, c * COLUMN, row, page, full);
}

/* Loads this block's columns for both blocks of a cluster; the other one loads the rest. */
__device__ void load_half(unsigned char *to, const CUtensorMap *pool, int row, int page,
                          uint64_t *full) {
    const int first = (int)paired_stages::rank() * N_COLUMNS / PAIRED_BLOCKS;
    barrier_arrive_expect(full, N_COLUMNS * PAGE_COLUMN_BYTES);
    for (int c = first; c < first + N_COLUMNS / PAIRED_BLOCKS; c++)
        tensor_load_shared(to + c * PAGE_COLUMN_BYTES, pool, c * COLUMN, row, page, full,
                           (1 << PAIRED_BLOCKS) - 1);
}

template <typename Stages>
__device__ __forceinline__ void load(unsigned char *to, const CUtensorMap *pool, int row, int page,
                                     uint64_t *full) {
    if (Stages::BLOCKS > 1) load_half(to, pool, row, page, full);
    else load_page(to, pool, row, page, full);
}

/* Loads a page's values, whose slots past the text may hold anything, and clears those: 0 times NaN
 * would be NaN.  The block loads the whole page itself: no other copy may come after that. */
__device__ void load_tail(wide_plan &plan, const CUtensorMap *pool, int row, int page, int n_left,
                          int lane) {
    if (lane == 0) load_page(plan.v[0], pool, row, page, &plan.tail_full);
    barrier_wait(&plan.tail_full, 0);
    for (int slot = n_left; slot < PAGE_TOKENS; slot++)
        *(uint4 *)(plan.v[0] + lane / 8 * PAGE_COLUMN_BYTES + slot * 128 + lane % 8 * 16) =
            make_uint4(0, 0, 0, 0);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(&plan.v_full[0]);
}

/* Copies the keys and values of all pages.  Only the first one that is visited may lie past the end
 * of the text. */
template <typename Stages>
__device__ void fill(wide_plan &plan, const struct sm90_maps &maps, const struct prefill_tile &t,
                     const visited &pages, int kv_head, int n_kv_heads) {
    const int lane = threadIdx.x % 32, keys = kv_head * PAGE_TOKENS,
              values = (n_kv_heads + kv_head) * PAGE_TOKENS;
    int page = page_of_block(t, pages.at(0));
    for (int j = 0; j < pages.n; j++) {
        const int stage = j % STAGES, n_left = t.n_slots - pages.at(j) * PAGE_TOKENS;
        const uint32_t parity = j / STAGES % 2 ^ 1; /* the first round finds the stages empty */
        /* The next page's number is read while this one waits for its stage. */
        const int next = page_of_block(t, pages.at(min(j + 1, pages.n - 1)));
        barrier_wait(&plan.k_empty[stage], parity);
        if (lane == 0) load<Stages>(plan.k[stage], &maps.pool, keys, page, &plan.k_full[stage]);
        barrier_wait(&plan.v_empty[stage], parity);
        if (j == 0 && n_left < PAGE_TOKENS) load_tail(plan, &maps.pool, values, page, n_left, lane);
        else if (lane == 0)
            load<Stages>(plan.v[stage], &maps.pool, values, page, &plan.v_full[stage]);
        page = next;
    }
    /* A block of a cluster may not end before the consumers of both have read everything. */
    for (int j = pages.n; Stages::BLOCKS > 1 && j < pages.n + STAGES; j++) {
        barrier_wait(&plan.k_empty[j % STAGES], j / STAGES % 2 ^ 1);
        barrier_wait(&plan.v_empty[j % STAGES], j / STAGES % 2 ^ 1);
    }
}

/* ---- consumers ---- */

/* A consumer thread's share of its rows: scores and weights of a page, and the output.  Of each of
 * two rows it has the maximum, the sum and the last factor. */
struct wide_rows {
    float s[PAGE_TOKENS / 2], o[HALVES][64], top[2], sum[2], factor[2];
    uint32_t w[PAGE_TOKENS / 4];
};

__device__ __forceinline__ void start_scores(wide_rows &r, uint64_t q, uint64_t k) {
#pragma unroll
    for (int d = 0; d < DIM; d += 16) {
        const int in_column = d % COLUMN * 2;
        wgmma_shared_a(r.s, wgmma_advance(q, d / COLUMN * Q_COLUMN_BYTES + in_column),
                       wgmma_advance(k, d / COLUMN * PAGE_COLUMN_BYTES + in_column), d > 0);
    }
    wgmma_commit();
}

__device__ __forceinline__ void start_values(wide_rows &r, uint64_t v) {
#pragma unroll
    for (int k = 0; k < PAGE_TOKENS / 16; k++)
#pragma unroll
        for (int half = 0; half < HALVES; half++)
            wgmma_register_a(
                r.o[half], r.w + 4 * k,
                wgmma_advance(v, half * N_COLUMNS / HALVES * PAGE_COLUMN_BYTES + k * 16 * 128));
    wgmma_commit();
}

__device__ __forceinline__ void pin_output(wide_rows &r) {
#pragma unroll
    for (int half = 0; half < HALVES; half++) wgmma_pin(r.o[half]);
}

/* Attends a consumer's rows to all pages, and stores them. */
template <bool WINDOW, bool CAPPED, typename Stages>
__device__ __forceinline__ void attend(wide_plan &plan, const struct attn_prefill_params &p,
                                       const struct prefill_tile &t, const visited &pages, int me,
                                       int head) {
    const int thread = threadIdx.x % GROUP_THREADS,
              row = me * 64 + thread / 32 * 16 + thread % 32 / 4, /* the thread's first */
        first_visible = t.first_visible + me * 64;                /* of the consumer's first row */
    const float scale = p.scale.outer * LOG2_E;                   /* softmax in base 2 */
    const uint64_t q = wgmma_matrix(plan.q + me * 64 * 128, 0);
    wide_rows r;
    const auto weigh = [&](int j) {
        const struct key_pair page = {pages.at(j), pages.at(j)};
        if constexpr (CAPPED) cap_products(r.s, p.scale.inner);
        if ((page.first + 1) * PAGE_TOKENS > first_visible)
            mask_scores(r.s, page, t.first_visible + row);
        if (WINDOW && page.first * PAGE_TOKENS < first_visible + 64 - (int)p.window)
            mask_before(r.s, page, t.first_visible + row - (int)p.window);
        update_softmax(r.s, r.top, r.sum, r.factor, scale);
    };
#pragma unroll
    for (int i = 0; i < HALVES * 64; i++) r.o[i / 64][i % 64] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) r.top[h] = -INFINITY, r.sum[h] = 0.0f;

    if (me == 1 && pages.n > 1)
        named_arrive(BATON_BARRIER, CONSUMERS * GROUP_THREADS); /* consumer 0 begins */
    barrier_wait(&plan.q_full, 0);
    barrier_wait(&plan.k_full[0], 0);
    wgmma_fence();
    start_scores(r, q, wgmma_matrix(plan.k[0], 0));
    wgmma_wait<0>();
    wgmma_pin(r.s);
    Stages::release(&plan.k_empty[0], thread, true);
    weigh(0);
    round_weights(r.w, r.s);
    for (int j = 1; j < pages.n; j++) {
        const int stage = j % STAGES, before = (j - 1) % STAGES;
        barrier_wait(&plan.k_full[stage], j / STAGES % 2);
        named_sync(BATON_BARRIER + me, CONSUMERS * GROUP_THREADS);
        wgmma_pin(r.s);
        pin_output(r);
        wgmma_fence();
        start_scores(r, q, wgmma_matrix(plan.k[stage], 0));
        barrier_wait(&plan.v_full[before], (j - 1) / STAGES % 2);
        wgmma_fence(); /* again: after the wait's branches the compiler would serialise */
        start_values(r, wgmma_matrix(plan.v[before], PAGE_COLUMN_BYTES));
        /* Every arrival must meet a wait: there is none after the last products of all. */
        if (j + 1 < pages.n || me == 0)
            named_arrive(BATON_BARRIER + 1 - me, CONSUMERS * GROUP_THREADS);
        wgmma_wait<1>();
        wgmma_pin(r.s);
        Stages::release(&plan.k_empty[stage], thread, true);
        weigh(j);
        wgmma_wait<0>();
        pin_output(r);
        Stages::release(&plan.v_empty[before], thread, true);
#pragma unroll
        for (int half = 0; half < HALVES; half++) scale_rows(r.o[half], r.factor);
        round_weights(r.w, r.s);
    }
    const int last = (pages.n - 1) % STAGES;
    barrier_wait(&plan.v_full[last], (pages.n - 1) / STAGES % 2);
    pin_output(r);
    wgmma_fence();
    start_values(r, wgmma_matrix(plan.v[last], PAGE_COLUMN_BYTES));
    wgmma_wait<0>();
    pin_output(r);
    Stages::release_last(&plan.v_empty[last], thread, true);
#pragma unroll
    for (int h = 0; h < 2; h++)
        store_row<DIM>(p, t, row + 8 * h, head, sink_of(p.sinks, head), r.top[h] * scale, r.sum[h],
                       [&](int n) {
                           const float *o = r.o[n / 16] + n % 16 * 4 + 2 * h;
                           return make_float2(o[0], o[1]);
                       });
}

template <bool WINDOW, bool CAPPED, typename Stages>
__global__ void __launch_bounds__(THREADS, 1)
    attn_prefill_wide_kernel(const __grid_constant__ struct sm90_maps maps,
                             const __grid_constant__ struct attn_prefill_params p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    wide_plan &plan = *reinterpret_cast<wide_plan *>(shared);
    /* The shuffle tells the compiler that a whole warp takes one branch; without it wgmma is
     * serialised. */
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0), head = blockIdx.x;
    const struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    const visited pages = visited_of<WINDOW>(p, t);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&maps.q);
        tensor_map_prefetch(&maps.pool);
        make_barriers<Stages>(plan);
    }
    Stages::await_barriers();
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        const int n_kv_heads = p.kv.n_kv_heads, kv_head = head / (p.n_heads / n_kv_heads);
        if (threadIdx.x == 0) load_tile(plan, &maps.q, t.first_row, head);
        if (threadIdx.x < 32) fill<Stages>(plan, maps, t, pages, kv_head, n_kv_heads);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        attend<WINDOW, CAPPED, Stages>(plan, p, t, pages, group - 1, head);
    }
}

template <typename Stages>
cudaError_t launch_wide(const struct attn_prefill_params &p, struct launch launch) {
    const int bytes = sizeof(wide_plan);
    const bool capped = p.scale.inner > 0;
    const auto windowed = capped ? attn_prefill_wide_kernel<true, true, Stages>
                                 : attn_prefill_wide_kernel<true, false, Stages>;
    const auto unwindowed = capped ? attn_prefill_wide_kernel<false, true, Stages>
                                   : attn_prefill_wide_kernel<false, false, Stages>;
    const auto kernel = p.window > 0 ? windowed : unwindowed;
    struct sm90_maps maps;
    cudaError_t status = map_queries<DIM>(&maps.q, p);
    if (status == cudaSuccess) status = map_pool<DIM>(&maps.pool, p.kv, PAGE_TOKENS);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    return launch_clusters(without_overlap(launch), kernel, Stages::BLOCKS,
                           dim3(p.n_heads, p.n_items), THREADS, bytes, maps, p);
}

} // namespace

cudaError_t launch_attn_prefill_wide(const struct attn_prefill_params &p, struct launch launch) {
    if (p.n_items == 0) return cudaSuccess; /* an empty grid is a launch error */
    if (p.kv.format != PAGE_BF16 || p.kv.head_dim != DIM) return cudaErrorInvalidValue;
    return p.n_heads / p.kv.n_kv_heads % PAIRED_BLOCKS == 0 ? launch_wide<paired_stages>(p, launch)
                                                            : launch_wide<own_stages>(p, launch);
}
