/* columns.cu - what is one rank's alone: columns of logits go to rank 0, tokens come from it.
 *
 *   the rank that wants them     its address ─ flag ──►                    ──► wait for the flag
 *   the rank that has them                      wait ──► data to the address ─ flag
 *
 * So data are written where they are wanted, once that memory is no longer used.  Addresses need
 * not be known when a CUDA graph is captured.
 *
 * That memory is the rank's, or the stage in its mailbox, from which it copies them.
 *
 * Grid:   columns: blocks that take elements in turn; tokens: one block.
 * Shared: none.           Bound: the links.
 * Oracle: engine/cpu/group.c. */
#include "cuda/ranks/mailbox.cuh"
#include "engine/base/sizes.h"

/* ---- columns ---- */

/* Copies the block's share of columns, N elements at a time, of which a thread reads several before
 * it writes the first. */
template <int N>
static __device__ __forceinline__ void copy_vectors(const struct columns_params &p,
                                                    struct column_range range, const float *from,
                                                    float *to) {
    constexpr int AT_ONCE = 4;
    const size_t each = range.n / N, n = each * p.n_rows,
                 stride = (size_t)gridDim.x * COLUMN_THREADS;
    for (size_t first = (size_t)blockIdx.x * COLUMN_THREADS + threadIdx.x; first < n;
         first += AT_ONCE * stride) {
        vector<float, N> some[AT_ONCE];
        size_t at[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const size_t i = first + k * stride;
            at[k] = i / each * p.width + range.first + i % each * N;
            if (i < n) some[k] = *reinterpret_cast<const vector<float, N> *>(from + at[k]);
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * stride < n) *reinterpret_cast<vector<float, N> *>(to + at[k]) = some[k];
    }
}

