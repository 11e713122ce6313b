/* delta_prepare.cu - prompts: what of a chunk does not depend on the state before it: T, P and the
 * gates' exponentials (delta.cuh).
 *
 * K K^T and Q K^T are common to a k head's v heads.  T is found by blocks of 16 x 16, with A in the
 * same blocks, from the diagonal to the left:
 *
 *   T[i][i] = (1 + A[i][i])^-1                                        row by row, in f32
 *   T[i][j] = - (sum over k in (j, i] of T[i][k] A[k][j]) T[j][j]     products of split bf16
 *
 * Sums of g are double: their differences are exact wherever a row has forgotten all before it.
 *
 * The block of a sequence's last chunk also stores the last inputs of the convolution.
 *
 * Grid:   one block per chunk and k head; warp w has rows 16 w on.
 * Bound:  tensor cores and latency; the tiles of q and k are read once.
 * Oracle: tests/cuda, by what `scan` makes of it. */
#include "cuda/recurrent/delta.cuh"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, A_STRIDE = CHUNK_ROWS + 4, T_STRIDE = 20 };
enum { K_STEPS = DELTA_DIM / 16, BLOCKS = CHUNK_ROWS / 16 };

struct plan {
    union {
        struct {
            char k[TILE_BYTES], q[TILE_BYTES];
        } tiles;
        float a[CHUNK_ROWS][A_STRIDE]; /* transposed: [column][row] */
    };
    float t[BLOCKS][16][T_STRIDE];           /* T[i][i], transposed */
    double g[DELTA_MOST_SHARED][CHUNK_ROWS]; /* G in base 2 */
    float beta[DELTA_MOST_SHARED][CHUNK_ROWS];
};

/* A block of 16 x 16: two results of mma, the left one first. */
struct block {
    float x[2][4];
};
/* A block as the left factor of a product. */
struct factor {
    uint32_t high[4], low[4];
};

__device__ __forceinline__ factor split(const block &b) {
    factor f;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        split_pair(b.x[h][0], b.x[h][1], &f.high[2 * h], &f.low[2 * h]);
        split_pair(b.x[h][2], b.x[h][3], &f.high[2 * h + 1], &f.low[2 * h + 1]);
    }
    return f;
}

/* Adds a b to the block; `b` is 16 x 16, transposed: column n begins at b + n * stride. */
__device__ __forceinline__ void multiply(block &sum, const factor &a, const float *b, int stride) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t high[2], low[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 pair = *reinterpret_cast<const float2 *>(b + (8 * h + lane / 4) * stride +
                                                                  8 * i + lane % 4 * 2);
            split_pair(pair.x, pair.y, &high[i], &low[i]);
        }
        mma(sum.x[h], a.low, high[0], high[1]);
        mma(sum.x[h], a.high, low[0], low[1]);
        mma(sum.x[h], a.high, high[0], high[1]);
    }
}

/* Starts copying the tiles to shared memory. */
__device__ __forceinline__ void fetch_tiles(plan *s, const char *k, const char *q) {
    for (uint32_t at = threadIdx.x * 16; at < TILE_BYTES; at += THREADS * 16) {
        copy_async(s->tiles.k + at, k + at, true);
        copy_async(s->tiles.q + at, q + at, true);
    }
    copy_async_commit();
}

/* Adds up g over the chunk's rows for each of the k head's v heads, a warp a head. */
__device__ void sum_gates(const recurrent_params &p, plan *s, const device_chunk &chunk,
                          uint32_t k_head, uint32_t n_shared) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t i = threadIdx.x / 32; i < n_shared; i += WARPS) {
        double sum = 0.0;
        for (uint32_t row = lane; row < CHUNK_ROWS; row += 32) {
            const uint32_t head = v_head_of(p, k_head, i);
            const bool is_there = row < chunk.n_rows;
            double g = is_there ? (double)log_decay(p, chunk.first_row + row, head) : 0.0;
            s->beta[i][row] = is_there ? write_share(p, chunk.first_row + row, head) : 0.0f;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const double before = __shfl_up_sync(0xffffffffu, g, step);
                if (lane >= (uint32_t)step) g += before;
            }
            s->g[i][row] = (sum + g) * 1.4426950408889634;
            sum += __shfl_sync(0xffffffffu, g, 31);
        }
    }
}

