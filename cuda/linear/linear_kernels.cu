/* linear_kernels.cu - y = x W^T for few rows, where reading W is the whole cost.
 *
 *   x  bf16 [n_rows, n_in]      W  bf16 [n_out, n_in] (linear_any: any format)     y  bf16 or f32
 *
 * few: a block takes 16 weight rows, a tile of one part (q, k and v share a launch).  Its warps
 * take 32-wide slices of n_in in turn, and tensor cores multiply them with 8 or 16 rows of x at
 * once.  So the arithmetic is a handful of instructions for 1 KB of weights, whatever n_rows is.
 *
 *            n_in  ->   warp 0 | warp 1 | ... | warp 7 | warp 0 | ...
 *   16 rows of W        [16x32]  [16x32]       [16x32]   [16x32]
 *
 * A dot product may take its terms in any order, so the fragments of mma.m16n8k16 are filled with
 * neighbours in memory: thread t of a quad holds elements 8t .. 8t + 7 of the slice of its row, of
 * W and of x alike.  One 16-byte load is then the share of two mma, and no shared memory or shuffle
 * is needed.
 *
 * norm: x is multiplied by the norm's weight as it is read, and its squares are added up at the
 * same time.  The eight warps of a block read all of x, so 1 / rms is known when the sums are, and
 * scales them.
 *
 * gated: the tile is 8 rows of gate over 8 rows of up, and the result is kind(gate) * up.
 *
 * N_AHEAD slices of a warp are always being loaded.  The first of them are requested before the
 * wait for the previous kernel, because weights never change.
 *
 * Shared: one f32 a warp, weight row and x row, to add the warps up; for norm one more a warp and x
 * row.
 * Bound:  memory, 2 * n_in * n_out bytes.        Oracle: engine/cpu/linear.c. */
#include "cuda/host/internal.h"
#include "cuda/linear/few_rows.cuh"

enum { ANY_ROWS = 4 };

/* Loads 16 bytes that are read once: they bypass the first-level cache, which keeps x.  The warps
 * of a block request 64 bytes of a row each; fetching 256 for the first of them speeds up a whole
 * model by 5 %. */
