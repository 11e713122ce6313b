/* recurrent_any.cu - recurrent layers with heads of any size, on any device: rows one by one.
 *
 *   vectors   convolution, SiLU and norms  ─►  vectors, bf16 [n_rows, n_channels]
 *   recur     S and o, row after row; o, bf16, in the place of the output
 *   finish    out = rmsnorm(o) * norm * silu(z), or of Mamba-2 o * silu(z); the last inputs of the
 *             convolution are stored
 *
 * Grid:   vectors, finish: a warp per row and head.  recur: a warp per sequence, v head and COLUMNS
 *         columns of v; lane l has rows l, l + 32, ... of S in registers.
 * Bound:  latency of a row.        Oracle: tests/cuda. */
#include "cuda/recurrent/delta.cuh"

namespace {

enum {
    THREADS = 128,
    WARPS = THREADS / 32,
    COLUMNS = RECURRENT_ANY_COLUMNS,
    MOST_HELD = RECURRENT_ANY_MOST_DIM / 32
};

/* Returns the first row, and the first sequence, that the launch computes. */
__device__ __forceinline__ uint32_t first_row(const recurrent_params &p) {
    return p.only_prompts ? p.step->n_decode : 0;
}

/* Returns the input of a channel in row `row` of the sequence; a negative one is before the
 * step. */
__device__ __forceinline__ float input_at(const recurrent_params &p, uint32_t seq, int row,
                                          uint32_t channel) {
    const bf16 *qkv = static_cast<const bf16 *>(p.qkv);
    if (row >= 0)
        return to_float(
            qkv[(size_t)((uint32_t)p.step->first_row[seq] + row) * p.qkv_stride + channel]);
    const device_state &state = p.states_of->states[seq];
    const char *before = state_before(p, state);
    const int position = (int)state.n_before + row;
    if (!before || position < 0) return 0.0f;
    return to_float(reinterpret_cast<const bf16 *>(
        before + p.inputs_at)[(size_t)(position % p.width) * p.n_channels + channel]);
}

__device__ __forceinline__ float convolve(const recurrent_params &p, uint32_t seq, int row,
                                          uint32_t channel) {
    float sum = conv_bias(p, channel);
    for (uint32_t j = 0; j < p.width; j++)
        sum += load_plain(p.conv, (size_t)channel * p.width + j) *
               input_at(p, seq, row + (int)j - (int)(p.width - 1), channel);
    return round_bf16(silu(sum));
}

/* The channels of a head of a row's vectors. */
struct vector_part {
    uint32_t first, dim;
    bool is_normed;
};

/* Returns head i in the order of the channels. */
__device__ __forceinline__ vector_part part_of(const recurrent_params &p, uint32_t i) {
    const uint32_t n_keys = 2 * p.n_k_heads, n_values = p.n_v_heads;
    if (p.kind == RECURRENT_MAMBA)
        return i < n_values
                   ? vector_part{i * p.v_dim, p.v_dim, false}
                   : vector_part{n_values * p.v_dim + (i - n_values) * p.k_dim, p.k_dim, false};
    return i < n_keys ? vector_part{i * p.k_dim, p.k_dim, true}
                      : vector_part{n_keys * p.k_dim + (i - n_keys) * p.v_dim, p.v_dim, false};
}

__global__ void __launch_bounds__(THREADS) vectors_kernel(recurrent_params p, bf16 *vectors) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = first_row(p) + blockIdx.x, head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (row >= p.step->n_rows || head >= 2 * p.n_k_heads + p.n_v_heads) return;
    const vector_part part = part_of(p, head);
    const uint32_t seq = (uint32_t)p.step->row_seq[row];
    const int at = (int)(row - (uint32_t)p.step->first_row[seq]);
    float y[MOST_HELD], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t c = threadIdx.x % 32 + 32 * i;
        y[i] = c < part.dim ? convolve(p, seq, at, part.first + c) : 0.0f;
        sum += y[i] * y[i];
    }
    const float factor = part.is_normed ? rsqrtf(warp_sum(sum) + NORM2_EPS) : 1.0f;
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t c = threadIdx.x % 32 + 32 * i;
        if (c < part.dim)
            vectors[(size_t)row * p.n_channels + part.first + c] =
                __float2bfloat16_rn(y[i] * factor);
    }
}

