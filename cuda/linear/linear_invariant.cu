/* linear_invariant.cu - y = x W^T; a row's bits do not depend on the rows beside it.
 *
 *   x  bf16 [n_rows, n_in]      W  bf16 [n_out, n_in]      y  bf16 or f32
 *
 * Every output is one chain of mma.m16n8k16 over n_in, in order, in one accumulator of one thread.
 * Nothing is split along n_in, neither between warps nor between blocks, and x is always the first
 * operand.  So the shape of the tiles is free to follow n_rows.  The smallest is one warp for 16
 * rows by 16 outputs: many of these fit a multiprocessor and keep memory busy.  The largest is
 * eight warps for 256 by 128.
 *
 *   shared  stage 0 .. STAGES - 1, each  x [X][SLICE] | W [W][SLICE]  bf16
 *           a row of a slice is eight chunks of 16 bytes; chunk c of row r lies at c ^ r % 8, so
 *           that neither the copies nor ldmatrix have bank conflicts
 *
 * Elements past n_in and rows past the end are zeros.
 *
 * Bound:  few rows: memory, 2 * n_in * n_out bytes.  Many: tensor cores.
 * Oracle: engine/cpu/linear.c; and each shape has the same bits as the others. */
#include "cuda/common/mma.cuh"
#include "cuda/host/internal.h"
#include "cuda/linear/product.cuh"

typedef __nv_bfloat16 bf16;

enum { SLICE = 64, CHUNK = 8, CHUNKS = SLICE / CHUNK, MMA_X = 16, MMA_W = 8, MMA_K = 16 };

/* A warp multiplies MX * 16 rows of x by NW * 8 of W; WX * WW warps are a block. */
template <int WARPS_X, int WARPS_W, int MX_, int NW_, int STAGES_> struct tile_shape {
    static constexpr int WX = WARPS_X, WW = WARPS_W, MX = MX_, NW = NW_, STAGES = STAGES_;
    static constexpr int X = WX * MX * MMA_X, W = WW * NW * MMA_W, THREADS = 32 * WX * WW;
    static constexpr int STAGE_CHUNKS = (X + W) * CHUNKS;
    static constexpr int SHARED_BYTES = (int)sizeof(uint4) * STAGE_CHUNKS * STAGES;
    static_assert(NW % 2 == 0, "ldmatrix brings W in pairs of mma operands");
};
typedef tile_shape<4, 2, 4, 8, 3> large_shape;  /* 256 x 128 */
typedef tile_shape<2, 2, 4, 8, 3> middle_shape; /* 128 x 128 */
typedef tile_shape<2, 2, 2, 2, 6> small_shape;  /* 64 x 32 */
typedef tile_shape<1, 1, 1, 2, 8> few_shape;    /* 16 x 16 */

/* ---- results ---- */

static __device__ __forceinline__ void store_one(const struct product &p,
                                                 const struct product_part *part, uint32_t row,
                                                 uint32_t out, float sum) {
    if (row >= p.n_rows || out >= part->n_out) return;
    store_result(p, part, row, out, with_bias(part, out, sum));
}

/* Stores two neighbouring outputs, in one word where y is bf16 and its rows allow it. */
static __device__ __forceinline__ void store_two(const struct product &p,
                                                 const struct product_part *part, bool words,
                                                 uint32_t row, uint32_t out, float a, float b) {
    if (!words) {
        store_one(p, part, row, out, a);
        store_one(p, part, row, out + 1, b);
        return;
    }
    if (row >= p.n_rows || out >= part->n_out) return;
    uint32_t *y =
        reinterpret_cast<uint32_t *>(static_cast<bf16 *>(part->y) + row * part->y_stride + out);
    if (part->bias) {
        a += load_element(part->bias, out, part->bias_dtype);
        b += load_element(part->bias, out + 1, part->bias_dtype);
    }
    const float2 before = p.accumulate ? unpack_bf16(*y) : make_float2(0.0f, 0.0f);
    *y = p.accumulate ? pack_bf16(before.x + a, before.y + b) : pack_bf16(a, b);
}

