/* norm.cu - RMSNorm of vectors of which each rank has a part of the same size.
 *
 *   sums     each rank's sum of squares of each row goes to all ranks, without a flag: as in the
 *            small kernel of sum.cu
 *   results  x / sqrt(mean square of all parts + eps) * weight, rounded once
 *
 * A block sends the sums of all of its rows before it waits for those of the first.  All ranks add
 * them in the same order, so all divide by the same number.
 *
 * Grid:   blocks that take rows in turn, NORM_ROWS at most.      Shared: of a sum.
 * Bound:  memory, 2 reads and a write of n_rows * dim elements.
 * Oracle: engine/cpu/elementwise.c. */
#include "cuda/ranks/mailbox.cuh"
#include "engine/base/sizes.h"

/* Returns where a rank's sum of a block's row is in a mailbox. */
static __device__ __forceinline__ uint32_t *norm_of(const struct rank_links &links, uint32_t box,
                                                    uint32_t round, uint32_t rank, uint32_t row) {
    return reinterpret_cast<uint32_t *>(reinterpret_cast<char *>(links.boxes[box]) +
                                        mailbox_norms_at(links.n)) +
           ((size_t)(round % 2 * links.n + rank) * NORM_BLOCKS + blockIdx.x) * NORM_ROWS + row;
}

static __device__ __forceinline__ const __nv_bfloat16 *row_of(const struct norm_params &p,
                                                              uint32_t row) {
    return static_cast<const __nv_bfloat16 *>(p.x) + row * p.x_stride;
}

/* Sends the rank's sum of squares of a row to all ranks, itself among them. */
static __device__ __forceinline__ void send_sum(const struct norm_params &p, uint32_t round,
                                                uint32_t row, uint32_t k, float *shared) {
    const __nv_bfloat16 *x = row_of(p, row);
    float sum = 0;
    for (uint32_t i = threadIdx.x; i < p.dim; i += NORM_THREADS)
        sum += to_float(x[i]) * to_float(x[i]);
    sum = block_sum(sum, shared);
    for (uint32_t to = threadIdx.x; to < p.links.n; to += NORM_THREADS)
        store_volatile(norm_of(p.links, to, round, p.links.rank, k),
                       __uint_as_float(present(__float_as_uint(sum))));
    __syncthreads(); /* all threads have read `shared` */
}

/* Waits for all ranks' sums of a row, and returns their sum; *has_come: whether they came. */
static __device__ __forceinline__ float receive_sums(const struct norm_params &p, uint32_t round,
                                                     uint32_t k, bool *has_come) {
    float sum = 0;
    *has_come = true;
    for (uint32_t rank = 0; rank < p.links.n && *has_come; rank++) {
        uint32_t *from = norm_of(p.links, p.links.rank, round, rank, k), word;
        *has_come = await_word(p.links, from, rank, &word);
        sum += __uint_as_float(word);
        *from = MISSING;
    }
    return sum;
}

static __device__ __forceinline__ void norm_row(const struct norm_params &p, uint32_t row,
                                                float scale) {
    const __nv_bfloat16 *x = row_of(p, row);
    __nv_bfloat16 *out = static_cast<__nv_bfloat16 *>(p.out) + row * p.out_stride;
    for (uint32_t i = threadIdx.x; i < p.dim; i += NORM_THREADS)
        store_as(out + i, to_float(x[i]) * scale * load_element(p.weight, i, p.element));
}

static __global__ void __launch_bounds__(NORM_THREADS)
    rank_norm_kernel(const __grid_constant__ struct norm_params p) {
    __shared__ float shared[32], scale;
    struct mailbox *box = own_box(p.links);
    if (p.links.starts_next) let_next_start();
    wait_for_previous();
    if (block_is_stopped(p.links)) return;
    const uint32_t round = box->n_norms[blockIdx.x];
    for (uint32_t row = blockIdx.x, k = 0; row < p.n_rows; row += gridDim.x, k++)
        send_sum(p, round, row, k, shared);
    bool goes_on = true;
    for (uint32_t row = blockIdx.x, k = 0; row < p.n_rows && goes_on; row += gridDim.x, k++) {
        if (threadIdx.x == 0) {
            const float sum = receive_sums(p, round, k, &goes_on);
            scale = rsqrtf(sum / ((float)p.dim * (float)p.links.n) + p.eps);
        }
        goes_on = __syncthreads_and(goes_on);
        if (goes_on) norm_row(p, row, scale);
        __syncthreads(); /* all threads have read the scale */
    }
    if (threadIdx.x > 0) return;
    box->n_norms[blockIdx.x] = round + 1;
    if (p.links.through_host) __threadfence_system(); /* what is MISSING is so, before the next */
}

extern "C" cudaError_t launch_rank_norm(const struct rank_operation *op, uint32_t most_blocks,
                                        struct launch launch) {
    const struct norm_params *p = &op->norm;
    const uint32_t n_blocks = min_u32(most_blocks, NORM_BLOCKS), each = n_blocks * NORM_ROWS;
    cudaError_t code = cudaSuccess;
    for (uint32_t at = 0; at < p->n_rows && code == cudaSuccess; at += each) {
        struct norm_params some = *p;
        some.x = static_cast<const __nv_bfloat16 *>(p->x) + at * p->x_stride;
        some.out = static_cast<__nv_bfloat16 *>(p->out) + at * p->out_stride;
        some.n_rows = min_u32(p->n_rows - at, each);
        code = launch_kernel(launch, rank_norm_kernel, min_u32(some.n_rows, n_blocks), NORM_THREADS,
                             0, some);
    }
    return code;
}

extern "C" cudaError_t load_norms(void) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, rank_norm_kernel);
}
