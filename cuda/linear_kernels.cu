/* linear_kernels.cu - y = x W^T for few rows, where reading W is the whole cost.
 *
 *   x  bf16 [n_rows, n_in]      W  bf16 [n_out, n_in] (linear_any: any dtype)      y  bf16 or f32
 *
 * skinny: a block takes 16 weight rows (a tile of one part: q, k and v share a launch), its warps
 * deal 32-wide slices of n_in among themselves, and tensor cores multiply them with 8 or 16 rows of
 * x at once: the arithmetic is a handful of instructions for 1 KB of weights, whatever n_rows is.
 *
 *            n_in  ->   warp 0 | warp 1 | ... | warp 7 | warp 0 | ...
 *   16 rows of W        [16x32]  [16x32]       [16x32]   [16x32]
 *
 * A dot product may take its terms in any order, so the fragments of mma.m16n8k16 are filled with
 * what lies together in memory: thread t of a quad holds elements 8t .. 8t + 7 of the slice of
 * "its" row, of W and of x alike.  One 16-byte load is then the share of two mma, and no shared
 * memory or shuffle is needed.
 *
 * N_AHEAD slices of a warp are always on their way from memory, the first of them from before the
 * wait for the previous kernel: weights never change.
 *
 * Shared: one f32 a warp, weight row and x row, to add the warps up.
 * Bound:  memory, 2 * n_in * n_out bytes.        Oracle: engine/cpu/linear.c. */
#include "cuda/device.cuh"

typedef __nv_bfloat16 bf16;

enum { TILE_OUT = 16, SLICE = 32, N_WARPS = 8, MMA_ROWS = 8, ANY_ROWS = 4 };

/* 16 bytes that are read once: they pass the first-level cache by, which keeps x. */
static __device__ __forceinline__ uint4 load_once(const bf16 *from) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

static __device__ __forceinline__ void mma(float *c, uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A thread's place in its slice: rows `row` and `row` + 8 of the tile, elements `k` .. `k` + 7. */
struct place {
    const bf16 *low, *high;
    uint32_t k;
};

static __device__ __forceinline__ struct place place_of(const struct skinny_part *part,
                                                        uint32_t tile, uint32_t n_in) {
    const uint32_t lane = threadIdx.x % 32, last = part->n_out - 1,
                   row = tile * TILE_OUT + lane / 4;
    const bf16 *w = static_cast<const bf16 *>(part->w);
    /* Rows past the end read the last one; nobody writes what comes of it. */
    return (struct place){w + (size_t)(row < last ? row : last) * n_in,
                          w + (size_t)(row + 8 < last ? row + 8 : last) * n_in,
                          threadIdx.x / 32 * SLICE + lane % 4 * 8};
}

struct slice {
    uint4 low, high;
};

static __device__ __forceinline__ struct slice load_slice(const struct place *at, uint32_t k,
                                                          uint32_t n_in) {
    if (k >= n_in) return (struct slice){};
    return (struct slice){load_once(at->low + k), load_once(at->high + k)};
}

static __device__ __forceinline__ void multiply(float *sums, const struct slice *w, uint4 x) {
    mma(sums, w->low.x, w->high.x, w->low.y, w->high.y, x.x, x.y);
    mma(sums, w->low.z, w->high.z, w->low.w, w->high.w, x.z, x.w);
}

/* y[row][out] of the tile, from the sum of the warps. */
static __device__ __forceinline__ void store_result(const struct skinny_params &p,
                                                    const struct skinny_part *part, uint32_t row,
                                                    uint32_t out, float x) {
    const size_t at = row * part->y_stride + out;
    if (part->bias) x += load_dtype(part->bias, out, part->bias_dtype);
    if (p.y_f32) {
        float *y = static_cast<float *>(part->y) + at;
        *y = p.accumulate ? *y + x : x;
    } else {
        bf16 *y = static_cast<bf16 *>(part->y) + at;
        store_as(y, p.accumulate ? to_float(*y) + x : x);
    }
}

template <int N_MMA> struct plan { float sums[N_WARPS][N_MMA * MMA_ROWS][TILE_OUT]; };

/* sums[2 * i + h] of an mma is weight row lane / 4 + 8 * i, x row lane % 4 * 2 + h. */
template <int N_MMA>
static __device__ void add_warps(const struct skinny_params &p, const struct skinny_part *part,
                                 uint32_t tile, const float (*sums)[4], struct plan<N_MMA> *plan) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int m = 0; m < N_MMA; m++)
        for (int i = 0; i < 4; i++)
            plan->sums[warp][m * MMA_ROWS + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] =
                sums[m][i];
    __syncthreads();
    const uint32_t out = threadIdx.x % TILE_OUT, row = threadIdx.x / TILE_OUT;
    if (row >= p.n_rows || row >= N_MMA * MMA_ROWS || tile * TILE_OUT + out >= part->n_out) return;
    float x = 0.0f;
    for (int w = 0; w < N_WARPS; w++) x += plan->sums[w][row][out];
    store_result(p, part, row, tile * TILE_OUT + out, x);
}

