/* ring.cuh - how the warps of decode attention get keys and values: rings of units.
 *
 *   tile (plan)  |unit|unit|unit|unit|unit| ...      unit: 16 or 32 slots of one page, K and V
 *   warp           0    1    2    3    0             each warp reads its own units, on its own
 *
 *   shared       | warp 0: stage 0, 1 .. | warp 1: stage 0, 1 .. | ...       one unit to a stage
 *   stage        | K | V | if 8-bit: the scales of K, of V |
 *
 * A warp requests units as far ahead as its ring allows, across the ends of tiles, so memory does
 * not wait for arithmetic.  The loop has no barrier.  A unit is copied by the copy engine (TMA, one
 * instruction for K and V, swizzled) or by cp.async (any device, padded rows).
 *
 * Units of 8 bits that the copy engine copies are 32 slots: as many bytes as 16 slots of 16 bits,
 * and two independent rows of products for a warp to compute at the same time.  They begin at
 * multiples of 32 slots.  A tile may begin in the middle of one, whose first slots are then hidden.
 * Where few blocks read (attn_plan.h) they have more warps, and a unit is 16 slots.
 *
 * Thread: device code, by whole warps.  Memory: a ring in shared memory a warp. */
#ifndef CUDA_ATTENTION_DECODE_RING_CUH
#define CUDA_ATTENTION_DECODE_RING_CUH

#include "cuda/attention/decode/attn_decode.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/common/sm90.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

/* T: type of the pages; uint8_t is e4m3.  D: head_dim.  N_TILES: 8-column tiles for the group.
 * PLACED: scores may depend on where keys stand, because these are stored before RoPE or there is
 * ALiBi.  SLOT_TILES: a unit's tiles of 16 slots. */
template <typename T_, int D_, int N_TILES_, int N_WARPS_, int N_STAGES_, bool BULK_,
          bool PLACED_ = true, int SLOT_TILES_ = 1>
struct decode_shape {
    static constexpr enum page_format FORMAT = page_format_of<T_>();
    static constexpr bool FP8 = FORMAT == PAGE_FP8;
    using T = std::conditional_t<FP8, __half, T_>; /* what is multiplied */
    static constexpr int D = D_, N_TILES = N_TILES_, N_WARPS = N_WARPS_, N_STAGES = N_STAGES_;
    static constexpr bool BULK = BULK_, PLACED = PLACED_;
    static constexpr int SLOT_TILES = SLOT_TILES_; /* rows of mma tiles in a unit */
    static constexpr int UNIT_SLOTS = SLOT_TILES * ATTN_UNIT_SLOTS;
    static constexpr int HEADS = 8 * N_TILES;
    static constexpr int K_STEPS = D / 16;
    static constexpr int PAGE_ROW = page_row_bytes(FORMAT, D);
    static constexpr int CHUNKS = PAGE_ROW / 16;           /* of 16 bytes, in a row */
    static constexpr int CODE_STEPS = D % 64 == 0 ? 4 : 1; /* 8-bit: steps that one load feeds */
    /* In shared memory a row has an odd number of chunks, except for the copy engine. */
    static constexpr int ROW_BYTES = PAGE_ROW + (BULK || CHUNKS % 2 ? 0 : 16);
    /* The copy engine cuts rows into parts that it swizzles: [PAGE_ROW / part][rows][part]. */
    static constexpr int PART_BYTES = PAGE_ROW < 128 ? PAGE_ROW : 128;
    static constexpr int PITCH = BULK ? PART_BYTES : ROW_BYTES; /* from row to row */
    static constexpr int UNIT_BYTES = UNIT_SLOTS * ROW_BYTES;   /* K or V */
    static constexpr int SCALES_BYTES =
        2 * UNIT_SLOTS * page_scale_bytes(FORMAT); /* of K, of V: after them */
    static constexpr int OUT_STRIDE = D + 4;       /* floats: rows of a warp's result */
    /* A warp hands over its result in the one stage of its ring that no copy is writing. */
    static constexpr int RESULT_BYTES = (HEADS * OUT_STRIDE + 2 * HEADS) * 4;
    static constexpr int LOADED_BYTES = 2 * UNIT_BYTES + SCALES_BYTES;
    static constexpr int USED_BYTES =
        FP8 && RESULT_BYTES > LOADED_BYTES ? RESULT_BYTES : LOADED_BYTES;
    /* Swizzled matrices begin at multiples of 1024. */
    static constexpr int STAGE_BYTES = BULK ? (USED_BYTES + 1023) / 1024 * 1024 : USED_BYTES;
    static constexpr int RING_BYTES = N_WARPS * N_STAGES * STAGE_BYTES;
    static_assert(RESULT_BYTES <= STAGE_BYTES, "result does not fit a stage");
};

