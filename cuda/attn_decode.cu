/* attn_decode.cu - see attn_decode.cuh.
 *
 *   tile (plan)  |unit|unit|unit|unit|unit| ...      unit: 16 slots of one page, K and V
 *   warp           0    1    2    3    0             each warp reads its own units, on its own
 *
 * A warp has a private ring of N_STAGES units in shared memory.  It asks for units (cp.async) as far
 * ahead as the ring goes, over the ends of tiles too, so memory never waits for arithmetic, and no
 * barrier stands in the loop.  At the end of a tile the warps' results meet in shared memory.
 *
 * The tile is computed transposed, so that a group of up to 8 query heads fills the 8 columns of
 * mma.m16n8k16 (9 to 16 heads: two such tiles):
 *
 *   S^T [16 slots, 8 heads] = K [16, d] Q^T [d, 8]         A: ldmatrix      B: registers
 *   O^T [d, 8 heads]       += V^T [d, 16] P^T [16, 8]      A: ldmatrix.trans B: movmatrix of S^T
 *
 * Softmax is online, in base 2, f32.  Slots past the tile's end are filled with zeros by cp.async (a
 * page's unused slots may hold anything, NaN too) and masked.
 *
 * Grid:   plan's n_blocks x N_WARPS * 32 threads; the merge: one block per (merge, query head).
 * Shared: struct ring.             Bound: memory, 2 * n_slots * n_kv_heads * head_dim * 2 bytes.
 * Oracle: plain C in double (cuda/tests/attn_decode_test.cu). */
#include "cuda/attn_decode.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace {

constexpr float LOG2_E = 1.4426950408889634f;

/* T: type of the pages.  D: head_dim.  N_TILES: 8-column tiles for the group. */
template <typename T_, int D_, int N_TILES_, int N_WARPS_, int N_STAGES_> struct shape {
    using T = T_;
    static constexpr int D = D_, N_TILES = N_TILES_, N_WARPS = N_WARPS_, N_STAGES = N_STAGES_;
    static constexpr int HEADS = 8 * N_TILES;
    static constexpr int K_STEPS = D / 16;
    static constexpr int CHUNKS = D / 8;             /* of 16 bytes, in a row */
    static constexpr int ROW_BYTES = D * 2 + 16;     /* an odd number of chunks: no bank conflicts */
    static constexpr int UNIT_BYTES = ATTN_UNIT_SLOTS * ROW_BYTES; /* K or V */
    static constexpr int STAGE_BYTES = 2 * UNIT_BYTES;
    static constexpr int OUT_STRIDE = D + 4;         /* floats: rows of a warp's result */
    static constexpr int RING_BYTES = N_WARPS * N_STAGES * STAGE_BYTES;
    /* A warp hands over its result in the one stage of its ring that has nothing under way. */
    static_assert((HEADS * OUT_STRIDE + 2 * HEADS) * 4 <= STAGE_BYTES, "result does not fit a stage");
};

/* A warp's result for a tile, as the others read it: in its free stage. */
template <class S> struct warp_result {
    float out[S::HEADS][S::OUT_STRIDE];
    float max[S::HEADS], sum[S::HEADS];
};

/* ---- instructions ------------------------------------------------------------------------ */

__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* 16 bytes to shared memory, zeros if not valid. */
__device__ __forceinline__ void copy_async(uint32_t to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void load_matrix(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ void load_matrix_trans(uint32_t (&r)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, __half>) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high) {
    if constexpr (std::is_same_v<T, __half>) {
        __half2 x = __floats2half2_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&x);
    } else {
        __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&x);
    }
}

