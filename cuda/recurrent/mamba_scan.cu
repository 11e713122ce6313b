/* mamba_scan.cu - prompts of Mamba-2: from chunk to chunk of a sequence, with the state in
 * registers (mamba.cuh).
 *
 * All is transposed: S^T [v_dim, k_dim], O^T and X^T [v_dim, rows].  So a warp has the same 16
 * columns of v in every product.  What one product makes is the next one's left factor, in the same
 * registers.
 *
 * X times its weights is the sum of two bf16 where it reaches S, so S is exact to 2^-16 or so.
 * What is read of S is rounded to bf16, as outputs are.
 *
 * Grid:   a block per sequence and v head; a warp has 16 columns of v.
 * Shared: two chunks of B, C, half a tile of x, M and the rows' weights.
 * Bound:  what one chunk of a head waits for the one before.
 * Oracle: tests/cuda, a recurrence in double. */
#include "cuda/recurrent/mamba.cuh"

namespace {

struct stage {
    char b[TILE_BYTES], c[TILE_BYTES], x[HALF_BYTES];
    weighed from;
};

struct plan {
    stage stages[2];
};

template <int V_DIM> struct cut { static constexpr int WARPS = V_DIM / 16, THREADS = 32 * WARPS; };

/* What a block computes: a v head of a sequence. */
struct head_of_prompt {
    prompt_unit u;
    uint32_t k_head;
    float skip;
};

/* ---- what comes from memory ---- */

/* Starts copying what `prepare` has made, without the blocks of M that are unset. */
template <int THREADS>
__device__ __forceinline__ void copy_weighed(weighed *to, const weighed *from) {
    for (uint32_t i = threadIdx.x; i < sizeof(weighed) / 16; i += THREADS) {
        const uint32_t row = i / 8, column = i % 8 ^ row % 8; /* of M, in front of the weights */
        if (i < HALF_BYTES / 16 && column < row / 16 * 2) continue;
        copy_async(reinterpret_cast<char *>(to) + 16 * i,
                   reinterpret_cast<const char *>(from) + 16 * i, true);
    }
}

/* Starts copying what the head has of a chunk. */
template <int V_DIM>
__device__ __forceinline__ void fetch(const recurrent_params &p, const recurrent_window &w,
                                      const head_of_prompt &h, uint32_t chunk, stage *to) {
    enum { THREADS = cut<V_DIM>::THREADS };
    const uint32_t slot = chunk - w.first_chunk;
    copy_tile<TILE_BYTES, THREADS>(to->b, b_of(p, w, slot, h.k_head));
    copy_tile<TILE_BYTES, THREADS>(to->c, c_of(p, w, slot, h.k_head));
    copy_tile<HALF_BYTES, THREADS>(to->x, half_of(p, w, slot, h.u.head * V_DIM / HALF_CHANNELS));
    copy_weighed<THREADS>(&to->from, weighed_of(p, w, slot, h.u.head));
    copy_async_commit();
}

/* ---- fragments ---- */

/* Loads rows 16 i on of B, its columns 16 step on, as the right factor of a product over rows. */
__device__ __forceinline__ void load_right_of_rows(uint32_t (&r)[4], const char *tile, uint32_t i,
                                                   uint32_t step) {
    const uint32_t lane = threadIdx.x % 32;
    load_matrix_trans(r, tile + step / 4 * HALF_BYTES +
                             place_in_half(16 * i + lane % 16, step % 4 * 2 + lane / 16));
}

/* Loads the warp's columns of X^T in rows 16 i on, as a left factor; `column` is the first one of
 * the half, in eights. */
__device__ __forceinline__ void load_values(uint32_t (&r)[4], const char *x, uint32_t i,
                                            uint32_t column) {
    const uint32_t lane = threadIdx.x % 32;
    load_matrix_trans(r,
                      x + place_in_half(16 * i + lane % 8 + lane / 16 * 8, column + lane / 8 % 2));
}

/* Loads M^T's columns 16 i on, its rows 16 step on, as a right factor. */
__device__ __forceinline__ void load_m(uint32_t (&r)[4], const char *m, uint32_t i, uint32_t step) {
    const uint32_t lane = threadIdx.x % 32;
    load_matrix(r, m + place_in_half(16 * i + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

/* ---- products ---- */

/* What a thread has of its head: S^T, by eight columns, and O^T, by eight rows of the chunk. */
typedef float state_part[2 * K_STEPS][4];
typedef float output_part[2 * ROW_STEPS][4];

/* Makes o = (S^T C^T) diag(exp(G)). */
__device__ __forceinline__ void read_state(output_part &o, const state_part &state,
                                           const stage *in) {
#pragma unroll
    for (int i = 0; i < 2 * ROW_STEPS; i++)
#pragma unroll
        for (int k = 0; k < 4; k++) o[i][k] = 0.0f;
#pragma unroll
    for (uint32_t step = 0; step < K_STEPS; step++) {
        const float(&low)[4] = state[2 * step], (&high)[4] = state[2 * step + 1];
        const uint32_t left[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                                  pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3])};
#pragma unroll
        for (uint32_t i = 0; i < ROW_STEPS; i++) {
            uint32_t c[4];
            load_right(c, in->c, i, step);
            mma(o[2 * i], left, c[0], c[1]);
            mma(o[2 * i + 1], left, c[2], c[3]);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 2 * ROW_STEPS; i++) {
        const float2 g =
            *reinterpret_cast<const float2 *>(in->from.exp_g + 8 * i + threadIdx.x % 4 * 2);
        o[i][0] *= g.x, o[i][1] *= g.y, o[i][2] *= g.x, o[i][3] *= g.y;
    }
}

/* Adds X^T M^T to o, of rows 16 step on. */
__device__ __forceinline__ void add_rows(output_part &o, const uint32_t (&x)[4], const char *m,
                                         uint32_t step) {
#pragma unroll
    for (uint32_t i = 0; i <= step; i++) {
        uint32_t right[4];
        load_m(right, m, i, step);
        mma(o[2 * i], x, right[0], right[1]);
        mma(o[2 * i + 1], x, right[2], right[3]);
    }
}

/* Adds (X^T diag(share)) B to the state, of rows 16 step on. */
__device__ __forceinline__ void write_state(state_part &state, const uint32_t (&x)[4],
                                            const stage *in, uint32_t step) {
    uint32_t high[4], low[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const float2 v = unpack_bf16(x[i]),
                     by = *reinterpret_cast<const float2 *>(in->from.share + 16 * step + i / 2 * 8 +
                                                            threadIdx.x % 4 * 2);
        split_pair(v.x * by.x, v.y * by.y, &high[i], &low[i]);
    }
#pragma unroll
    for (uint32_t i = 0; i < K_STEPS; i++) {
        uint32_t b[4];
        load_right_of_rows(b, in->b, step, i);
        mma(state[2 * i], high, b[0], b[1]);
        mma(state[2 * i + 1], high, b[2], b[3]);
        mma(state[2 * i], low, b[0], b[1]);
        mma(state[2 * i + 1], low, b[2], b[3]);
    }
}

/* ---- outputs ---- */

/* Returns a lane's place among elements of z or out: two columns from `column` on of row lane / 4
 * of eight rows of a tile.  Returns false for a row past the chunk's end. */
__device__ __forceinline__ bool find_row(const device_chunk &chunk, uint32_t eight, size_t *row) {
    const uint32_t i = CHUNK_ROWS - 1 - (8 * eight + threadIdx.x % 32 / 4);
    *row = chunk.first_row + i;
    return i < chunk.n_rows;
}

/* Loads z of the warp's columns, from channel `first` on: for eight rows and eight columns each. */
__device__ __forceinline__ void load_gates(uint32_t (&z)[2 * ROW_STEPS][2],
                                           const recurrent_params &p, const device_chunk &chunk,
                                           uint32_t first) {
#pragma unroll
    for (uint32_t i = 0; i < 2 * ROW_STEPS; i++) {
        size_t row;
        const bool is_there = find_row(chunk, i, &row);
        const bf16 *from =
            static_cast<const bf16 *>(p.z) + row * p.gates_stride + first + threadIdx.x % 4 * 2;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++)
            z[i][k] = is_there ? *reinterpret_cast<const uint32_t *>(from + 8 * k) : 0;
    }
}

/* Stores (o + skip x) silu(z). */
__device__ __forceinline__ void store_outputs(const recurrent_params &p, const device_chunk &chunk,
                                              uint32_t first, float skip, const output_part &o,
                                              const uint32_t (&x)[ROW_STEPS][4],
                                              const uint32_t (&z)[2 * ROW_STEPS][2]) {
    const size_t stride = (size_t)p.n_v_heads * p.v_dim;
#pragma unroll
    for (uint32_t i = 0; i < 2 * ROW_STEPS; i++) {
        size_t row;
        const bool is_there = find_row(chunk, i, &row);
        bf16 *to = static_cast<bf16 *>(p.out) + row * stride + first + threadIdx.x % 4 * 2;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const float2 own = unpack_bf16(x[i / 2][i % 2 * 2 + k]),
                         gate = unpack_bf16(transpose_8x8(z[i][k]));
            const uint32_t out =
                transpose_8x8(pack_bf16((o[i][2 * k] + skip * own.x) * silu(gate.x),
                                        (o[i][2 * k + 1] + skip * own.y) * silu(gate.y)));
            if (is_there) *reinterpret_cast<uint32_t *>(to + 8 * k) = out;
        }
    }
}

/* ---- states ---- */

/* Returns where a thread's first element of S is; the next column is in the next row of S. */
template <int V_DIM> __device__ __forceinline__ size_t element_of(uint32_t head) {
    return (size_t)head * MAMBA_K_DIM * V_DIM + threadIdx.x % 4 * 2 * V_DIM +
           threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
}

template <int V_DIM> __device__ __forceinline__ uint32_t step_to(uint32_t i, uint32_t k) {
    return (8 * i + k % 2) * V_DIM + k / 2 * 8;
}

template <int V_DIM>
__device__ __forceinline__ void load_state(state_part &state, const recurrent_params &p,
                                           const prompt_unit &u) {
    const device_state &of = p.states_of->states[u.seq];
    const char *slot = u.begins ? state_before(p, of) : state_after(p, of);
    const float *from = reinterpret_cast<const float *>(slot) + element_of<V_DIM>(u.head);
#pragma unroll
    for (uint32_t i = 0; i < 2 * K_STEPS; i++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) state[i][k] = slot ? from[step_to<V_DIM>(i, k)] : 0.0f;
}

template <int V_DIM>
__device__ __forceinline__ void store_state(const state_part &state, const recurrent_params &p,
                                            const prompt_unit &u) {
    float *to = reinterpret_cast<float *>(state_after(p, p.states_of->states[u.seq])) +
                element_of<V_DIM>(u.head);
#pragma unroll
    for (uint32_t i = 0; i < 2 * K_STEPS; i++)
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) to[step_to<V_DIM>(i, k)] = state[i][k];
}