/* A warp's columns of a v head's S: element [i][c] is in row lane + 32 i. */
struct columns {
    float x[MOST_HELD][COLUMNS];
};

__device__ __forceinline__ void load_columns(columns &s, const float *from, uint32_t k_dim,
                                             uint32_t v_dim) {
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t row = threadIdx.x % 32 + 32 * i;
        const float4 x = from && row < k_dim
                             ? *reinterpret_cast<const float4 *>(from + (size_t)row * v_dim)
                             : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        s.x[i][0] = x.x, s.x[i][1] = x.y, s.x[i][2] = x.z, s.x[i][3] = x.w;
    }
}

__device__ __forceinline__ void store_columns(const columns &s, float *to, uint32_t k_dim,
                                              uint32_t v_dim) {
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t row = threadIdx.x % 32 + 32 * i;
        if (row < k_dim)
            *reinterpret_cast<float4 *>(to + (size_t)row * v_dim) =
                make_float4(s.x[i][0], s.x[i][1], s.x[i][2], s.x[i][3]);
    }
}

/* What a row does to a v head's S; q and k are the lane's elements.  Of Mamba-2 these are C and B,
 * and v is x. */
struct change {
    float q[MOST_HELD], k[MOST_HELD], v[COLUMNS], decay;
    float share; /* beta, or dt */
    float scale, skip;
};

/* Loads the lane's elements of a vector of k_dim. */
__device__ __forceinline__ void load_keys(float (&x)[MOST_HELD], const bf16 *from, uint32_t k_dim) {
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t at = threadIdx.x % 32 + 32 * i;
        x[i] = at < k_dim ? to_float(from[at]) : 0.0f;
    }
}

__device__ __forceinline__ void read_change(change &c, const recurrent_params &p,
                                            const bf16 *vectors, size_t row, uint32_t head,
                                            uint32_t column) {
    const bool is_mamba = p.kind == RECURRENT_MAMBA;
    const uint32_t n_keys = p.n_k_heads * p.k_dim, n_values = p.n_v_heads * p.v_dim;
    const bf16 *x = vectors + row * p.n_channels, *key = x + k_head_of(p, head) * p.k_dim,
               *v = x + (is_mamba ? 0 : 2 * n_keys) + head * p.v_dim + column;
    load_keys(c.q, key + (is_mamba ? n_values + n_keys : 0), p.k_dim);
    load_keys(c.k, key + (is_mamba ? n_values : n_keys), p.k_dim);
#pragma unroll
    for (int i = 0; i < COLUMNS; i++) c.v[i] = to_float(v[i]);
    if (is_mamba) {
        c.share = time_step(p, load_a(p, row, head), load_plain(p.dt_bias, head));
        c.decay = expf(bounded_decay(load_plain(p.rates, head) * c.share));
        c.scale = 1.0f;
        c.skip = load_plain(p.skip, head);
    } else {
        c.share = write_share(p, row, head);
        c.decay = expf(log_decay(p, row, head));
        c.scale = rsqrtf((float)p.k_dim);
        c.skip = 0.0f;
    }
}

/* Changes the columns, and makes o the row's outputs.  READS: a row writes what S lacks of v. */
template <bool READS>
__device__ __forceinline__ void apply(columns &s, const change &c, float (&o)[COLUMNS]) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        float read = 0.0f;
#pragma unroll
        for (int i = 0; i < MOST_HELD; i++) read += (s.x[i][j] *= c.decay) * c.k[i];
        const float d = c.share * (READS ? c.v[j] - warp_sum(read) : c.v[j]);
        float out = 0.0f;
#pragma unroll
        for (int i = 0; i < MOST_HELD; i++) out += (s.x[i][j] += c.k[i] * d) * c.q[i];
        o[j] = c.scale * warp_sum(out) + c.skip * c.v[j];
    }
}

