/* prompt_convolve.cu - prompts: the short convolution and SiLU, and the norms of Gated DeltaNet's q
 * and k, into tiles (recurrent.cuh).
 *
 *   qkv     bf16 [n_rows, n_channels]
 *   tiles   q / |q|, k / |k|, v, each rounded to bf16 before its norm, and after; or x, B, C
 *
 * Grid:   blocks take items in turn.  An item is BLOCK_ROWS rows of a chunk, and eight tiles; a
 *         thread has eight channels, and 16 threads a tile: one head of Gated DeltaNet.
 * Bound:  memory, each row of qkv read once and written once.     Oracle: tests/cuda. */
#include "cuda/recurrent/recurrent.cuh"

namespace {

enum { THREADS = 128, VECTOR = 8, HEAD_LANES = TILE_CHANNELS / VECTOR };
enum { BLOCK_ROWS = 16, BLOCKS_OF_CHUNK = CHUNK_ROWS / BLOCK_ROWS, BATCH = 4 };

/* The channels of a thread, in the rows of a sequence. */
struct source {
    const bf16 *rows;   /* the sequence's first row of the step, at the thread's channels */
    const bf16 *inputs; /* those of the rows before, [DELTA_WIDTH][n_channels]; NULL: zeros */
    size_t stride, n_channels;
    uint32_t n_before;
};

__device__ source source_of(const recurrent_params &p, uint32_t seq, uint32_t channel) {
    const device_state &state = p.states_of->states[seq];
    const char *before = state_before(p, state);
    source s;
    s.rows =
        static_cast<const bf16 *>(p.qkv) + (size_t)p.step->first_row[seq] * p.qkv_stride + channel;
    s.inputs = before ? reinterpret_cast<const bf16 *>(before + p.inputs_at) + channel : nullptr;
    s.stride = p.qkv_stride;
    s.n_channels = p.n_channels;
    s.n_before = state.n_before;
    return s;
}

/* Loads a row, which the step may not have: row < 0 is one before it. */
__device__ __forceinline__ uint4 load_row(const source &s, int row) {
    if (row >= 0) return __ldg(reinterpret_cast<const uint4 *>(s.rows + (size_t)row * s.stride));
    const int position = (int)s.n_before + row;
    if (!s.inputs || position < 0) return make_uint4(0, 0, 0, 0);
    return __ldg(reinterpret_cast<const uint4 *>(s.inputs +
                                                 (size_t)(position % DELTA_WIDTH) * s.n_channels));
}

__device__ __forceinline__ void unpack(uint4 v, float (&x)[VECTOR]) {
    const uint32_t words[] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < VECTOR / 2; i++) {
        const float2 f = unpack_bf16(words[i]);
        x[2 * i] = f.x, x[2 * i + 1] = f.y;
    }
}

__device__ __forceinline__ uint4 pack_eight(const float (&x)[VECTOR]) {
    return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
                      pack_bf16(x[6], x[7]));
}

/* Returns 1 / |x| of a head; all lanes of the warp call this. */
__device__ __forceinline__ float inverse_length(const float (&x)[VECTOR]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTOR; i++) sum += x[i] * x[i];
#pragma unroll
    for (int step = HEAD_LANES / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return rsqrtf(sum + NORM2_EPS);
}

/* Loads the weights of the thread's channels: element i of a row is in taps[i]. */
__device__ __forceinline__ void load_taps(const plain_weight &w, size_t channel,
                                          float (&taps)[DELTA_WIDTH][VECTOR]) {
    if (w.element != ELEMENT_BF16) {
#pragma unroll
        for (int i = 0; i < VECTOR * DELTA_WIDTH; i++)
            taps[i % DELTA_WIDTH][i / DELTA_WIDTH] = load_plain(w, channel * DELTA_WIDTH + i);
        return;
    }
    const uint4 *from =
        reinterpret_cast<const uint4 *>(static_cast<const bf16 *>(w.data) + channel * DELTA_WIDTH);
#pragma unroll
    for (int i = 0; i < DELTA_WIDTH; i++) {
        float two[VECTOR]; /* channels' weights */
        unpack(__ldg(from + i), two);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) taps[j % DELTA_WIDTH][2 * i + j / DELTA_WIDTH] = two[j];
    }
}

/* Loads what is added to the sums of the thread's channels. */
__device__ __forceinline__ void load_biases(const recurrent_params &p, uint32_t channel,
                                            float (&biases)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; i++) biases[i] = conv_bias(p, channel + i);
}