static __device__ __forceinline__ attn_tile load_tile(const attn_tile *tiles, int i) {
    union {
        int4 words[2];
        attn_tile tile;
    } u;
    const int4 *from = reinterpret_cast<const int4 *>(tiles + i);
    u.words[0] = __ldg(from);
    u.words[1] = __ldg(from + 1);
    return u.tile;
}

/* Returns the layer's part of the block table.  It is read at the same time as the first tile, so a
 * page number is still only the second read in a row. */
static __device__ __forceinline__ const int32_t *table_of_layer(const attn_decode_params &p) {
    return p.step->table + (size_t)p.layer * p.step->layer_pages;
}

/* Loads K and V of a unit: a box of the map that attn_decode_map_pool() makes. */
static __device__ __forceinline__ void unit_load(shared_at to, const CUtensorMap *map, int row,
                                                 int page, shared_at bar, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%2, %3, %2, %2, %4}], [%5], %6;" ::"r"(to.address),
                 "l"(map), "r"(0), "r"(row), "r"(page), "r"(bar.address), "l"(policy)
                 : "memory");
}

/* Loads the scales of K and V of a unit: a box of the other map. */
static __device__ __forceinline__ void scales_load(shared_at to, const CUtensorMap *map, int row,
                                                   int page, shared_at bar, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %2, %4}], [%5], %6;" ::"r"(to.address),
                 "l"(map), "r"(0), "r"(row), "r"(page), "r"(bar.address), "l"(policy)
                 : "memory");
}

/* Returns the slot at which a tile's first unit begins. */
template <class S> static __device__ __forceinline__ int first_unit(const attn_tile &tile) {
    return S::UNIT_SLOTS == ATTN_UNIT_SLOTS ? tile.begin : tile.begin & -S::UNIT_SLOTS;
}

/* ---- where units lie ---- */

/* Returns the number by whose exclusive or the copy engine permutes the chunks in a row's parts. */
template <class S> static __device__ __forceinline__ int swizzle_of(int row) {
    return S::PART_BYTES == 128 ? row % 8 : row / 2 % 4;
}

/* Returns the address of a 16-byte chunk of a unit's row; where it lies in a unit, if `unit` is 0.
 * The copy engine swizzles: [D / 64][16 rows][64] of 16 bits, with a row's 8 chunks permuted by the
 * row's number. */
template <class S>
static __device__ __forceinline__ uint32_t chunk_address(uint32_t unit, int row, int chunk) {
    const uint32_t column = unit + chunk / 8 * (S::UNIT_SLOTS * 128),
                   bulk = column + row * S::PITCH + (chunk % 8 ^ swizzle_of<S>(row)) * 16,
                   plain = unit + row * S::ROW_BYTES + chunk * 16;
    return S::BULK ? bulk : plain;
}

/* The places of chunks 2 k + high of a row; the first, chunk `high`, is at `first`.  The copy
 * engine's units begin at multiples of 128 bytes. */
template <class S> struct rows_at {
    uint32_t first;
    __device__ __forceinline__ uint32_t operator()(int k) const {
        if constexpr (!S::BULK) return first + k * 32;
        return (first ^ (k % 4 * 32)) + k / 4 * (S::UNIT_SLOTS * 128);
    }
};

template <class S>
static __device__ __forceinline__ uint4 *chunk_at(uint32_t unit, int row, int chunk) {
    return static_cast<uint4 *>(__cvta_shared_to_generic(chunk_address<S>(unit, row, chunk)));
}

/* ---- requesting units ---- */

/* A warp's position among the units that it requests.  What it needs next is read long before:
 * under load a read from memory takes microseconds. */
struct unit_cursor {
    attn_tile tile, coming; /* coming: valid if tile.next >= 0 */
    int slot;               /* < tile.end, or the warp has no more units */
    int page;               /* lane i: the page of unit i of 32 that were looked up together */
    int n_used;             /* how many of these 32 have been used */
    const int32_t *table;   /* of the layer */
};

/* A warp's ring, and what it takes to fill it. */
struct unit_ring {
    uint32_t stages, barriers; /* addresses in shared memory */
    uint64_t policy;
    int warp, lane;
    /* 16-bit: where in a stage the rows begin that this lane names to ldmatrix. */
    uint32_t key_row, value_row;
};

