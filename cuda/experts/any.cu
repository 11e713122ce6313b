/* any.cu - products of the experts' matrices: any format, any shape, any number of rows.
 *
 * A block multiplies up to TILE_X pairs of one expert by TILE_W rows of its matrix; of gate and up
 * it has the half each.  Elements become bf16 in shared memory.  Plain elements of more bits become
 * the sum of two, so that no weight loses bits that x has.
 *
 * Every result is one chain of mma.m16n8k16 over n_in.  So a row's bits do not depend on how many
 * rows its expert has.
 *
 *   shared  x [TILE_X][PITCH] | W [2][TILE_W][PITCH]  bf16
 *
 * Grid:   tiles of rows of W, and as many tiles of pairs as there may be; the last ones are empty.
 * Bound:  the conversion of elements, one at a time: it is the kernel for what no other takes.
 * Oracle: weight_to_float() (tests/cuda/test_experts.c). */
#include "cuda/common/mma.cuh"
#include "cuda/experts/expert_tile.cuh"
#include "cuda/host/internal.h"
#include "cuda/linear/elements.cuh"

typedef __nv_bfloat16 bf16;

enum { N_THREADS = 128, TILE_X = 32, TILE_W = 64, SLICE = 64, PITCH = SLICE + 8, GROUP = 8 };

struct any_layout {
    struct stored_rows rows[2];
    size_t n_scales[2]; /* of a matrix */
};

struct any_plan {
    bf16 x[TILE_X][PITCH], w[2][TILE_W][PITCH];
};

/* Copies a slice of the pairs' rows of x; rows past the end are 0. */
static __device__ __forceinline__ void load_x(struct any_plan &plan, const struct expert_product &p,
                                              const struct expert_tile &tile, uint32_t k) {
    for (uint32_t i = threadIdx.x; i < TILE_X * SLICE; i += N_THREADS) {
        const uint32_t r = i / SLICE, column = k + i % SLICE;
        const bool exists = r < tile.n && column < p.n_in;
        const size_t row = exists ? x_row_of(p, tile.first + r) : 0;
        plan.x[r][i % SLICE] =
            exists ? static_cast<const bf16 *>(p.x)[row * p.n_in + column] : __float2bfloat16(0.0f);
    }
}

/* Widens a slice of the expert's rows of W; rows past the end are 0. */
static __device__ __forceinline__ void load_w(struct any_plan &plan, const struct expert_product &p,
                                              const struct any_layout &layout, uint32_t expert,
                                              uint32_t tile, uint32_t k) {
    const uint32_t width = TILE_W / (1 + p.gated);
    for (uint32_t i = threadIdx.x; i < TILE_W * SLICE; i += N_THREADS) {
        const uint32_t r = i / SLICE, column = k + i % SLICE, part = r / width,
                       out = tile * width + r % width;
        const struct expert_stack &s = p.stacks[part];
        const struct stored_rows &rows = layout.rows[part];
        float x = 0.0f;
        if (out < p.n_out && column < p.n_in) {
            const size_t scale_bytes =
                layout.n_scales[part] * expert * scale_bytes_of(s.format.scale);
            x = value_at(rows,
                         static_cast<const char *>(s.w) + (size_t)expert * p.n_out * rows.row_bytes,
                         static_cast<const char *>(s.scales) + scale_bytes,
                         static_cast<const char *>(s.mins) + scale_bytes, out, column);
        }
        const bf16 high = __float2bfloat16_rn(x);
        const bool is_fine = s.format.element <= ELEMENT_F16 && s.format.scale == SCALE_NONE;
        plan.w[0][r][i % SLICE] = high;
        plan.w[1][r][i % SLICE] = __float2bfloat16_rn(is_fine ? x - to_float(high) : 0.0f);
    }
}

/* Multiplies a slice.  The warp has groups of 8 rows of W: number `warp` of the first half, and of
 * the second. */
static __device__ __forceinline__ void multiply(float (&sums)[TILE_X / 16][2][4],
                                                const struct any_plan &plan, uint32_t warp,
                                                uint32_t lane) {
#pragma unroll
    for (uint32_t k = 0; k < SLICE; k += 16)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t w[4]; /* the first bf16, then the second ones */
            load_matrix(w, &plan.w[lane / 16][half * TILE_W / 2 + warp * GROUP + lane % 8]
                                  [k + lane / 8 % 2 * 8]);
#pragma unroll
            for (int m = 0; m < TILE_X / 16; m++) {
                uint32_t x[4];
                load_matrix(x, &plan.x[m * 16 + lane % 16][k + lane / 16 * 8]);
                mma(sums[m][half], x, w[0], w[1]);
                mma(sums[m][half], x, w[2], w[3]);
            }
        }
}

static __global__ void __launch_bounds__(N_THREADS)
    any_kernel(const __grid_constant__ struct expert_product p,
               const __grid_constant__ struct any_layout layout) {
    __shared__ __align__(16) struct any_plan plan;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, width = TILE_W / (1 + p.gated);
    float sums[TILE_X / 16][2][4] = {};
    let_next_start();
    wait_for_previous();
    const struct expert_tile tile = find_expert_tile(p.order, TILE_X, blockIdx.y);
    if (tile.n == 0) return;
    for (uint32_t k = 0; k < p.n_in; k += SLICE) {
        load_x(plan, p, tile, k);
        load_w(plan, p, layout, tile.expert, blockIdx.x, k);
        __syncthreads();
        multiply(sums, plan, warp, lane);
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < TILE_X / 16; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t r = m * 16 + lane / 4 + i / 2 * 8,
                           out = blockIdx.x * width + warp * GROUP + lane % 4 * 2 + i % 2;
            if (r >= tile.n) continue;
            if (p.gated) {
                store_gated(p, tile.expert, tile.first + r, out, sums[m][0][i], sums[m][1][i]);
            } else {
                store_plain(p, tile.expert, tile.first + r, out, sums[m][0][i]);
                store_plain(p, tile.expert, tile.first + r, out + TILE_W / 2, sums[m][1][i]);
            }
        }
}

static cudaError_t start_any(const struct expert_product *p, struct launch launch) {
    const uint32_t width = TILE_W / (1 + p->gated);
    struct any_layout layout = {};
    for (int i = 0; i <= p->gated; i++) {
        const struct expert_stack *s = &p->stacks[i];
        const uint32_t block_rows = s->format.block_rows;
        layout.rows[i] = stored_rows_of(&s->format, p->n_in, s->in_strips);
        layout.n_scales[i] = (size_t)layout.rows[i].n_blocks *
                             (block_rows ? (p->n_out + block_rows - 1) / block_rows : 1);
    }
    return launch_kernel(launch, any_kernel,
                         dim3((p->n_out + width - 1) / width, most_expert_tiles(&p->order, TILE_X)),
                         dim3(N_THREADS), 0, *p, layout);
}

extern "C" expert_launch launch_experts_any;
int launch_experts_any(struct cuda_backend *cuda, const struct expert_product *p,
                       struct error *err) {
    return cuda_check(cuda, start_any(p, launch_of(cuda)), "the experts' kernel \"any\"", err);
}
