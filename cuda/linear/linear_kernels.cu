/* linear_kernels.cu - y = x W^T for few rows, where reading W is the whole cost.
 *
 *   x  bf16 [n_rows, n_in]      W  bf16 [n_out, n_in] (linear_any: any dtype)      y  bf16 or f32
 *
 * skinny: a block takes 16 weight rows, a tile of one part (q, k and v share a launch).  Its warps
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
#include "cuda/common/mma.cuh"

typedef __nv_bfloat16 bf16;

enum { TILE_OUT = 16, SLICE = 32, N_WARPS = 8, MMA_ROWS = 8, ANY_ROWS = 4 };

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

/* Returns a weight row; a row past the end is the last one, and its results are not used. */
static __device__ __forceinline__ const bf16 *weight_row(const struct skinny_part *part,
                                                         uint32_t row, uint32_t n_in) {
    const uint32_t last = part->n_out - 1;
    return static_cast<const bf16 *>(part->w) + (size_t)(row < last ? row : last) * n_in;
}

static __device__ __forceinline__ struct place place_of(const struct skinny_params &p,
                                                        const struct skinny_part *part,
                                                        uint32_t tile) {
    const uint32_t lane = threadIdx.x % 32, half = TILE_OUT / 2,
                   row = tile * (p.gated ? half : TILE_OUT) + lane / 4;
    return (struct place){
        weight_row(part, row, p.n_in),
        p.gated ? weight_row(part + 1, row, p.n_in) : weight_row(part, row + half, p.n_in),
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

/* Multiplies bf16 elementwise, rounded once. */
static __device__ __forceinline__ uint4 multiply_pairs(uint4 a, uint4 b) {
    return make_uint4(multiply_pair(a.x, b.x), multiply_pair(a.y, b.y), multiply_pair(a.z, b.z),
                      multiply_pair(a.w, b.w));
}

static __device__ __forceinline__ void multiply(float (&sums)[4], const struct slice *w, uint4 x) {
    mma(sums, w->low.x, w->high.x, w->low.y, w->high.y, x.x, x.y);
    mma(sums, w->low.z, w->high.z, w->low.w, w->high.w, x.z, x.w);
}

static __device__ __forceinline__ float with_bias(const struct skinny_part *part, uint32_t out,
                                                  float x) {
    return part->bias ? x + load_dtype(part->bias, out, part->bias_dtype) : x;
}

static __device__ __forceinline__ void store_result(const struct skinny_params &p,
                                                    const struct skinny_part *part, uint32_t row,
                                                    uint32_t out, float x) {
    const size_t at = row * part->y_stride + out;
    if (p.y_f32) {
        float *y = static_cast<float *>(part->y) + at;
        *y = p.accumulate ? *y + x : x;
    } else {
        bf16 *y = static_cast<bf16 *>(part->y) + at;
        store_as(y, p.accumulate ? to_float(*y) + x : x);
    }
}

template <int N_MMA> struct plan {
    float sums[N_WARPS][N_MMA * MMA_ROWS][TILE_OUT];
    float squares[N_WARPS][N_MMA * MMA_ROWS];
};

/* Writes the warp's sums to shared memory.  sums[m][2 * i + h] is of weight row lane / 4 + 8 * i
 * and x row lane % 4 * 2 + h. */
template <int N_MMA>
static __device__ __forceinline__ void share_sums(struct plan<N_MMA> *plan,
                                                  const float (*sums)[4]) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int m = 0; m < N_MMA; m++)
        for (int i = 0; i < 4; i++)
            plan->sums[warp][m * MMA_ROWS + lane % 4 * 2 + i % 2][lane / 4 + i / 2 * 8] =
                sums[m][i];
}

/* Writes the warp's squares to shared memory.  squares[m] belongs to x row lane / 4; each thread of
 * a quad has a quarter of it. */
template <int N_MMA>
static __device__ __forceinline__ void share_squares(struct plan<N_MMA> *plan,
                                                     const float *squares) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int m = 0; m < N_MMA; m++) {
        float sum = squares[m];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane % 4 == 0) plan->squares[warp][m * MMA_ROWS + lane / 4] = sum;
    }
}

template <int N_MMA>
static __device__ __forceinline__ float add_warps(const struct plan<N_MMA> *plan, uint32_t row,
                                                  uint32_t out) {
    float x = 0.0f;
    for (int w = 0; w < N_WARPS; w++) x += plan->sums[w][row][out];
    return x;
}

template <int N_MMA>
static __device__ __forceinline__ float scale_of(const struct plan<N_MMA> *plan, uint32_t row,
                                                 const struct skinny_params &p) {
    float x = 0.0f;
    for (int w = 0; w < N_WARPS; w++) x += plan->squares[w][row];
    return rsqrtf(x / (float)p.n_in + p.eps);
}

