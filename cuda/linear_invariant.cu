/* linear_invariant.cu - y = x W^T with the same bits for a row whatever rows are beside it.
 *
 *   x  bf16 [n_rows, n_in]      W  bf16 [n_out, n_in]      y  bf16 or f32
 *
 * Every output is one chain of mma.m16n8k16 over n_in, 32 elements (two mma) at a time, in one
 * accumulator of one thread.  Nothing is split along n_in, not between warps and not between
 * blocks, and the fragments of all shapes are filled alike, so the shape is free to follow n_rows:
 *
 *   few     <= 16 rows   a warp is a block: 16 outputs, weights straight from memory to registers
 *   tiles   more         a block stages x and W through shared memory, see struct tile_shape
 *
 * A dot product may take its terms in any order, as long as it is always the same one: thread t of
 * a quad holds elements 8t .. 8t + 7 of a slice of 32, of x and of W alike, four of them for the
 * first mma and four for the second.  Fragments are then 16-byte loads, from memory or from shared
 * memory, without ldmatrix; eight threads read 128 bytes in a row there, so banks do not conflict.
 *
 *   shared  stage 0 .. n_stages - 1, each  x [X][32] | W [W][32]  bf16
 *
 * Elements past n_in are zeros; rows past the end repeat the last one and are not stored.
 *
 * Bound:  few: memory, 2 * n_in * n_out bytes.  tiles: tensor cores.
 * Oracle: engine/cpu/linear.c; and bit for bit, each shape of the others. */
#include "cuda/device.cuh"

typedef __nv_bfloat16 bf16;

enum { SLICE = 32, QUAD_ELEMENTS = 8, CHUNKS = SLICE / QUAD_ELEMENTS, MMA_X = 16, MMA_W = 8 };
enum { FEW_ROWS = 16, FEW_OUT = 16, FEW_AHEAD = 8 };

/* A warp multiplies MX * 16 rows of x by NW * 8 of W; WX * WW warps are a block. */
template <int WARPS_X, int WARPS_W, int MX_, int NW_, int STAGES_> struct tile_shape {
    static constexpr int WX = WARPS_X, WW = WARPS_W, MX = MX_, NW = NW_, STAGES = STAGES_;
    static constexpr int X = WX * MX * MMA_X, W = WW * NW * MMA_W, THREADS = 32 * WX * WW;
    static constexpr int STAGE_CHUNKS = (X + W) * CHUNKS;
    static constexpr size_t SHARED_BYTES = sizeof(uint4) * STAGE_CHUNKS * STAGES;
};
typedef tile_shape<4, 2, 4, 8, 4> large_shape; /* 256 x 128 */
typedef tile_shape<2, 2, 4, 8, 4> middle_shape; /* 128 x 128 */
typedef tile_shape<2, 2, 2, 2, 8> small_shape; /* 64 x 32 */

static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* A slice of rows lane / 4 and lane / 4 + 8 of x by row lane / 4 of W, its first and second half. */
static __device__ __forceinline__ void mma_first(float (&c)[4], uint4 x_low, uint4 x_high,
                                                 uint4 w) {
    mma(c, x_low.x, x_high.x, x_low.y, x_high.y, w.x, w.y);
}
static __device__ __forceinline__ void mma_second(float (&c)[4], uint4 x_low, uint4 x_high,
                                                  uint4 w) {
    mma(c, x_low.z, x_high.z, x_low.w, x_high.w, w.z, w.w);
}

/* The part that a tile of `width` outputs belongs to; `tile` becomes its number in the part. */
static __device__ __forceinline__ const struct skinny_part *part_of(const struct skinny_params &p,
                                                                    uint32_t width,
                                                                    uint32_t *tile) {
    uint32_t part = 0;
    while (*tile >= (p.parts[part].n_out + width - 1) / width)
        *tile -= (p.parts[part++].n_out + width - 1) / width;
    return &p.parts[part];
}

static uint32_t count_tiles(const struct skinny_params *p, uint32_t width) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_parts; i++) n += (p->parts[i].n_out + width - 1) / width;
    return n;
}

