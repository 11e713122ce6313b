/* delta_output.cu - prompts: out = rmsnorm(out) * norm * silu(z), in place, each v head by itself.
 *
 *   out     bf16 [n_rows, n_v_heads, 128]      z      bf16 [n_rows, n_v_heads, 128]
 *
 * Grid:   16 lanes a head of a row, which have 8 elements each.
 * Bound:  memory, 6 bytes an element.        Oracle: tests/cuda. */
#include "cuda/recurrent/delta.cuh"

namespace {

enum { THREADS = 256, VECTOR = 8, HEAD_LANES = DELTA_DIM / VECTOR };

/* Loads eight gates, whose rows may begin at any element. */
__device__ __forceinline__ uint4 load_gates(const bf16 *z) {
    if ((uintptr_t)z % 16 == 0) return *reinterpret_cast<const uint4 *>(z);
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = pack_bf16(to_float(z[2 * i]), to_float(z[2 * i + 1]));
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

__global__ void __launch_bounds__(THREADS) output_kernel(recurrent_params p) {
    const size_t item = ((size_t)blockIdx.x * THREADS + threadIdx.x) / HEAD_LANES,
                 row = item / p.n_v_heads, head = item % p.n_v_heads;
    const uint32_t at = threadIdx.x % HEAD_LANES * VECTOR;
    float weight[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; i++) weight[i] = load_plain(p.norm, at + i);
    let_next_start();
    wait_for_previous();
    const bool is_there = row >= p.step->n_decode && row < p.step->n_rows;
    if (!__any_sync(0xffffffffu, is_there)) return;
    const size_t safe_row = is_there ? row : p.step->n_decode;
    uint4 *out = reinterpret_cast<uint4 *>(static_cast<bf16 *>(p.out) +
                                           (safe_row * p.n_v_heads + head) * DELTA_DIM + at);
    const uint4 o = *out, z = load_gates(static_cast<const bf16 *>(p.z) +
                                         safe_row * p.gates_stride + head * DELTA_DIM + at);
    float sum = sum_squares(o);
#pragma unroll
    for (int step = HEAD_LANES / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const float factor = rsqrtf(sum / DELTA_DIM + p.eps);
    const uint32_t from[4] = {o.x, o.y, o.z, o.w}, gates[4] = {z.x, z.y, z.z, z.w};
    uint32_t to[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 x = unpack_bf16(from[i]), gate = unpack_bf16(gates[i]);
        to[i] = pack_bf16(x.x * factor * weight[2 * i] * silu(gate.x),
                          x.y * factor * weight[2 * i + 1] * silu(gate.y));
    }
    if (is_there) *out = make_uint4(to[0], to[1], to[2], to[3]);
}

} // namespace

cudaError_t launch_delta_output(const struct recurrent_params *p, struct launch launch) {
    const size_t n = (size_t)p->n_rows * p->n_v_heads * HEAD_LANES;
    if (n == 0) return cudaSuccess;
    return launch_kernel(launch, output_kernel, (uint32_t)((n + THREADS - 1) / THREADS), THREADS, 0,
                         *p);
}
