/* delta_scan_sm90.cu - prompts: from chunk to chunk of a sequence, with the state in registers
 * (delta.cuh).
 *
 * All is transposed: S^T [v_dim, k_dim], D^T and O^T [v_dim, rows].  Then what one product makes is
 * the next one's left factor, in the same registers.
 *
 *   X^T = V^T - (S^T K^T) diag(exp(G))         S as two bf16
 *   D^T = X^T T^T                              X and T as two bf16 each
 *   O^T = (S^T Q^T) diag(exp(G)) + D^T P^T
 *   S^T = exp(G[last]) S^T + (D^T diag(exp(G[last] - G))) K      D as two bf16
 *
 * Grid:   clusters of two blocks take sequences' v heads in turn; a block has 64 of the 128 columns
 *         of v.  One warpgroup computes; a warp has 16 columns.  Another warp copies: each block
 *         fetches half of what both need.
 * Shared: STAGES chunks of k, q, half of v, and what was solved; the warps' outputs.
 * Bound:  tensor cores, and the latency of each chunk's five products.
 * Oracle: tests/cuda, a recurrence in double. */
#include "cuda/common/sm90.cuh"
#include "cuda/recurrent/delta.cuh"

SM90_REGISTER_A(48, SM90_LIST24, 24, 25, 26, 27, 28, 29, SM90_D16(d, 0), SM90_D8(d, 16))

namespace {

enum { WARPS = 4, COMPUTE_THREADS = 32 * WARPS, THREADS = COMPUTE_THREADS + 32, BLOCKS = 2 };
enum { STAGES = 3, K_STEPS = DELTA_DIM / 16, OUT_STRIDE = 48 };
enum { STAGE_BYTES = 2 * TILE_BYTES + HALF_BYTES + sizeof(solved) };

struct alignas(1024) stage {
    struct {
        char k[HALF_BYTES], q[HALF_BYTES]; /* so that one product reads both */
    } halves[2];
    char v[HALF_BYTES];
    solved from;
};

struct plan {
    stage stages[STAGES];
    char out[WARPS][CHUNK_ROWS * OUT_STRIDE];
    alignas(8) uint64_t full[STAGES], empty[STAGES];
};

/* Returns a value that all lanes have, so that the compiler knows that they do.  Where it believes
 * that warps may part, it waits after every product. */
__device__ __forceinline__ uint32_t uniform(uint32_t x) {
    return __shfl_sync(0xffffffffu, x, 0);
}

/* ---- copies ---- */

__device__ __forceinline__ void copy_to_both(shared_at to, const void *from, uint32_t bytes,
                                             shared_at bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to.address),
                 "l"(from), "r"(bytes), "r"(bar.address), "h"((uint16_t)3)
                 : "memory");
}

__device__ __forceinline__ void copy_own(shared_at to, const void *from, uint32_t bytes,
                                         shared_at bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to.address),
                 "l"(from), "r"(bytes), "r"(bar.address)
                 : "memory");
}

/* Copies the chunks of all the cluster's units, one after the other; one thread does. */
__device__ void produce(const recurrent_params &p, const recurrent_window &w, plan *s,
                        uint32_t rank, uint32_t n_units) {
    ring_place<STAGES> place = {0, 1};
    const uint32_t at = rank * HALF_BYTES, half = sizeof(solved) / 2;
    for (uint32_t i = blockIdx.x / BLOCKS; i < n_units; i += gridDim.x / BLOCKS) {
        const prompt_unit u = prompt_unit_at(p, w, i);
        for (uint32_t chunk = u.first; chunk < u.end; chunk++, place.advance()) {
            const uint32_t slot = chunk - w.first_chunk, k_head = k_head_of(p, u.head);
            stage *to = &s->stages[place.stage];
            const shared_at bar = &s->full[place.stage];
            const char *solved_at = static_cast<const char *>(w.solved) +
                                    ((size_t)slot * p.n_v_heads + u.head) * sizeof(solved) +
                                    rank * half;
            barrier_wait(&s->empty[place.stage], place.parity);
            barrier_arrive_expect(bar, STAGE_BYTES);
            copy_to_both(to->halves[rank].k, tile_of(p, w, slot, p.n_k_heads + k_head) + at,
                         HALF_BYTES, bar);
            copy_to_both(to->halves[rank].q, tile_of(p, w, slot, k_head) + at, HALF_BYTES, bar);
            copy_to_both(reinterpret_cast<char *>(&to->from) + rank * half, solved_at, half, bar);
            copy_own(to->v, tile_of(p, w, slot, 2 * p.n_k_heads + u.head) + at, HALF_BYTES, bar);
        }
    }
}