/* ex2.approx: 2 ulp, far below the rounding of P to 16 bits; exp2(-inf) = 0. */
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Over the lanes that hold the same columns (lane % 4) of an accumulator. */
__device__ __forceinline__ float column_max(float x) {
    for (int i = 4; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

__device__ __forceinline__ float column_sum(float x) {
    for (int i = 4; i < 32; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ __forceinline__ attn_tile load_tile(const attn_tile *tiles, int i) {
    union {
        int4 words[2];
        attn_tile tile;
    } u;
    const int4 *from = reinterpret_cast<const int4 *>(tiles + i);
    u.words[0] = __ldg(from);
    u.words[1] = __ldg(from + 1);
    return u.tile;
}

/* ---- asking for units -------------------------------------------------------------------- */

/* The next unit that a warp will ask for.  Its page number is read when the cursor comes to it,
 * a step before it is needed. */
struct cursor {
    attn_tile tile;
    int slot; /* < tile.end, or the warp has no more units */
    int page;
};

template <class S>
__device__ __forceinline__ void cursor_settle(cursor *c, const attn_decode_params &p, int warp) {
    while (c->slot >= c->tile.end && c->tile.next >= 0) {
        c->tile = load_tile(p.tiles, c->tile.next);
        c->slot = c->tile.begin + warp * ATTN_UNIT_SLOTS;
    }
    if (c->slot < c->tile.end)
        c->page = __ldg(p.pages + c->tile.seq * p.pages_stride + c->slot / PAGE_TOKENS);
}

template <class S>
__device__ __forceinline__ const char *cursor_address(const cursor &c, const attn_decode_params &p) {
    return static_cast<const char *>(p.pool) + c.page * p.page_bytes +
           (c.tile.kv_head * PAGE_TOKENS + c.slot % PAGE_TOKENS) * (S::D * 2);
}

/* Asks for the cursor's unit and moves on.  Past the end the group of copies is empty. */
template <class S>
__device__ __forceinline__ void ask_unit(cursor *c, const attn_decode_params &p, uint32_t stage,
                                         int warp, int lane) {
    if (c->slot < c->tile.end) {
        const char *keys = cursor_address<S>(*c, p);
        const char *values = keys + (size_t)p.n_kv_heads * PAGE_TOKENS * S::D * 2;
        const int n_rows = c->tile.end - c->slot;
#pragma unroll
        for (int i = 0; i < S::K_STEPS; i++) {
            const int chunk = lane + 32 * i, row = chunk / S::CHUNKS;
            const uint32_t to = stage + row * S::ROW_BYTES + chunk % S::CHUNKS * 16;
            copy_async(to, keys + chunk * 16, row < n_rows);
            copy_async(to + S::UNIT_BYTES, values + chunk * 16, row < n_rows);
        }
        c->slot += S::N_WARPS * ATTN_UNIT_SLOTS;
        cursor_settle<S>(c, p, warp);
    }
    copy_async_commit();
}

/* ---- a warp's attention ------------------------------------------------------------------ */

template <class S> struct state {
    uint32_t q[S::N_TILES][S::K_STEPS][2]; /* Q^T: rows d, columns heads */
    float out[S::N_TILES][S::K_STEPS][4];  /* O^T */
    float max[S::N_TILES][2], sum[S::N_TILES][2]; /* sum: of this lane's slots */
};

template <class S>
__device__ __forceinline__ void state_begin(state<S> *st, const attn_decode_params &p,
                                            const attn_tile &tile, int group, int lane) {
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(p.q) + tile.seq * p.q_stride +
                             (size_t)tile.kv_head * group * S::D + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        const int head = n * 8 + lane / 4;
#pragma unroll
        for (int k = 0; k < 2 * S::K_STEPS; k++) {
            __nv_bfloat162 x = __floats2bfloat162_rn(0.0f, 0.0f);
            if (head < group)
                x = *reinterpret_cast<const __nv_bfloat162 *>(q + (size_t)head * S::D + k * 8);
            st->q[n][k / 2][k % 2] =
                pack<typename S::T>(__low2float(x), __high2float(x));
        }
#pragma unroll
        for (int k = 0; k < S::K_STEPS; k++)
            st->out[n][k][0] = st->out[n][k][1] = st->out[n][k][2] = st->out[n][k][3] = 0.0f;
        st->max[n][0] = st->max[n][1] = -INFINITY;
        st->sum[n][0] = st->sum[n][1] = 0.0f;
    }
}

/* s [slots lane / 4 and + 8][heads lane % 4 * 2 and + 1] = q.k of a unit. */
template <class S>
__device__ __forceinline__ void unit_scores(float (&s)[S::N_TILES][4], const state<S> &st,
                                            uint32_t stage, int lane) {
    /* Two sums, so that no product waits for the one before. */
    float odd[S::N_TILES][4] = {};
    const uint32_t at = stage + lane % 16 * S::ROW_BYTES + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t keys[4];
        load_matrix(keys, at + k * 32);
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            mma<typename S::T>(k % 2 ? odd[n] : s[n], keys, st.q[n][k][0], st.q[n][k][1]);
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        for (int i = 0; i < 4; i++) s[n][i] += odd[n][i];
}

/* Where the scores of a lane's first column go in the raw output. */
template <class S>
__device__ __forceinline__ void store_scores(const attn_decode_params &p, const attn_tile &tile,
                                             const float (&s)[S::N_TILES][4], int slot, int group,
                                             int lane) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        for (int i = 0; i < 4; i++) {
            const int head = n * 8 + lane % 4 * 2 + i % 2, at = slot + lane / 4 + i / 2 * 8;
            if (head >= group || at >= tile.end) continue;
            const size_t row = (size_t)tile.seq * p.n_heads + tile.kv_head * group + head;
            __stcs(p.scores + row * p.score_stride + at, s[n][i] * p.scale);
        }
    }
}

/* Scores of one column tile to probabilities (unnormalised), in the layout of B. */
template <class S>
__device__ __forceinline__ void softmax_step(state<S> *st, int n, float (&s)[4], int n_valid,
                                             float scale_log2, uint32_t (&prob)[2], int lane) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[i] = lane / 4 + i / 2 * 8 < n_valid ? s[i] * scale_log2 : -INFINITY;
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        /* A unit has a valid slot, so the new maximum is finite. */
        const float max = fmaxf(st->max[n][i], column_max(fmaxf(s[i], s[i + 2])));
        factor[i] = exp2_fast(st->max[n][i] - max);
        st->max[n][i] = max;
        s[i] = exp2_fast(s[i] - max);
        s[i + 2] = exp2_fast(s[i + 2] - max);
        st->sum[n][i] = st->sum[n][i] * factor[i] + s[i] + s[i + 2];
    }
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++)
        for (int i = 0; i < 4; i++) st->out[n][k][i] *= factor[i % 2];
    prob[0] = transpose_8x8(pack<typename S::T>(s[0], s[1]));
    prob[1] = transpose_8x8(pack<typename S::T>(s[2], s[3]));
}

