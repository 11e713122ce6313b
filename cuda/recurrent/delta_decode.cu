/* delta_decode.cu - all of a recurrent layer for sequences that generate: one launch.
 *
 *   S    f32 [n_v_heads, 128, 128]: rows by k, columns by v
 *
 * With kv = S^T k and qv = S^T q, both of S as it was, S is read once:
 *
 *   d = beta (v - exp(g) kv);  S = exp(g) S + k (x) d;  o = exp(g) qv + (q . k) d
 *
 * S was complete when the step began, so it is read before the wait for the kernel before.
 *
 * Grid:   one block per row and v head.  A warp has every eighth row of S, in registers.
 * Bound:  memory, S read and written once.      Oracle: tests/cuda, a recurrence in double. */
#include "cuda/recurrent/decode_channel.cuh"
#include "cuda/recurrent/delta.cuh"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32 };

/* A thread has 4 columns of S in rows threadIdx.x / LANES + i * ROW_STEP. */
enum { LANES = DELTA_DIM / 4, ROW_STEP = THREADS / LANES, ROWS = DELTA_DIM / ROW_STEP };

struct plan {
    float q[DELTA_DIM], k[DELTA_DIM], v[DELTA_DIM];
    float squares[WARPS];
    float4 sums[2][WARPS][LANES]; /* of kv and qv */
};

/* A thread's channels: one of q, or in the second half of the threads of k; and one of v, in the
 * first half. */
struct vectors {
    channel qk, v;
    bool is_q, stores_qk;
};

__device__ __forceinline__ vectors load_vectors(const recurrent_params &p,
                                                const device_state &state, uint32_t head) {
    const uint32_t k_head = k_head_of(p, head), i = threadIdx.x % DELTA_DIM;
    vectors x;
    x.is_q = threadIdx.x < DELTA_DIM;
    x.stores_qk = head == v_head_of(p, k_head, 0);
    x.qk = load_channel(p, state, ((x.is_q ? 0 : p.n_k_heads) + k_head) * DELTA_DIM + i, 0.0f);
    if (x.is_q) x.v = load_channel(p, state, (2 * p.n_k_heads + head) * DELTA_DIM + i, 0.0f);
    return x;
}

/* Makes the head's q, k and v in shared memory. */
__device__ __forceinline__ void make_vectors(const recurrent_params &p, const device_state &state,
                                             size_t row, const vectors &x, plan *s) {
    const float y = convolve(p, state, row, x.qk, x.stores_qk), squares = warp_sum(y * y);
    if (threadIdx.x % 32 == 0) s->squares[threadIdx.x / 32] = squares;
    if (x.is_q) s->v[threadIdx.x] = convolve(p, state, row, x.v, true);
    __syncthreads();
    const float *sums = s->squares + (x.is_q ? 0 : WARPS / 2);
    const float factor = rsqrtf(sums[0] + sums[1] + sums[2] + sums[3] + NORM2_EPS);
    (x.is_q ? s->q : s->k)[threadIdx.x % DELTA_DIM] = round_bf16(y * factor);
    __syncthreads();
}

__device__ __forceinline__ void add_scaled(float4 &sum, float4 x, float by) {
    sum.x += x.x * by, sum.y += x.y * by, sum.z += x.z * by, sum.w += x.w * by;
}

/* Returns the sum over the block's threads that have the same columns. */
__device__ __forceinline__ float4 read_sum(const float4 (&sums)[WARPS][LANES]) {
    float4 sum = sums[0][threadIdx.x % LANES];
#pragma unroll
    for (int i = 1; i < WARPS; i++) add_scaled(sum, sums[i][threadIdx.x % LANES], 1.0f);
    return sum;
}

__device__ __forceinline__ uint2 load_gates(const recurrent_params &p, size_t row, uint32_t head,
                                            uint32_t column) {
    const bf16 *z =
        static_cast<const bf16 *>(p.z) + row * p.gates_stride + head * DELTA_DIM + column;
    return make_uint2(pack_bf16(to_float(z[0]), to_float(z[1])),
                      pack_bf16(to_float(z[2]), to_float(z[3])));
}

