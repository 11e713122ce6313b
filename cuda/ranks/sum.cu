/* sum.cu - x = or += the sum of what all ranks have computed.
 *
 * A sum is taken in f32 in the order of the ranks, then x is added, and the result is rounded once.
 * Both kernels do so, and all ranks have the same bits, whatever the size and the timing.
 *
 *   small    Each thread writes its vector of the part to all ranks, and adds up what comes to its
 *            own.  There is no flag: memory without a vector holds MISSING, and the thread that
 *            reads a vector makes it MISSING again.  There are two such places for each vector, in
 *            turn: a rank writes a place again when it has had an answer from the kernel behind
 *            the one that has read it.  Not through the host's memory, where a place may become
 *            MISSING after its kernel has ended.
 *   large    Blocks write a round's vectors to other ranks, then a flag.  Two ranks exchange their
 *            parts.  More send each rank its shard of the round; it adds up that shard, and sends
 *            the results to all.  So each rank sends twice its part, however many ranks there are.
 *
 *              two ranks        part ──► half of round % 2 ─ flag ─ wait ─ add
 *              more             shards ─► first half ─ flag ─ wait ─ add own shard
 *                               results ► second half ─ flag ─ wait ─ copy
 *
 *            A half is written again only after a flag that its reader sets behind its reads.
 *
 * Blocks wait for those of other ranks, so all blocks of a sum must be resident on each device.
 *
 * Grid:   small: a thread for each 8 elements.  large: blocks that have a range each.
 * Shared: none.           Bound: the links, or memory: (3 n_ranks + 1) * 2 * n bytes.
 * Oracle: engine/cpu/group.c. */
#include "cuda/ranks/mailbox.cuh"
#include "engine/base/sizes.h"

enum { EACH = 8 /* elements of a vector */ };

/* Loads vector `at` of n elements; what is behind the last element is 0. */
template <bool WIDE>
static __device__ __forceinline__ uint4 load_elements(const void *from, size_t at, size_t n) {
    const uint16_t *elements = static_cast<const uint16_t *>(from) + at * EACH;
    if (WIDE && (at + 1) * EACH <= n) return *reinterpret_cast<const uint4 *>(elements);
    uint32_t words[EACH / 2] = {};
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (at * EACH + i < n) words[i / 2] |= (uint32_t)elements[i] << i % 2 * 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <bool WIDE>
static __device__ __forceinline__ void store_elements(void *to, size_t at, size_t n, uint4 v) {
    uint16_t *elements = static_cast<uint16_t *>(to) + at * EACH;
    if (WIDE && (at + 1) * EACH <= n) {
        *reinterpret_cast<uint4 *>(elements) = v;
        return;
    }
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < EACH; i++)
        if (at * EACH + i < n) elements[i] = (uint16_t)(words[i / 2] >> i % 2 * 16);
}

/* The sum of a vector. */
struct vector_sum {
    float2 sums[EACH / 2] = {};

    __device__ __forceinline__ void add(uint4 words) {
        const uint32_t pairs[] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (int i = 0; i < EACH / 2; i++) {
            const float2 pair = unpack_bf16(pairs[i]);
            sums[i].x += pair.x, sums[i].y += pair.y;
        }
    }
    __device__ __forceinline__ uint4 rounded() const {
        return make_uint4(pack_bf16(sums[0].x, sums[0].y), pack_bf16(sums[1].x, sums[1].y),
                          pack_bf16(sums[2].x, sums[2].y), pack_bf16(sums[3].x, sums[3].y));
    }
};

/* Adds x to a sum, if it accumulates, and returns the result. */
template <bool WIDE>
static __device__ __forceinline__ uint4 finish(const struct sum_params &p, vector_sum &sum,
                                               size_t at) {
    if (p.accumulate) sum.add(load_elements<WIDE>(p.x, at, p.n));
    return sum.rounded();
}

/* ---- short sums ---- */

/* Returns where a rank's vectors of a round are in a mailbox. */
static __device__ __forceinline__ uint4 *small_of(const struct rank_links &links, uint32_t box,
                                                  uint32_t round, uint32_t rank) {
    return reinterpret_cast<uint4 *>(reinterpret_cast<char *>(links.boxes[box]) +
                                     mailbox_small_at()) +
           (size_t)(round % 2 * links.n + rank) * SMALL_VECTORS;
}

template <bool WIDE>
static __device__ __forceinline__ void sum_vector(const struct sum_params &p, size_t at,
                                                  uint32_t round) {
    const struct rank_links &links = p.links;
    uint4 own = load_elements<WIDE>(p.part, at, p.n);
    own = make_uint4(present(own.x), present(own.y), present(own.z), present(own.w));
    for (uint32_t i = 1; i < links.n; i++) {
        const uint32_t to = (links.rank + i) % links.n;
        store_to_rank(small_of(links, to, round, links.rank) + at, own);
    }
    vector_sum sum;
    for (uint32_t rank = 0; rank < links.n; rank++) {
        uint4 *from = small_of(links, links.rank, round, rank) + at, words = own;
        if (rank != links.rank) {
            if (!await_vector(links, from, rank, &words)) return;
            *from = make_uint4(MISSING, MISSING, MISSING, MISSING);
        }
        sum.add(words);
    }
    store_elements<WIDE>(p.x, at, p.n, finish<WIDE>(p, sum, at));
}

