/* attn_decode.cu - see attn_decode.cuh.
 *
 *   tile (plan)  |unit|unit|unit|unit|unit| ...      unit: 16 slots of one page, K and V
 *   warp           0    1    2    3    0             each warp reads its own units, on its own
 *
 * A warp has a private ring of N_STAGES units in shared memory. It asks for units as far ahead as
 * the ring goes, over the ends of tiles too, so memory does not wait for arithmetic, and no barrier
 * stands in the loop. At the end of a tile the warps' results meet in shared memory, in the one
 * stage of each ring that has nothing under way. A unit comes by the copy engine (TMA, one
 * instruction for K and V, swizzled) or by cp.async (any device, padded rows).
 *
 * The tile is computed transposed, so that a group of up to 8 query heads fills the 8 columns of
 * mma.m16n8k16 (9 to 16 heads: two such tiles):
 *
 *   S^T [16 slots, 8 heads] = K [16, d] Q^T [d, 8]         A: ldmatrix       B: registers
 *   O^T [d, 8 heads]       += V^T [d, 16] P^T [16, 8]      A: ldmatrix.trans B: movmatrix of S^T
 *
 * Softmax is online, in base 2, f32. Slots past the tile's end are masked, and their values
 * replaced by zeros: a page's unused slots may hold anything, NaN too.  Before a window's first
 * slot in its unit they are masked alone.
 *
 * Pages of 8 bits (DTYPE_FP8) come by cp.async, and become bf16 as they leave shared memory.  A
 * scale is a power of two, so it multiplies the slot's scores, or its probabilities, and nothing
 * changes but where: those have the range of f32 and bf16.  No ldmatrix knows bytes, so dimensions
 * are permuted:
 *
 *   K   a lane takes four in a row, 4 (lane % 4) of 16, where mma has 2 and 2 more 8 behind them; Q
 *       is read the same way
 *   V   ldmatrix.trans turns pairs of dimensions as if each were one: rows lane / 4 and + 8 of mma
 *       are 2 (lane / 4) and the one behind it
 *
 * The merge is a kernel of its own, started while the attention ends. (The alternative, that
 * the last block to finish a part of an item merges them, was measured: 3 us less where no item is
 * cut, 4 us more where one is cut in 66.)
 *
 * Grid:   plan's n_blocks x N_WARPS * 32 threads; the merge: one block per (merge, query head).
 * Shared: N_WARPS rings.          Bound: memory, 2 * n_slots * n_kv_heads * head_dim * 2 bytes.
 * Oracle: sums in double (cuda/tests/attn_decode_test.cu). */
#include "cuda/attn_decode.cuh"

#include "cuda/keep.cuh"
#include "cuda/sm90.cuh"

namespace {

constexpr float LOG2_E = 1.4426950408889634f;

/* T: type of the pages; uint8_t is e4m3.  D: head_dim.  N_TILES: 8-column tiles for the group. */
template <typename T_, int D_, int N_TILES_, int N_WARPS_, int N_STAGES_, bool BULK_> struct shape {
    static constexpr bool FP8 = sizeof(T_) == 1;
    using T = std::conditional_t<FP8, __nv_bfloat16, T_>; /* what is multiplied */
    static constexpr int D = D_, N_TILES = N_TILES_, N_WARPS = N_WARPS_, N_STAGES = N_STAGES_;
    static constexpr bool BULK = BULK_;
    static constexpr int HEADS = 8 * N_TILES;
    static constexpr int K_STEPS = D / 16;
    static constexpr int PAGE_ROW = D * sizeof(T_);
    static constexpr int CHUNKS = PAGE_ROW / 16; /* of 16 bytes, in a row */
    /* In shared memory an odd number of them, but for the copy engine. */
    static constexpr int ROW_BYTES = PAGE_ROW + (BULK || CHUNKS % 2 ? 0 : 16);
    static constexpr int UNIT_BYTES = ATTN_UNIT_SLOTS * ROW_BYTES; /* K or V */
    static constexpr int SCALES_BYTES = FP8 ? 2 * ATTN_UNIT_SLOTS : 0; /* of K, of V: behind them */
    static constexpr int OUT_STRIDE = D + 4; /* floats: rows of a warp's result */
    /* A warp hands over its result in the one stage of its ring that has nothing under way. */
    static constexpr int RESULT_BYTES = (HEADS * OUT_STRIDE + 2 * HEADS) * 4;
    static constexpr int LOADED_BYTES = 2 * UNIT_BYTES + SCALES_BYTES;
    static constexpr int STAGE_BYTES =
        FP8 && RESULT_BYTES > LOADED_BYTES ? RESULT_BYTES : LOADED_BYTES;
    static constexpr int RING_BYTES = N_WARPS * N_STAGES * STAGE_BYTES;
    static_assert(RESULT_BYTES <= STAGE_BYTES, "result does not fit a stage");
};

/* A warp's result for a tile, as the others read it: in its free stage. */
template <class S> struct warp_result {
    float out[S::HEADS][S::OUT_STRIDE];
    float max[S::HEADS], sum[S::HEADS];
};

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

/* Read beside the first tile, so that the number of a page is still the second read. */
__device__ __forceinline__ const int32_t *table_of_layer(const attn_decode_params &p) {
    return p.step->table + (size_t)p.layer * p.step->layer_pages;
}

/* K and V of a unit: a box of the map that attn_decode_map_pool() makes. */
__device__ __forceinline__ void unit_load(shared_at to, const CUtensorMap *map, int row, int page,
                                          shared_at bar, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %2, %2, %4}], [%5], %6;" ::"r"(to.address),
                 "l"(map), "r"(0), "r"(row), "r"(page), "r"(bar.address), "l"(policy)
                 : "memory");
}