/* Finishes the head's outputs, of which a lane of the first warp has four. */
__device__ __forceinline__ void store_output(const recurrent_params &p, size_t row, uint32_t head,
                                             uint32_t column, uint2 z, float4 o) {
    const float squares = warp_sum(o.x * o.x + o.y * o.y + o.z * o.z + o.w * o.w),
                factor = rsqrtf(squares / DELTA_DIM + p.eps);
    const float2 low = unpack_bf16(z.x), high = unpack_bf16(z.y);
    float norm[4];
    load_four(p.norm, column / 4, norm);
    *reinterpret_cast<uint2 *>(static_cast<bf16 *>(p.out) + (row * p.n_v_heads + head) * DELTA_DIM +
                               column) =
        make_uint2(
            pack_bf16(o.x * factor * norm[0] * silu(low.x), o.y * factor * norm[1] * silu(low.y)),
            pack_bf16(o.z * factor * norm[2] * silu(high.x),
                      o.w * factor * norm[3] * silu(high.y)));
}

__global__ void __launch_bounds__(THREADS, 2) decode_kernel(recurrent_params p) {
    __shared__ plan s;
    const uint32_t head = blockIdx.x, lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    let_next_start();
    if (blockIdx.y >= p.step->n_decode) return;
    const size_t row = (size_t)p.step->first_row[blockIdx.y];
    const device_state state = p.states_of->states[blockIdx.y];
    const size_t at = ((size_t)head * DELTA_DIM + first) * DELTA_DIM + 4 * lane;
    const float *from = reinterpret_cast<const float *>(state_before(p, state)) + at;
    float *to = reinterpret_cast<float *>(state_after(p, state)) + at;
    float4 x[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        x[i] =
            state.from < 0
                ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                : __ldcs(reinterpret_cast<const float4 *>(from + (size_t)i * ROW_STEP * DELTA_DIM));
    const vectors own = load_vectors(p, state, head);
    wait_for_previous();
    const uint2 z = load_gates(p, row, head, 4 * lane);
    const float decay = expf(log_decay(p, row, head)), beta = write_share(p, row, head);
    make_vectors(p, state, row, own, &s);
    float4 kv = {}, qv = {};
    float qk = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        add_scaled(kv, x[i], s.k[first + i * ROW_STEP]);
        add_scaled(qv, x[i], s.q[first + i * ROW_STEP]);
    }
#pragma unroll
    for (int i = 0; i < DELTA_DIM / 32; i++) qk += s.q[lane + 32 * i] * s.k[lane + 32 * i];
    qk = warp_sum(qk);
    s.sums[0][first][lane] = kv;
    s.sums[1][first][lane] = qv;
    __syncthreads();
    kv = read_sum(s.sums[0]);
    const float4 v = *reinterpret_cast<const float4 *>(&s.v[4 * lane]);
    const float4 d = {beta * (v.x - decay * kv.x), beta * (v.y - decay * kv.y),
                      beta * (v.z - decay * kv.z), beta * (v.w - decay * kv.w)};
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const float k = s.k[first + i * ROW_STEP];
        x[i].x = decay * x[i].x + k * d.x, x[i].y = decay * x[i].y + k * d.y;
        x[i].z = decay * x[i].z + k * d.z, x[i].w = decay * x[i].w + k * d.w;
        __stcs(reinterpret_cast<float4 *>(to + (size_t)i * ROW_STEP * DELTA_DIM), x[i]);
    }
    if (first > 0) return;
    qv = read_sum(s.sums[1]);
    const float scale = rsqrtf((float)DELTA_DIM);
    const float4 o = {scale * (decay * qv.x + qk * d.x), scale * (decay * qv.y + qk * d.y),
                      scale * (decay * qv.z + qk * d.z), scale * (decay * qv.w + qk * d.w)};
    store_output(p, row, head, 4 * lane, z, o);
}

} // namespace

cudaError_t launch_delta_decode(const struct recurrent_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, decode_kernel, dim3(p->n_v_heads, p->n_rows), THREADS, 0, *p);
}