/* Makes this warp's ring, with barriers of its own. */
template <class S>
static __device__ __forceinline__ unit_ring make_ring(char *memory, uint64_t *barriers) {
    unit_ring r;
    /* The number comes from lane 0, so that the compiler knows that it is uniform.  Without the
     * copy engine nvcc 13.0 then encodes cp.async wrong (an illegal instruction with a head_dim of
     * 256); drop the condition when a later nvcc does not. */
    r.warp = S::BULK ? __shfl_sync(~0u, threadIdx.x / 32, 0) : threadIdx.x / 32;
    r.lane = threadIdx.x % 32;
    r.key_row = in_register(chunk_address<S>(0, r.lane % 16, r.lane / 16));
    r.value_row =
        in_register(chunk_address<S>(S::UNIT_BYTES, r.lane % 8 + r.lane / 16 * 8, r.lane / 8 % 2));
    r.policy = pass_through_policy();
    r.stages = (uint32_t)__cvta_generic_to_shared(memory) + r.warp * S::N_STAGES * S::STAGE_BYTES;
    r.barriers = (uint32_t)__cvta_generic_to_shared(barriers + r.warp * S::N_STAGES);
    if (S::BULK && r.lane < S::N_STAGES) barrier_init(r.barriers + r.lane * 8, 1);
    fence_async_proxy();
    __syncwarp();
    return r;
}

template <class S>
static __device__ __forceinline__ void cursor_enter(unit_cursor *c, const attn_decode_params &p,
                                                    const attn_tile &tile, int warp) {
    c->tile = tile;
    c->slot = first_unit<S>(tile) + warp * S::UNIT_SLOTS;
    c->n_used = 32;
    if (tile.next >= 0) c->coming = load_tile(p.tiles, tile.next);
}

/* Moves to the next tile that has a unit for this warp, and looks up its page if necessary. */
template <class S>
static __device__ __forceinline__ void cursor_settle(unit_cursor *c, const attn_decode_params &p,
                                                     int warp, int lane) {
    /* One branch for what few units need.  With cp.async it would cost registers: 13 beside 96. */
    if (S::BULK && c->slot < c->tile.end && c->n_used < 32) return;
    while (c->slot >= c->tile.end && c->tile.next >= 0) cursor_enter<S>(c, p, c->coming, warp);
    if (c->n_used < 32) return;
    const int slot = c->slot + lane * S::N_WARPS * S::UNIT_SLOTS;
    c->n_used = 0;
    if (slot < c->tile.end) c->page = __ldg(c->table + c->tile.pages + slot / PAGE_TOKENS);
}

template <class S>
static __device__ __forceinline__ const char *unit_address(const attn_decode_params &p,
                                                           const attn_tile &tile, int slot,
                                                           int page) {
    return static_cast<const char *>(p.pool) + page * p.page_bytes +
           (tile.kv_head * PAGE_TOKENS + slot % PAGE_TOKENS) * S::PAGE_ROW;
}

/* Prefetches a warp's first units into L2 while the kernel before still runs.  That kernel may
 * still write one of their slots, but its write ends in L2 too, so nothing stale remains. */
template <class S>
static __device__ __forceinline__ void prefetch_first_units(const attn_decode_params &p,
                                                            const attn_tile &tile,
                                                            const int32_t *table, int warp,
                                                            int lane) {
    const int slot = first_unit<S>(tile) + (warp + lane * S::N_WARPS) * S::UNIT_SLOTS;
    if (lane >= S::N_STAGES || slot >= tile.end) return;
    const int page = __ldg(table + tile.pages + slot / PAGE_TOKENS);
    const char *keys = unit_address<S>(p, tile, slot, page);
    const char *values = keys + (size_t)p.n_kv_heads * PAGE_TOKENS * S::PAGE_ROW;
    prefetch_l2(keys, S::UNIT_SLOTS * S::PAGE_ROW);
    prefetch_l2(values, S::UNIT_SLOTS * S::PAGE_ROW);
}

/* Copies the scales of a unit's keys, then of its values. */
template <class S>
static __device__ __forceinline__ void copy_scales(const attn_decode_params &p,
                                                   const unit_cursor &c, int page, uint32_t stage,
                                                   const unit_ring &r) {
    if (r.lane >= 2) return;
    const int row = (r.lane * (int)p.n_kv_heads + c.tile.kv_head) * PAGE_TOKENS;
    const char *scales = static_cast<const char *>(p.pool) + page * p.page_bytes +
                         page_scales_at(S::FORMAT, p.n_kv_heads, S::D);
    copy_async(stage + 2 * S::UNIT_BYTES + r.lane * S::UNIT_SLOTS,
               scales + row + c.slot % PAGE_TOKENS, true, r.policy);
}

