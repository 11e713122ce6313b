/* delta.cuh - Gated DeltaNet by chunks: what the kernels of prompts hand to one another.
 *
 * For a chunk of rows and a v head, G[i] is the sum of g up to row i.  K, Q and V are the rows'
 * vectors, and S is the state before the chunk.  The recurrence is
 *
 *   A[i][j] = beta[i] exp(G[i] - G[j]) (k[i] . k[j]),  j < i        T = (1 + A)^-1 diag(beta)
 *   P[i][j] = exp(G[i] - G[j]) (q[i] . k[j]),          j <= i
 *   D = T (V - diag(exp(G)) K S)                      [rows, v_dim]: what the rows add
 *   O = diag(exp(G)) Q S + P D                        (times 1 / sqrt(k_dim))
 *   S = exp(G[last]) S + K^T diag(exp(G[last] - G)) D
 *
 * `prepare` makes T, P and the exponentials, all chunks at the same time; `scan` goes from chunk to
 * chunk.  q, k and v are bf16.  Where a product reaches S, every other factor is the sum of two
 * bf16: it is exact to 2^-16 or so.
 *
 *   tiles    [chunk][head][half][row][64]: bf16, 128 bytes a row in 128-byte swizzle; heads: those
 *            of q, of k, of v.  The newest row comes first; rows past a chunk's end are 0.
 *   solved   [chunk][v head] struct solved
 *
 * With the newest row and column first, T and P are upper triangular.  They are stored as four
 * panels of 16 columns.  Panel p has no rows from 16 (p + 1) on, which are zeros.  A panel is 8 x 8
 * matrices of 128 bytes, two of them to eight rows. */
#ifndef CUDA_RECURRENT_DELTA_CUH
#define CUDA_RECURRENT_DELTA_CUH

#include "cuda/common/device.cuh"
#include "cuda/common/mma.cuh"
#include "cuda/recurrent/recurrent_kernels.h"

typedef __nv_bfloat16 bf16;

enum {
    HALF_BYTES = CHUNK_ROWS * 128, /* of a tile */
    TILE_BYTES = 2 * HALF_BYTES,
    MATRIX_BYTES = 128, /* 8 x 8 */
    PANELS = CHUNK_ROWS / 16,
    TRIANGLE_BYTES = 40 * MATRIX_BYTES /* 4 + 8 + 12 + 16 matrices */
};

/* Is added to a sum of squares before its root. */
static constexpr float NORM2_EPS = 1e-6f;

/* What `prepare` makes for a chunk and a v head. */
struct solved {
    char t_high[TRIANGLE_BYTES], t_low[TRIANGLE_BYTES], p[TRIANGLE_BYTES];
    float exp_g[CHUNK_ROWS];    /* exp(G[i]), the newest row first */
    float exp_rest[CHUNK_ROWS]; /* exp(G[last] - G[i]) */
};

/* Returns where panel p begins in a triangle. */
static __host__ __device__ constexpr uint32_t panel_at(uint32_t p) {
    return 2 * p * (p + 1) * MATRIX_BYTES;
}

/* Returns where the 8 x 8 matrix of rows 8 g on and half h of panel p's columns is. */
static __device__ __forceinline__ uint32_t matrix_at(uint32_t p, uint32_t g, uint32_t h) {
    return panel_at(p) + (g * 2 + h) * MATRIX_BYTES;
}

/* Returns the row of a tile that row i of the chunk has. */
static __host__ __device__ constexpr uint32_t tile_row(uint32_t i) {
    return CHUNK_ROWS - 1 - i;
}

static __device__ __forceinline__ const char *tile_of(const recurrent_params &p,
                                                      const recurrent_window &w, uint32_t chunk,
                                                      uint32_t head) {
    const size_t n_heads = 2 * p.n_k_heads + p.n_v_heads;
    return static_cast<const char *>(w.tiles) + (chunk * n_heads + head) * TILE_BYTES;
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

/* Returns the sequence's state before its first row, or NULL if it is zeros. */
static __device__ __forceinline__ const char *state_before(const recurrent_params &p,
                                                           const device_state &s) {
    return s.from < 0 ? nullptr : p.states + (size_t)s.from * p.slot_bytes;
}

static __device__ __forceinline__ char *state_after(const recurrent_params &p,
                                                    const device_state &s) {
    return p.states + (size_t)s.to * p.slot_bytes;
}

/* Whose exponential is 0, and which sums of rows do not make infinite. */
static constexpr float LEAST_LOG_DECAY = -1e4f;

/* Returns a row's g of a v head: how much its state decays, as a logarithm. */
static __device__ __forceinline__ float log_decay(const recurrent_params &p, size_t row,
                                                  uint32_t head) {
    const float a = to_float(static_cast<const bf16 *>(p.a)[row * p.gates_stride + head]),
                x = a + load_plain(p.dt_bias, head), softplus = x > 20.0f ? x : log1pf(expf(x));
    const float g = load_plain(p.rates, head) * softplus;
    return g < LEAST_LOG_DECAY ? LEAST_LOG_DECAY : g; /* NaN stays */
}

static __device__ __forceinline__ float write_share(const recurrent_params &p, size_t row,
                                                    uint32_t head) {
    const float b = to_float(static_cast<const bf16 *>(p.b)[row * p.gates_stride + head]);
    return 1.0f / (1.0f + expf(-b));
}

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