template <class S>
__device__ __forceinline__ void attend_unit(state<S> *st, const attn_decode_params &p,
                                            const attn_tile &tile, int slot, uint32_t stage,
                                            int group, int lane) {
    float s[S::N_TILES][4] = {};
    unit_scores<S>(s, *st, stage, lane);
    if (p.scores) store_scores<S>(p, tile, s, slot, group, lane);
    uint32_t prob[S::N_TILES][2];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        softmax_step<S>(st, n, s[n], tile.end - slot, p.scale * LOG2_E, prob[n], lane);
    const uint32_t at = stage + S::UNIT_BYTES + (lane % 8 + lane / 16 * 8) * S::ROW_BYTES +
                        lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t values[4];
        load_matrix_trans(values, at + k * 32);
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            mma<typename S::T>(st->out[n][k], values, prob[n][0], prob[n][1]);
    }
}

/* ---- the end of a tile ------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void hand_over(warp_result<S> *to, const state<S> &st, int lane) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int head = n * 8 + lane % 4 * 2 + i;
            const float sum = column_sum(st.sum[n][i]);
#pragma unroll
            for (int k = 0; k < S::K_STEPS; k++) {
                to->out[head][k * 16 + lane / 4] = st.out[n][k][i];
                to->out[head][k * 16 + lane / 4 + 8] = st.out[n][k][i + 2];
            }
            if (lane < 4) {
                to->max[head] = st.max[n][i];
                to->sum[head] = sum;
            }
        }
    }
}

__device__ __forceinline__ void store_bf16(__nv_bfloat16 *to, float4 x) {
    *reinterpret_cast<uint2 *>(to) =
        make_uint2(pack<__nv_bfloat16>(x.x, x.y), pack<__nv_bfloat16>(x.z, x.w));
}

__device__ __forceinline__ void add_scaled(float4 *sum, float4 x, float w) {
    sum->x += x.x * w;
    sum->y += x.y * w;
    sum->z += x.z * w;
    sum->w += x.w * w;
}

/* Four outputs of a head, and its log-sum-exp, from what the warps handed over.  A warp that had no
 * unit has maximum -inf and weighs 0; at least one had. */
