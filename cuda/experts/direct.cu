/* direct.cu - the products of one row with the experts that it uses, and their sum.
 *
 *   gate, up  x ─► h [n_used, ffn]            a block for each strip of each expert
 *   down      h ─► out += sum of shares * y   a block for each strip, of all experts
 *
 * Weights lie in registers before they are multiplied (linear/direct.cuh).  Those of down are asked
 * for before gate and up have ended: gate and up let it start once they know the experts.
 *
 * The sum goes by warps, which have slabs of one expert after the other.
 *
 * Shared: x of each warp | sums of each warp.
 * Bound:  memory, the bytes of the matrices that are used.
 * Oracle: weight_to_float() (tests/cuda/test_experts.c). */
#include "cuda/experts/expert_kernels.h"
#include "cuda/experts/expert_tile.cuh"
#include "cuda/host/internal.h"
#include "cuda/linear/direct.cuh"
#include "cuda/linear/elements.cuh"

typedef __nv_bfloat16 bf16;

/* Returns the strip's words in the stack. */
static __device__ __forceinline__ const char *strip_words(const struct expert_stack &stack,
                                                          uint32_t strips, uint32_t n_slabs) {
    return static_cast<const char *>(stack.w) + (size_t)strips * n_slabs * 512;
}

/* Returns where the scales of a strip of an expert begin; of blocks, those of its block of rows. */
template <class F>
static __device__ __forceinline__ const char *strip_scales(const struct expert_product &p,
                                                           const struct expert_stack &stack,
                                                           uint32_t n_groups, uint32_t expert,
                                                           uint32_t strip) {
    const uint32_t rows = stack.format.block_rows, first = strip * DIRECT_ROWS;
    const size_t row = F::SCALES == DIRECT_OF_BLOCKS
                           ? (size_t)expert * ((p.n_out + rows - 1) / rows) + first / rows
                           : (size_t)expert * p.n_out + first;
    return static_cast<const char *>(stack.scales) + row * n_groups * F::SCALE_BYTES;
}

/* Returns the scale of a whole row of an expert's matrix, or of the matrix; 1: groups have them. */
template <class F>
static __device__ __forceinline__ float row_scale(const struct expert_product &p, int stack,
                                                  uint32_t expert, uint32_t out) {
    const struct expert_stack &s = p.stacks[stack];
    if (F::SCALES != DIRECT_OF_ROWS) return 1.0f;
    return scale_at(s.scales, s.format.block_rows ? (size_t)expert * p.n_out + out : expert,
                    s.format.scale);
}

template <class F>
static __global__ void __launch_bounds__(32 * DIRECT_MAX_WARPS)
    direct_gate_up_kernel(const __grid_constant__ struct expert_product p,
                          const __grid_constant__ struct direct_cut cut) {
    enum { N = DIRECT_FEW };
    extern __shared__ __align__(128) char memory[];
    const uint32_t warp = threadIdx.x / 32, first = warp * N, strip = blockIdx.x, rank = blockIdx.y,
                   out = strip * DIRECT_ROWS + threadIdx.x % DIRECT_ROWS;
    char *own = memory + warp * cut.x_bytes;
    float *sums = reinterpret_cast<float *>(memory + cut.n_warps * cut.x_bytes), scale[2];
    direct_warp<F, 2, N> w(min((uint32_t)N, cut.n_slabs - first));
    wait_for_previous();
    let_next_start();
    const uint32_t expert = __ldcg(p.order.experts + rank);
    w.load_x(static_cast<const bf16 *>(p.x) + first * F::COLUMNS);
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int s = 0; s < 2; s++)
            if (i < w.n)
                w.ask(
                    s, i,
                    strip_words(p.stacks[s], expert * (p.n_out / DIRECT_ROWS) + strip, cut.n_slabs),
                    strip_scales<F>(p, p.stacks[s], cut.n_groups, expert, strip), first + i);