/* Adds the warps up and writes the tile. */
template <int N_MMA, bool NORM>
static __device__ __forceinline__ void store_tile(const struct plan<N_MMA> *plan,
                                                  const struct skinny_params &p,
                                                  const struct skinny_part *part, uint32_t tile) {
    const uint32_t width = p.gated ? TILE_OUT / 2 : TILE_OUT, i = threadIdx.x % TILE_OUT,
                   out = tile * width + i;
    if (i >= width || out >= part->n_out) return;
    for (uint32_t row = threadIdx.x / TILE_OUT; row < p.n_rows; row += blockDim.x / TILE_OUT) {
        const float scale = NORM ? scale_of(plan, row, p) : 1.0f;
        float x = with_bias(part, out, add_warps(plan, row, i) * scale);
        if (p.gated)
            x = gate_mul(x, with_bias(part + 1, out, add_warps(plan, row, i + width) * scale),
                         p.kind);
        store_result(p, part, row, out, x);
    }
}

/* Returns the part to which tile number blockIdx.x belongs; *tile becomes its number in the part.
 * Gate and up count as one part. */
static __device__ __forceinline__ const struct skinny_part *find_part(const struct skinny_params &p,
                                                                      uint32_t *tile) {
    uint32_t i = 0;
    for (*tile = blockIdx.x; i + 1 < p.n_parts && !p.gated; i++) {
        const uint32_t n_tiles = (p.parts[i].n_out + TILE_OUT - 1) / TILE_OUT;
        if (*tile < n_tiles) break;
        *tile -= n_tiles;
    }
    return &p.parts[i];
}

/* Returns 8 elements of x row `row` from k on; zeros outside. */
static __device__ __forceinline__ uint4 load_x(const struct skinny_params &p, uint32_t row,
                                               uint32_t k) {
    if (row >= p.n_rows || k >= p.n_in) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(static_cast<const bf16 *>(p.x) + (size_t)row * p.n_in +
                                            k);
}

static __device__ __forceinline__ uint4 load_norm_weight(const struct skinny_params &p,
                                                         uint32_t k) {
    return __ldg(reinterpret_cast<const uint4 *>(static_cast<const bf16 *>(p.norm_weight) + k));
}

template <int N_MMA, int N_AHEAD, bool NORM>
static __global__ void __launch_bounds__(32 * N_WARPS, 2)
    skinny_kernel(const __grid_constant__ struct skinny_params p) {
    __shared__ struct plan<N_MMA> plan;
    uint32_t tile;
    const struct skinny_part *part = find_part(p, &tile);
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
    share_sums<N_MMA>(&plan, sums);
    if (NORM) share_squares<N_MMA>(&plan, squares);
    __syncthreads();
    store_tile<N_MMA, NORM>(&plan, p, part, tile);
}

static uint32_t count_tiles(const struct skinny_params *p, uint32_t tile) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) n += (p->parts[i].n_out + tile - 1) / tile;
    return n;
}

/* Returns the kernel for p.  The numbers of slices ahead were measured, with Llama-3-8B's shapes on
 * an H100. */
static void (*choose_kernel(const struct skinny_params *p))(struct skinny_params) {
    if (p->n_rows > MMA_ROWS)
        return p->norm_weight ? skinny_kernel<2, 4, true> : skinny_kernel<2, 4, false>;
    return p->norm_weight ? skinny_kernel<1, 6, true> : skinny_kernel<1, 6, false>;
}

cudaError_t launch_skinny(const struct skinny_params *p, struct launch launch) {
    const uint32_t n_tiles = p->gated ? (p->parts[0].n_out + TILE_OUT / 2 - 1) / (TILE_OUT / 2)
                                      : count_tiles(p, TILE_OUT);
    if (n_tiles == 0 || p->n_rows == 0) return cudaSuccess;
    if (p->n_rows > SKINNY_MAX_ROWS) return cudaErrorInvalidValue;
    return launch_kernel(launch, choose_kernel(p), n_tiles, 32 * N_WARPS, 0, *p);
}

/* Computes any shape: a warp per weight row and ANY_ROWS rows of x, an element a lane. */
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
        if (lane == 0 && first + r < p.n_rows)
            store_result(p, &p.parts[part], first + r, out, with_bias(&p.parts[part], out, sum));
    }
}

cudaError_t launch_linear_any(const struct skinny_params *p, struct launch launch) {
    const uint32_t n_out = count_tiles(p, 1);
    if (n_out == 0 || p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, linear_any_kernel,
                         dim3((n_out + 3) / 4, (p->n_rows + ANY_ROWS - 1) / ANY_ROWS), 128, 0, *p);
}
