/* recurrent.cuh - what the kernels of recurrent layers share: where states, weights and gates are,
 * and the tiles of a window.
 *
 *   tiles    [chunk][channels / 64][row][64]: bf16, 128 bytes a row in 128-byte swizzle.  They have
 *            the channels in the order of the rows, behind the convolution.  The newest row comes
 *            first; rows past a chunk's end are 0.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_RECURRENT_RECURRENT_CUH
#define CUDA_RECURRENT_RECURRENT_CUH

#include "cuda/common/device.cuh"
#include "cuda/recurrent/recurrent_kernels.h"

typedef __nv_bfloat16 bf16;

enum {
    HALF_CHANNELS = 64,
    HALF_BYTES = CHUNK_ROWS * 128, /* of a tile, which has two halves */
    TILE_BYTES = 2 * HALF_BYTES
};

/* Is added to a sum of squares before its root. */
static constexpr float NORM2_EPS = 1e-6f;

/* Returns the row of a tile that row i of the chunk has. */
static __host__ __device__ constexpr uint32_t tile_row(uint32_t i) {
    return CHUNK_ROWS - 1 - i;
}

/* Returns where channels 64 half to 64 half + 63 of a window's chunk begin. */
static __device__ __forceinline__ const char *half_of(const recurrent_params &p,
                                                      const recurrent_window &w, uint32_t chunk,
                                                      uint32_t half) {
    return static_cast<const char *>(w.tiles) +
           ((size_t)chunk * (p.n_channels / HALF_CHANNELS) + half) * HALF_BYTES;
}

/* Returns the k head whose q and k a v head has: recurrent_k_head(). */
static __device__ __forceinline__ uint32_t k_head_of(const recurrent_params &p, uint32_t v_head) {
    return p.v_heads_apart ? v_head % p.n_k_heads : v_head / (p.n_v_heads / p.n_k_heads);
}

/* Returns the v head that is number i of a k head's. */
static __device__ __forceinline__ uint32_t v_head_of(const recurrent_params &p, uint32_t k_head,
                                                     uint32_t i) {
    return p.v_heads_apart ? i * p.n_k_heads + k_head : k_head * (p.n_v_heads / p.n_k_heads) + i;
}

static __device__ __forceinline__ float load_plain(const plain_weight &w, size_t i) {
    return load_element(w.data, i, w.element);
}

/* Returns what is added to a channel's convolution. */
static __device__ __forceinline__ float conv_bias(const recurrent_params &p, uint32_t channel) {
    const uint32_t n_values = p.n_v_heads * p.v_dim, n_keys = p.n_k_heads * p.k_dim;
    if (!p.conv_biases[0].data) return 0.0f;
    if (channel < n_values) return load_plain(p.conv_biases[0], channel);
    channel -= n_values;
    return channel < n_keys ? load_plain(p.conv_biases[1], channel)
                            : load_plain(p.conv_biases[2], channel - n_keys);
}

/* ---- states ---- */

/* Returns the sequence's state before its first row, or NULL if it is zeros. */
static __device__ __forceinline__ const char *state_before(const recurrent_params &p,
                                                           const device_state &s) {
    return s.from < 0 ? nullptr : p.states + (size_t)s.from * p.slot_bytes;
}

static __device__ __forceinline__ char *state_after(const recurrent_params &p,
                                                    const device_state &s) {
    return p.states + (size_t)s.to * p.slot_bytes;
}

/* Leaves a sequence's last inputs of n channels from `first` on to the next step; threads take
 * elements in turn.  Those from before the step are copied to a slot that does not have them. */
static __device__ __forceinline__ void store_inputs(const recurrent_params &p, uint32_t seq,
                                                    uint32_t first, uint32_t n) {
    const device_state &state = p.states_of->states[seq];
    const uint32_t first_row = (uint32_t)p.step->first_row[seq],
                   n_rows = (uint32_t)p.step->seq_rows[seq];
    const char *before = state_before(p, state);
    bf16 *to = reinterpret_cast<bf16 *>(state_after(p, state) + p.inputs_at);
    for (uint32_t i = threadIdx.x; i < p.width * n; i += blockDim.x) {
        const uint32_t back = i / n + 1, channel = first + i % n;
        const int position = (int)(state.n_before + n_rows - back);
        if (position < 0) continue;
        const size_t at = (size_t)((uint32_t)position % p.width) * p.n_channels + channel;
        if (back <= n_rows)
            to[at] = static_cast<const bf16 *>(
                p.qkv)[(size_t)(first_row + n_rows - back) * p.qkv_stride + channel];
        else if (before && state.from != state.to)
            to[at] = reinterpret_cast<const bf16 *>(before + p.inputs_at)[at];
    }
}

/* A sequence's v head, and its chunks in a window. */
struct prompt_unit {
    uint32_t seq, head, first, end; /* chunks of the step; first == end: none */
    bool begins;                    /* `first` is the sequence's first chunk */
};

/* Returns unit i of a window: v heads of the step's first prompt come first. */
static __device__ __forceinline__ prompt_unit prompt_unit_at(const recurrent_params &p,
                                                             const recurrent_window &w,
                                                             uint32_t i) {
    prompt_unit u;
    u.seq = p.step->n_decode + i / p.n_v_heads;
    u.head = i % p.n_v_heads;
    const device_state &state = p.states_of->states[u.seq];
    const uint32_t n_chunks =
        (state.n_before % CHUNK_ROWS + (uint32_t)p.step->seq_rows[u.seq] + CHUNK_ROWS - 1) /
        CHUNK_ROWS;
    u.first = max(state.first_chunk, w.first_chunk);
    u.end = max(u.first, min(state.first_chunk + n_chunks, w.first_chunk + w.n_chunks));
    u.begins = u.first == state.first_chunk;
    return u;
}

/* ---- gates ---- */

static __device__ __forceinline__ float load_a(const recurrent_params &p, size_t row,
                                               uint32_t head) {
    return to_float(static_cast<const bf16 *>(p.a)[row * p.gates_stride + head]);
}

static __device__ __forceinline__ float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

/* Returns Mamba-2's dt. */
static __device__ __forceinline__ float time_step(const recurrent_params &p, float a, float bias) {
    return fminf(fmaxf(softplus(a + bias), p.dt_least), p.dt_most);
}

/* Returns how much a state decays in a row, as a logarithm.  The exponential of the least one is 0,
 * and sums of rows do not make it infinite. */
static __device__ __forceinline__ float bounded_decay(float g) {
    const float least = -1e4f;
    return g < least ? least : g; /* NaN stays */
}

/* ---- numbers ---- */

/* Returns x * sigmoid(x), off by a few ulp of f32: its results are rounded to bf16. */
static __device__ __forceinline__ float silu(float x) {
    return gate_mul_short(x, 1.0f, GATE_SILU);
}

static __device__ __forceinline__ float round_bf16(float x) {
    return to_float(__float2bfloat16_rn(x));
}

/* Splits two numbers: *high + *low is exact to 2^-17 or so. */
static __device__ __forceinline__ void split_pair(float x, float y, uint32_t *high, uint32_t *low) {
    *high = pack_bf16(x, y);
    const float2 rounded = unpack_bf16(*high);
    *low = pack_bf16(x - rounded.x, y - rounded.y);
}

#endif