template <class S>
__device__ __forceinline__ float4 combine(const char *ring, const int *free_stage, int head, int d,
                                          float *lse) {
    float max = -INFINITY, sum = 0.0f;
    float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const warp_result<S> *r[S::N_WARPS];
#pragma unroll
    for (int w = 0; w < S::N_WARPS; w++) {
        r[w] = reinterpret_cast<const warp_result<S> *>(
            ring + (size_t)(w * S::N_STAGES + free_stage[w]) * S::STAGE_BYTES);
        max = fmaxf(max, r[w]->max[head]);
    }
#pragma unroll
    for (int w = 0; w < S::N_WARPS; w++) {
        const float weight = exp2_fast(r[w]->max[head] - max);
        sum += r[w]->sum[head] * weight;
        add_scaled(&out, *reinterpret_cast<const float4 *>(&r[w]->out[head][d]), weight);
    }
    *lse = max + log2f(sum);
    const float scale = 1.0f / sum;
    return make_float4(out.x * scale, out.y * scale, out.z * scale, out.w * scale);
}

template <class S>
__device__ __forceinline__ void store_tile(const attn_decode_params &p, const attn_tile &tile,
                                           const char *ring, const int *free_stage, int group) {
    for (int i = threadIdx.x; i < group * (S::D / 4); i += S::N_WARPS * 32) {
        const int head = i / (S::D / 4), d = i % (S::D / 4) * 4;
        float lse;
        const float4 out = combine<S>(ring, free_stage, head, d, &lse);
        if (tile.partial < 0) {
            const size_t row = (size_t)tile.seq * p.n_heads + tile.kv_head * group + head;
            store_bf16(static_cast<__nv_bfloat16 *>(p.out) + row * S::D + d, out);
        } else {
            const size_t row = (size_t)tile.partial * group + head;
            *reinterpret_cast<float4 *>(p.partial_out + row * S::D + d) = out;
            if (d == 0) p.partial_lse[row] = lse;
        }
    }
}

/* ---- merging an item's partials ---------------------------------------------------------- */

enum { MERGE_WARPS = 8, MERGE_BATCH = 8 };

/* One query head: warp w takes partials w, w + MERGE_WARPS, ...; lanes lie along head_dim.  The
 * weights are relative to the largest log-sum-exp of all (0 if there is none). */
template <int D> struct merge_row {
    static constexpr int VECS = (D / 4 + 31) / 32;
    float out[MERGE_WARPS][D];
    float sum[MERGE_WARPS];

    static __device__ __forceinline__ float max_lse(const float *lse, int n, int stride, int lane) {
        float max = -INFINITY;
        for (int i = lane; i < n; i += 32) max = fmaxf(max, lse[(size_t)i * stride]);
        for (int i = 1; i < 32; i *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, i));
        return max == -INFINITY ? 0.0f : max;
    }

    __device__ __forceinline__ void gather(const float *rows, const float *lse, int n, int group,
                                           int warp, int lane) {
        const float max = max_lse(lse, n, group, lane);
        float4 acc[VECS] = {};
        float weights = 0.0f;
#pragma unroll MERGE_BATCH
        for (int i = warp; i < n; i += MERGE_WARPS) {
            const float w = exp2_fast(lse[(size_t)i * group] - max);
            weights += w;
            const float4 *from = reinterpret_cast<const float4 *>(rows + (size_t)i * group * D);
#pragma unroll
            for (int v = 0; v < VECS; v++)
                if (lane + 32 * v < D / 4) add_scaled(&acc[v], from[lane + 32 * v], w);
        }
#pragma unroll
        for (int v = 0; v < VECS; v++)
            if (lane + 32 * v < D / 4) reinterpret_cast<float4 *>(out[warp])[lane + 32 * v] = acc[v];
        if (lane == 0) sum[warp] = weights;
    }

    __device__ __forceinline__ void store(__nv_bfloat16 *to) const {
        float weights = 0.0f;
        for (int w = 0; w < MERGE_WARPS; w++) weights += sum[w];
        const float scale = weights > 0.0f ? 1.0f / weights : 0.0f;
        for (int d = threadIdx.x; d < D; d += MERGE_WARPS * 32) {
            float x = 0.0f;
            for (int w = 0; w < MERGE_WARPS; w++) x += out[w][d];
            to[d] = __float2bfloat16(x * scale);
        }
    }
};