static __device__ __forceinline__ void copy_columns(const struct columns_params &p,
                                                    struct column_range range, const float *from,
                                                    float *to) {
    const bool is_wide =
        p.width % 4 == 0 && range.first % 4 == 0 && range.n % 4 == 0 &&
        (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0;
    if (is_wide) copy_vectors<4>(p, range, from, to);
    else copy_vectors<1>(p, range, from, to);
}

/* Opens x, or the stage, to the other ranks' blocks of this number, and waits for their columns. */
static __device__ __forceinline__ void receive_columns(const struct columns_params &p,
                                                       uint32_t number) {
    const struct rank_links &links = p.links;
    struct mailbox *box = own_box(links);
    float *to = links.through_host ? static_cast<float *>(stage_of(links)) : p.x;
    bool is_here = true;
    for (uint32_t rank = 1 + threadIdx.x; rank < links.n; rank += COLUMN_THREADS) {
        links.boxes[rank]->columns_to[blockIdx.x] = to;
        set_flag(&links.boxes[rank]->columns_open[blockIdx.x], number);
        is_here &=
            await_flag(links, &box->columns_came[blockIdx.x][rank], number, WAIT_COLUMNS, rank);
    }
    if (!__syncthreads_and(is_here) || !links.through_host) return;
    for (uint32_t rank = 1; rank < links.n; rank++)
        copy_columns(p, box->columns[blockIdx.x][rank], to, p.x);
}

static __device__ __forceinline__ void send_columns(const struct columns_params &p,
                                                    uint32_t number) {
    const struct rank_links &links = p.links;
    struct mailbox *box = own_box(links), *other = links.boxes[0];
    const struct column_range range = {p.first, p.n_cols};
    if (!await_flag(links, &box->columns_open[blockIdx.x], number, WAIT_COLUMNS, 0)) return;
    copy_columns(p, range, p.x,
                 reinterpret_cast<float *>(load_volatile(
                     reinterpret_cast<const uint64_t *>(&box->columns_to[blockIdx.x]))));
    if (threadIdx.x == 0) other->columns[blockIdx.x][links.rank] = range;
    __syncthreads(); /* all columns are written */
    if (threadIdx.x == 0) set_flag(&other->columns_came[blockIdx.x][links.rank], number);
}

static __global__ void __launch_bounds__(COLUMN_THREADS)
    columns_kernel(const __grid_constant__ struct columns_params p) {
    struct mailbox *box = own_box(p.links);
    if (p.links.starts_next) let_next_start();
    wait_for_previous();
    if (block_is_stopped(p.links)) return;
    const uint32_t number = box->n_columns[blockIdx.x] + 1;
    if (p.links.rank == 0) receive_columns(p, number);
    else send_columns(p, number);
    __syncthreads(); /* all threads have read the count */
    if (threadIdx.x == 0) box->n_columns[blockIdx.x] = number;
}

/* The elements that a block of a sender copies at least, where there are more. */
enum { BLOCK_ELEMENTS = 16 * COLUMN_THREADS };

extern "C" cudaError_t launch_columns(const struct rank_operation *op, uint32_t most_blocks,
                                      struct launch launch) {
    const struct columns_params *p = &op->columns;
    const uint32_t each =
        p->links.through_host ? (uint32_t)(STAGE_BYTES / sizeof(float) / p->width) : p->n_rows;
    cudaError_t code = cudaSuccess;
    for (uint32_t at = 0; at < p->n_rows && code == cudaSuccess; at += each) {
        struct columns_params some = *p;
        some.x += (size_t)at * p->width;
        some.n_rows = min_u32(p->n_rows - at, each);
        const size_t n = (size_t)some.n_rows * div_up(p->width, p->links.n);
        const uint32_t n_blocks =
            (uint32_t)min_u64(div_up(n, BLOCK_ELEMENTS), min_u32(most_blocks, COLUMN_BLOCKS));
        code = launch_kernel(launch, columns_kernel, n_blocks, COLUMN_THREADS, 0, some);
    }
    return code;
}

/* ---- tokens ---- */

static __device__ __forceinline__ void send_tokens(const struct tokens_params &p, uint32_t number) {
    const struct rank_links &links = p.links;
    struct mailbox *box = own_box(links);
    bool are_open = true;
    for (uint32_t r = 1 + threadIdx.x; r < links.n; r += COLUMN_THREADS)
        are_open &= await_flag(links, &box->tokens_open[r], number, WAIT_TOKENS, r);
    if (!__syncthreads_and(are_open)) return;
    for (uint32_t r = 1; r < links.n; r++) {
        int32_t *to = reinterpret_cast<int32_t *>(
            load_volatile(reinterpret_cast<const uint64_t *>(&box->tokens_to[r])));
        for (uint32_t i = threadIdx.x; i < p.n; i += COLUMN_THREADS) to[i] = p.tokens[i];
    }
    __syncthreads();
    for (uint32_t r = 1 + threadIdx.x; r < links.n; r += COLUMN_THREADS)
        set_flag(&links.boxes[r]->tokens_came, number);
}

static __device__ __forceinline__ void receive_tokens(const struct tokens_params &p,
                                                      uint32_t number) {
    const struct rank_links &links = p.links;
    int32_t *to = links.through_host ? static_cast<int32_t *>(stage_of(links)) : p.tokens;
    bool is_here = true;
    if (threadIdx.x == 0) {
        links.boxes[0]->tokens_to[links.rank] = to;
        set_flag(&links.boxes[0]->tokens_open[links.rank], number);
        is_here = await_flag(links, &own_box(links)->tokens_came, number, WAIT_TOKENS, 0);
    }
    if (!__syncthreads_and(is_here) || !links.through_host) return;
    for (uint32_t i = threadIdx.x; i < p.n; i += COLUMN_THREADS) p.tokens[i] = to[i];
}

static __global__ void __launch_bounds__(COLUMN_THREADS)
    tokens_kernel(const __grid_constant__ struct tokens_params p) {
    struct mailbox *box = own_box(p.links);
    if (p.links.starts_next) let_next_start();
    wait_for_previous();
    if (block_is_stopped(p.links)) return;
    const uint32_t number = box->n_tokens + 1;
    if (p.links.rank == 0) send_tokens(p, number);
    else receive_tokens(p, number);
    __syncthreads(); /* all threads have read the count */
    if (threadIdx.x == 0) box->n_tokens = number;
}

extern "C" cudaError_t launch_tokens(const struct rank_operation *op, uint32_t,
                                     struct launch launch) {
    if (op->tokens.n == 0) return cudaSuccess;
    return launch_kernel(launch, tokens_kernel, 1, COLUMN_THREADS, 0, op->tokens);
}

/* ---- the probe ---- */

static __global__ void probe_kernel(const __grid_constant__ struct rank_links links, uint32_t other,
                                    uint32_t value, uint32_t *sum) {
    struct mailbox *box = own_box(links);
    wait_for_previous();
    if (is_stopped(links)) return;
    links.boxes[other]->probe[links.rank] = value;
    set_flag(&links.boxes[other]->probe_came[links.rank], 1);
    if (!await_flag(links, &box->probe_came[other], 1, WAIT_PROBE, other)) return;
    *sum = value + load_volatile(&box->probe[other]);
}

extern "C" cudaError_t launch_probe(const struct rank_links *links, uint32_t other, uint32_t value,
                                    uint32_t *sum, struct launch launch) {
    return launch_kernel(launch, probe_kernel, 1, 1, 0, *links, other, value, sum);
}

extern "C" cudaError_t load_columns(void) {
    cudaFuncAttributes attributes;
    cudaError_t code = cudaFuncGetAttributes(&attributes, columns_kernel);
    if (code == cudaSuccess) code = cudaFuncGetAttributes(&attributes, tokens_kernel);
    return code == cudaSuccess ? cudaFuncGetAttributes(&attributes, probe_kernel) : code;
}