static __device__ __forceinline__ const bf16 *row_of(const void *matrix, uint32_t row,
                                                     uint32_t n_rows, uint32_t n_in) {
    return static_cast<const bf16 *>(matrix) + (size_t)min(row, n_rows - 1) * n_in;
}

/* ---- results ---- */

static __device__ __forceinline__ void store_one(const struct skinny_params &p,
                                                 const struct skinny_part *part, uint32_t row,
                                                 uint32_t out, float sum) {
    const size_t at = row * part->y_stride + out;
    if (row >= p.n_rows || out >= part->n_out) return;
    if (part->bias) sum += load_dtype(part->bias, out, part->bias_dtype);
    if (p.y_f32) {
        float *y = static_cast<float *>(part->y) + at;
        *y = p.accumulate ? *y + sum : sum;
    } else {
        bf16 *y = static_cast<bf16 *>(part->y) + at;
        store_as(y, p.accumulate ? to_float(*y) + sum : sum);
    }
}

/* Two outputs side by side, in one word where y is bf16 and its rows allow it. */
static __device__ __forceinline__ void store_two(const struct skinny_params &p,
                                                 const struct skinny_part *part, bool words,
                                                 uint32_t row, uint32_t out, float a, float b) {
    if (!words) {
        store_one(p, part, row, out, a);
        store_one(p, part, row, out + 1, b);
        return;
    }
    if (row >= p.n_rows || out >= part->n_out) return;
    uint32_t *y = reinterpret_cast<uint32_t *>(static_cast<bf16 *>(part->y) +
                                               row * part->y_stride + out);
    if (part->bias) {
        a += load_dtype(part->bias, out, part->bias_dtype);
        b += load_dtype(part->bias, out + 1, part->bias_dtype);
    }
    const float2 before = p.accumulate ? unpack_bf16(*y) : make_float2(0.0f, 0.0f);
    *y = p.accumulate ? pack_bf16(before.x + a, before.y + b) : pack_bf16(a, b);
}

static __device__ __forceinline__ bool words_fit(const struct skinny_params &p,
                                                 const struct skinny_part *part) {
    const size_t odd = (uintptr_t)part->y / sizeof(bf16) | part->y_stride | part->n_out;
    return !p.y_f32 && odd % 2 == 0;
}

/* An accumulator: rows lane / 4 and + 8 from `row` on, outputs lane % 4 * 2 and + 1 from `out`. */
static __device__ __forceinline__ void store_sums(const struct skinny_params &p,
                                                  const struct skinny_part *part, bool words,
                                                  uint32_t row, uint32_t out,
                                                  const float (&sums)[4]) {
    const uint32_t lane = threadIdx.x % 32;
    row += lane / 4;
    out += lane % 4 * 2;
    store_two(p, part, words, row, out, sums[0], sums[1]);
    store_two(p, part, words, row + 8, out, sums[2], sums[3]);
}

/* ---- few rows ---- */

/* 16 bytes that are read once: they pass the first-level cache by, which keeps x. */
static __device__ __forceinline__ uint4 load_weights(const bf16 *row, uint32_t k, uint32_t n_in) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (k < n_in)
        asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(row + k));
    return v;
}

static __device__ __forceinline__ uint4 load_x(const bf16 *row, uint32_t k, uint32_t n_in,
                                               bool exists) {
    if (!exists || k >= n_in) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(row + k);
}

/* HALVES: 1 for up to 8 rows of x, 2 for up to 16.  FEW_AHEAD slices are always on their way from
 * memory, the first weights from before the wait for the previous kernel: they never change. */