/* ---- asking for units -------------------------------------------------------------------- */

/* Where a warp is in asking for its units.  What it needs to know next was read long before: under
 * load an answer from memory takes microseconds. */
struct cursor {
    attn_tile tile, coming; /* coming: valid if tile.next >= 0 */
    int slot;               /* < tile.end, or the warp has no more units */
    int page;               /* lane i: the page of the unit i units behind the one at `first` */
    int n_used;             /* of these */
    const int32_t *table;   /* of the layer */
};

/* A warp's ring, and what it takes to fill it. */
struct ring {
    uint32_t stages, barriers; /* addresses in shared memory */
    uint64_t policy;
    int warp, lane;
};

template <class S> __device__ __forceinline__ void
cursor_enter(cursor *c, const attn_decode_params &p, const attn_tile &tile, int warp) {
    c->tile = tile;
    c->slot = tile.begin + warp * ATTN_UNIT_SLOTS;
    c->n_used = 32;
    if (tile.next >= 0) c->coming = load_tile(p.tiles, tile.next);
}

/* Moves to the next tile that has a unit for this warp, and sees to it that the page is known. */
template <class S> __device__ __forceinline__ void
cursor_settle(cursor *c, const attn_decode_params &p, int warp, int lane) {
    while (c->slot >= c->tile.end && c->tile.next >= 0) cursor_enter<S>(c, p, c->coming, warp);
    if (c->n_used < 32) return;
    const int slot = c->slot + lane * S::N_WARPS * ATTN_UNIT_SLOTS;
    c->n_used = 0;
    if (slot < c->tile.end)
        c->page = __ldg(c->table + c->tile.pages + slot / PAGE_TOKENS);
}

template <class S> __device__ __forceinline__ const char *
unit_address(const attn_decode_params &p, const attn_tile &tile, int slot, int page) {
    return static_cast<const char *>(p.pool) + page * p.page_bytes +
           (tile.kv_head * PAGE_TOKENS + slot % PAGE_TOKENS) * S::PAGE_ROW;
}

/* The scales of a unit's keys, then of its values. */
template <class S> __device__ __forceinline__ void
copy_scales(const attn_decode_params &p, const cursor &c, int page, uint32_t stage, const ring &r) {
    if (r.lane >= 2) return;
    const int row = (r.lane * (int)p.n_kv_heads + c.tile.kv_head) * PAGE_TOKENS;
    const char *scales = static_cast<const char *>(p.pool) + page * p.page_bytes +
                         (size_t)p.n_kv_heads * 2 * PAGE_TOKENS * S::D;
    copy_async(stage + 2 * S::UNIT_BYTES + r.lane * ATTN_UNIT_SLOTS,
               scales + row + c.slot % PAGE_TOKENS, true, r.policy);
}

/* K and V of a unit by cp.async, 16 bytes a lane. */
template <class S> __device__ __forceinline__ void
copy_unit(const attn_decode_params &p, const cursor &c, int page, uint32_t stage, const ring &r) {
    const char *keys = unit_address<S>(p, c.tile, c.slot, page);
    const char *values = keys + (size_t)p.n_kv_heads * PAGE_TOKENS * S::PAGE_ROW;
    const int n_rows = c.tile.end - c.slot;
    constexpr int N_CHUNKS = ATTN_UNIT_SLOTS * S::CHUNKS;
    if constexpr (S::FP8) copy_scales<S>(p, c, page, stage, r);
#pragma unroll
    for (int i = 0; i < (N_CHUNKS + 31) / 32; i++) {
        const int chunk = r.lane + 32 * i, row = chunk / S::CHUNKS;
        if (N_CHUNKS % 32 && chunk >= N_CHUNKS) break;
        const uint32_t to = stage + row * S::ROW_BYTES + chunk % S::CHUNKS * 16;
        copy_async(to, keys + chunk * 16, row < n_rows, r.policy);
        copy_async(to + S::UNIT_BYTES, values + chunk * 16, row < n_rows, r.policy);
    }
}

/* Asks for the cursor's unit and moves on.  Past the end the group of copies is empty. */
template <class S> __device__ __forceinline__ void ask_unit(cursor *c, const attn_decode_params &p,
                                                            int stage, const ring &r) {
    if (c->slot < c->tile.end) {
        const int page = __shfl_sync(~0u, c->page, c->n_used++);
        const uint32_t to = r.stages + stage * S::STAGE_BYTES;
        if constexpr (S::BULK) {
            if (r.lane == 0) {
                const uint32_t barrier = r.barriers + stage * 8;
                barrier_arrive_expect(barrier, S::STAGE_BYTES);
                unit_load(to, &p.map, c->tile.kv_head * PAGE_TOKENS + c->slot % PAGE_TOKENS, page,
                          barrier, r.policy);
            }
        } else {
            copy_unit<S>(p, *c, page, to, r);
        }
        c->slot += S::N_WARPS * ATTN_UNIT_SLOTS;
        cursor_settle<S>(c, p, r.warp, r.lane);
    }
    if constexpr (!S::BULK) copy_async_commit();
}

/* Waits for a unit.  The copy engine knows nothing of slots that are not in use: their values
 * become zeros here (cp.async has made them so). */
