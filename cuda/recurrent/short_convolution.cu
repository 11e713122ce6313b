/* short_convolution.cu - short convolutions between two gates (engine/device/recurrent.h).
 *
 *   b, c, x   bf16 [n_channels], one behind the other in a row of qkv
 *   u         b * x, rounded to bf16, as states have it
 *   out       bf16 [n_rows, n_channels]: c times the convolution of u
 *
 * A row computes again what it reads of the rows before it.  A sequence that decodes leaves its
 * inputs at once: its row writes none that it reads.  Those of prompts are left by a second launch.
 *
 * Grid:   a thread for each row, or prompt, and pair of channels.
 * Bound:  memory, 8 * n_rows * n_channels bytes.        Oracle: tests/cuda. */
#include "cuda/recurrent/recurrent.cuh"

namespace {

enum { THREADS = 128 };

__device__ __forceinline__ uint32_t *inputs_in(const recurrent_params &p, char *slot,
                                               uint32_t position, uint32_t pair) {
    return reinterpret_cast<uint32_t *>(slot + p.inputs_at) +
           (size_t)(position % p.width) * (p.n_v_heads / 2) + pair;
}

__device__ __forceinline__ float2 part_of(const recurrent_params &p, size_t row, uint32_t part,
                                          uint32_t pair) {
    const bf16 *at =
        static_cast<const bf16 *>(p.qkv) + row * p.qkv_stride + part * p.n_v_heads + 2 * pair;
    return unpack_bf16(*reinterpret_cast<const uint32_t *>(at));
}

/* Returns the convolution's inputs in row `row` of the sequence; a negative one is before the
 * step. */
__device__ __forceinline__ uint32_t input_at(const recurrent_params &p, uint32_t seq, int row,
                                             uint32_t pair) {
    const device_state &state = p.states_of->states[seq];
    const int position = (int)state.n_before + row;
    if (row >= 0) {
        const size_t at = (size_t)p.step->first_row[seq] + row;
        const float2 b = part_of(p, at, 0, pair), x = part_of(p, at, 2, pair);
        return pack_bf16(b.x * x.x, b.y * x.y);
    }
    if (state.from < 0 || position < 0) return 0;
    char *slot = p.states + (size_t)state.from * p.slot_bytes;
    return *inputs_in(p, slot, (uint32_t)position, pair);
}

/* Stores the last inputs of a sequence, from those of its row `newest` on to older ones. */
__device__ __forceinline__ void keep(const recurrent_params &p, uint32_t seq, int newest,
                                     uint32_t pair) {
    const device_state &state = p.states_of->states[seq];
    for (int row = newest; row > newest - (int)p.width; row--) {
        const int position = (int)state.n_before + row;
        if (position < 0 || (row < 0 && state.from == state.to)) return;
        *inputs_in(p, state_after(p, state), (uint32_t)position, pair) =
            input_at(p, seq, row, pair);
    }
}

__global__ void __launch_bounds__(THREADS) convolve_kernel(recurrent_params p) {
    const uint32_t row = blockIdx.x, pair = blockIdx.y * THREADS + threadIdx.x;
    let_next_start();
    wait_for_previous();
    if (row >= p.step->n_rows || pair >= p.n_v_heads / 2) return;
    const uint32_t seq = (uint32_t)p.step->row_seq[row];
    const int at = (int)row - p.step->first_row[seq];
    const float2 c = part_of(p, row, 1, pair);
    float2 sum = make_float2(0.0f, 0.0f);
    for (uint32_t j = 0; j < p.width; j++) {
        const float2 u = unpack_bf16(input_at(p, seq, at + (int)j - (int)(p.width - 1), pair));
        sum.x += load_plain(p.conv, (size_t)(2 * pair) * p.width + j) * u.x;
        sum.y += load_plain(p.conv, (size_t)(2 * pair + 1) * p.width + j) * u.y;
    }
    bf16 *out = static_cast<bf16 *>(p.out) + (size_t)row * p.n_v_heads + 2 * pair;
    *reinterpret_cast<uint32_t *>(out) = pack_bf16(c.x * sum.x, c.y * sum.y);
    if (seq < p.step->n_decode) keep(p, seq, at, pair);
}

__global__ void __launch_bounds__(THREADS) keep_kernel(recurrent_params p) {
    const uint32_t pair = blockIdx.y * THREADS + threadIdx.x;
    let_next_start();
    wait_for_previous();
    const uint32_t seq = p.step->n_decode + blockIdx.x;
    if (seq < p.step->n_seqs && pair < p.n_v_heads / 2)
        keep(p, seq, p.step->seq_rows[seq] - 1, pair);
}

dim3 grid_of(const recurrent_params *p, uint32_t n) {
    return dim3(n, (p->n_v_heads / 2 + THREADS - 1) / THREADS);
}

} // namespace

cudaError_t launch_short_convolution(const struct recurrent_params *p, struct launch launch) {
    if (p->n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, convolve_kernel, grid_of(p, p->n_rows), THREADS, 0, *p);
}

cudaError_t launch_keep_inputs(const struct recurrent_params *p, uint32_t n_prompts,
                               struct launch launch) {
    if (n_prompts == 0) return cudaSuccess;
    return launch_kernel(launch, keep_kernel, grid_of(p, n_prompts), THREADS, 0, *p);
}