template <bool WIDE>
static __global__ void __launch_bounds__(SMALL_THREADS, 1)
    small_sum_kernel(const __grid_constant__ struct sum_params p) {
    struct mailbox *box = own_box(p.links);
    const size_t at = (size_t)blockIdx.x * SMALL_THREADS + threadIdx.x;
    if (p.links.starts_next) let_next_start();
    wait_for_previous();
    const uint32_t round = box->n_small[blockIdx.x];
    if (at * EACH < p.n && !is_stopped(p.links)) sum_vector<WIDE>(p, at, round);
    __syncthreads(); /* all threads have read the count */
    if (threadIdx.x == 0) box->n_small[blockIdx.x] = round + 1;
}

/* ---- long sums ---- */

/* A block's round: vectors [at, at + n) of the sum, n <= ROUND_VECTORS. */
struct sum_round {
    size_t at;
    uint32_t n, number; /* number >= 1 */
};

/* Returns where a block's vectors are in a mailbox; half: 0 or 1. */
static __device__ __forceinline__ uint4 *large_of(const struct rank_links &links, uint32_t box,
                                                  uint32_t half) {
    return reinterpret_cast<uint4 *>(reinterpret_cast<char *>(links.boxes[box]) +
                                     mailbox_large_at(links.n)) +
           (size_t)blockIdx.x * LARGE_VECTORS + half * HALF_VECTORS;
}

/* Tells all ranks that what the block has written to them is there, and waits until they tell the
 * same. */
template <typename Flags>
static __device__ __forceinline__ bool exchange_flags(const struct rank_links &links, Flags flags,
                                                      uint32_t number) {
    bool has_come = true;
    __syncthreads();
    for (uint32_t other = threadIdx.x; other < links.n; other += LARGE_THREADS) {
        if (other == links.rank) continue;
        set_flag(&flags(links.boxes[other])[links.rank], number);
        has_come &= await_flag(links, &flags(own_box(links))[other], number, WAIT_SUM, other);
    }
    return __syncthreads_and(has_come);
}

static __device__ __forceinline__ bool exchange_parts(const struct rank_links &links,
                                                      uint32_t number) {
    return exchange_flags(
        links, [](struct mailbox *box) { return box->parts_came[blockIdx.x]; }, number);
}

static __device__ __forceinline__ bool exchange_sums(const struct rank_links &links,
                                                     uint32_t number) {
    return exchange_flags(
        links, [](struct mailbox *box) { return box->sums_came[blockIdx.x]; }, number);
}

/* Adds the parts of two ranks. */
template <bool WIDE>
static __device__ __forceinline__ bool sum_of_two(const struct sum_params &p,
                                                  const struct sum_round &round) {
    constexpr int N = ROUND_VECTORS / LARGE_THREADS;
    const struct rank_links &links = p.links;
    const uint32_t half = round.number % 2;
    uint4 own[N], *to = large_of(links, 1 - links.rank, half);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t k = threadIdx.x + i * LARGE_THREADS;
        if (k >= round.n) continue;
        own[i] = load_elements<WIDE>(p.part, round.at + k, p.n);
        store_to_rank(to + k, own[i]);
    }
    if (!exchange_parts(links, round.number)) return false;
    const uint4 *from = large_of(links, links.rank, half);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t k = threadIdx.x + i * LARGE_THREADS;
        if (k >= round.n) continue;
        const uint4 other = __ldcg(from + k);
        vector_sum sum;
        sum.add(links.rank == 0 ? own[i] : other);
        sum.add(links.rank == 0 ? other : own[i]);
        store_elements<WIDE>(p.x, round.at + k, p.n, finish<WIDE>(p, sum, round.at + k));
    }
    return true;
}

/* Adds all parts of the rank's shard, and sends the results. */
template <bool WIDE>
static __device__ __forceinline__ void sum_shard(const struct sum_params &p,
                                                 const struct sum_round &round, uint32_t each) {
    const struct rank_links &links = p.links;
    const uint32_t first = links.rank * each;
    const uint4 *from = large_of(links, links.rank, 0);
    for (uint32_t k = threadIdx.x; k < each && first + k < round.n; k += LARGE_THREADS) {
        const size_t at = round.at + first + k;
        vector_sum sum;
        for (uint32_t rank = 0; rank < links.n; rank++)
            sum.add(rank == links.rank ? load_elements<WIDE>(p.part, at, p.n)
                                       : __ldcg(from + (size_t)rank * each + k));
        const uint4 result = finish<WIDE>(p, sum, at);
        store_elements<WIDE>(p.x, at, p.n, result);
        for (uint32_t i = 1; i < links.n; i++)
            store_to_rank(large_of(links, (links.rank + i) % links.n, 1) + first + k, result);
    }
}

