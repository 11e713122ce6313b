/* decode_channel.cuh - the short convolution of a row that decodes, a channel a thread, and the
 * inputs that it leaves to the next row.
 *
 * The newest input goes where the oldest one was, which no row needs any more.  So blocks that read
 * the same channels need not wait for the one that stores them.
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_RECURRENT_DECODE_CHANNEL_CUH
#define CUDA_RECURRENT_DECODE_CHANNEL_CUH

#include "cuda/recurrent/recurrent.cuh"

/* A channel of the convolution: what is known of it before the row comes. */
struct channel {
    uint32_t i;
    float bias, taps[DELTA_WIDTH];
    bf16 inputs[DELTA_WIDTH - 1]; /* the newest one first */
};

/* Loads weights 4 i to 4 i + 3. */
static __device__ __forceinline__ void load_four(const plain_weight &w, uint32_t i, float (&x)[4]) {
    if (w.element == ELEMENT_BF16) {
        const uint2 pairs = __ldg(reinterpret_cast<const uint2 *>(w.data) + i);
        const float2 low = unpack_bf16(pairs.x), high = unpack_bf16(pairs.y);
        x[0] = low.x, x[1] = low.y, x[2] = high.x, x[3] = high.y;
    } else {
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = load_plain(w, (size_t)i * 4 + j);
    }
}

static __device__ __forceinline__ channel load_channel(const recurrent_params &p,
                                                       const device_state &state, uint32_t i,
                                                       float bias) {
    channel c;
    c.bias = bias;
    const bf16 *before = reinterpret_cast<const bf16 *>(state_before(p, state) + p.inputs_at) +
                         i; /* if there is one */
    c.i = i;
    load_four(p.conv, i, c.taps);
#pragma unroll
    for (int back = 1; back < DELTA_WIDTH; back++) {
        const int position = (int)state.n_before - back;
        c.inputs[back - 1] = state.from >= 0 && position >= 0
                                 ? before[(size_t)(position % DELTA_WIDTH) * p.n_channels]
                                 : __float2bfloat16_rn(0.0f);
    }
    return c;
}

/* Convolves a channel, and stores its inputs if the block is the one that does. */
static __device__ __forceinline__ float convolve(const recurrent_params &p,
                                                 const device_state &state, size_t row,
                                                 const channel &c, bool stores) {
    bf16 *to = reinterpret_cast<bf16 *>(state_after(p, state) + p.inputs_at) + c.i;
    const bf16 newest = static_cast<const bf16 *>(p.qkv)[row * p.qkv_stride + c.i];
    float sum = c.bias;
#pragma unroll
    for (int back = DELTA_WIDTH - 1; back > 0; back--)
        sum += c.taps[DELTA_WIDTH - 1 - back] * to_float(c.inputs[back - 1]);
    sum += c.taps[DELTA_WIDTH - 1] * to_float(newest);
    if (stores) {
        to[(size_t)(state.n_before % DELTA_WIDTH) * p.n_channels] = newest;
#pragma unroll
        for (int back = 1; back < DELTA_WIDTH; back++)
            if (state.from != state.to && (int)state.n_before >= back)
                to[(size_t)((state.n_before - back) % DELTA_WIDTH) * p.n_channels] =
                    c.inputs[back - 1];
    }
    return round_bf16(silu(sum));
}

#endif