template <int D>
__global__ void __launch_bounds__(MERGE_WARPS * 32)
    attn_merge_kernel(const __grid_constant__ attn_decode_params p) {
    __shared__ __align__(16) merge_row<D> row;
    const int group = p.n_heads / p.n_kv_heads;
    const int n_jobs = __ldg(&p.tiles->n_merges) * group;
    let_next_kernel_start();
    wait_for_previous_kernel();
    for (int job = blockIdx.x; job < n_jobs; job += gridDim.x) {
        const attn_merge merge = p.merges[job / group];
        const int head = job % group;
        const size_t first = (size_t)merge.first_partial * group + head;
        row.gather(p.partial_out + first * D, p.partial_lse + first, merge.n_partials, group,
                   threadIdx.x / 32, threadIdx.x % 32);
        __syncthreads();
        row.store(static_cast<__nv_bfloat16 *>(p.out) +
                  ((size_t)merge.seq * p.n_heads + merge.kv_head * group + head) * D);
        __syncthreads(); /* row is read */
    }
}

template <class S>
__device__ void merge_last(const attn_decode_params &p, const attn_tile &tile, int group, int warp, int lane) {
    __shared__ int last;
    const attn_merge m = p.merges[tile.merge];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(p.counters + tile.merge, 1) == m.n_partials - 1;
        if (last) p.counters[tile.merge] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int head = warp; head < group; head += S::N_WARPS) {
        const size_t first = (size_t)m.first_partial * group + head;
        const float *lse = p.partial_lse + first;
        float max = -INFINITY;
        for (int i = lane; i < m.n_partials; i += 32) max = fmaxf(max, __ldcg(lse + (size_t)i * group));
        for (int i = 1; i < 32; i *= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, i));
        for (int d = lane; d < S::D / 4; d += 32) {
            float4 acc = {};
            float sum = 0;
#pragma unroll 16
            for (int i = 0; i < m.n_partials; i++) {
                float w = exp2_fast(__ldcg(lse + (size_t)i * group) - max);
                sum += w;
                add_scaled(&acc, __ldcg(reinterpret_cast<const float4 *>(p.partial_out + (first + (size_t)i * group) * S::D) + d), w);
            }
            float r = 1 / sum;
            store_bf16((__nv_bfloat16 *)p.out + ((size_t)m.seq * p.n_heads + m.kv_head * group + head) * S::D + d * 4,
                       make_float4(acc.x * r, acc.y * r, acc.z * r, acc.w * r));
        }
    }
}

template <class S>
__device__ __forceinline__ void prefetch_first_units(const attn_decode_params &p, const attn_tile &tile, int warp, int lane) {
#if __CUDA_ARCH__ >= 900
    const int slot = tile.begin + (warp + lane * S::N_WARPS) * ATTN_UNIT_SLOTS;
    if (lane >= S::N_STAGES || slot >= tile.end) return;
    const cursor c = {tile, slot, __ldg(p.pages + tile.seq * p.pages_stride + slot / PAGE_TOKENS)};
    const char *keys = cursor_address<S>(c, p);
    const char *values = keys + (size_t)p.n_kv_heads * PAGE_TOKENS * S::D * 2;
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(keys), "n"(ATTN_UNIT_SLOTS * S::D * 2));
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(values), "n"(ATTN_UNIT_SLOTS * S::D * 2));
#endif
}

/* ---- the kernel -------------------------------------------------------------------------- */

template <class S>
__global__ void __launch_bounds__(S::N_WARPS * 32)
    attn_decode_kernel(const __grid_constant__ attn_decode_params p) {
    extern __shared__ __align__(128) char ring[];
    __shared__ int free_stage[S::N_WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = p.n_heads / p.n_kv_heads;
    char *const mine = ring + (size_t)warp * S::N_STAGES * S::STAGE_BYTES;
    const uint32_t stages = (uint32_t)__cvta_generic_to_shared(mine);

    attn_tile tile = load_tile(p.tiles, blockIdx.x);
    cursor ahead = {tile, tile.begin + warp * ATTN_UNIT_SLOTS, 0};
    cursor_settle<S>(&ahead, p, warp);
    if (p.variant & 16) prefetch_first_units<S>(p, tile, warp, lane);
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (tile.begin == tile.end) return;

    int next = 0; /* stage that the next unit asked for goes to: the free one */
    for (; next < S::N_STAGES - 1; next++)
        ask_unit<S>(&ahead, p, stages + next * S::STAGE_BYTES, warp, lane);
    for (;;) {
        state<S> st;
        state_begin<S>(&st, p, tile, group, lane);
        for (int slot = tile.begin + warp * ATTN_UNIT_SLOTS; slot < tile.end;
             slot += S::N_WARPS * ATTN_UNIT_SLOTS) {
            ask_unit<S>(&ahead, p, stages + next * S::STAGE_BYTES, warp, lane);
            next = next + 1 == S::N_STAGES ? 0 : next + 1;
            copy_async_wait<S::N_STAGES - 1>();
            __syncwarp(); /* the other lanes' copies */
            /* The oldest unit lies behind the newest. */
            attend_unit<S>(&st, p, tile, slot, stages + next * S::STAGE_BYTES, group, lane);
            __syncwarp(); /* all lanes have read: the stage is free */
        }
        hand_over<S>(reinterpret_cast<warp_result<S> *>(mine + (size_t)next * S::STAGE_BYTES), st,
                     lane);
        if (lane == 0) free_stage[warp] = next;
        __syncthreads();
        store_tile<S>(p, tile, ring, free_stage, group);
        if ((p.variant & 32) && tile.partial >= 0) merge_last<S>(p, tile, group, warp, lane);
        if (tile.next < 0) return;
        tile = load_tile(p.tiles, tile.next);
        __syncthreads(); /* results are read: the stages are free again */
    }
}
template <typename... Args>
cudaError_t launch(void (*kernel)(Args...), uint32_t n_blocks, int n_threads, size_t shared,
                   cudaStream_t stream, bool overlap, const attn_decode_params &p) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = n_blocks;
    config.blockDim = n_threads;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = overlap ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, p);
}