static __device__ __forceinline__ uint4 load_once(const bf16 *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

/* A thread's place in its slice: rows `low` and `high` of the tile, elements `k` .. `k` + 7. */
struct place {
    const bf16 *low, *high;
    uint32_t k;
};

static __device__ __forceinline__ struct place place_of(const struct product &p,
                                                        const struct product_part *part,
                                                        uint32_t tile) {
    const uint32_t lane = threadIdx.x % 32, half = TILE_OUT / 2,
                   row = tile * (p.gated ? half : TILE_OUT) + lane / 4;
    return (struct place){
        weight_row(part, row, p.n_in),
        p.gated ? weight_row(part + 1, row, p.n_in) : weight_row(part, row + half, p.n_in),
        threadIdx.x / 32 * SLICE + lane % 4 * 8};
}

static __device__ __forceinline__ struct slice load_slice(const struct place *at, uint32_t k,
                                                          uint32_t n_in) {
    if (k >= n_in) return (struct slice){};
    return (struct slice){load_once(at->low + k), load_once(at->high + k)};
}

static __device__ __forceinline__ uint4 load_norm_weight(const struct product &p, uint32_t k) {
    return __ldg(reinterpret_cast<const uint4 *>(static_cast<const bf16 *>(p.norm_weight) + k));
}

template <int N_MMA, int N_AHEAD, bool NORM>
static __global__ void __launch_bounds__(32 * N_WARPS, 2)
    few_kernel(const __grid_constant__ struct product p) {
    __shared__ struct plan<N_MMA> plan;
    uint32_t tile = blockIdx.x;
    const struct product_part *part = &p.parts[find_part(p, TILE_OUT, &tile)];
    const struct place at = place_of(p, part, tile);
    const uint32_t x_row = threadIdx.x % 32 / 4, stride = N_WARPS * SLICE;
    struct slice ahead[N_AHEAD];
    float sums[N_MMA][4] = {}, squares[N_MMA] = {};
    let_next_start();
#pragma unroll
    for (int i = 0; i < N_AHEAD; i++) ahead[i] = load_slice(&at, at.k + i * stride, p.n_in);
    wait_for_previous();
    for (uint32_t base = at.k; base - at.k % SLICE < p.n_in; base += N_AHEAD * stride) {
#pragma unroll
        for (int i = 0; i < N_AHEAD; i++) {
            const uint32_t k = base + i * stride;
            uint4 weight = {};
            if (NORM && k < p.n_in) weight = load_norm_weight(p, k);
#pragma unroll
            for (int m = 0; m < N_MMA; m++) {
                uint4 x = load_x(p, x_row + m * MMA_ROWS, k);
                if (NORM) {
                    squares[m] += sum_squares(x);
                    x = multiply_pairs(x, weight);
                }
                multiply(sums[m], &ahead[i], x);
            }
            ahead[i] = load_slice(&at, k + N_AHEAD * stride, p.n_in);
        }
    }
    share_sums<N_MMA>(&plan, threadIdx.x / 32, sums);
    if (NORM) share_squares<N_MMA>(&plan, threadIdx.x / 32, squares);
    __syncthreads();
    store_tile<N_MMA, NORM>(&plan, threadIdx.x, p, part, tile);
}

/* Returns the kernel for p.  The numbers of slices ahead were measured with Llama-3-8B's shapes. */
static void (*choose_kernel(const struct product *p))(struct product) {
    if (p->n_rows > MMA_ROWS)
        return p->norm_weight ? few_kernel<2, 4, true> : few_kernel<2, 4, false>;
    return p->norm_weight ? few_kernel<1, 6, true> : few_kernel<1, 6, false>;
}

static cudaError_t start_few(const struct product *p, struct launch launch) {
    const uint32_t n_tiles = count_tiles(p, TILE_OUT);
    if (n_tiles == 0 || p->n_rows == 0) return cudaSuccess;
    if (p->n_rows > FEW_MAX_ROWS) return cudaErrorInvalidValue;
    return launch_kernel(launch, choose_kernel(p), n_tiles, 32 * N_WARPS, 0, *p);
}

extern "C" product_launch launch_few;
int launch_few(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_few(p, launch_of(cuda)), "the product kernel \"few\"", err);
}

/* Computes any shape: a warp per weight row and ANY_ROWS rows of x, an element a lane. */
static __global__ void linear_any_kernel(const __grid_constant__ struct product p) {
    const uint32_t first = blockIdx.y * ANY_ROWS, lane = threadIdx.x % 32;
    uint32_t out = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, part = 0;
    float sums[ANY_ROWS] = {};
    let_next_start();
    wait_for_previous();
    while (part < p.n_parts && out >= p.parts[part].n_out) out -= p.parts[part++].n_out;
    if (part == p.n_parts) return;
    const bf16 *x = static_cast<const bf16 *>(p.x) + (size_t)first * p.n_in;
    for (uint32_t k = lane; k < p.n_in; k += 32) {
        const float w = load_element(p.parts[part].w, (size_t)out * p.n_in + k, p.w_format.element);
#pragma unroll
        for (uint32_t r = 0; r < ANY_ROWS; r++)
            if (first + r < p.n_rows) sums[r] += w * to_float(x[(size_t)r * p.n_in + k]);
    }
#pragma unroll
    for (uint32_t r = 0; r < ANY_ROWS; r++) {
        const float sum = warp_sum(sums[r]);
        if (lane == 0 && first + r < p.n_rows)
            store_result(p, &p.parts[part], first + r, out, with_bias(&p.parts[part], out, sum));
    }
}

static cudaError_t start_any(const struct product *p, struct launch launch) {
    const uint32_t n_out = count_tiles(p, 1);
    if (n_out == 0 || p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, linear_any_kernel,
                         dim3((n_out + 3) / 4, (p->n_rows + ANY_ROWS - 1) / ANY_ROWS), 128, 0, *p);
}

extern "C" product_launch launch_any;
int launch_any(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_any(p, launch_of(cuda)), "the product kernel \"any\"", err);
}