template <int HALVES>
static __global__ void __launch_bounds__(32) few_kernel(struct skinny_params p) {
    uint4 w[FEW_AHEAD][FEW_OUT / MMA_W], x[FEW_AHEAD][HALVES];
    float sums[FEW_OUT / MMA_W][4] = {};
    uint32_t tile = blockIdx.x;
    const struct skinny_part *part = part_of(p, FEW_OUT, &tile);
    const uint32_t row = threadIdx.x / 4, first = tile * FEW_OUT;
    const uint32_t own = threadIdx.x % 4 * QUAD_ELEMENTS; /* of a slice */
    const bf16 *w_rows[2] = {row_of(part->w, first + row, part->n_out, p.n_in),
                             row_of(part->w, first + MMA_W + row, part->n_out, p.n_in)};
    const bf16 *x_rows[2] = {row_of(p.x, row, p.n_rows, p.n_in),
                             row_of(p.x, row + 8, p.n_rows, p.n_in)};
    const auto fetch_w = [&](uint4(&to)[2], uint32_t k) {
        for (int j = 0; j < 2; j++) to[j] = load_weights(w_rows[j], k + own, p.n_in);
    };
    const auto fetch_x = [&](uint4(&to)[HALVES], uint32_t k) {
        for (int h = 0; h < HALVES; h++)
            to[h] = load_x(x_rows[h], k + own, p.n_in, row + 8 * h < p.n_rows);
    };
    let_next_start();
#pragma unroll
    for (int i = 0; i < FEW_AHEAD; i++) fetch_w(w[i], i * SLICE);
    wait_for_previous();
#pragma unroll
    for (int i = 0; i < FEW_AHEAD; i++) fetch_x(x[i], i * SLICE);
    for (uint32_t k = 0; k < p.n_in; k += FEW_AHEAD * SLICE) {
#pragma unroll
        for (int i = 0; i < FEW_AHEAD; i++) {
            if (k + i * SLICE >= p.n_in) break;
            const uint4 high = HALVES == 2 ? x[i][HALVES - 1] : make_uint4(0, 0, 0, 0);
            for (int j = 0; j < 2; j++) mma_first(sums[j], x[i][0], high, w[i][j]);
            for (int j = 0; j < 2; j++) mma_second(sums[j], x[i][0], high, w[i][j]);
            fetch_w(w[i], k + (FEW_AHEAD + i) * SLICE);
            fetch_x(x[i], k + (FEW_AHEAD + i) * SLICE);
        }
    }
    const bool words = words_fit(p, part);
    for (int j = 0; j < 2; j++) store_sums(p, part, words, 0, first + j * MMA_W, sums[j]);
}

/* ---- many rows ---- */

static __device__ __forceinline__ void copy_async(uint4 *to, const bf16 *from, bool exists) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
}

/* Starts copying a slice of N rows from `first` on; a thread moves every THREADS-th chunk. */
template <int N, int THREADS>
static __device__ __forceinline__ void copy_slice(uint4 *to, const void *matrix, uint32_t first,
                                                  uint32_t n_rows, uint32_t n_in, uint32_t k) {
#pragma unroll
    for (int i = threadIdx.x; i < N * CHUNKS; i += THREADS) {
        const uint32_t at = k + i % CHUNKS * QUAD_ELEMENTS;
        const bool exists = at < n_in;
        copy_async(to + i, row_of(matrix, first + i / CHUNKS, n_rows, n_in) + (exists ? at : 0),
                   exists);
    }
}

template <typename S>
static __device__ __forceinline__ void multiply_slice(float (&sums)[S::MX][S::NW][4],
                                                      const uint4 *x, const uint4 *w) {
    const uint32_t lane = threadIdx.x % 32;
    uint4 low[S::MX], high[S::MX];
#pragma unroll
    for (int m = 0; m < S::MX; m++) {
        low[m] = x[m * MMA_X * CHUNKS + lane];
        high[m] = x[(m * MMA_X + 8) * CHUNKS + lane];
    }
#pragma unroll
    for (int n = 0; n < S::NW; n++) {
        const uint4 own = w[n * MMA_W * CHUNKS + lane];
#pragma unroll
        for (int m = 0; m < S::MX; m++) mma_first(sums[m][n], low[m], high[m], own);
#pragma unroll
        for (int m = 0; m < S::MX; m++) mma_second(sums[m][n], low[m], high[m], own);
    }
}