template <bool READS>
__global__ void __launch_bounds__(THREADS) recur_kernel(recurrent_params p, const bf16 *vectors) {
    let_next_start();
    wait_for_previous();
    const uint32_t seq = first_row(p) + blockIdx.y, of_head = p.v_dim / COLUMNS,
                   item = blockIdx.x * WARPS + threadIdx.x / 32, head = item / of_head,
                   column = item % of_head * COLUMNS;
    if (seq >= p.step->n_seqs || head >= p.n_v_heads) return;
    const device_state &state = p.states_of->states[seq];
    const size_t at = (size_t)head * p.k_dim * p.v_dim + column,
                 first = (size_t)p.step->first_row[seq], end = first + p.step->seq_rows[seq];
    const char *before = state_before(p, state);
    columns s;
    load_columns(s, before ? reinterpret_cast<const float *>(before) + at : nullptr, p.k_dim,
                 p.v_dim);
    for (size_t row = first; row < end; row++) {
        change c;
        float o[COLUMNS];
        read_change(c, p, vectors, row, head, column);
        apply<READS>(s, c, o);
        if (threadIdx.x % 32 == 0)
            *reinterpret_cast<uint2 *>(static_cast<bf16 *>(p.out) +
                                       (row * p.n_v_heads + head) * p.v_dim + column) =
                make_uint2(pack_bf16(o[0], o[1]), pack_bf16(o[2], o[3]));
    }
    store_columns(s, reinterpret_cast<float *>(state_after(p, state)) + at, p.k_dim, p.v_dim);
}

__global__ void __launch_bounds__(THREADS) finish_kernel(recurrent_params p) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = first_row(p) + blockIdx.x;
    if (row >= p.step->n_rows) return;
    const uint32_t seq = (uint32_t)p.step->row_seq[row],
                   end = (uint32_t)p.step->first_row[seq] + (uint32_t)p.step->seq_rows[seq];
    if (blockIdx.y == 0 && row + 1 == end) store_inputs(p, seq, 0, p.n_channels);
    const uint32_t head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head >= p.n_v_heads) return;
    bf16 *out = static_cast<bf16 *>(p.out) + ((size_t)row * p.n_v_heads + head) * p.v_dim;
    const bf16 *z = static_cast<const bf16 *>(p.z) + row * p.gates_stride + head * p.v_dim;
    float o[MOST_HELD], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t c = threadIdx.x % 32 + 32 * i;
        o[i] = c < p.v_dim ? to_float(out[c]) : 0.0f;
        sum += o[i] * o[i];
    }
    const bool has_norm = p.kind == RECURRENT_DELTA;
    const float factor = has_norm ? rsqrtf(warp_sum(sum) / p.v_dim + p.eps) : 1.0f;
#pragma unroll
    for (int i = 0; i < MOST_HELD; i++) {
        const uint32_t c = threadIdx.x % 32 + 32 * i;
        if (c >= p.v_dim) continue;
        const float weight = has_norm ? load_plain(p.norm, c) : 1.0f;
        out[c] = __float2bfloat16_rn(o[i] * factor * weight * silu(to_float(z[c])));
    }
}

} // namespace

size_t recurrent_any_bytes(uint32_t n_channels, uint32_t n_rows) {
    return (size_t)n_rows * n_channels * sizeof(bf16);
}

cudaError_t launch_recurrent_any(const struct recurrent_params *p, void *workspace,
                                 struct launch launch) {
    const uint32_t n_heads = 2 * p->n_k_heads + p->n_v_heads,
                   n_items = p->n_v_heads * (p->v_dim / COLUMNS);
    bf16 *vectors = static_cast<bf16 *>(workspace);
    if (p->n_rows == 0) return cudaSuccess;
    cudaError_t status =
        launch_kernel(launch, vectors_kernel, dim3(p->n_rows, (n_heads + WARPS - 1) / WARPS),
                      THREADS, 0, *p, vectors);
    if (status == cudaSuccess)
        status = launch_kernel(
            launch, p->kind == RECURRENT_DELTA ? recur_kernel<true> : recur_kernel<false>,
            dim3((n_items + WARPS - 1) / WARPS, p->n_seqs), THREADS, 0, *p,
            static_cast<const bf16 *>(vectors));
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, finish_kernel, dim3(p->n_rows, (p->n_v_heads + WARPS - 1) / WARPS),
                         THREADS, 0, *p);
}