template <class S>
__device__ __forceinline__ void await_unit(int stage, uint32_t parity, int n_valid, const ring &r) {
    if constexpr (S::BULK) {
        barrier_wait(r.barriers + stage * 8, parity);
        if (n_valid >= ATTN_UNIT_SLOTS) return;
        const uint32_t values = r.stages + stage * S::STAGE_BYTES + S::UNIT_BYTES;
        for (int row = n_valid; row < ATTN_UNIT_SLOTS; row++)
            for (int chunk = r.lane; chunk < S::CHUNKS; chunk += 32)
                clear_16_bytes(values + chunk / 8 * (ATTN_UNIT_SLOTS * 128) + row * 128 +
                               chunk % 8 * 16);
        fence_async_proxy();
    } else {
        copy_async_wait<S::N_STAGES - 1>();
    }
    __syncwarp();
}

/* Where a row's pair of chunks (2 k + high) lies.  The copy engine swizzles: [D / 64][16 rows][64],
 * a row's 8 chunks permuted by the row's number. */
template <class S> struct rows_at {
    uint32_t base, swizzle;
    __device__ __forceinline__ rows_at(uint32_t unit, int row, int high) {
        base = unit + row * (S::BULK ? 128 : S::ROW_BYTES) + (S::BULK ? 0 : high * 16);
        swizzle = (row % 8 ^ high) * 16;
    }
    __device__ __forceinline__ uint32_t operator()(int k) const {
        if constexpr (!S::BULK) return base + k * 32;
        return base + k / 4 * (ATTN_UNIT_SLOTS * 128) + (swizzle ^ (k % 4 * 32));
    }
};

/* ---- a warp's attention ------------------------------------------------------------------ */

template <class S> struct state {
    uint32_t q[S::N_TILES][S::K_STEPS][2];        /* Q^T: rows d, columns heads */
    float out[S::N_TILES][S::K_STEPS][4];         /* O^T */
    float max[S::N_TILES][2], sum[S::N_TILES][2]; /* sum: of this lane's slots */
};

/* Asks for the queries of a tile; they are bf16 until convert_queries(). */
template <class S>
__device__ __forceinline__ void load_queries(state<S> *st, const attn_decode_params &p,
                                             const attn_tile &tile, int group, int lane) {
    constexpr int APART = S::FP8 ? 4 : 2; /* columns of a lane and of the next */
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(p.q) + tile.seq * p.q_stride +
                             (size_t)tile.kv_head * group * S::D + lane % 4 * APART;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        const int head = n * 8 + lane / 4;
#pragma unroll
        for (int k = 0; k < 2 * S::K_STEPS; k++) {
            const int column = S::FP8 ? k / 2 * 16 + k % 2 * 2 : k * 8;
            uint32_t x = 0;
            if (head < group)
                x = *reinterpret_cast<const uint32_t *>(q + (size_t)head * S::D + column);
            st->q[n][k / 2][k % 2] = x;
        }
    }
}

template <class S> __device__ __forceinline__ void convert_queries(state<S> *st) {
    if constexpr (std::is_same_v<typename S::T, __half>) {
#pragma unroll
        for (int i = 0; i < S::N_TILES * S::K_STEPS * 2; i++) {
            uint32_t *x = &st->q[i / 2 / S::K_STEPS][i / 2 % S::K_STEPS][i % 2];
            *x = pack<__half>(__uint_as_float(*x << 16), __uint_as_float(*x & 0xffff0000));
        }
    }
}

template <class S> __device__ __forceinline__ void clear_results(state<S> *st) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
#pragma unroll
        for (int k = 0; k < S::K_STEPS; k++)
            st->out[n][k][0] = st->out[n][k][1] = st->out[n][k][2] = st->out[n][k][3] = 0.0f;
        st->max[n][0] = st->max[n][1] = -INFINITY;
        st->sum[n][0] = st->sum[n][1] = 0.0f;
    }
}

/* s [slots lane / 4 and + 8][heads lane % 4 * 2 and + 1] = q.k of a unit. */
template <class S> __device__ __forceinline__ void
unit_scores(float (&s)[S::N_TILES][4], const state<S> &st, uint32_t stage, int lane) {
    /* Two sums, so that no product waits for the one before. */
    float odd[S::N_TILES][4] = {};
    const rows_at<S> at(stage, lane % 16, lane / 16);
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t keys[4];
        load_matrix(keys, at(k));
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            mma<typename S::T>(k % 2 ? odd[n] : s[n], keys, st.q[n][k][0], st.q[n][k][1]);
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        for (int i = 0; i < 4; i++) s[n][i] += odd[n][i];
}

/* What a tile does beside attention to everything: for its layer's window, for its sequence's
 * budget, or for a selection. */
struct duties {
    float *scores;  /* of the item: [slot][group]; NULL: none */
    bool turned;    /* keys are stored before RoPE */
    int first_seen; /* slot */
};

__device__ __forceinline__ duties duties_of(const attn_decode_params &p, const attn_tile &tile,
                                            int group) {
    duties d = {nullptr, false, 0};
    if (p.window > 0)
        d.first_seen = p.step->n_slots[(size_t)p.layer * p.step->n_seqs + tile.seq] - (int)p.window;
    const device_budget *budget = budget_of(*p.step, tile.seq);
    d.turned = budget && budget->cache_positions;
    const int32_t at = p.traces.scores ? scores_place(*p.step, tile.seq, p.selects) : -1;
    if (at >= 0)
        d.scores = p.traces.scores + (tile.kv_head * p.traces.score_stride + (size_t)at) * group;
    return d;
}