/* ---- products ---- */

/* Describes a panel of a triangle: 8 x 8 matrices without swizzle. */
__device__ __forceinline__ uint64_t panel_matrix(shared_at at) {
    return (uint64_t)((at.address & 0x3ffff) >> 4) | (uint64_t)(MATRIX_BYTES >> 4) << 16 |
           (uint64_t)(2 * MATRIX_BYTES >> 4) << 32;
}

/* Starts d = (add ? d : 0) + a B^T for the first 16 (PANEL + 1) rows of B [64, 16 columns]: the
 * others are zeros. */
template <int PANEL>
__device__ __forceinline__ void multiply_panel(float (&d)[32], const uint32_t *a, uint64_t triangle,
                                               int add) {
    constexpr int N = 16 * (PANEL + 1);
    wgmma_register_a_k_major(reinterpret_cast<float(&)[N / 2]>(d), a,
                             wgmma_advance(triangle, panel_at(PANEL)), add);
}

/* Returns columns 16 i on of K and, below it, Q. */
__device__ __forceinline__ uint64_t key_step(uint64_t keys, int i) {
    return wgmma_advance(keys, i / 4 * 2 * HALF_BYTES + i % 4 * 32);
}

/* Splits the 8 numbers from x on. */
__device__ __forceinline__ void split_eight(const float *x, uint32_t *high, uint32_t *low) {
#pragma unroll
    for (int i = 0; i < 4; i++) split_pair(x[2 * i], x[2 * i + 1], &high[i], &low[i]);
}

/* ---- states ---- */

/* Returns where the thread's first element of S is; element_at() counts from there. */
__device__ __forceinline__ size_t own_element(uint32_t rank) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    return (size_t)(lane % 4 * 2) * DELTA_DIM + 64 * rank + 16 * warp + lane / 4;
}

__device__ __forceinline__ size_t element_at(int i) {
    return (size_t)(8 * (i / 4) + i % 2) * DELTA_DIM + i % 4 / 2 * 8;
}

__device__ __forceinline__ void load_state(float (&s)[64], const recurrent_params &p,
                                           const prompt_unit &u, uint32_t rank) {
    const device_state &slots = p.states_of->states[u.seq];
    const char *at = u.begins ? state_before(p, slots) : state_after(p, slots);
    const float *from = reinterpret_cast<const float *>(at) +
                        (size_t)u.head * DELTA_DIM * DELTA_DIM + own_element(rank);
#pragma unroll
    for (int i = 0; i < 64; i++) s[i] = at ? from[element_at(i)] : 0.0f;
}

__device__ __forceinline__ void store_state(const float (&s)[64], const recurrent_params &p,
                                            const prompt_unit &u, uint32_t rank) {
    float *to = reinterpret_cast<float *>(state_after(p, p.states_of->states[u.seq])) +
                (size_t)u.head * DELTA_DIM * DELTA_DIM + own_element(rank);
#pragma unroll
    for (int i = 0; i < 64; i++) to[element_at(i)] = s[i];
}

/* ---- a chunk ---- */

/* Loads the exponentials of the rows that the thread has results of, in N columns of 8. */
template <int N>
__device__ __forceinline__ void load_columns(float2 (&x)[N], const float *of_rows) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = *reinterpret_cast<const float2 *>(of_rows + 8 * i + threadIdx.x % 4 * 2);
}

/* Makes x = V^T - x diag(exp(G)) in 16 columns, panel i. */
__device__ __forceinline__ void subtract_from_values(float *x, const float2 *exp_g, const char *v,
                                                     int i) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32,
                   row = 16 * i + lane / 16 * 8 + lane % 8, column = 2 * warp + lane / 8 % 2;
    uint32_t r[4];
    load_matrix_trans(r, v + row * 128 + (column ^ row % 8) * 16);
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const float2 pair = unpack_bf16(r[m]), g = exp_g[m / 2];
        x[2 * m] = pair.x - g.x * x[2 * m];
        x[2 * m + 1] = pair.y - g.y * x[2 * m + 1];
    }
}

/* Multiplies N columns of 8 by the rows' factors. */
template <int N>
__device__ __forceinline__ void scale_columns(float *to, const float *x, const float2 *by) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) to[i] = x[i] * (i % 2 ? by[i / 4].y : by[i / 4].x);
}

