/* mamba_decode.cu - all of a Mamba-2 layer for sequences that generate: one launch.
 *
 *   S    f32 [n_v_heads, 128, V_DIM]: rows by B and C, columns by x
 *
 *   S = exp(rate dt) S + B (x) (dt x);  out = (S^T C + skip x) silu(z)
 *
 * S was complete when the step began, so it is read before the wait for the kernel before.
 *
 * Grid:   one block per row and v head.  A thread has four columns of S, in every ROW_STEP-th row,
 *         in registers.
 * Bound:  memory, S read and written once.      Oracle: tests/cuda, a recurrence in double. */
#include "cuda/recurrent/decode_channel.cuh"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32 };

/* A thread has 4 columns of S in rows threadIdx.x / LANES + i * ROW_STEP. */
template <int V_DIM> struct cut {
    static constexpr int LANES = V_DIM / 4, ROW_STEP = THREADS / LANES,
                         ROWS = MAMBA_K_DIM / ROW_STEP;
};

template <int V_DIM> struct plan {
    float b[MAMBA_K_DIM], c[MAMBA_K_DIM], x[V_DIM];
    float4 sums[WARPS][V_DIM / 4]; /* of S^T C */
};

/* A thread's channels: one of B, one of C, and one of x where there is one for it. */
struct vectors {
    channel b, c, x;
    bool stores_keys;
};

template <int V_DIM>
__device__ __forceinline__ vectors load_vectors(const recurrent_params &p,
                                                const device_state &state, uint32_t head) {
    const uint32_t k_head = k_head_of(p, head), n_values = p.n_v_heads * V_DIM,
                   n_keys = p.n_k_heads * MAMBA_K_DIM, key = k_head * MAMBA_K_DIM + threadIdx.x,
                   x_at = head * V_DIM + threadIdx.x % V_DIM;
    vectors v;
    v.stores_keys = head == v_head_of(p, k_head, 0);
    v.b = load_channel(p, state, n_values + key, conv_bias(p, n_values + key));
    v.c = load_channel(p, state, n_values + n_keys + key, conv_bias(p, n_values + n_keys + key));
    if (threadIdx.x < V_DIM) v.x = load_channel(p, state, x_at, conv_bias(p, x_at));
    return v;
}

/* Makes the head's B, C and x in shared memory. */
template <int V_DIM>
__device__ __forceinline__ void make_vectors(const recurrent_params &p, const device_state &state,
                                             size_t row, const vectors &v, plan<V_DIM> *s) {
    s->b[threadIdx.x] = convolve(p, state, row, v.b, v.stores_keys);
    s->c[threadIdx.x] = convolve(p, state, row, v.c, v.stores_keys);
    if (threadIdx.x < V_DIM) s->x[threadIdx.x] = convolve(p, state, row, v.x, true);
    __syncthreads();
}

/* Adds up over the lanes of a warp that have the same columns. */
template <int LANES> __device__ __forceinline__ float4 sum_of_warp(float4 x) {
#pragma unroll
    for (int step = LANES; step < 32; step *= 2) {
        x.x += __shfl_xor_sync(0xffffffffu, x.x, step);
        x.y += __shfl_xor_sync(0xffffffffu, x.y, step);
        x.z += __shfl_xor_sync(0xffffffffu, x.z, step);
        x.w += __shfl_xor_sync(0xffffffffu, x.w, step);
    }
    return x;
}

/* Finishes four of the head's outputs. */
template <int V_DIM>
__device__ __forceinline__ void store_output(const recurrent_params &p, size_t row, uint32_t head,
                                             uint32_t column, float skip, const plan<V_DIM> &s) {
    const bf16 *z = static_cast<const bf16 *>(p.z) + row * p.gates_stride + head * V_DIM + column;
    float out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float o = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            o += reinterpret_cast<const float *>(&s.sums[w][column / 4])[i];
        out[i] = (o + skip * s.x[column + i]) * silu(to_float(z[i]));
    }
    *reinterpret_cast<uint2 *>(static_cast<bf16 *>(p.out) + (row * p.n_v_heads + head) * V_DIM +
                               column) =
        make_uint2(pack_bf16(out[0], out[1]), pack_bf16(out[2], out[3]));
}

template <int V_DIM>
__global__ void __launch_bounds__(THREADS, 4) decode_kernel(recurrent_params p) {
    typedef cut<V_DIM> cut;
    __shared__ plan<V_DIM> s;
    const uint32_t head = blockIdx.x, lane = threadIdx.x % cut::LANES,
                   first = threadIdx.x / cut::LANES;
    let_next_start();
    if (blockIdx.y >= p.step->n_decode) return;
    const size_t row = (size_t)p.step->first_row[blockIdx.y];
    const device_state state = p.states_of->states[blockIdx.y];
    const size_t at = ((size_t)head * MAMBA_K_DIM + first) * V_DIM + 4 * lane;
    const float *from = reinterpret_cast<const float *>(state_before(p, state)) + at;
    float *to = reinterpret_cast<float *>(state_after(p, state)) + at;
    float4 x[cut::ROWS];
#pragma unroll
    for (int i = 0; i < cut::ROWS; i++)
        x[i] = state.from < 0 ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                              : __ldcs(reinterpret_cast<const float4 *>(
                                    from + (size_t)i * cut::ROW_STEP * V_DIM));
    const vectors own = load_vectors<V_DIM>(p, state, head);
    wait_for_previous();
    const float step = time_step(p, load_a(p, row, head), load_plain(p.dt_bias, head)),
                decay = expf(bounded_decay(load_plain(p.rates, head) * step)),
                skip = load_plain(p.skip, head);
    make_vectors(p, state, row, own, &s);
    float4 add = *reinterpret_cast<const float4 *>(&s.x[4 * lane]), sum = {};
    add.x *= step, add.y *= step, add.z *= step, add.w *= step;
#pragma unroll
    for (int i = 0; i < cut::ROWS; i++) {
        const float b = s.b[first + i * cut::ROW_STEP], c = s.c[first + i * cut::ROW_STEP];
        x[i].x = decay * x[i].x + b * add.x, x[i].y = decay * x[i].y + b * add.y;
        x[i].z = decay * x[i].z + b * add.z, x[i].w = decay * x[i].w + b * add.w;
        sum.x += x[i].x * c, sum.y += x[i].y * c, sum.z += x[i].z * c, sum.w += x[i].w * c;
        __stcs(reinterpret_cast<float4 *>(to + (size_t)i * cut::ROW_STEP * V_DIM), x[i]);
    }
    sum = sum_of_warp<cut::LANES>(sum);
    if (threadIdx.x % 32 < cut::LANES) s.sums[threadIdx.x / 32][lane] = sum;
    __syncthreads();
    if (first == 0) store_output<V_DIM>(p, row, head, 4 * lane, skip, s);
}

} // namespace

cudaError_t launch_mamba_decode(const struct recurrent_params *p, struct launch launch) {
    const dim3 grid(p->n_v_heads, p->n_rows);
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(
        launch,
        p->v_dim == MAMBA_V_DIM ? decode_kernel<MAMBA_V_DIM> : decode_kernel<MAMBA_SMALL_V_DIM>,
        grid, THREADS, 0, *p);
}