/* HAS_NORMS: heads of q and k come first, and are normed; without, channels have biases. */
template <bool HAS_NORMS>
__device__ void convolve(const recurrent_params &p, const recurrent_window &w, uint32_t item,
                         uint32_t n_heads) {
    const uint32_t n_groups = (n_heads + THREADS / HEAD_LANES - 1) / (THREADS / HEAD_LANES),
                   group = item % n_groups, part = item / n_groups % BLOCKS_OF_CHUNK,
                   slot = item / n_groups / BLOCKS_OF_CHUNK, lane = threadIdx.x % HEAD_LANES;
    if (w.first_chunk + slot >= p.states_of->n_chunks) return;
    const device_chunk chunk = p.states_of->chunks[w.first_chunk + slot];
    const uint32_t head = group * (THREADS / HEAD_LANES) + threadIdx.x / HEAD_LANES;
    const bool is_there = head < n_heads, is_normed = HAS_NORMS && head < 2 * p.n_k_heads;
    const bool warp_has_normed = HAS_NORMS && __any_sync(0xffffffffu, is_normed);
    const uint32_t channel = min(head, n_heads - 1) * TILE_CHANNELS + lane * VECTOR;
    const source from = source_of(p, chunk.seq, channel);
    const int first =
        (int)(chunk.first_row - (uint32_t)p.step->first_row[chunk.seq]) + (int)part * BLOCK_ROWS;
    const int n_rows = (int)chunk.n_rows - (int)part * BLOCK_ROWS;
    float taps[DELTA_WIDTH][VECTOR], x[DELTA_WIDTH][VECTOR], biases[VECTOR] = {};
    load_taps(p.conv, channel, taps);
    if (!HAS_NORMS) load_biases(p, channel, biases);
#pragma unroll
    for (int j = 0; j < DELTA_WIDTH - 1; j++)
        unpack(n_rows > 0 ? load_row(from, first + j - (DELTA_WIDTH - 1)) : make_uint4(0, 0, 0, 0),
               x[j]);
    char *to = const_cast<char *>(half_of(p, w, slot, 2 * head + lane / 8));
#pragma unroll
    for (int batch = 0; batch < BLOCK_ROWS / BATCH; batch++) {
        uint4 rows[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            rows[i] = batch * BATCH + i < n_rows ? load_row(from, first + batch * BATCH + i)
                                                 : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = batch * BATCH + i;
            float y[VECTOR];
            unpack(rows[i], x[(row + DELTA_WIDTH - 1) % DELTA_WIDTH]);
#pragma unroll
            for (int c = 0; c < VECTOR; c++) {
                float sum = biases[c];
#pragma unroll
                for (int j = 0; j < DELTA_WIDTH; j++)
                    sum += taps[j][c] * x[(row + j) % DELTA_WIDTH][c];
                y[c] = round_bf16(silu(sum));
            }
            if (warp_has_normed) {
                const float length = inverse_length(y), factor = is_normed ? length : 1.0f;
#pragma unroll
                for (int c = 0; c < VECTOR; c++) y[c] *= factor;
            }
            const uint4 packed = row < n_rows ? pack_eight(y) : make_uint4(0, 0, 0, 0);
            const uint32_t at = tile_row(part * BLOCK_ROWS + row);
            if (is_there)
                *reinterpret_cast<uint4 *>(to + at * 128 + (lane % 8 ^ at % 8) * 16) = packed;
        }
    }
}

template <bool HAS_NORMS>
__global__ void __launch_bounds__(THREADS) convolve_kernel(recurrent_params p, recurrent_window w) {
    let_next_start();
    wait_for_previous();
    convolve<HAS_NORMS>(p, w, blockIdx.x, p.n_channels / TILE_CHANNELS);
}

} // namespace

size_t prompt_tile_bytes(uint32_t n_channels, uint32_t n_chunks) {
    return (size_t)n_chunks * n_channels / HALF_CHANNELS * HALF_BYTES;
}

cudaError_t launch_prompt_convolve(const struct recurrent_params *p,
                                   const struct recurrent_window *window, struct launch launch) {
    const uint32_t n_heads = p->n_channels / TILE_CHANNELS,
                   n_groups = (n_heads + THREADS / HEAD_LANES - 1) / (THREADS / HEAD_LANES);
    if (window->n_chunks == 0) return cudaSuccess;
    return launch_kernel(
        launch, p->kind == RECURRENT_DELTA ? convolve_kernel<true> : convolve_kernel<false>,
        window->n_chunks * BLOCKS_OF_CHUNK * n_groups, THREADS, 0, *p, *window);
}