/* Has the copy engine copy a unit, scales too. */
template <class S>
static __device__ __forceinline__ void bulk_copy_unit(const attn_decode_params &p,
                                                      const unit_cursor &c, int page,
                                                      uint32_t stage, uint32_t barrier,
                                                      const unit_ring &r) {
    barrier_arrive_expect(barrier, S::LOADED_BYTES);
    const int row = c.tile.kv_head * PAGE_TOKENS + (uint32_t)c.slot % PAGE_TOKENS;
    const unit_maps &maps = p.maps[S::SLOT_TILES - 1];
    unit_load(stage, &maps.elements, row, page, barrier, r.policy);
    if (S::FP8) scales_load(stage + 2 * S::UNIT_BYTES, &maps.scales, row, page, barrier, r.policy);
}

/* Copies K and V of a unit by cp.async, 16 bytes a lane. */
template <class S>
static __device__ __forceinline__ void copy_unit(const attn_decode_params &p, const unit_cursor &c,
                                                 int page, uint32_t stage, const unit_ring &r) {
    const char *keys = unit_address<S>(p, c.tile, c.slot, page);
    const char *values = keys + (size_t)p.n_kv_heads * PAGE_TOKENS * S::PAGE_ROW;
    const int n_rows = c.tile.end - c.slot;
    constexpr int N_CHUNKS = S::UNIT_SLOTS * S::CHUNKS;
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

/* Requests the cursor's unit and moves on.  Past the end the group of copies is empty. */
template <class S>
static __device__ __forceinline__ void ask_unit(unit_cursor *c, const attn_decode_params &p,
                                                int stage, const unit_ring &r) {
    if (c->slot < c->tile.end) {
        const int page = __shfl_sync(~0u, c->page, c->n_used++);
        const uint32_t to = r.stages + stage * S::STAGE_BYTES;
        if constexpr (S::BULK) {
            if (elect_lane()) bulk_copy_unit<S>(p, *c, page, to, r.barriers + stage * 8, r);
        } else {
            copy_unit<S>(p, *c, page, to, r);
        }
        c->slot += S::N_WARPS * S::UNIT_SLOTS;
        cursor_settle<S>(c, p, r.warp, r.lane);
    }
    if constexpr (!S::BULK) copy_async_commit();
}

/* Returns the slot that the step appends to a sequence; KV_FREE_SLOT if a kernel of the step
 * decides which, or fills the pages of a selection. */
static __device__ __forceinline__ uint32_t appended_slot(const attn_decode_params &p, int seq) {
    const device_step &step = *p.step;
    if (step.selects) return KV_FREE_SLOT;
    return (uint32_t)step.append_slot[(size_t)p.layer * step.n_seqs + seq];
}

/* Requests a warp's first units, as many as are ahead of the one that is used, as long as nothing
 * can be writing there.  Returns how many. */
template <class S>
static __device__ __forceinline__ int ask_settled_units(unit_cursor *c, const attn_decode_params &p,
                                                        const unit_ring &r) {
    for (int n = 0; n < S::N_STAGES - 1; n++) {
        if (c->slot >= c->tile.end) return n;
        const uint32_t appended = appended_slot(p, c->tile.seq);
        if (appended == KV_FREE_SLOT || appended - (uint32_t)c->slot < S::UNIT_SLOTS) return n;
        ask_unit<S>(c, p, n, r);
    }
    return S::N_STAGES - 1;
}

/* ---- units that are there ---- */

/* Waits for a unit.  The copy engine does not know which slots are unused, so their values are
 * cleared here; cp.async has already written zeros. */
template <class S>
static __device__ __forceinline__ void await_unit(int stage, uint32_t parity, int n_valid,
                                                  const unit_ring &r) {
    if constexpr (S::BULK) {
        barrier_wait(r.barriers + stage * 8, parity);
        if (n_valid >= S::UNIT_SLOTS) return;
        const uint32_t values = r.stages + stage * S::STAGE_BYTES + S::UNIT_BYTES;
#pragma unroll 1 /* few units have such slots */
        for (int row = n_valid; row < S::UNIT_SLOTS; row++)
            for (int chunk = r.lane; chunk < S::CHUNKS; chunk += 32)
                clear_16_bytes(values + chunk / 8 * (S::UNIT_SLOTS * 128) + row * S::PITCH +
                               chunk % 8 * 16);
        fence_async_proxy();
    } else {
        copy_async_wait<S::N_STAGES - 1>();
    }
    __syncwarp();
}

#endif