#pragma unroll
    for (int s = 0; s < 2; s++)
        if (threadIdx.x < DIRECT_ROWS) scale[s] = row_scale<F>(p, s, expert, out);
    w.share_x(own);
    w.multiply_all(own, p.stacks[0].format.scale == SCALE_F16, no_factor());
    w.share_sums(sums + warp * 2 * DIRECT_ROWS);
    __syncthreads();
    if (threadIdx.x < DIRECT_ROWS)
        store_gated(p, expert, rank, out,
                    scale[0] * add_direct_warps<2>(sums, cut.n_warps, 0, threadIdx.x),
                    scale[1] * add_direct_warps<2>(sums, cut.n_warps, 1, threadIdx.x));
}

/* What the slabs of a warp are multiplied by: the shares of their experts, and scales of rows. */
template <class F, int N> struct share_factor {
    float share; /* of rank `lane` */
    uint32_t first, n_slabs;
    struct direct_pair rows[F::SCALES == DIRECT_OF_ROWS ? N : 1];

    __device__ __forceinline__ struct direct_pair operator()(int, int i) const {
        const float x = __shfl_sync(0xffffffffu, share, (first + i) / n_slabs);
        if constexpr (F::SCALES == DIRECT_OF_ROWS) return {x * rows[i].low, x * rows[i].high};
        return {x, x};
    }
};

/* Returns what the row's output is besides the products: what was there, biases times shares, and
 * the shared expert. */
static __device__ __forceinline__ float rest_of(const struct expert_product &p,
                                                const struct combine_params &sum, uint32_t out) {
    float x = 0.0f;
    if (!sum.overwrites) {
        const unsigned short bits = __ldcg(static_cast<const unsigned short *>(sum.out) + out);
        x = __uint_as_float((uint32_t)bits << 16);
    }
    if (p.stacks[0].bias)
        for (uint32_t rank = 0; rank < sum.n_used; rank++)
            x += sum.shares[rank] * with_expert_bias(p, 0, p.order.experts[rank], out, 0.0f);
    if (sum.shared)
        x += sum.shares[sum.n_used] * (sum.is_f32
                                           ? static_cast<const float *>(sum.shared)[out]
                                           : to_float(static_cast<const bf16 *>(sum.shared)[out]));
    return x;
}

template <class F>
static __global__ void __launch_bounds__(32 * DIRECT_MAX_WARPS)
    direct_down_kernel(const __grid_constant__ struct expert_product p,
                       const __grid_constant__ struct combine_params sum,
                       const __grid_constant__ struct direct_cut cut) {
    enum { N = DIRECT_MANY };
    extern __shared__ __align__(128) char memory[];
    const uint32_t warp = threadIdx.x / 32, first = warp * N, strip = blockIdx.x,
                   out = strip * DIRECT_ROWS + threadIdx.x % DIRECT_ROWS,
                   n_slabs = p.n_in / F::COLUMNS;
    char *own = memory + warp * cut.x_bytes;
    float *sums = reinterpret_cast<float *>(memory + cut.n_warps * cut.x_bytes), rest = 0.0f;
    direct_warp<F, 1, N> w(min((uint32_t)N, cut.n_slabs - first));
    share_factor<F, N> factor = {0.0f, first, n_slabs, {}};
    const uint32_t own_rank = min(w.lane, sum.n_used - 1),
                   own_expert = __ldcg(p.order.experts + own_rank);
    let_next_start();
    factor.share = __ldcg(sum.shares + own_rank);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= w.n) break;
        const uint32_t rank = (first + i) / n_slabs,
                       expert = __shfl_sync(0xffffffffu, own_expert, rank);
        w.ask(0, i, strip_words(p.stacks[0], expert * (p.n_out / DIRECT_ROWS) + strip, n_slabs),
              strip_scales<F>(p, p.stacks[0], cut.n_groups / sum.n_used, expert, strip),
              first + i - rank * n_slabs);
        if constexpr (F::SCALES == DIRECT_OF_ROWS) {
            const uint32_t row = strip * DIRECT_ROWS + w.lane / 4;
            factor.rows[i] = {row_scale<F>(p, 0, expert, row), row_scale<F>(p, 0, expert, row + 8)};
        }
    }
    wait_for_previous();
    w.load_x(static_cast<const bf16 *>(p.x) + first * F::COLUMNS);
    if (threadIdx.x < DIRECT_ROWS) rest = rest_of(p, sum, out);
    w.share_x(own);
    w.multiply_all(own, p.stacks[0].format.scale == SCALE_F16, factor);
    w.share_sums(sums + warp * DIRECT_ROWS);
    __syncthreads();
    if (threadIdx.x < DIRECT_ROWS)
        store_as(static_cast<bf16 *>(sum.out) + out,
                 rest + add_direct_warps<1>(sums, cut.n_warps, 0, threadIdx.x));
}

