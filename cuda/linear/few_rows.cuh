/* few_rows.cuh - what the two kernels of linear_kernels.cu and linear_stream.cu share: tiles of
 * weight rows, fragments, and how the sums of a tile become results.
 *
 * A tile is 16 rows of W, or 8 of gate over 8 of up.  Each of a block's N_WARPS warps adds up its
 * share of n_in; `plan` is where they meet.
 *
 * A dot product may take its terms in any order, so the fragments of mma.m16n8k16 are filled with
 * neighbours in memory: thread t of a quad holds elements 8t .. 8t + 7 of a 32-wide slice of its
 * row, of W and of x alike.  One 16-byte load is then the share of two mma.
 *
 * Thread: device code, by whole warps.  Memory: the caller's. */
#ifndef CUDA_LINEAR_FEW_ROWS_CUH
#define CUDA_LINEAR_FEW_ROWS_CUH

#include "cuda/common/mma.cuh"
#include "cuda/linear/product.cuh"

typedef __nv_bfloat16 bf16;

enum { TILE_OUT = 16, SLICE = 32, N_WARPS = 8, MMA_ROWS = 8 };

/* Returns a weight row; a row past the end is the last one, and its results are not used. */
static __device__ __forceinline__ const bf16 *weight_row(const struct product_part *part,
                                                         uint32_t row, uint32_t n_in) {
    const uint32_t last = part->n_out - 1;
    return static_cast<const bf16 *>(part->w) + (size_t)(row < last ? row : last) * n_in;
}

/* A lane's elements of SLICE columns of two weight rows that are 8 apart. */
struct slice {
    uint4 low, high;
};

/* Returns the 8 products of 8 pairs of bf16, each rounded to bf16 once. */
static __device__ __forceinline__ uint4 multiply_pairs(uint4 a, uint4 b) {
    return make_uint4(multiply_pair(a.x, b.x), multiply_pair(a.y, b.y), multiply_pair(a.z, b.z),
                      multiply_pair(a.w, b.w));
}

/* Adds the products of a slice with a lane's elements of 8 rows of x to its sums, on tensor
 * cores. */
static __device__ __forceinline__ void multiply(float (&sums)[4], const struct slice *w, uint4 x) {
    mma(sums, w->low.x, w->high.x, w->low.y, w->high.y, x.x, x.y);
    mma(sums, w->low.z, w->high.z, w->low.w, w->high.w, x.z, x.w);
}

/* Shared memory of a block: each warp's sums, and its squares of x for a norm. */
template <int N_MMA> struct plan {
    float sums[N_WARPS][N_MMA * MMA_ROWS][TILE_OUT];
    float squares[N_WARPS][N_MMA * MMA_ROWS];
};

/* Writes the warp's sums to its place in shared memory, without a barrier.  sums[m][2 * i + h] is
 * of weight row lane / 4 + 8 * i and x row lane % 4 * 2 + h. */
template <int N_MMA>
static __device__ __forceinline__ void share_sums(struct plan<N_MMA> *plan, uint32_t warp,
                                                  const float (*sums)[4]) {
    const uint32_t lane = threadIdx.x % 32;
    for (int m = 0; m < N_MMA; m++)
        for (int i = 0; i < 4; i++)
            plan->sums[warp][m * MMA_ROWS + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] =
                sums[m][i];
}

/* Writes the warp's sums of squares to its place in shared memory.  squares[m] belongs to x row
 * 8 * m + lane / 4; each thread of a quad has a part of it, and the parts are added up. */
template <int N_MMA>
static __device__ __forceinline__ void share_squares(struct plan<N_MMA> *plan, uint32_t warp,
                                                     const float *squares) {
    const uint32_t lane = threadIdx.x % 32;
    for (int m = 0; m < N_MMA; m++) {
        float sum = squares[m];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) plan->squares[warp][m * MMA_ROWS + lane / 4] = sum;
    }
}

/* Returns the sum of all warps for a row of x and an output of the tile. */
template <int N_MMA>
static __device__ __forceinline__ float add_warps(const struct plan<N_MMA> *plan, uint32_t row,
                                                  uint32_t out) {
    float x = 0.0f;
    for (int w = 0; w < N_WARPS; w++) x += plan->sums[w][row][out];
    return x;
}

/* Returns the RMSNorm's factor of a row of x, from the warps' squares. */
template <int N_MMA>
static __device__ __forceinline__ float scale_of(const struct plan<N_MMA> *plan, uint32_t row,
                                                 const struct product &p) {
    float x = 0.0f;
    for (int w = 0; w < N_WARPS; w++) x += plan->squares[w][row];
    return rsqrtf(x / (float)p.n_in + p.eps);
}

/* Adds the warps up and writes tile `tile` of the part; `thread` counts those of the N_WARPS warps.
 * All warps have shared their sums (and squares, with a norm), and a barrier came since. */
template <int N_MMA, bool NORM>
static __device__ __forceinline__ void store_tile(const struct plan<N_MMA> *plan, uint32_t thread,
                                                  const struct product &p,
                                                  const struct product_part *part, uint32_t tile) {
    const uint32_t width = p.gated ? TILE_OUT / 2 : TILE_OUT, i = thread % TILE_OUT,
                   out = tile * width + i;
    if (i >= width || out >= part->n_out) return;
#pragma unroll 1
    for (uint32_t row = thread / TILE_OUT; row < p.n_rows; row += N_WARPS * 32 / TILE_OUT) {
        const float scale = NORM ? scale_of(plan, row, p) : 1.0f;
        float x = with_bias(part, out, add_warps(plan, row, i) * scale);
        if (p.gated)
            x = gate_mul(x, with_bias(part + 1, out, add_warps(plan, row, i + width) * scale),
                         p.kind);
        store_result(p, part, row, out, x);
    }
}

/* Returns 8 elements of x row `row` from k on; zeros outside.  k and n_in are multiples of 8. */
static __device__ __forceinline__ uint4 load_x(const struct product &p, uint32_t row, uint32_t k) {
    if (row >= p.n_rows || k >= p.n_in) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(static_cast<const bf16 *>(p.x) + (size_t)row * p.n_in +
                                            k);
}

#endif