/* Where a chunk of 16 bytes of a row of a unit lies: see rows_at. */
template <class S>
__device__ __forceinline__ uint4 *chunk_at(uint32_t unit, int row, int chunk) {
    const uint32_t column = unit + chunk / 8 * (ATTN_UNIT_SLOTS * 128),
                   bulk = column + row * 128 + (chunk % 8 ^ row % 8) * 16,
                   plain = unit + row * S::ROW_BYTES + chunk * 16;
    return static_cast<uint4 *>(__cvta_shared_to_generic(S::BULK ? bulk : plain));
}

/* Turns a unit's keys in place, a row to two lanes.  Later the copy engine writes there again. */
template <class S>
__device__ __forceinline__ void turn_unit(const attn_decode_params &p, const attn_tile &tile,
                                          int slot, uint32_t unit, const int32_t *table,
                                          const ring &r) {
    const int row = r.lane % ATTN_UNIT_SLOTS, n = (int)p.turns.n_freqs / 8;
    const int page = __ldg(table + tile.pages + slot / PAGE_TOKENS);
    const char *states = static_cast<const char *>(p.pool) + page * p.page_bytes +
                         (size_t)p.n_kv_heads * 2 * PAGE_TOKENS * S::PAGE_ROW;
    const kv_page_state *state = reinterpret_cast<const kv_page_state *>(states) + tile.kv_head;
    if (slot + row < tile.end) {
        const uint32_t rank = state->rank[slot % PAGE_TOKENS + row];
#pragma unroll 1
        for (int i = r.lane / ATTN_UNIT_SLOTS; i < n; i += 2) {
            uint4 *const a = chunk_at<S>(unit, row, i), *const b = chunk_at<S>(unit, row, i + n);
            uint4 x = *a, y = *b;
            turn_pairs<typename S::T>(&x, &y, p.turns, i * 8, rank);
            *a = x;
            *b = y;
        }
    }
    if (S::BULK) fence_async_proxy();
    __syncwarp();
}

/* ---- keys and values in 8 bits ---- */

/* Of the two in the lower bytes; exact. */
__device__ __forceinline__ uint32_t bf16_of(uint32_t codes) {
    const float2 x = fp8_values(codes);
    return pack_bf16(x.x, x.y);
}

/* A lane's keys of a 16 x 16 matrix; slots lane / 4 (registers 0, 2) and + 8, dimensions from
 * 16 k + 4 (lane % 4) on. */
template <class S> __device__ __forceinline__ void
load_codes(uint32_t (&keys)[4], uint32_t unit, int k, int lane) {
    const uint32_t at = unit + lane / 4 * S::ROW_BYTES + k * 16 + lane % 4 * 4;
    const uint32_t low = load_shared(at), high = load_shared(at + 8 * S::ROW_BYTES);
    keys[0] = bf16_of(low), keys[1] = bf16_of(high);
    keys[2] = bf16_of(low >> 16), keys[3] = bf16_of(high >> 16);
}

/* The ranks of a lane's two slots. */
template <class S> __device__ __forceinline__ uint2
ranks_of(const attn_decode_params &p, const attn_tile &tile, int slot, const int32_t *table,
         int lane) {
    const int page = __ldg(table + tile.pages + slot / PAGE_TOKENS), at = slot + lane / 4;
    const char *states = static_cast<const char *>(p.pool) + page * p.page_bytes +
                         (size_t)p.n_kv_heads * 2 * PAGE_TOKENS * (S::D + 1);
    const uint32_t *rank =
        reinterpret_cast<const kv_page_state *>(states)[tile.kv_head].rank + at % PAGE_TOKENS;
    return make_uint2(at < tile.end ? rank[0] : 0, at + 8 < tile.end ? rank[8] : 0);
}

/* Turns the keys of matrix k in a lane's registers, as turn_unit() does in shared memory: `other`
 * is what they turn with, n_freqs dimensions before or behind. */
template <class S> __device__ __forceinline__ void
turn_codes(uint32_t (&keys)[4], const attn_decode_params &p, uint32_t unit, int k, uint2 ranks,
           int lane) {
    const int n = (int)p.turns.n_freqs / ATTN_DECODE_TURNS;
    if (k >= 2 * n) return;
    const bool is_first = k < n;
    const uint32_t freq = (is_first ? k : k - n) * 16 + lane % 4 * 4;
    uint32_t other[4];
    load_codes<S>(other, unit, is_first ? k + n : k - n, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t rank = i % 2 ? ranks.y : ranks.x;
        const float2 x = unpack_bf16(keys[i]), y = unpack_bf16(other[i]),
                     a = angle_of(p.turns, freq + i / 2 * 2, rank),
                     b = angle_of(p.turns, freq + i / 2 * 2 + 1, rank);
        const float s = is_first ? -1.0f : 1.0f;
        keys[i] = pack_bf16(x.x * a.x + s * y.x * a.y, x.y * b.x + s * y.y * b.y);
    }
}

/* Of scores, or of what is to multiply values: slots lane / 4 (x) and + 8. */
template <class S> __device__ __forceinline__ float2
unit_factors(uint32_t stage, bool values, int lane) {
    const uint32_t at = stage + 2 * S::UNIT_BYTES + values * ATTN_UNIT_SLOTS + lane / 4;
    return make_float2(fp8_factor(load_shared_byte(at)), fp8_factor(load_shared_byte(at + 8)));
}