template <bool WIDE>
static __device__ __forceinline__ bool sum_of_more(const struct sum_params &p,
                                                   const struct sum_round &round) {
    const struct rank_links &links = p.links;
    const uint32_t each = (round.n + links.n - 1) / links.n;
    for (uint32_t k = threadIdx.x; k < round.n; k += LARGE_THREADS) {
        const uint32_t owner = k / each;
        if (owner == links.rank) continue;
        store_to_rank(large_of(links, owner, 0) + (size_t)links.rank * each + (k - owner * each),
                      load_elements<WIDE>(p.part, round.at + k, p.n));
    }
    if (!exchange_parts(links, round.number)) return false;
    sum_shard<WIDE>(p, round, each);
    if (!exchange_sums(links, round.number)) return false;
    const uint4 *from = large_of(links, links.rank, 1);
    for (uint32_t k = threadIdx.x; k < round.n; k += LARGE_THREADS)
        if (k / each != links.rank) store_elements<WIDE>(p.x, round.at + k, p.n, __ldcg(from + k));
    return true;
}

template <bool WIDE, bool OF_TWO>
static __global__ void __launch_bounds__(LARGE_THREADS, 2)
    large_sum_kernel(const __grid_constant__ struct sum_params p) {
    struct mailbox *box = own_box(p.links);
    const size_t n_vectors = (p.n + EACH - 1) / EACH,
                 each = (n_vectors + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each,
                 end = min(begin + each, n_vectors);
    if (p.links.starts_next) let_next_start();
    wait_for_previous();
    bool goes_on = !block_is_stopped(p.links);
    struct sum_round round = {begin, 0, box->n_large[blockIdx.x]};
    for (; round.at < end && goes_on; round.at += ROUND_VECTORS) {
        round.n = (uint32_t)min(end - round.at, (size_t)ROUND_VECTORS);
        round.number++;
        goes_on = OF_TWO ? sum_of_two<WIDE>(p, round) : sum_of_more<WIDE>(p, round);
    }
    __syncthreads(); /* all threads have read the count */
    if (threadIdx.x == 0) box->n_large[blockIdx.x] = round.number;
}

/* ---- launches ---- */

/* Up to how many bytes, sent to all other ranks, a sum is short. */
enum { MOST_SMALL_BYTES = 1 << 20 };

/* Returns how many blocks a sum has.  *is_small: by which kernel. */
static uint32_t sum_blocks(const struct sum_params *p, uint32_t most_blocks, bool *is_small) {
    const uint64_t n_vectors = div_up(p->n, EACH), small = div_up(n_vectors, SMALL_THREADS);
    *is_small = !p->links.through_host && small <= min_u32(most_blocks, SMALL_BLOCKS) &&
                p->n * sizeof(__nv_bfloat16) * (p->links.n - 1) <= MOST_SMALL_BYTES;
    if (*is_small) return (uint32_t)small;
    return (uint32_t)min_u64(div_up(n_vectors, LARGE_THREADS), min_u32(most_blocks, LARGE_BLOCKS));
}

extern "C" cudaError_t launch_sum_by(const struct sum_params *p, bool is_small, uint32_t n_blocks,
                                     struct launch launch) {
    const bool of_two = p->links.n == 2;
    if (is_small)
        return launch_kernel(launch, p->is_wide ? small_sum_kernel<true> : small_sum_kernel<false>,
                             n_blocks, SMALL_THREADS, 0, *p);
    if (p->is_wide)
        return launch_kernel(launch,
                             of_two ? large_sum_kernel<true, true> : large_sum_kernel<true, false>,
                             n_blocks, LARGE_THREADS, 0, *p);
    return launch_kernel(launch,
                         of_two ? large_sum_kernel<false, true> : large_sum_kernel<false, false>,
                         n_blocks, LARGE_THREADS, 0, *p);
}

extern "C" cudaError_t launch_sum(const struct rank_operation *op, uint32_t most_blocks,
                                  struct launch launch) {
    const struct sum_params *p = &op->sum;
    bool is_small;
    if (p->n == 0) return cudaSuccess;
    const uint32_t n_blocks = sum_blocks(p, most_blocks, &is_small);
    return launch_sum_by(p, is_small, n_blocks, launch);
}

extern "C" cudaError_t load_sums(void) {
    static const void *const kernels[] = {
        (const void *)small_sum_kernel<true>,        (const void *)small_sum_kernel<false>,
        (const void *)large_sum_kernel<true, true>,  (const void *)large_sum_kernel<true, false>,
        (const void *)large_sum_kernel<false, true>, (const void *)large_sum_kernel<false, false>};
    cudaError_t code = cudaSuccess;
    for (const void *kernel : kernels) {
        cudaFuncAttributes attributes;
        if (code == cudaSuccess) code = cudaFuncGetAttributes(&attributes, kernel);
    }
    return code;
}