/* Multiplies the warp's rows of K and of Q by K^T, up to the diagonal. */
__device__ __forceinline__ void multiply_keys(const plan *s, uint32_t warp, block (&kk)[BLOCKS],
                                              block (&qk)[BLOCKS]) {
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int i = 0; i < 8; i++) kk[b].x[i / 4][i % 4] = qk[b].x[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < K_STEPS; step++) {
        const uint32_t half = step / 4 * HALF_BYTES, left_row = tile_row(16 * warp + lane % 16),
                       left =
                           half + left_row * 128 + ((step % 4 * 2 + lane / 16) ^ left_row % 8) * 16;
        uint32_t k[4], q[4];
        load_matrix(k, s->tiles.k + left);
        load_matrix(q, s->tiles.q + left);
#pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            if (b > (int)warp) break;
            const uint32_t row = tile_row(16 * b + lane / 16 * 8 + lane % 8);
            uint32_t right[4];
            load_matrix(right, s->tiles.k + half + row * 128 +
                                   ((step % 4 * 2 + lane / 8 % 2) ^ row % 8) * 16);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                mma(kk[b].x[h], k, right[2 * h], right[2 * h + 1]);
                mma(qk[b].x[h], q, right[2 * h], right[2 * h + 1]);
            }
        }
    }
}

/* Stores the warp's 16 x 16 block of columns 16 b on.  The rows and columns of a triangle are in
 * the opposite order. */
__device__ __forceinline__ void store_block(char *to, uint32_t warp, uint32_t b,
                                            const uint32_t (&pairs)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        *reinterpret_cast<uint32_t *>(
            to + matrix_at(BLOCKS - 1 - b, 2 * BLOCKS - 1 - (2 * warp + i % 2), 1 - i / 2) +
            (31 - threadIdx.x % 32) * 4) = __byte_perm(pairs[i], 0, 0x1032);
}

/* Puts A's rows of the warp into shared memory, and stores those of P. */
__device__ __forceinline__ void weigh(plan *s, uint32_t warp, uint32_t head,
                                      const block (&kk)[BLOCKS], const block (&qk)[BLOCKS],
                                      solved *out) {
    const uint32_t lane = threadIdx.x % 32, top = 16 * warp + lane / 4;
    const double g[2] = {s->g[head][top], s->g[head][top + 8]};
    const float beta[2] = {s->beta[head][top], s->beta[head][top + 8]};
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        if (b > (int)warp) break;
        block weighted;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t lower = i % 4 / 2, row = top + 8 * lower,
                           column = 16 * b + i / 4 * 8 + lane % 4 * 2 + i % 2;
            const float decay =
                row >= column ? exp2f((float)(g[lower] - s->g[head][column])) : 0.0f;
            s->a[column][row] = row > column ? beta[lower] * decay * kk[b].x[i / 4][i % 4] : 0.0f;
            weighted.x[i / 4][i % 4] = decay * qk[b].x[i / 4][i % 4];
        }
        const uint32_t pairs[4] = {pack_bf16(weighted.x[0][0], weighted.x[0][1]),
                                   pack_bf16(weighted.x[0][2], weighted.x[0][3]),
                                   pack_bf16(weighted.x[1][0], weighted.x[1][1]),
                                   pack_bf16(weighted.x[1][2], weighted.x[1][3])};
        store_block(out->p, warp, b, pairs);
    }
}