/* Stores the warp's 16 columns of the chunk's outputs. */
__device__ __forceinline__ void store_outputs(const recurrent_params &p, char *staged,
                                              const uint32_t (&pairs)[16], const prompt_unit &u,
                                              const device_chunk &chunk, uint32_t rank) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const uint32_t four[4] = {pairs[2 * i], pairs[2 * i + 1], pairs[2 * i + 2],
                                  pairs[2 * i + 3]};
        store_matrix_trans(
            staged + (8 * (i + lane / 16) + lane % 8) * OUT_STRIDE + lane / 8 % 2 * 16, four);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = i * 16 + lane / 2, part = lane % 2, row = tile_row(at);
        if (row < chunk.n_rows)
            *reinterpret_cast<uint4 *>(static_cast<bf16 *>(p.out) +
                                       ((size_t)(chunk.first_row + row) * p.n_v_heads + u.head) *
                                           DELTA_DIM +
                                       64 * rank + 16 * warp + 8 * part) =
                *reinterpret_cast<const uint4 *>(staged + at * OUT_STRIDE + part * 16);
    }
    __syncwarp();
}

/* Lets both blocks' copies into the stage begin. */
__device__ __forceinline__ void release(plan *s, uint32_t stage_i, uint32_t rank) {
    __syncwarp();
    if (threadIdx.x % 32 != 0) return;
    barrier_arrive(&s->empty[stage_i]);
    barrier_arrive_remote(&s->empty[stage_i], rank ^ 1);
}

/* What a thread has of a unit while it goes through its chunks. */
struct registers {
    float s[64];                /* S^T */
    uint32_t high[32], low[32]; /* the same, split */
    float read[64];             /* S^T K^T, and S^T Q^T */
};

/* Starts reading S by K and Q, while S is split. */
__device__ __forceinline__ void read_state(registers &r, uint64_t keys) {
#pragma unroll
    for (int i = 0; i < K_STEPS; i++) {
        split_eight(r.s + 8 * i, r.high + 4 * i, r.low + 4 * i);
        wgmma_fence();
        wgmma_register_a_k_major(r.read, r.high + 4 * i, key_step(keys, i), i > 0);
        wgmma_register_a_k_major(r.read, r.low + 4 * i, key_step(keys, i), 1);
    }
    wgmma_commit();
}

/* Starts a panel of d = X^T T^T; X is made of x. */
template <int PANEL>
__device__ __forceinline__ void solve_panel(float (&d)[32], float *x, uint32_t (&high)[16],
                                            uint32_t (&low)[16], const stage *in) {
    const uint64_t t_high = panel_matrix(in->from.t_high), t_low = panel_matrix(in->from.t_low);
    float2 exp_g[2];
    load_columns<2>(exp_g, in->from.exp_g + 16 * PANEL);
    subtract_from_values(x + 8 * PANEL, exp_g, in->v, PANEL);
    split_eight(x + 8 * PANEL, high + 4 * PANEL, low + 4 * PANEL);
    wgmma_fence();
    multiply_panel<PANEL>(d, high + 4 * PANEL, t_high, PANEL < PANELS - 1);
    multiply_panel<PANEL>(d, high + 4 * PANEL, t_low, 1);
    multiply_panel<PANEL>(d, low + 4 * PANEL, t_high, 1);
}

/* Starts o += D^T P^T. */
__device__ __forceinline__ void add_own_rows(float (&o)[32], const float (&d)[32],
                                             uint32_t (&packed)[16], const stage *in) {
    const uint64_t p = panel_matrix(in->from.p);
#pragma unroll
    for (int i = 0; i < 16; i++) packed[i] = pack_bf16(d[2 * i], d[2 * i + 1]);
    wgmma_fence();
    multiply_panel<3>(o, packed + 12, p, 1);
    multiply_panel<2>(o, packed + 8, p, 1);
    multiply_panel<1>(o, packed + 4, p, 1);
    multiply_panel<0>(o, packed, p, 1);
    wgmma_commit();
}

/* Starts S^T += (D^T diag(exp(G[last] - G))) K. */
__device__ __forceinline__ void write_state(float (&s)[64], float (&d)[32], uint32_t (&high)[16],
                                            uint32_t (&low)[16], uint64_t keys, const stage *in) {
#pragma unroll
    for (int i = 0; i < PANELS; i++) {
        float2 rest[2];
        load_columns<2>(rest, in->from.exp_rest + 16 * i);
        scale_columns<2>(d + 8 * i, d + 8 * i, rest);
        split_eight(d + 8 * i, high + 4 * i, low + 4 * i);
        wgmma_fence();
        wgmma_register_a(s, high + 4 * i, wgmma_advance(keys, i * 2048));
        wgmma_register_a(s, low + 4 * i, wgmma_advance(keys, i * 2048));
    }
    wgmma_commit();
}

