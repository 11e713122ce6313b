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
 *   tiles    recurrent.cuh: a head of q, k or v has two halves, [row][64] each
 *   solved   [chunk][v head] struct solved
 *
 * With the newest row and column first, T and P are upper triangular.  They are stored as four
 * panels of 16 columns.  Panel p has no rows from 16 (p + 1) on, which are zeros.  A panel is 8 x 8
 * matrices of 128 bytes, two of them to eight rows. */
#ifndef CUDA_RECURRENT_DELTA_CUH
#define CUDA_RECURRENT_DELTA_CUH

#include "cuda/common/mma.cuh"
#include "cuda/recurrent/recurrent.cuh"

enum {
    MATRIX_BYTES = 128, /* 8 x 8 */
    PANELS = CHUNK_ROWS / 16,
    TRIANGLE_BYTES = 40 * MATRIX_BYTES /* 4 + 8 + 12 + 16 matrices */
};

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

/* Returns the tile of a head: of q, of k, or of v, in this order.  Its place is not computed from
 * n_channels: the products of `scan` leave too few registers for that, and would wait. */
static __device__ __forceinline__ const char *tile_of(const recurrent_params &p,
                                                      const recurrent_window &w, uint32_t chunk,
                                                      uint32_t head) {
    const size_t n_heads = 2 * p.n_k_heads + p.n_v_heads;
    return static_cast<const char *>(w.tiles) + (chunk * n_heads + head) * TILE_BYTES;
}

/* Returns a row's g of a v head: how much its state decays, as a logarithm. */
static __device__ __forceinline__ float log_decay(const recurrent_params &p, size_t row,
                                                  uint32_t head) {
    const float step = softplus(load_a(p, row, head) + load_plain(p.dt_bias, head));
    return bounded_decay(load_plain(p.rates, head) * step);
}

static __device__ __forceinline__ float write_share(const recurrent_params &p, size_t row,
                                                    uint32_t head) {
    const float b = to_float(static_cast<const bf16 *>(p.b)[row * p.gates_stride + head]);
    return 1.0f / (1.0f + expf(-b));
}

#endif
