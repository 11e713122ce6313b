/* exchange.cu - exchanges rows of which each rank has some for columns of which each has some.
 *
 *   the rank that takes   its address ─ flag ─►                                  ─► wait
 *   the rank that sends                    wait ─► its rows and columns ─ flag ─►
 *
 * Each rank does both with every other one.  Data are written where they are wanted, once that
 * memory is no longer used, and a CUDA graph need not know the addresses.  Where other ranks cannot
 * write the rank's memory, they write the stage in its mailbox, from which it copies.  There each
 * sender has a place of its own, in which its rows lie side by side.
 *
 * Grid:   blocks that take vectors in turn; a block works with those of the same number.
 * Shared: the address that a block sends to.
 * Bound:  the links.      Oracle: engine/cpu/group.c. */
#include "cuda/ranks/mailbox.cuh"
#include "engine/base/sizes.h"

/* Returns how many columns are sent, in vectors. */
static __device__ __forceinline__ uint32_t n_columns(const struct exchange_args &args) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < args.n_parts; i++) n += args.parts[i].n;
    return n;
}

/* Rows that one rank sends to another one.  Both ends of a copy are in rows of their own. */
struct passage {
    uint32_t sender, receiver;
    struct exchange_block rows;
    bool to_stage, from_stage;
};

/* Returns where the part of a row begins that column `at` of those sent belongs to; *at becomes the
 * column in that part. */
static __device__ __forceinline__ const struct exchange_part *part_at(
    const struct exchange_args &args, uint32_t *at) {
    const struct exchange_part *part = args.parts;
    while (*at >= part->n) *at -= part++->n;
    return part;
}

/* Copies the block's share of a passage, V at a time, of which a thread reads several before it
 * writes the first. */
template <typename V>
static __device__ __forceinline__ void copy_passage(const struct exchange_args &args,
                                                    const struct passage &way, const void *from,
                                                    void *to) {
    constexpr int AT_ONCE = 4;
    const uint32_t width = n_columns(args), n = way.rows.n_rows * width,
                   stride = gridDim.x * EXCHANGE_THREADS;
    for (uint32_t first = blockIdx.x * EXCHANGE_THREADS + threadIdx.x; first < n;
         first += AT_ONCE * stride) {
        V some[AT_ONCE];
        size_t to_at[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const uint32_t i = first + k * stride, row = i / width;
            if (i >= n) continue;
            uint32_t column = i % width;
            const struct exchange_part *part = part_at(args, &column);
            const size_t from_at = way.from_stage
                                       ? i
                                       : (way.rows.from_row + row) * args.from_stride + column +
                                             exchange_from(&args, part, way.receiver);
            to_at[k] = way.to_stage ? i
                                    : (way.rows.to_row + row) * args.to_stride + column +
                                          exchange_to(&args, part, way.sender);
            some[k] = static_cast<const V *>(from)[from_at];
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * stride < n) static_cast<V *>(to)[to_at[k]] = some[k];
    }
}

/* Returns which rows go from one rank to another one with this launch. */
static __device__ __forceinline__ struct passage passage_of(const struct exchange_params &p,
                                                            uint32_t sender, uint32_t receiver) {
    struct passage way = {sender, receiver, exchange_block_of(&p.args, sender, receiver, p.links.n),
                          false, false};
    const uint32_t first = min(p.first_row, way.rows.n_rows);
    way.rows.from_row += first;
    way.rows.to_row += first;
    way.rows.n_rows = min(way.rows.n_rows - first, p.most_rows);
    return way;
}

/* Returns the bytes of each sender's place in a stage, which are whole vectors. */
static __host__ __device__ __forceinline__ uint32_t place_bytes(uint32_t n_ranks) {
    return STAGE_BYTES / n_ranks / sizeof(uint4) * sizeof(uint4);
}

/* Returns a sender's place in a rank's stage. */
static __device__ __forceinline__ char *place_in(void *stage, const struct exchange_params &p,
                                                 uint32_t sender) {
    return static_cast<char *>(stage) + sender * place_bytes(p.links.n);
}

