/* mamba.cuh - Mamba-2 by chunks: what the kernels of prompts hand to one another.
 *
 * For a chunk of rows and a v head, G[i] is the sum of rate * dt up to row i.  C, B and X are the
 * rows' vectors, and S is the state before the chunk.  The recurrence is
 *
 *   M[i][j] = exp(G[i] - G[j]) dt[j] (C[i] . B[j]),  j <= i
 *   O = diag(exp(G)) C S + M X + skip X
 *   S = exp(G[last]) S + B^T diag(exp(G[last] - G) dt) X
 *
 * `prepare` makes M and the weights of rows, all chunks at the same time; `scan` goes from chunk to
 * chunk.  With the newest row and column first, M is upper triangular.
 *
 *   tiles    recurrent.cuh
 *   solved   [chunk][v head] struct weighed
 *
 * Thread: device code.  Memory: none. */
#ifndef CUDA_RECURRENT_MAMBA_CUH
#define CUDA_RECURRENT_MAMBA_CUH

#include "cuda/common/mma.cuh"
#include "cuda/recurrent/recurrent.cuh"

/* What `prepare` makes for a chunk and a v head, the newest row first. */
struct weighed {
    char m[HALF_BYTES];      /* M as half a tile; blocks of 16 x 16 below the diagonal are unset */
    float exp_g[CHUNK_ROWS]; /* exp(G[i]) */
    float share[CHUNK_ROWS]; /* exp(G[last] - G[i]) dt[i]; past the chunk's end 0 */
};

/* The steps of 16 that a product over columns of B and C has, and one over rows. */
enum { K_STEPS = MAMBA_K_DIM / 16, ROW_STEPS = CHUNK_ROWS / 16 };

static __device__ __forceinline__ weighed *weighed_of(const recurrent_params &p,
                                                      const recurrent_window &w, uint32_t chunk,
                                                      uint32_t head) {
    return static_cast<weighed *>(w.solved) + (size_t)chunk * p.n_v_heads + head;
}

/* Returns where B of a k head is in a window's chunk, or C. */
static __device__ __forceinline__ const char *b_of(const recurrent_params &p,
                                                   const recurrent_window &w, uint32_t chunk,
                                                   uint32_t k_head) {
    return half_of(p, w, chunk, (p.n_v_heads * p.v_dim + k_head * MAMBA_K_DIM) / HALF_CHANNELS);
}
static __device__ __forceinline__ const char *c_of(const recurrent_params &p,
                                                   const recurrent_window &w, uint32_t chunk,
                                                   uint32_t k_head) {
    return b_of(p, w, chunk, p.n_k_heads + k_head);
}

/* Starts copying a tile, or half of one. */
template <int BYTES, int THREADS>
static __device__ __forceinline__ void copy_tile(char *to, const char *from) {
    for (uint32_t at = threadIdx.x * 16; at < BYTES; at += THREADS * 16)
        copy_async(to + at, from + at, true);
}

/* Returns where columns 8 column to 8 column + 7 of a row of half a tile are. */
static __device__ __forceinline__ uint32_t place_in_half(uint32_t row, uint32_t column) {
    return row * 128 + (column ^ row % 8) * 16;
}

/* Loads rows 16 i on of a tile of B or C, columns 16 step on, as the right factor of a product
 * over columns.  Two registers are of eight rows, and two of the next eight. */
static __device__ __forceinline__ void load_right(uint32_t (&r)[4], const char *tile, uint32_t i,
                                                  uint32_t step) {
    const uint32_t lane = threadIdx.x % 32;
    load_matrix(r,
                tile + step / 4 * HALF_BYTES +
                    place_in_half(16 * i + lane % 8 + lane / 16 * 8, step % 4 * 2 + lane / 8 % 2));
}

#endif