/* The part that tile number blockIdx.x falls into; *tile becomes the tile within it. */
static __device__ __forceinline__ const struct skinny_part *find_part(const struct skinny_params &p,
                                                                      uint32_t *tile) {
    uint32_t i = 0;
    for (*tile = blockIdx.x; i + 1 < p.n_parts; i++) {
        const uint32_t n_tiles = (p.parts[i].n_out + TILE_OUT - 1) / TILE_OUT;
        if (*tile < n_tiles) break;
        *tile -= n_tiles;
    }
    return &p.parts[i];
}

template <int N_MMA, int N_AHEAD, int N_BLOCKS>
static __global__ void __launch_bounds__(32 * N_WARPS, N_BLOCKS)
    skinny_kernel(const __grid_constant__ struct skinny_params p) {
    __shared__ struct plan<N_MMA> plan;
    uint32_t tile;
    const struct skinny_part *part = find_part(p, &tile);
    const struct place at = place_of(part, tile, p.n_in);
    const uint32_t x_row = threadIdx.x % 32 / 4, stride = N_WARPS * SLICE;
    struct slice ahead[N_AHEAD];
    float sums[N_MMA][4] = {};
    let_next_start();
#pragma unroll
    for (int i = 0; i < N_AHEAD; i++) ahead[i] = load_slice(&at, at.k + i * stride, p.n_in);
    wait_for_previous();
    const bf16 *x = static_cast<const bf16 *>(p.x) + (size_t)x_row * p.n_in;
    for (uint32_t base = at.k; base - at.k % SLICE < p.n_in; base += N_AHEAD * stride) {
#pragma unroll
        for (int i = 0; i < N_AHEAD; i++) {
            const uint32_t k = base + i * stride;
#pragma unroll
            for (int m = 0; m < N_MMA; m++) {
                const bool inside = k < p.n_in && x_row + m * MMA_ROWS < p.n_rows;
                const uint4 v =
                    inside ? *reinterpret_cast<const uint4 *>(x + (size_t)m * MMA_ROWS * p.n_in + k)
                           : make_uint4(0, 0, 0, 0);
                multiply(sums[m], &ahead[i], v);
            }
            ahead[i] = load_slice(&at, k + N_AHEAD * stride, p.n_in);
        }
    }
    add_warps<N_MMA>(p, part, tile, sums, &plan);
}

static uint32_t count_tiles(const struct skinny_params *p, uint32_t tile) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) n += (p->parts[i].n_out + tile - 1) / tile;
    return n;
}

cudaError_t launch_skinny(const struct skinny_params *p, struct launch launch) {
    const uint32_t n_tiles = count_tiles(p, TILE_OUT);
    if (n_tiles == 0 || p->n_rows == 0) return cudaSuccess;
    if (p->n_rows > SKINNY_MAX_ROWS) return cudaErrorInvalidValue;
    return launch_kernel(launch,
                         p->n_rows <= MMA_ROWS ? skinny_kernel<1, 6, 2> : skinny_kernel<2, 6, 2>,
                         n_tiles, 32 * N_WARPS, 0, *p);
}

/* linear_any: a warp per weight row and ANY_ROWS rows of x, an element a lane. */
static __global__ void linear_any_kernel(const __grid_constant__ struct skinny_params p) {
    const uint32_t first = blockIdx.y * ANY_ROWS, lane = threadIdx.x % 32;
    uint32_t out = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, part = 0;
    float sums[ANY_ROWS] = {};
    let_next_start();
    wait_for_previous();
    while (part < p.n_parts && out >= p.parts[part].n_out) out -= p.parts[part++].n_out;
    if (part == p.n_parts) return;
    const bf16 *x = static_cast<const bf16 *>(p.x) + (size_t)first * p.n_in;
    for (uint32_t k = lane; k < p.n_in; k += 32) {
        const float w = load_dtype(p.parts[part].w, (size_t)out * p.n_in + k, p.w_dtype);
#pragma unroll
        for (uint32_t r = 0; r < ANY_ROWS; r++)
            if (first + r < p.n_rows) sums[r] += w * to_float(x[(size_t)r * p.n_in + k]);
    }
#pragma unroll
    for (uint32_t r = 0; r < ANY_ROWS; r++) {
        const float sum = warp_sum(sums[r]);
        if (lane == 0 && first + r < p.n_rows) store_result(p, &p.parts[part], first + r, out, sum);
    }
}

cudaError_t launch_linear_any(const struct skinny_params *p, struct launch launch) {
    const uint32_t n_out = count_tiles(p, 1);
    if (n_out == 0 || p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, linear_any_kernel,
                         dim3((n_out + 3) / 4, (p->n_rows + ANY_ROWS - 1) / ANY_ROWS), 128, 0, *p);
}
