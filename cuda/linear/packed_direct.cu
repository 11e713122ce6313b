/* packed_direct.cu - y = x W^T for one row of bf16 and packed W of few bytes.
 *
 * A block has a tile: a strip, or one of gate and one of up.  See direct.cuh.
 *
 * Grid:   a block for each tile.
 * Shared: x of each warp | sums of each warp | squares of each warp.
 * Bound:  memory, the bytes of W; reached are the waits for the kernel before, x and the sums.
 * Oracle: weight_to_float() (tests/cuda/test_packed.c). */
#include "cuda/host/internal.h"
#include "cuda/linear/direct.cuh"
#include "cuda/linear/packed_storer.cuh"

/* Returns where the scales of a strip begin; of blocks, those of its block of rows. */
static __device__ __forceinline__ const char *strip_scales(const struct product &p,
                                                           const struct direct_cut &cut,
                                                           const struct product_part *part,
                                                           uint32_t strip) {
    const uint32_t rows = p.w_format.block_rows, size = bytes_of_scale(p.w_format.scale);
    const size_t row = rows == 1 ? (size_t)strip * DIRECT_ROWS
                       : rows    ? (size_t)strip * DIRECT_ROWS / rows
                                 : 0;
    return static_cast<const char *>(part->scales) + row * cut.n_groups * size;
}

/* Stores output `out` of the strip, which is x, and of up if gated. */
static __device__ __forceinline__ void store_output(const struct product &p,
                                                    const struct outlet &to, float factor, float x,
                                                    float up, float before) {
    if (to.out >= to.part->n_out) return;
    x = with_bias(to.part, to.out, x * to.scale[0] * factor);
    if (p.gated) x = gate_mul(x, with_bias(to.part + 1, to.out, up * to.scale[1] * factor), p.kind);
    if (p.accumulate) x += before;
    if (p.y_f32) static_cast<float *>(to.part->y)[to.out] = x;
    else store_as(static_cast<bf16 *>(to.part->y) + to.out, x);
}

/* Returns what the result is added to, past the first-level cache. */
static __device__ __forceinline__ float load_before(const struct product &p,
                                                    const struct outlet &to) {
    if (!p.accumulate || to.out >= to.part->n_out) return 0.0f;
    if (p.y_f32) return __ldcg(static_cast<const float *>(to.part->y) + to.out);
    const unsigned short bits = __ldcg(static_cast<const unsigned short *>(to.part->y) + to.out);
    return __uint_as_float((uint32_t)bits << 16);
}

template <class F, int NS, int N>
static __global__ void __launch_bounds__(32 * DIRECT_MAX_WARPS)
    direct_kernel(const __grid_constant__ struct product p,
                  const __grid_constant__ struct direct_cut cut) {
    extern __shared__ __align__(128) char memory[];
    using Warp = direct_warp<F, NS, N>;
    const uint32_t warp = threadIdx.x / 32, first = warp * N;
    float *sums = reinterpret_cast<float *>(memory + cut.n_warps * cut.x_bytes),
          *squares = sums + cut.n_warps * NS * DIRECT_ROWS, before = 0.0f, factor = 1.0f;
    uint32_t strip = blockIdx.x;
    const struct product_part *part = find_strip(p, &strip);
    const struct outlet to(p, blockIdx.x, threadIdx.x % DIRECT_ROWS);
    Warp w(min((uint32_t)N, cut.n_slabs - first));
    uint4 weights[Warp::VECTORS];
    let_next_start();
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int s = 0; s < NS; s++)
            if (i < w.n)
                w.ask(s, i,
                      static_cast<const char *>(part[s].w) + (size_t)strip * cut.n_slabs * 512,
                      strip_scales(p, cut, part + s, strip), first + i);
    if (p.norm_weight)
#pragma unroll
        for (int v = 0; v < Warp::VECTORS; v++)
            if (v * 32 + w.lane < w.n_vectors())
                weights[v] = load_early(static_cast<const uint4 *>(p.norm_weight) +
                                        first * (F::COLUMNS / 8) + v * 32 + w.lane);
            else weights[v] = make_uint4(0, 0, 0, 0);
    wait_for_previous();
    w.load_x(static_cast<const bf16 *>(p.x) + first * F::COLUMNS);
    if (threadIdx.x < DIRECT_ROWS) before = load_before(p, to);
    if (p.norm_weight) {
        const float of_warp = w.norm(weights);
        if (w.lane == 0) squares[warp] = of_warp;
    }
    w.share_x(memory + warp * cut.x_bytes);
    w.multiply_all(memory + warp * cut.x_bytes, p.w_format.scale == SCALE_F16, no_factor());
    w.share_sums(sums + warp * NS * DIRECT_ROWS);
    __syncthreads();
    if (threadIdx.x >= DIRECT_ROWS) return;
    if (p.norm_weight) {
        float all = 0.0f;
        for (uint32_t i = 0; i < cut.n_warps; i++) all += squares[i];
        factor = norm_factor(p, all);
    }
    store_output(p, to, factor, add_direct_warps<NS>(sums, cut.n_warps, 0, threadIdx.x),
                 NS > 1 ? add_direct_warps<NS>(sums, cut.n_warps, NS - 1, threadIdx.x) : 0.0f,
                 before);
}

/* ---- the list of kernels ---- */

typedef void direct_function(struct product, struct direct_cut);

struct direct_entry {
    enum element element;
    uint32_t per;
    direct_function *few, *gated, *many; /* DIRECT_FEW slabs; of two strips; DIRECT_MANY */
};

#define ENTRY(ELEMENT, PER, ...)                                                                   \
    {ELEMENT, PER, direct_kernel<__VA_ARGS__, 1, DIRECT_FEW>,                                      \
     direct_kernel<__VA_ARGS__, 2, DIRECT_FEW>, direct_kernel<__VA_ARGS__, 1, DIRECT_MANY>},
static const struct direct_entry entries[] = {DIRECT_FORMATS(ENTRY)};

static direct_function *find_kernel(const struct product *p, const struct direct_cut *cut) {
    for (const struct direct_entry &e : entries)
        if (e.element == p->w_format.element && e.per == p->w_format.block_cols)
            return p->gated ? e.gated : cut->warp_slabs == DIRECT_FEW ? e.few : e.many;
    return nullptr;
}

static cudaError_t start_direct(const struct product *p, struct launch launch) {
    struct direct_cut cut;
    const uint32_t n_strips = 1 + p->gated, n_tiles = count_tiles(p, DIRECT_ROWS * n_strips);
    if (!direct_cut_columns(&p->w_format, p->n_in, n_strips, &cut)) return cudaErrorInvalidValue;
    direct_function *kernel = find_kernel(p, &cut);
    if (!kernel) return cudaErrorInvalidValue;
    const size_t shared = cut.n_warps * (cut.x_bytes + (n_strips * DIRECT_ROWS + 1) * 4);
    return launch_kernel(launch, kernel, dim3(n_tiles), dim3(32 * cut.n_warps), shared, *p, cut);
}

extern "C" product_launch launch_packed_direct;
int launch_packed_direct(struct cuda_backend *cuda, const struct product *p, struct error *err) {
    return cuda_check(cuda, start_direct(p, launch_of(cuda)),
                      "the product kernel \"packed direct\"", err);
}