/* Stores the convolution's last inputs of x.  The first head of a k head also stores those of B and
 * C. */
template <int V_DIM>
__device__ __forceinline__ void store_channels(const recurrent_params &p, const head_of_prompt &h) {
    const uint32_t n_keys = p.n_k_heads * MAMBA_K_DIM,
                   key = p.n_v_heads * V_DIM + h.k_head * MAMBA_K_DIM;
    store_inputs(p, h.u.seq, h.u.head * V_DIM, V_DIM);
    if (h.u.head != v_head_of(p, h.k_head, 0)) return;
    store_inputs(p, h.u.seq, key, MAMBA_K_DIM);
    store_inputs(p, h.u.seq, key + n_keys, MAMBA_K_DIM);
}

/* ---- a head ---- */

/* Goes through the chunks of a head. */
template <int V_DIM>
__device__ void scan(const recurrent_params &p, const recurrent_window &w, const head_of_prompt &h,
                     plan *s) {
    const device_chunk *chunks = p.states_of->chunks;
    const uint32_t warp = threadIdx.x / 32, first = h.u.head * V_DIM + 16 * warp,
                   column = first % HALF_CHANNELS / 8;
    state_part state;
    fetch<V_DIM>(p, w, h, h.u.first, &s->stages[0]);
    load_state<V_DIM>(state, p, h.u);
    for (uint32_t c = h.u.first, odd = 0; c < h.u.end; c++, odd ^= 1) {
        const device_chunk chunk = chunks[c];
        const stage *in = &s->stages[odd];
        output_part o;
        uint32_t x[ROW_STEPS][4], z[2 * ROW_STEPS][2];
        copy_async_wait_all();
        __syncthreads(); /* the chunk before has been read, too */
        if (c + 1 < h.u.end) fetch<V_DIM>(p, w, h, c + 1, &s->stages[odd ^ 1]);
        load_gates(z, p, chunk, first);
        read_state(o, state, in);
        const float decay = in->from.exp_g[0];
#pragma unroll
        for (int i = 0; i < 2 * K_STEPS; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) state[i][k] *= decay;
#pragma unroll
        for (uint32_t step = 0; step < ROW_STEPS; step++) {
            load_values(x[step], in->x, step, column);
            add_rows(o, x[step], in->from.m, step);
            write_state(state, x[step], in, step);
        }
        store_outputs(p, chunk, first, h.skip, o, x, z);
    }
    store_state<V_DIM>(state, p, h.u);
    if (chunks[h.u.end - 1].is_last) store_channels<V_DIM>(p, h);
}