template <typename S>
static __global__ void __launch_bounds__(S::THREADS) tile_kernel(struct skinny_params p) {
    extern __shared__ uint4 shared[];
    uint32_t tile = blockIdx.y;
    const struct skinny_part *part = part_of(p, S::W, &tile);
    const uint32_t warp = threadIdx.x / 32, first_x = blockIdx.x * S::X, first_w = tile * S::W;
    const uint32_t own_x = warp % S::WX * S::MX * MMA_X, own_w = warp / S::WX * S::NW * MMA_W;
    const int n_slices = (p.n_in + SLICE - 1) / SLICE;
    float sums[S::MX][S::NW][4] = {};
    const auto copy_x = [&](int slice) {
        if (slice >= n_slices) return;
        copy_slice<S::X, S::THREADS>(shared + slice % S::STAGES * S::STAGE_CHUNKS, p.x, first_x,
                                     p.n_rows, p.n_in, slice * SLICE);
    };
    const auto copy_w = [&](int slice) {
        if (slice >= n_slices) return;
        copy_slice<S::W, S::THREADS>(
            shared + slice % S::STAGES * S::STAGE_CHUNKS + S::X * CHUNKS, part->w, first_w,
            part->n_out, p.n_in, slice * SLICE);
    };
    let_next_start();
    for (int i = 0; i < S::STAGES - 1; i++) copy_w(i);
    wait_for_previous();
    for (int i = 0; i < S::STAGES - 1; i++) {
        copy_x(i);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int i = 0; i < n_slices; i++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(S::STAGES - 2) : "memory");
        __syncthreads(); /* slice i is there for all, and nobody reads slice i - 1 any more */
        copy_x(i + S::STAGES - 1);
        copy_w(i + S::STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint4 *stage = shared + i % S::STAGES * S::STAGE_CHUNKS;
        multiply_slice<S>(sums, stage + own_x * CHUNKS, stage + (S::X + own_w) * CHUNKS);
    }
    const bool words = words_fit(p, part);
#pragma unroll
    for (int m = 0; m < S::MX; m++)
#pragma unroll
        for (int n = 0; n < S::NW; n++)
            store_sums(p, part, words, first_x + own_x + m * MMA_X, first_w + own_w + n * MMA_W,
                       sums[m][n]);
}

/* ---- the choice: of speed only, the bits are the same ---- */

template <typename S>
static uint32_t count_blocks(const struct skinny_params *p) {
    return (p->n_rows + S::X - 1) / S::X * count_tiles(p, S::W);
}

template <typename S>
static cudaError_t launch_tiles(const struct skinny_params *p, struct launch launch) {
    const cudaError_t code = cudaFuncSetAttribute(
        tile_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)S::SHARED_BYTES);
    if (code != cudaSuccess) return code;
    return launch_kernel(launch, tile_kernel<S>,
                         dim3((p->n_rows + S::X - 1) / S::X, count_tiles(p, S::W)), S::THREADS,
                         S::SHARED_BYTES, *p);
}

cudaError_t launch_linear_invariant(const struct skinny_params *p, struct launch launch) {
    enum { ENOUGH_BLOCKS = 96 }; /* most of a large GPU's multiprocessors have work */
    const uint32_t n_few = count_tiles(p, FEW_OUT);
    if (n_few == 0 || p->n_rows == 0) return cudaSuccess;
    if (p->n_rows <= 8) return launch_kernel(launch, few_kernel<1>, n_few, 32, 0, *p);
    if (p->n_rows <= FEW_ROWS) return launch_kernel(launch, few_kernel<2>, n_few, 32, 0, *p);
    if (p->n_rows > middle_shape::X && count_blocks<large_shape>(p) >= ENOUGH_BLOCKS)
        return launch_tiles<large_shape>(p, launch);
    if (p->n_rows > small_shape::X && count_blocks<middle_shape>(p) >= ENOUGH_BLOCKS)
        return launch_tiles<middle_shape>(p, launch);
    return launch_tiles<small_shape>(p, launch);
}