/* unit_scores() of codes. */
template <class S> __device__ __forceinline__ void
code_scores(float (&s)[S::N_TILES][4], const state<S> &st, const attn_decode_params &p,
            const attn_tile &tile, bool turned, int slot, uint32_t stage, const int32_t *table,
            int lane) {
    const float2 factors = unit_factors<S>(stage, false, lane);
    float odd[S::N_TILES][4] = {};
    uint2 ranks = {};
    if (turned) ranks = ranks_of<S>(p, tile, slot, table, lane);
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t keys[4];
        load_codes<S>(keys, stage, k, lane);
        if (turned) turn_codes<S>(keys, p, stage, k, ranks, lane);
#pragma unroll
        for (int n = 0; n < S::N_TILES; n++)
            mma(k % 2 ? odd[n] : s[n], keys, st.q[n][k][0], st.q[n][k][1]);
    }
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        for (int i = 0; i < 4; i++)
            s[n][i] = (s[n][i] + odd[n][i]) * (i < 2 ? factors.x : factors.y);
}

/* Two matrices of values, 32 dimensions, at a time. */
template <class S> __device__ __forceinline__ void
add_codes(state<S> *st, const uint32_t (&prob)[S::N_TILES][2], uint32_t unit, int lane) {
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k += 2) {
        const int mine = min(k + lane / 16, S::K_STEPS - 1);
        uint32_t codes[4]; /* of slots 0 - 7, 8 - 15, and the same of the next matrix */
        load_matrix_trans(codes, unit + lane % 16 * S::ROW_BYTES + mine * 16);
#pragma unroll
        for (int j = 0; j < 2 && k + j < S::K_STEPS; j++) {
            const uint32_t *c = codes + 2 * j;
            const uint32_t values[4] = {
                bf16_of(__byte_perm(c[0], 0, 0x4420)), bf16_of(__byte_perm(c[0], 0, 0x4431)),
                bf16_of(__byte_perm(c[1], 0, 0x4420)), bf16_of(__byte_perm(c[1], 0, 0x4431))};
#pragma unroll
            for (int n = 0; n < S::N_TILES; n++)
                mma(st->out[n][k + j], values, prob[n][0], prob[n][1]);
        }
    }
}

/* A slot's scores of a group lie together, and slots in a row: whole lines are written.
 *
 * What they cost is what memory takes for writes among reads; the instructions cost 0.5 %.  On an
 * H100 a bare kernel that reads 1 GiB in 351 us needs 10 % more when it also writes a 32nd of that,
 * and 32 x 8192 slots of 32/8 heads, the same bytes, cost 10 % here:
 *
 *   bare kernel, 1 GiB read    writes a 64th: 6.7 %  a 32nd: 10.1  a 16th: 11.7  an 8th: 21.7
 *                              8 MB, over and over, which stay in L2: 0.7 to 2.7
 *   attention, a 32nd          1 x 131072: 5.7 %   64 x 2048: 6.5 to 7.2   32 x 8192: 10.2
 *                              4 x 65536: 10       64 x 8192: 9.3
 *
 * No way of writing them changed that: any cache policy, at the kernel's end, in a kernel of their
 * own (9 to 12 % beside bare reads), staged in shared memory and written by all blocks at a time,
 * rows padded, a part of L2 set aside.  Only less does: 2 bytes a score cost 3.5 to 7.9 %.  That
 * scores leave L2 before anything else helps the small ones: 5 % instead of 7.5 % of 1 x 131072. */
template <class S>
__device__ __forceinline__ void store_scores(float *item, const attn_decode_params &p,
                                             const attn_tile &tile,
                                             const float (&s)[S::N_TILES][4], int slot, int group,
                                             const ring &r) {
    const int lane = r.lane;
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++) {
        const int head = n * 8 + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int at = slot + lane / 4 + i * 8;
            if (at >= tile.end || head >= group) continue;
            float *const to = item + (size_t)at * group + head;
            const float2 x =
                make_float2(s[n][i * 2] * p.scale.outer, s[n][i * 2 + 1] * p.scale.outer);
            if (group % 2 == 0) {
                store_global(to, x, r.policy);
            } else {
                to[0] = x.x;
                if (head + 1 < group) to[1] = x.y;
            }
        }
    }
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

/* Of a unit's slots the first n_hidden. */
template <class S>
__device__ __forceinline__ void hide_slots(float (&s)[S::N_TILES][4], int n_hidden, int lane) {
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (lane / 4 + i / 2 * 8 < n_hidden) s[n][i] = -INFINITY;
}

/* Scores of one column tile to probabilities (unnormalised), in the layout of B.  factors: what the
 * slots' values are to be multiplied by, where they are codes. */
template <class S> __device__ __forceinline__ void softmax_step(state<S> *st, int n, float (&s)[4],
                                                                int n_valid, float scale_log2,
                                                                float2 factors,
                                                                uint32_t (&prob)[2], int lane) {
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
    if constexpr (S::FP8) {
        /* A slot that is masked may have any scale. */
        const float first = lane / 4 < n_valid ? factors.x : 0.0f,
                    second = lane / 4 + 8 < n_valid ? factors.y : 0.0f;
        s[0] *= first, s[1] *= first, s[2] *= second, s[3] *= second;
    }
    prob[0] = transpose_8x8(pack<typename S::T>(s[0], s[1]));
    prob[1] = transpose_8x8(pack<typename S::T>(s[2], s[3]));
}