__device__ __forceinline__ void pack_outputs(uint32_t (&packed)[16], const float (&o)[32]) {
    const float scale = rsqrtf((float)DELTA_DIM);
#pragma unroll
    for (int i = 0; i < 16; i++) packed[i] = pack_bf16(scale * o[2 * i], scale * o[2 * i + 1]);
}

/* Goes through a unit's chunks.  What is computed between two products is computed while earlier
 * ones run. */
__device__ void scan_unit(const recurrent_params &p, plan *shared, const prompt_unit &u,
                          uint32_t rank, ring_place<STAGES> &place) {
    registers r;
    load_state(r.s, p, u, rank);
    for (uint32_t c = u.first; c < u.end; c++, place.advance()) {
        const stage *in = &shared->stages[place.stage];
        const uint64_t keys = wgmma_matrix(in->halves, 2 * HALF_BYTES);
        float d[32], o[32];
        uint32_t high[16], low[16], packed[16];
        barrier_wait(&shared->full[place.stage], place.parity);
        wgmma_wait<0>();
        wgmma_pin(r.s);
        read_state(r, keys);
        wgmma_wait<0>();
        wgmma_pin(r.read);
        solve_panel<3>(d, r.read, high, low, in);
        solve_panel<2>(d, r.read, high, low, in);
        solve_panel<1>(d, r.read, high, low, in);
        solve_panel<0>(d, r.read, high, low, in);
        wgmma_commit();
        float2 exp_g[8];
        load_columns<8>(exp_g, in->from.exp_g);
        scale_columns<8>(o, r.read + 32, exp_g);
        const float decay = in->from.exp_g[0];
#pragma unroll
        for (int i = 0; i < 64; i++) r.s[i] *= decay;
        wgmma_wait<0>();
        wgmma_pin(d);
        add_own_rows(o, d, packed, in);
        write_state(r.s, d, high, low, keys, in);
        wgmma_wait<1>();
        wgmma_pin(o);
        pack_outputs(packed, o);
        store_outputs(p, shared->out[threadIdx.x / 32], packed, u, p.states_of->chunks[c], rank);
        wgmma_wait<0>();
        wgmma_pin(r.s);
        release(shared, place.stage, rank);
    }
    store_state(r.s, p, u, rank);
}

__global__ void __cluster_dims__(BLOCKS) __launch_bounds__(THREADS, 1)
    scan_kernel(recurrent_params p, recurrent_window w) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char shared[];
    plan *s = reinterpret_cast<plan *>(shared);
    const uint32_t rank = blockIdx.x % BLOCKS;
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(&s->full[i], 1);
            barrier_init(&s->empty[i], BLOCKS * WARPS);
        }
        barriers_publish();
    }
    __syncthreads();
    cluster_arrive();
    cluster_wait();
    wait_for_previous();
    const uint32_t n_units = uniform((p.step->n_seqs - p.step->n_decode) * p.n_v_heads);
    if (uniform(threadIdx.x / 32) >= WARPS) {
        if (elect_lane()) produce(p, w, s, rank, n_units);
    } else {
        ring_place<STAGES> place = {0, 0};
        for (uint32_t i = blockIdx.x / BLOCKS; i < n_units; i += gridDim.x / BLOCKS) {
            prompt_unit u = prompt_unit_at(p, w, i);
            u.first = uniform(u.first);
            u.end = uniform(u.end);
            if (u.first < u.end) scan_unit(p, s, u, rank, place);
        }
    }
    __syncwarp();
    cluster_arrive(); /* the other block's copies may still be on their way here */
    cluster_wait();
#endif
}

} // namespace

bool delta_scan_runs(void) {
    return runs_sm90_code(scan_kernel);
}

cudaError_t launch_delta_scan(const struct recurrent_params *p,
                              const struct recurrent_window *window, struct launch launch) {
    const uint32_t n_units = window->n_prompts * p->n_v_heads, most = launch.n_multiprocessors / 2;
    if (window->n_chunks == 0 || n_units == 0) return cudaSuccess;
    const cudaError_t status = cudaFuncSetAttribute(
        scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(plan));
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, scan_kernel, BLOCKS * (n_units < most ? n_units : most), THREADS,
                         sizeof(plan), *p, *window);
}