/* Tells all other ranks where this one wants what they send. */
static __device__ __forceinline__ void open_to_ranks(const struct exchange_params &p,
                                                     uint32_t number) {
    const struct rank_links &links = p.links;
    for (uint32_t other = threadIdx.x; other < links.n; other += EXCHANGE_THREADS) {
        struct mailbox *box = links.boxes[other];
        if (other == links.rank) continue;
        box->exchange_to[blockIdx.x][links.rank] =
            links.through_host ? place_in(stage_of(links), p, other) : p.args.to;
        set_flag(&box->exchange_open[blockIdx.x][links.rank], number);
    }
}

/* Sends another rank its rows; returns false if it does not want them. */
template <typename V>
static __device__ __forceinline__ bool send_to(const struct exchange_params &p, uint32_t other,
                                               uint32_t number) {
    __shared__ void *to;
    const struct rank_links &links = p.links;
    struct mailbox *box = own_box(links);
    bool is_open = true;
    if (threadIdx.x == 0) {
        is_open =
            await_flag(links, &box->exchange_open[blockIdx.x][other], number, WAIT_EXCHANGE, other);
        to = reinterpret_cast<void *>(load_volatile(
            reinterpret_cast<const uint64_t *>(&box->exchange_to[blockIdx.x][other])));
    }
    if (!__syncthreads_and(is_open)) return false;
    struct passage way = passage_of(p, links.rank, other);
    way.to_stage = links.through_host;
    copy_passage<V>(p.args, way, p.args.from, to);
    __syncthreads(); /* all is written, and all have read the address */
    if (threadIdx.x == 0)
        set_flag(&links.boxes[other]->exchange_came[blockIdx.x][links.rank], number);
    return true;
}

/* Waits for what the other ranks send, and takes it from the stage. */
template <typename V>
static __device__ __forceinline__ void receive(const struct exchange_params &p, uint32_t number) {
    const struct rank_links &links = p.links;
    struct mailbox *box = own_box(links);
    bool is_here = true;
    for (uint32_t other = threadIdx.x; other < links.n; other += EXCHANGE_THREADS)
        if (other != links.rank)
            is_here &= await_flag(links, &box->exchange_came[blockIdx.x][other], number,
                                  WAIT_EXCHANGE, other);
    if (!__syncthreads_and(is_here) || !links.through_host) return;
    for (uint32_t other = 0; other < links.n; other++) {
        struct passage way = passage_of(p, other, links.rank);
        way.from_stage = true;
        if (other != links.rank)
            copy_passage<V>(p.args, way, place_in(stage_of(links), p, other), p.args.to);
    }
}

/* Exchanges with all other ranks, beginning with the next one. */
template <typename V>
static __device__ __forceinline__ void exchange_with_ranks(const struct exchange_params &p,
                                                           uint32_t number) {
    open_to_ranks(p, number);
    copy_passage<V>(p.args, passage_of(p, p.links.rank, p.links.rank), p.args.from, p.args.to);
    bool goes_on = true;
    for (uint32_t i = 1; i < p.links.n && goes_on; i++)
        goes_on = send_to<V>(p, (p.links.rank + i) % p.links.n, number);
    if (goes_on) receive<V>(p, number);
}

template <typename V>
static __global__ void __launch_bounds__(EXCHANGE_THREADS)
    exchange_kernel(const __grid_constant__ struct exchange_params p) {
    struct mailbox *box = own_box(p.links);
    if (p.links.starts_next) let_next_start();
    wait_for_previous();
    if (block_is_stopped(p.links)) return;
    const uint32_t number = box->n_exchanges[blockIdx.x] + 1;
    exchange_with_ranks<V>(p, number);
    __syncthreads(); /* all threads have read the count */
    if (threadIdx.x == 0) box->n_exchanges[blockIdx.x] = number;
}