static __device__ __forceinline__ bool words_fit(const struct product &p,
                                                 const struct product_part *part) {
    const size_t odd = (uintptr_t)part->y / sizeof(bf16) | part->y_stride | part->n_out;
    return !p.y_f32 && odd % 2 == 0;
}

/* Stores an accumulator: rows lane / 4 and + 8 from `row` on, outputs lane % 4 * 2 and + 1 from
 * `out`. */
static __device__ __forceinline__ void store_sums(const struct product &p,
                                                  const struct product_part *part, bool words,
                                                  uint32_t row, uint32_t out,
                                                  const float (&sums)[4]) {
    const uint32_t lane = threadIdx.x % 32;
    row += lane / 4;
    out += lane % 4 * 2;
    store_two(p, part, words, row, out, sums[0], sums[1]);
    store_two(p, part, words, row + 8, out, sums[2], sums[3]);
}

/* ---- the product ---- */

/* Starts copying the slice at k of N rows, from `first` on; eight threads share a row. */
template <int N, int THREADS>
static __device__ __forceinline__ void copy_slice(uint4 *to, const void *matrix, uint32_t first,
                                                  uint32_t n_rows, uint32_t n_in, uint32_t k) {
    constexpr int STEP = THREADS / CHUNKS;
    const uint32_t chunk = threadIdx.x % CHUNKS, row = threadIdx.x / CHUNKS;
    const uint32_t at = k + chunk * CHUNK;
    const bf16 *from = static_cast<const bf16 *>(matrix) + (size_t)(first + row) * n_in + at;
#pragma unroll
    for (int i = 0; i < N / STEP; i++) {
        const uint32_t r = row + i * STEP;
        const bool exists = at < n_in && first + r < n_rows;
        copy_async_line(
            to + r * CHUNKS + (chunk ^ r % 8),
            exists ? from + (size_t)(i * STEP) * n_in : static_cast<const bf16 *>(matrix), exists);
    }
}

/* A warp's operands of one step of 16 elements. */
template <typename S> struct fragments { uint32_t x[S::MX][4], w[S::NW / 2][4]; };

/* Loads the fragments of a step.  x: rows 0-7 and 8-15 of the first chunk, then of the second.  W:
 * both chunks of rows 0-7, then of 8-15.  A group of eight lanes names the rows of one of the four
 * matrices. */
template <typename S>
static __device__ __forceinline__ void load_fragments(struct fragments<S> &f, const uint4 *x,
                                                      const uint4 *w, int step) {
    const int lane = threadIdx.x % 32;
    const int x_at = lane % 16 * CHUNKS + ((2 * step + lane / 16) ^ lane % 8);
    const int w_at = (lane % 8 + lane / 16 * 8) * CHUNKS + ((2 * step + lane / 8 % 2) ^ lane % 8);
#pragma unroll
    for (int m = 0; m < S::MX; m++) load_matrix(f.x[m], x + m * MMA_X * CHUNKS + x_at);
#pragma unroll
    for (int n = 0; n < S::NW / 2; n++) load_matrix(f.w[n], w + n * 2 * MMA_W * CHUNKS + w_at);
}

/* Multiplies a slice; loads the next step's operands while this step's are multiplied. */
template <typename S>
static __device__ __forceinline__ void multiply_slice(float (&sums)[S::MX][S::NW][4],
                                                      const uint4 *x, const uint4 *w) {
    struct fragments<S> f[2];
    load_fragments<S>(f[0], x, w, 0);
#pragma unroll
    for (int step = 0; step < SLICE / MMA_K; step++) {
        const struct fragments<S> &now = f[step % 2];
        if (step + 1 < SLICE / MMA_K) load_fragments<S>(f[(step + 1) % 2], x, w, step + 1);
#pragma unroll
        for (int m = 0; m < S::MX; m++)
#pragma unroll
            for (int n = 0; n < S::NW; n++)
                mma(sums[m][n], now.x[m], now.w[n / 2][n % 2 * 2], now.w[n / 2][n % 2 * 2 + 1]);
    }
}

/* Computes one tile.  The first weights are requested before the wait for the previous kernel: they
 * never change. */