template <class S>
__device__ __forceinline__ void attend_unit(state<S> *st, const attn_decode_params &p,
                                            const attn_tile &tile, const duties &d, int slot,
                                            uint32_t stage, int group, const int32_t *table,
                                            const ring &r) {
    const int lane = r.lane;
    float s[S::N_TILES][4] = {};
    float2 factors = {};
    if constexpr (S::FP8) {
        code_scores<S>(s, *st, p, tile, d.turned, slot, stage, table, lane);
        factors = unit_factors<S>(stage, true, lane);
    } else {
        if (d.turned) turn_unit<S>(p, tile, slot, stage, table, r);
        unit_scores<S>(s, *st, stage, lane);
    }
    if (p.scale.inner > 0) cap_products(s, p.scale.inner);
    if (d.scores) store_scores<S>(d.scores, p, tile, s, slot, group, r);
    if (slot < d.first_seen) hide_slots<S>(s, d.first_seen - slot, lane);
    uint32_t prob[S::N_TILES][2];
#pragma unroll
    for (int n = 0; n < S::N_TILES; n++)
        softmax_step<S>(st, n, s[n], tile.end - slot, p.scale.outer * LOG2_E, factors, prob[n],
                        lane);
    if constexpr (S::FP8) {
        add_codes<S>(st, prob, stage + S::UNIT_BYTES, lane);
        return;
    }
    const rows_at<S> at(stage + S::UNIT_BYTES, lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < S::K_STEPS; k++) {
        uint32_t values[4];
        load_matrix_trans(values, at(k));
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
                /* Where rows of mma lie. */
                float *row = &to->out[head][k * 16 + lane / 4 * (S::FP8 ? 2 : 1)];
                row[0] = st.out[n][k][i];
                row[S::FP8 ? 1 : 8] = st.out[n][k][i + 2];
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
template <class S> __device__ __forceinline__ float4 combine(const char *ring,
                                                             const int *free_stage, int head, int d,
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
            if (p.traces.lse && d == 0) p.traces.lse[row] = lse;
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

/* One query head: warp w takes partials w, w + MERGE_WARPS, ...; lanes lie along head_dim. */
template <int D> struct merge_row {
    static constexpr int VECS = (D / 4 + 31) / 32;
    float out[MERGE_WARPS][D];
    float max[MERGE_WARPS], sum[MERGE_WARPS];

    /* A warp's share, in batches whose reads are all under way at once.  An empty partial (-inf)
     * weighs nothing. */
    __device__ __forceinline__ void gather(const float *rows, const float *lses, int n, int group,
                                           int warp, int lane) {
        float4 acc[VECS] = {};
        float m = -INFINITY, weights = 0.0f;
        for (int first = warp; first < n; first += MERGE_WARPS * MERGE_BATCH) {
            float lse[MERGE_BATCH];
            float4 x[MERGE_BATCH][VECS] = {};
#pragma unroll
            for (int b = 0; b < MERGE_BATCH; b++) {
                const int i = first + b * MERGE_WARPS;
                lse[b] = i < n ? lses[(size_t)i * group] : -INFINITY;
                const float4 *from = reinterpret_cast<const float4 *>(rows + (size_t)i * group * D);
#pragma unroll
                for (int v = 0; v < VECS; v++)
                    if (i < n && lane + 32 * v < D / 4) x[b][v] = from[lane + 32 * v];
            }
            float new_max = m;
#pragma unroll
            for (int b = 0; b < MERGE_BATCH; b++) new_max = fmaxf(new_max, lse[b]);
            const float base = new_max == -INFINITY ? 0.0f : new_max, old = exp2_fast(m - base);
            weights *= old;
#pragma unroll
            for (int v = 0; v < VECS; v++)
                acc[v] =
                    make_float4(acc[v].x * old, acc[v].y * old, acc[v].z * old, acc[v].w * old);
#pragma unroll
            for (int b = 0; b < MERGE_BATCH; b++) {
                const float w = exp2_fast(lse[b] - base);
                weights += w;
#pragma unroll
                for (int v = 0; v < VECS; v++) add_scaled(&acc[v], x[b][v], w);
            }
            m = new_max;
        }
#pragma unroll
        for (int v = 0; v < VECS; v++)
            if (lane + 32 * v < D / 4)
                reinterpret_cast<float4 *>(out[warp])[lane + 32 * v] = acc[v];
        if (lane == 0) {
            max[warp] = m;
            sum[warp] = weights;
        }
    }

    __device__ __forceinline__ void store(__nv_bfloat16 *to, float *lse) const {
        float top = -INFINITY, weights = 0.0f, weight[MERGE_WARPS];
#pragma unroll
        for (int w = 0; w < MERGE_WARPS; w++) top = fmaxf(top, max[w]);
        if (top == -INFINITY) top = 0.0f;
#pragma unroll
        for (int w = 0; w < MERGE_WARPS; w++)
            weights += sum[w] * (weight[w] = exp2_fast(max[w] - top));
        const float scale = weights > 0.0f ? 1.0f / weights : 0.0f;
        for (int d = threadIdx.x; d < D; d += MERGE_WARPS * 32) {
            float x = 0.0f;
#pragma unroll
            for (int w = 0; w < MERGE_WARPS; w++) x += out[w][d] * weight[w];
            to[d] = __float2bfloat16(x * scale);
        }
        if (lse && threadIdx.x == 0) *lse = top + log2f(weights);
    }
};

template <int D> __global__ void __launch_bounds__(MERGE_WARPS * 32)
    attn_merge_kernel(const __grid_constant__ attn_decode_params p) {
    __shared__ __align__(16) merge_row<D> row;
    const int group = p.n_heads / p.n_kv_heads;
    int job = blockIdx.x;
    const int n_jobs = __ldg(&p.tiles->n_merges) * group;
    attn_merge merge = p.merges[job / group];
    let_next_start();
    wait_for_previous();
    while (job < n_jobs) {
        const int head = job % group;
        const size_t first = (size_t)merge.first_partial * group + head;
        row.gather(p.partial_out + first * D, p.partial_lse + first, merge.n_partials, group,
                   threadIdx.x / 32, threadIdx.x % 32);
        __syncthreads();
        const size_t at = (size_t)merge.seq * p.n_heads + merge.kv_head * group + head;
        row.store(static_cast<__nv_bfloat16 *>(p.out) + at * D,
                  p.traces.lse ? p.traces.lse + at : nullptr);
        job += gridDim.x;
        if (job < n_jobs) merge = p.merges[job / group];
        __syncthreads(); /* row is read */
    }
}

/* To L2 with a warp's first units, while the kernel before is still at work.  It may yet write one
 * of their slots: L2 is where that write ends too, so nothing old is kept. */
template <class S> __device__ __forceinline__ void
prefetch_first_units(const attn_decode_params &p, const attn_tile &tile, const int32_t *table,
                     int warp, int lane) {
    const int slot = tile.begin + (warp + lane * S::N_WARPS) * ATTN_UNIT_SLOTS;
    if (lane >= S::N_STAGES || slot >= tile.end) return;
    const int page = __ldg(table + tile.pages + slot / PAGE_TOKENS);
    const char *keys = unit_address<S>(p, tile, slot, page);
    const char *values = keys + (size_t)p.n_kv_heads * PAGE_TOKENS * S::PAGE_ROW;
    prefetch_l2(keys, ATTN_UNIT_SLOTS * S::PAGE_ROW);
    prefetch_l2(values, ATTN_UNIT_SLOTS * S::PAGE_ROW);
}

/* ---- the kernel -------------------------------------------------------------------------- */

/* Makes this warp's ring; the barriers are its own too. */
template <class S> __device__ __forceinline__ ring make_ring(char *memory, uint64_t *barriers) {
    ring r;
    r.warp = threadIdx.x / 32;
    r.lane = threadIdx.x % 32;
    r.policy = pass_through_policy();
    r.stages = (uint32_t)__cvta_generic_to_shared(memory) + r.warp * S::N_STAGES * S::STAGE_BYTES;
    r.barriers = (uint32_t)__cvta_generic_to_shared(barriers + r.warp * S::N_STAGES);
    if (S::BULK && r.lane < S::N_STAGES) barrier_init(r.barriers + r.lane * 8, 1);
    fence_async_proxy();
    __syncwarp();
    return r;
}

template <class S> __global__ void __launch_bounds__(S::N_WARPS * 32)
    attn_decode_kernel(const __grid_constant__ attn_decode_params p) {
#if __CUDA_ARCH__ < 900
    if constexpr (S::BULK) return; /* never launched: attn_decode_map_pool() asks for 9.0 */
#endif
    extern __shared__ __align__(1024) char memory[];
    __shared__ uint64_t barriers[S::N_WARPS * S::N_STAGES];
    __shared__ int free_stage[S::N_WARPS];
    const int group = p.n_heads / p.n_kv_heads;

    attn_tile tile = load_tile(p.tiles, blockIdx.x);
    cursor ahead = {};
    ahead.table = table_of_layer(p);
    const ring r = make_ring<S>(memory, barriers);
    if (p.overlap && !p.awaited) prefetch_first_units<S>(p, tile, ahead.table, r.warp, r.lane);
    cursor_enter<S>(&ahead, p, tile, r.warp);
    cursor_settle<S>(&ahead, p, r.warp, r.lane);
    let_next_start();
    wait_for_previous();
    if (tile.begin == tile.end) return;

    int next = 0; /* stage that the next unit asked for goes to: the free one */
    uint32_t parity = 1;
    for (; next < S::N_STAGES - 1; next++) ask_unit<S>(&ahead, p, next, r);
    state<S> st;
    load_queries<S>(&st, p, tile, group, r.lane);
    duties d = duties_of(p, tile, group);
    for (;;) {
        convert_queries<S>(&st);
        clear_results<S>(&st);
        for (int slot = tile.begin + r.warp * ATTN_UNIT_SLOTS; slot < tile.end;
             slot += S::N_WARPS * ATTN_UNIT_SLOTS) {
            ask_unit<S>(&ahead, p, next, r);
            /* The oldest unit lies behind the newest. */
            next = next + 1 == S::N_STAGES ? 0 : next + 1;
            parity ^= next == 0;
            await_unit<S>(next, parity, tile.end - slot, r);
            attend_unit<S>(&st, p, tile, d, slot, r.stages + next * S::STAGE_BYTES, group,
                           ahead.table, r);
            __syncwarp(); /* all lanes have read: the stage is free */
        }
        const attn_tile done = tile;
        if (done.next >= 0) tile = load_tile(p.tiles, done.next);
        hand_over<S>(reinterpret_cast<warp_result<S> *>(
                         memory + (size_t)(r.warp * S::N_STAGES + next) * S::STAGE_BYTES),
                     st, r.lane);
        if (done.next >= 0) {
            load_queries<S>(&st, p, tile, group, r.lane);
            d = duties_of(p, tile, group);
        }
        if (r.lane == 0) free_stage[r.warp] = next;
        if (S::BULK) fence_async_proxy();
        __syncthreads();
        store_tile<S>(p, done, memory, free_stage, group);
        if (done.next < 0) return;
        __syncthreads(); /* results are read: the stages are free again */
    }
}

/* ---- launching --------------------------------------------------------------------------- */

template <int D> cudaError_t launch_merge(const attn_decode_params &p, cudaStream_t stream) {
    const uint32_t n_jobs = p.max_merges * (p.n_heads / p.n_kv_heads), most = 4 * p.n_blocks;
    if (n_jobs == 0) return cudaSuccess;
    return launch_kernel({stream, p.overlap}, attn_merge_kernel<D>, n_jobs < most ? n_jobs : most,
                         MERGE_WARPS * 32, 0, p);
}

/* Launches, or counts the blocks that fit a multiprocessor if n_resident is given. */
template <class S>
cudaError_t launch_shape(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    const auto kernel = attn_decode_kernel<S>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::RING_BYTES);
    if (error != cudaSuccess) return error;
    if (n_resident)
        return cudaOccupancyMaxActiveBlocksPerMultiprocessor(n_resident, kernel, S::N_WARPS * 32,
                                                             S::RING_BYTES);
    error = launch_kernel({stream, p.overlap && !p.awaited}, kernel, p.n_blocks, S::N_WARPS * 32,
                          S::RING_BYTES, p);
    return error != cudaSuccess ? error : launch_merge<S::D>(p, stream);
}

/* Rings: through the copy engine 128 KiB, one block a multiprocessor (of 8 x 2, 8 x 3, 4 x 6, 12 x
 * 2 and two blocks of 4 x 3 the best on an H100); otherwise below 99 KiB, all that 8.6 has. */
template <typename T, int D>
cudaError_t launch_dim(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    constexpr bool FP8 = sizeof(T) == 1;
    constexpr int WARPS = D == 256 ? 2 : 4, STAGES = D <= 64 ? 4 : D <= 96 ? 3 : 2;
    if (p.n_heads / p.n_kv_heads > 8)
        return launch_shape<shape<T, D, 2, WARPS, STAGES, false>>(p, stream, n_resident);
    if constexpr (FP8)
        return launch_shape<shape<T, D, 1, WARPS, 4, false>>(p, stream, n_resident);
    if constexpr (D % 64 == 0 && !FP8)
        if (p.use_map)
            return launch_shape<shape<T, D, 1, D == 256 ? 4 : 8, D == 64 ? 4 : 2, true>>(
                p, stream, n_resident);
    return launch_shape<shape<T, D, 1, WARPS, STAGES, false>>(p, stream, n_resident);
}

template <typename T>
cudaError_t launch_type(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    switch (p.head_dim) {
    case 64: return launch_dim<T, 64>(p, stream, n_resident);
    case 80: return launch_dim<T, 80>(p, stream, n_resident);
    case 96: return launch_dim<T, 96>(p, stream, n_resident);
    case 128: return launch_dim<T, 128>(p, stream, n_resident);
    case 256: return launch_dim<T, 256>(p, stream, n_resident);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_checked(const attn_decode_params &p, cudaStream_t stream, int *n_resident) {
    if (p.n_kv_heads == 0 || p.n_heads == 0 || p.n_heads % p.n_kv_heads != 0 ||
        p.n_heads / p.n_kv_heads > ATTN_DECODE_MAX_GROUP)
        return cudaErrorInvalidValue;
    switch (p.kv_dtype) {
    case DTYPE_BF16: return launch_type<__nv_bfloat16>(p, stream, n_resident);
    case DTYPE_F16: return launch_type<__half>(p, stream, n_resident);
    case DTYPE_FP8: return launch_type<uint8_t>(p, stream, n_resident);
    default: return cudaErrorInvalidValue;
    }
}

bool suits_copy_engine(const attn_decode_params &p) {
    return p.kv_dtype != DTYPE_FP8 && p.head_dim % 64 == 0 && p.n_heads / p.n_kv_heads <= 8;
}
} // namespace

cudaError_t attn_decode_map_pool(attn_decode_params *p, uint32_t n_pages) {
    p->use_map = false;
    if (!suits_copy_engine(*p) || !runs_sm90_code(attn_merge_kernel<128>)) return cudaSuccess;
    const auto encode = tensor_map_encoder();
    if (!encode) return cudaErrorNotSupported;
    /* 64 columns, row, column / 64, K or V, page; a box is a unit, K and V. */
    const uint32_t n_columns = 64, n_blocks = p->head_dim / 64;
    const cuuint64_t row_bytes = p->head_dim * 2, n_rows = (cuuint64_t)p->n_kv_heads * PAGE_TOKENS;
    const cuuint64_t sizes[5] = {n_columns, n_rows, n_blocks, 2, n_pages};
    const cuuint64_t strides[4] = {row_bytes, n_columns * 2, n_rows * row_bytes, p->page_bytes};
    const cuuint32_t box[5] = {n_columns, ATTN_UNIT_SLOTS, n_blocks, 2, 1},
                     steps[5] = {1, 1, 1, 1, 1};
    const CUtensorMapDataType type = p->kv_dtype == DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                              : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const CUresult result =
        encode(&p->map, type, 5, const_cast<void *>(p->pool), sizes, strides, box, steps,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    p->use_map = result == CUDA_SUCCESS;
    return p->use_map ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t attn_decode_count_blocks(const attn_decode_params &p, uint32_t *n_blocks) {
    int device, n_multiprocessors, n_resident;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = launch_checked(p, nullptr, &n_resident);
    if (error == cudaSuccess) *n_blocks = (uint32_t)(n_multiprocessors * n_resident);
    return error;
}

cudaError_t launch_attn_decode(const attn_decode_params &p, cudaStream_t stream) {
    if (p.n_blocks == 0) return cudaErrorInvalidValue;
    return launch_checked(p, stream, nullptr);
}