/* ---- the list of kernels ---- */

struct direct_entry {
    enum element element;
    uint32_t per;
    void (*gate_up)(struct expert_product, struct direct_cut);
    void (*down)(struct expert_product, struct combine_params, struct direct_cut);
};

#define ENTRY(ELEMENT, PER, ...)                                                                   \
    {ELEMENT, PER, direct_gate_up_kernel<__VA_ARGS__>, direct_down_kernel<__VA_ARGS__>},
static const struct direct_entry entries[] = {DIRECT_FORMATS(ENTRY)};

static const struct direct_entry *find_entry(const struct weight_format *format) {
    for (const struct direct_entry &e : entries)
        if (e.element == format->element && e.per == format->block_cols) return &e;
    return nullptr;
}

/* Cuts gate and up, and down with the columns of all of the row's experts. */
static bool make_cuts(const struct expert_product *gate_up, const struct expert_product *down,
                      struct direct_cut *of_gate_up, struct direct_cut *of_down) {
    const struct weight_format *f = &gate_up->stacks[0].format, *g = &down->stacks[0].format;
    return direct_cut_columns(f, gate_up->n_in, 2, of_gate_up) &&
           direct_make_cut(g, direct_slabs(g, down->n_in) * down->order.n_used, DIRECT_MANY,
                           of_down);
}

static bool takes_stack(const struct expert_stack *s) {
    return s->in_strips && direct_takes(&s->format) && find_entry(&s->format) &&
           (uintptr_t)s->w % 16 == 0 && (uintptr_t)s->scales % 4 == 0;
}

extern "C" bool direct_experts_fit(const struct cuda_backend *cuda,
                                   const struct expert_product *gate_up,
                                   const struct expert_product *down) {
    struct direct_cut of_gate_up, of_down;
    const struct weight_format *gate = &gate_up->stacks[0].format;
    return cuda->expert_stream.n_multiprocessors > 0 && !cuda->batch_invariant &&
           gate_up->order.n_rows == 1 && gate_up->order.n_used <= 32 &&
           takes_stack(&gate_up->stacks[0]) && takes_stack(&gate_up->stacks[1]) &&
           takes_stack(&down->stacks[0]) && weight_same_format(gate, &gate_up->stacks[1].format) &&
           (down->stacks[0].format.block_cols == 0 ||
            down->n_in % down->stacks[0].format.block_cols == 0) &&
           make_cuts(gate_up, down, &of_gate_up, &of_down);
}

static size_t shared_bytes(const struct direct_cut *cut, uint32_t n_strips) {
    return cut->n_warps * (cut->x_bytes + n_strips * DIRECT_ROWS * sizeof(float));
}

extern "C" cudaError_t launch_direct_experts(const struct expert_product *gate_up,
                                             const struct expert_product *down,
                                             const struct combine_params *sum,
                                             struct launch launch) {
    struct direct_cut of_gate_up, of_down;
    if (!make_cuts(gate_up, down, &of_gate_up, &of_down)) return cudaErrorInvalidValue;
    const cudaError_t status = launch_kernel(
        launch, find_entry(&gate_up->stacks[0].format)->gate_up,
        dim3(gate_up->n_out / DIRECT_ROWS, gate_up->order.n_used), dim3(32 * of_gate_up.n_warps),
        shared_bytes(&of_gate_up, 2), *gate_up, of_gate_up);
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, find_entry(&down->stacks[0].format)->down,
                         dim3(down->n_out / DIRECT_ROWS), dim3(32 * of_down.n_warps),
                         shared_bytes(&of_down, 1), *down, *sum, of_down);
}
