/* mamba_prepare.cu - prompts of Mamba-2: M and the weights of rows, of each chunk by itself
 * (mamba.cuh).
 *
 * Grid:   a block per chunk and HEADS v heads of a k head; a warp makes 16 rows of C B^T, and of
 *         each head's M.
 * Bound:  memory, M written once.        Oracle: tests/cuda, by what `scan` makes of it. */
#include "cuda/recurrent/mamba.cuh"

namespace {

enum { WARPS = ROW_STEPS, THREADS = 32 * WARPS, HEADS = 8 };

/* Of a head's rows, the newest one first. */
struct row_weights {
    float high[CHUNK_ROWS], low[CHUNK_ROWS]; /* G in base 2 is their sum */
    float step[CHUNK_ROWS];                  /* dt; past the chunk's end 0 */
};

struct plan {
    char b[TILE_BYTES], c[TILE_BYTES];
    row_weights of[HEADS];
};

/* Loads rows 16 i on of a tile, its columns 16 step on, as a left factor. */
__device__ __forceinline__ void load_left(uint32_t (&r)[4], const char *tile, uint32_t i,
                                          uint32_t step) {
    const uint32_t lane = threadIdx.x % 32;
    load_matrix(r, tile + step / 4 * HALF_BYTES +
                       place_in_half(16 * i + lane % 16, step % 4 * 2 + lane / 16));
}

__device__ __forceinline__ void store_row(uint32_t row, double g, double last, float step,
                                          row_weights *of, weighed *out) {
    const uint32_t at = tile_row(row);
    const float high = (float)g;
    of->high[at] = high;
    of->low[at] = (float)(g - (double)high);
    of->step[at] = step;
    out->exp_g[at] = exp2f(high);
    out->share[at] = exp2f((float)(last - g)) * step;
}

/* Makes the weights of a head's rows; a lane of the warp has rows 2 lane and 2 lane + 1. */
__device__ __forceinline__ void weigh(const recurrent_params &p, const device_chunk &chunk,
                                      uint32_t head, row_weights *of, weighed *out) {
    const uint32_t lane = threadIdx.x % 32;
    const float rate = load_plain(p.rates, head), bias = load_plain(p.dt_bias, head);
    float step[2];
    double g[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = 2 * lane + i;
        step[i] =
            row < chunk.n_rows ? time_step(p, load_a(p, chunk.first_row + row, head), bias) : 0.0f;
        g[i] = 1.4426950408889634 * (double)bounded_decay(rate * step[i]);
    }
    double sum = g[0] + g[1];
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const double before = __shfl_up_sync(0xffffffffu, sum, by);
        if (lane >= (uint32_t)by) sum += before;
    }
    const double last = __shfl_sync(0xffffffffu, sum, 31);
    store_row(2 * lane, sum - g[1], last, step[0], of, out);
    store_row(2 * lane + 1, sum, last, step[1], of, out);
}

/* What a lane has of 16 rows of C B^T, by eight columns. */
typedef float product[2 * ROW_STEPS][4];

/* Makes rows 16 i on of C B^T, up to the diagonal. */
__device__ __forceinline__ void multiply(product &sum, const plan *s, uint32_t i) {
#pragma unroll
    for (uint32_t j = 0; j < 2 * ROW_STEPS; j++)
#pragma unroll
        for (int k = 0; k < 4; k++) sum[j][k] = 0.0f;
    for (uint32_t step = 0; step < K_STEPS; step++) {
        uint32_t c[4];
        load_left(c, s->c, i, step);
#pragma unroll
        for (uint32_t j = 0; j < ROW_STEPS; j++) {
            if (j < i) continue; /* newer than all the rows */
            uint32_t b[4];
            load_right(b, s->b, j, step);
            mma(sum[2 * j], c, b[0], b[1]);
            mma(sum[2 * j + 1], c, b[2], b[3]);
        }
    }
}

/* Stores rows 16 i on of a head's M. */
__device__ __forceinline__ void store_m(const product &sum, const row_weights &of, uint32_t i,
                                        char *m) {
    const uint32_t lane = threadIdx.x % 32, row = 16 * i + lane / 4;
    const float high[2] = {of.high[row], of.high[row + 8]}, low[2] = {of.low[row], of.low[row + 8]};
#pragma unroll
    for (uint32_t j = 0; j < 2 * ROW_STEPS; j++) {
        if (j / 2 < i) continue;
        float x[4];
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t at = 8 * j + lane % 4 * 2 + k % 2;
            const float g = (high[k / 2] - of.high[at]) + (low[k / 2] - of.low[at]);
            x[k] = at >= row + k / 2 * 8 ? sum[j][k] * exp2f(g) * of.step[at] : 0.0f;
        }
        char *to = m + place_in_half(row, j) + lane % 4 * 4; /* eight rows on is the same place */
        *reinterpret_cast<uint32_t *>(to) = pack_bf16(x[0], x[1]);
        *reinterpret_cast<uint32_t *>(to + 8 * 128) = pack_bf16(x[2], x[3]);
    }
}

__global__ void __launch_bounds__(THREADS)
    prepare_kernel(recurrent_params p, recurrent_window w, uint32_t n_groups) {
    __shared__ __align__(128) plan s;
    const uint32_t group = blockIdx.x % n_groups, k_head = blockIdx.x / n_groups % p.n_k_heads,
                   slot = blockIdx.x / n_groups / p.n_k_heads, warp = threadIdx.x / 32,
                   n_shared = p.n_v_heads / p.n_k_heads, first = group * HEADS,
                   end = min(first + HEADS, n_shared);
    let_next_start();
    wait_for_previous();
    if (w.first_chunk + slot >= p.states_of->n_chunks) return;
    const device_chunk chunk = p.states_of->chunks[w.first_chunk + slot];
    copy_tile<TILE_BYTES, THREADS>(s.b, b_of(p, w, slot, k_head));
    copy_tile<TILE_BYTES, THREADS>(s.c, c_of(p, w, slot, k_head));
    copy_async_commit();
    for (uint32_t i = first + warp; i < end; i += WARPS) {
        const uint32_t head = v_head_of(p, k_head, i);
        weigh(p, chunk, head, &s.of[i - first], weighed_of(p, w, slot, head));
    }
    copy_async_wait_all();
    __syncthreads();
    product sum;
    multiply(sum, &s, warp);
    for (uint32_t i = first; i < end; i++)
        store_m(sum, s.of[i - first], warp, weighed_of(p, w, slot, v_head_of(p, k_head, i))->m);
}

} // namespace

size_t mamba_weighed_bytes(uint32_t n_v_heads, uint32_t n_chunks) {
    return (size_t)n_chunks * n_v_heads * sizeof(weighed);
}

cudaError_t launch_mamba_prepare(const struct recurrent_params *p,
                                 const struct recurrent_window *window, struct launch launch) {
    const uint32_t n_shared = p->n_v_heads / p->n_k_heads,
                   n_groups = (n_shared + HEADS - 1) / HEADS;
    if (window->n_chunks == 0) return cudaSuccess;
    return launch_kernel(launch, prepare_kernel, window->n_chunks * p->n_k_heads * n_groups,
                         THREADS, 0, *p, *window, n_groups);
}