template <int D> cudaError_t launch_merge(const attn_decode_params &p, cudaStream_t stream) {
    const uint32_t n_jobs = p.max_merges * (p.n_heads / p.n_kv_heads), most = 4 * p.n_blocks;
    if (n_jobs == 0) return cudaSuccess;
    return launch(attn_merge_kernel<D>, n_jobs < most ? n_jobs : most, MERGE_WARPS * 32, 0, stream,
                  p.overlap, p);
}

template <class S> cudaError_t launch_shape(const attn_decode_params &p, cudaStream_t stream) {
    const auto kernel = attn_decode_kernel<S>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::RING_BYTES);
    if (error != cudaSuccess) return error;
    error = launch(kernel, p.n_blocks, S::N_WARPS * 32, S::RING_BYTES, stream, p.overlap, p);
    if (error != cudaSuccess || (p.variant & 32)) return error;
    return launch_merge<S::D>(p, stream);
}

template <typename T, int D> cudaError_t launch_dim(const attn_decode_params &p, cudaStream_t stream) {
    constexpr int STAGES = D == 256 ? 3 : 6;
    if (p.n_heads / p.n_kv_heads > 8) return launch_shape<shape<T, D, 2, 4, STAGES>>(p, stream);
    if constexpr (D == 128) {
        switch (p.variant & 15) {
        case 1: return launch_shape<shape<T, D, 1, 8, 3>>(p, stream);
        case 2: return launch_shape<shape<T, D, 1, 4, 3>>(p, stream); /* 2 blocks */
        case 3: return launch_shape<shape<T, D, 1, 4, 4>>(p, stream);
        case 4: return launch_shape<shape<T, D, 1, 6, 4>>(p, stream);
        case 5: return launch_shape<shape<T, D, 1, 2, 6>>(p, stream); /* 2 blocks */
        default: break;
        }
    }
    return launch_shape<shape<T, D, 1, 4, STAGES>>(p, stream);
}

template <typename T> cudaError_t launch_type(const attn_decode_params &p, cudaStream_t stream) {
    switch (p.head_dim) {
    case 64: return launch_dim<T, 64>(p, stream);
    case 80: return launch_dim<T, 80>(p, stream);
    case 96: return launch_dim<T, 96>(p, stream);
    case 128: return launch_dim<T, 128>(p, stream);
    case 256: return launch_dim<T, 256>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}
}  // namespace

uint32_t attn_decode_blocks_per_sm(uint32_t head_dim, int variant) {
    (void)head_dim;
    variant &= 15;
    return variant == 2 || variant == 5 ? 2 : 1;
}

cudaError_t launch_attn_decode(const attn_decode_params &p, cudaStream_t stream) {
    if (p.n_kv_heads == 0 || p.n_heads % p.n_kv_heads != 0 || p.n_blocks == 0 ||
        p.n_heads / p.n_kv_heads > ATTN_DECODE_MAX_GROUP)
        return cudaErrorInvalidValue;
    switch (p.kv_dtype) {
    case DTYPE_BF16: return launch_type<__nv_bfloat16>(p, stream);
    case DTYPE_F16: return launch_type<__half>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}