/* Inverts the warp's block of the diagonal; lane l has column l % 16. */
__device__ __forceinline__ void invert_diagonal(plan *s, uint32_t warp) {
    const uint32_t column = threadIdx.x % 16;
    float t[16];
#pragma unroll
    for (int i = 0; i < 16; i++) t[i] = i == (int)column ? 1.0f : 0.0f;
#pragma unroll
    for (int r = 0; r < 15; r++) {
#pragma unroll
        for (int four = (r + 1) / 4; four < 4; four++) {
            const float4 a =
                *reinterpret_cast<const float4 *>(&s->a[16 * warp + r][16 * warp + 4 * four]);
            const float of[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (4 * four + i > r) t[4 * four + i] -= of[i] * t[r];
        }
    }
    if (threadIdx.x % 32 < 16) {
#pragma unroll
        for (int i = 0; i < 16; i += 4)
            *reinterpret_cast<float4 *>(&s->t[warp][column][i]) =
                make_float4(t[i], t[i + 1], t[i + 2], t[i + 3]);
    }
}

/* Stores a block of T, columns 16 b on, times beta. */
__device__ __forceinline__ void store_solved(const plan *s, uint32_t warp, uint32_t b,
                                             uint32_t head, block t, solved *out) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        t.x[i / 4][i % 4] *= s->beta[head][16 * b + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
    const factor f = split(t);
    store_block(out->t_high, warp, b, f.high);
    store_block(out->t_low, warp, b, f.low);
}

/* Solves the warp's rows of T, when all blocks of the diagonal are there. */
__device__ __forceinline__ void solve(const plan *s, uint32_t warp, uint32_t head, solved *out) {
    const uint32_t lane = threadIdx.x % 32;
    factor t[BLOCKS]; /* of T[warp][warp - i] */
    block own;
#pragma unroll
    for (int i = 0; i < 8; i++)
        own.x[i / 4][i % 4] =
            s->t[warp][i / 4 * 8 + lane % 4 * 2 + i % 2][lane / 4 + i % 4 / 2 * 8];
    store_solved(s, warp, warp, head, own, out);
    t[0] = split(own);
#pragma unroll
    for (int left = 1; left < BLOCKS; left++) {
        if (left > (int)warp) break;
        const uint32_t b = warp - left;
        block sum = {}, next = {};
#pragma unroll
        for (int i = 0; i < left; i++)
            multiply(sum, t[i], &s->a[16 * b][16 * (warp - i)], A_STRIDE);
#pragma unroll
        for (int i = 0; i < 8; i++) sum.x[i / 4][i % 4] = -sum.x[i / 4][i % 4];
        multiply(next, split(sum), &s->t[b][0][0], T_STRIDE);
        store_solved(s, warp, b, head, next, out);
        t[left] = split(next);
    }
}

__device__ __forceinline__ void store_exponentials(const plan *s, uint32_t head, solved *out) {
    const uint32_t row = threadIdx.x % CHUNK_ROWS;
    const double g = s->g[head][row], last = s->g[head][CHUNK_ROWS - 1];
    if (threadIdx.x < CHUNK_ROWS) out->exp_g[tile_row(row)] = exp2f((float)g);
    else out->exp_rest[tile_row(row)] = exp2f((float)(last - g));
}

/* Stores the last inputs of the convolution for the heads of a k head. */
__device__ void store_heads(const recurrent_params &p, uint32_t seq, uint32_t k_head,
                            uint32_t n_shared) {
    const uint32_t n_keys = p.n_k_heads * DELTA_DIM;
    store_inputs(p, seq, k_head * DELTA_DIM, DELTA_DIM);
    store_inputs(p, seq, n_keys + k_head * DELTA_DIM, DELTA_DIM);
    for (uint32_t i = 0; i < n_shared; i++)
        store_inputs(p, seq, 2 * n_keys + v_head_of(p, k_head, i) * DELTA_DIM, DELTA_DIM);
}

__global__ void __launch_bounds__(THREADS, 4)
    prepare_kernel(recurrent_params p, recurrent_window w) {
    extern __shared__ __align__(128) char shared[];
    plan *s = reinterpret_cast<plan *>(shared);
    const uint32_t slot = blockIdx.x / p.n_k_heads, k_head = blockIdx.x % p.n_k_heads,
                   n_shared = p.n_v_heads / p.n_k_heads, warp = threadIdx.x / 32;
    let_next_start();
    wait_for_previous();
    if (w.first_chunk + slot >= p.states_of->n_chunks) return;
    const device_chunk chunk = p.states_of->chunks[w.first_chunk + slot];
    fetch_tiles(s, tile_of(p, w, slot, p.n_k_heads + k_head), tile_of(p, w, slot, k_head));
    sum_gates(p, s, chunk, k_head, n_shared);
    if (chunk.is_last) store_heads(p, chunk.seq, k_head, n_shared);
    copy_async_wait_all();
    __syncthreads();
    block kk[BLOCKS], qk[BLOCKS];
    multiply_keys(s, warp, kk, qk);
    for (uint32_t i = 0; i < n_shared; i++) {
        solved *out =
            static_cast<solved *>(w.solved) + (size_t)slot * p.n_v_heads + v_head_of(p, k_head, i);
        __syncthreads(); /* what is in the place of A has been read */
        weigh(s, warp, i, kk, qk, out);
        __syncwarp();
        invert_diagonal(s, warp);
        store_exponentials(s, i, out);
        __syncthreads();
        solve(s, warp, i, out);
    }
}

} // namespace

size_t delta_solved_bytes(uint32_t n_v_heads, uint32_t n_chunks) {
    return (size_t)n_chunks * n_v_heads * sizeof(solved);
}

cudaError_t launch_delta_prepare(const struct recurrent_params *p,
                                 const struct recurrent_window *window, struct launch launch) {
    if (window->n_chunks == 0) return cudaSuccess;
    const cudaError_t status = cudaFuncSetAttribute(
        prepare_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(plan));
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, prepare_kernel, window->n_chunks * p->n_k_heads, THREADS,
                         sizeof(plan), *p, *window);
}