template <int V_DIM>
__global__ void __launch_bounds__(cut<V_DIM>::THREADS)
    scan_kernel(recurrent_params p, recurrent_window w) {
    extern __shared__ __align__(128) char shared[];
    let_next_start();
    wait_for_previous();
    head_of_prompt h;
    h.u = prompt_unit_at(p, w, blockIdx.x);
    if (h.u.first == h.u.end) return;
    h.k_head = k_head_of(p, h.u.head);
    h.skip = load_plain(p.skip, h.u.head);
    scan<V_DIM>(p, w, h, reinterpret_cast<plan *>(shared));
}

template <int V_DIM>
cudaError_t launch_scan(const recurrent_params *p, const recurrent_window *w, launch launch) {
    const cudaError_t status = cudaFuncSetAttribute(
        scan_kernel<V_DIM>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(plan));
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, scan_kernel<V_DIM>, w->n_prompts * p->n_v_heads,
                         cut<V_DIM>::THREADS, sizeof(plan), *p, *w);
}

} // namespace

cudaError_t launch_mamba_scan(const struct recurrent_params *p,
                              const struct recurrent_window *window, struct launch launch) {
    if (window->n_chunks == 0 || window->n_prompts == 0) return cudaSuccess;
    return p->v_dim == MAMBA_V_DIM ? launch_scan<MAMBA_V_DIM>(p, window, launch)
                                   : launch_scan<MAMBA_SMALL_V_DIM>(p, window, launch);
}