template <typename S>
static __global__ void __launch_bounds__(S::THREADS) invariant_kernel(struct product p) {
    extern __shared__ uint4 shared[];
    uint32_t tile = blockIdx.y;
    const struct product_part *part = &p.parts[find_part(p, S::W, &tile)];
    const uint32_t warp = threadIdx.x / 32, first_x = blockIdx.x * S::X, first_w = tile * S::W;
    const uint32_t own_x = warp % S::WX * S::MX * MMA_X, own_w = warp / S::WX * S::NW * MMA_W;
    const int n_slices = (p.n_in + SLICE - 1) / SLICE;
    float sums[S::MX][S::NW][4] = {};
    const auto stage_of = [&](int slice) { return shared + slice % S::STAGES * S::STAGE_CHUNKS; };
    const auto copy_x = [&](int slice) {
        if (slice < n_slices)
            copy_slice<S::X, S::THREADS>(stage_of(slice), p.x, first_x, p.n_rows, p.n_in,
                                         slice * SLICE);
    };
    const auto copy_w = [&](int slice) {
        if (slice < n_slices)
            copy_slice<S::W, S::THREADS>(stage_of(slice) + S::X * CHUNKS, part->w, first_w,
                                         part->n_out, p.n_in, slice * SLICE);
    };
    let_next_start();
    for (int i = 0; i < S::STAGES - 1; i++) copy_w(i);
    wait_for_previous();
    for (int i = 0; i < S::STAGES - 1; i++) {
        copy_x(i);
        copy_async_commit();
    }
    for (int i = 0; i < n_slices; i++) {
        copy_async_wait<S::STAGES - 2>();
        __syncthreads(); /* all threads have slice i, and none reads slice i - 1 any more */
        copy_x(i + S::STAGES - 1);
        copy_w(i + S::STAGES - 1);
        copy_async_commit();
        multiply_slice<S>(sums, stage_of(i) + own_x * CHUNKS,
                          stage_of(i) + (S::X + own_w) * CHUNKS);
    }
    const bool words = words_fit(p, part);
#pragma unroll
    for (int m = 0; m < S::MX; m++)
#pragma unroll
        for (int n = 0; n < S::NW; n++)
            store_sums(p, part, words, first_x + own_x + m * MMA_X, first_w + own_w + n * MMA_W,
                       sums[m][n]);
}

/* ---- choosing the shape: it affects speed only, the bits are the same ---- */

template <typename S>
static cudaError_t launch_shape(const struct product *p, struct launch launch) {
    const cudaError_t code = cudaFuncSetAttribute(
        invariant_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SHARED_BYTES);
    if (code != cudaSuccess) return code;
    return launch_kernel(launch, invariant_kernel<S>,
                         dim3((p->n_rows + S::X - 1) / S::X, count_tiles(p, S::W)), S::THREADS,
                         S::SHARED_BYTES, *p);
}

/* Says whether the shape's tiles give most of a large GPU's multiprocessors work, and a block fits
 * into one. */
template <typename S> static bool suits(const struct product *p, int shared_bytes) {
    enum { ENOUGH_BLOCKS = 96 };
    const uint32_t n_blocks = (p->n_rows + S::X - 1) / S::X * count_tiles(p, S::W);
    return n_blocks >= ENOUGH_BLOCKS && S::SHARED_BYTES <= shared_bytes;
}

static cudaError_t start_invariant(const struct product *p, struct launch launch) {
    int device, shared_bytes;
    if (p->n_rows == 0 || count_tiles(p, 1) == 0) return cudaSuccess;
    if (p->n_rows <= few_shape::X) return launch_shape<few_shape>(p, launch);
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess)
        code =
            cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (code != cudaSuccess) return code;
    if (p->n_rows > middle_shape::X && suits<large_shape>(p, shared_bytes))
        return launch_shape<large_shape>(p, launch);
    if (p->n_rows > small_shape::X && suits<middle_shape>(p, shared_bytes))
        return launch_shape<middle_shape>(p, launch);
    return launch_shape<small_shape>(p, launch);
}

extern "C" product_launch launch_invariant;
int launch_invariant(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_invariant(p, launch_of(cuda)), "the product kernel \"invariant\"",
                      err);
}