/* Copies what the rank has itself. */
template <typename V>
static __global__ void __launch_bounds__(EXCHANGE_THREADS)
    own_columns_kernel(const __grid_constant__ struct exchange_params p) {
    let_next_start();
    wait_for_previous();
    copy_passage<V>(p.args, passage_of(p, p.links.rank, p.links.rank), p.args.from, p.args.to);
}

enum { EACH = 8 /* elements of a vector */, AT_LEAST = 8 /* vectors of a thread, in many rows */ };

/* Tells whether all begins and ends with whole vectors. */
static bool is_wide(const struct exchange_args *args) {
    size_t all = args->from_stride | args->to_stride |
                 ((uintptr_t)args->from | (uintptr_t)args->to) / sizeof(uint16_t);
    for (uint32_t i = 0; i < args->n_parts; i++)
        all |= args->parts[i].all | args->parts[i].own | args->parts[i].n;
    return all % EACH == 0;
}

/* Makes numbers of elements those of vectors. */
static void widen(struct exchange_args *args) {
    args->from_stride /= EACH;
    args->to_stride /= EACH;
    for (uint32_t i = 0; i < args->n_parts; i++) {
        args->parts[i].all /= EACH;
        args->parts[i].own /= EACH;
        args->parts[i].n /= EACH;
    }
}

static cudaError_t launch_wide(const struct exchange_params *p, uint32_t n_blocks,
                               struct launch launch) {
    const auto kernel =
        exchange_is_alone(&p->args) ? own_columns_kernel<uint4> : exchange_kernel<uint4>;
    return launch_kernel(launch, kernel, n_blocks, EXCHANGE_THREADS, 0, *p);
}

static cudaError_t launch_narrow(const struct exchange_params *p, uint32_t n_blocks,
                                 struct launch launch) {
    const auto kernel =
        exchange_is_alone(&p->args) ? own_columns_kernel<uint16_t> : exchange_kernel<uint16_t>;
    return launch_kernel(launch, kernel, n_blocks, EXCHANGE_THREADS, 0, *p);
}

extern "C" cudaError_t launch_exchange(const struct exchange_params *params, uint32_t most_blocks,
                                       struct launch launch) {
    struct exchange_params p = *params;
    const bool wide = is_wide(&p.args), alone = exchange_is_alone(&p.args);
    if (wide) widen(&p.args);
    uint32_t width = 0;
    for (uint32_t i = 0; i < p.args.n_parts; i++) width += p.args.parts[i].n;
    const size_t row_bytes = (size_t)width * (wide ? sizeof(uint4) : sizeof(uint16_t));
    p.most_rows = p.args.n_rows;
    if (p.links.through_host && !alone)
        p.most_rows = max_u32((uint32_t)(place_bytes(p.links.n) / row_bytes), 1);
    const uint64_t n = (uint64_t)min_u32(p.args.n_rows, p.most_rows) * width;
    const uint32_t n_blocks = (uint32_t)min_u64(
        div_up(n, EXCHANGE_THREADS * (n > EXCHANGE_THREADS * EXCHANGE_BLOCKS ? AT_LEAST : 1)),
        min_u32(alone ? UINT32_MAX : most_blocks, EXCHANGE_BLOCKS));
    cudaError_t code = cudaSuccess;
    for (; p.first_row < p.args.n_rows && code == cudaSuccess; p.first_row += p.most_rows)
        code = wide ? launch_wide(&p, n_blocks, launch) : launch_narrow(&p, n_blocks, launch);
    return code;
}

extern "C" cudaError_t load_exchanges(void) {
    static const void *const kernels[] = {
        (const void *)exchange_kernel<uint4>, (const void *)exchange_kernel<uint16_t>,
        (const void *)own_columns_kernel<uint4>, (const void *)own_columns_kernel<uint16_t>};
    cudaError_t code = cudaSuccess;
    for (const void *kernel : kernels) {
        cudaFuncAttributes attributes;
        if (code == cudaSuccess) code = cudaFuncGetAttributes(&attributes, kernel);
    }
    return code;
}
