/* attn_prefill_sm90.cu - prefill attention for Hopper: tensor-map copies, wgmma, warp
 * specialisation (the schedule is FlashAttention-3's).
 *
 *   block      one query tile of 128 rows and one head
 *   warps 0-3  producer: one warp copies Q, then K and V of one key pair after the other
 *   warps 4-11 two consumer warpgroups of 64 rows each:  S = Q K^T, online softmax, O += P V
 *
 *   step j of a consumer   tensor cores   | Q K(j) | P(j-1) V(j-1) |
 *                          other units             | softmax of S(j) | scale O, round P(j) |
 *   The two consumers take turns at issuing their products: one's softmax runs under the other's.
 *
 *   shared  | Q | K stage 0 .. | V stage 0 .. | barriers |
 *           each matrix 128 x D in 128-byte swizzle, as D / 64 columns of [128 rows][64]; the
 *           second page of a key pair follows the first in each column
 *
 *   q       bf16 rows through a tensor map [n_total_rows, n_heads * D]; rows past the end of the
 *           sequence belong to a neighbour: they are computed and not stored
 *   pages   the pool is a stack of matrices, one a page, of rows (is_v * n_kv_heads + kv_head) * 64
 *           + slot
 *
 * Of a split prompt (attn_split.h) a block takes all heads of a group, of fewer rows, in the same
 * matrix, and a run of their pairs:
 *
 *   q       a stack of matrices [n_heads][D], one a row: a box of (128 / group rows, group, 64)
 *
 * Of a sparse prompt a tile visits other pairs in the same way (attn_sparse.cuh).  The producers:
 *
 *   warps 0, 2  keys, values: pairs of pages in boxes of 64 rows, of groups in boxes of 16, or of
 *               64 where four of them are a page
 *   warp 1      meanwhile lists the tile's columns in shared memory
 *   all         then copy those, row by row (cp.async), into the same swizzle: 0 and 1 their keys,
 *               2 and 3 their values
 *   0, 2        the pairs of one half alone
 *
 * The last pairs of a sparse tile are for one consumer each, in turns.  Whoever takes such a pair
 * gives it back for both, and the other never looks at its stage again: as the number of stages is
 * even, each meets only stages that it has followed from phase to phase.
 *
 * Grid:   (heads, items): heads of one tile run together and share pages in L2.  One block per SM.
 *         Split: (KV heads, items).
 *         Sparse: (heads of a group, items, KV heads), one KV head after the other: tiles visit
 *         keys here and there, and those of one head nearly fit into L2.
 * Bound:  tensor cores, 4 * D operations per visible (row, slot) and head; of a split prompt with
 *         less than 128 rows times heads of a group, memory.
 * Oracle: engine/cpu/attention.c in plain C; the test's oracle is in double. */
#include "cuda/attn_prefill.cuh"

#include "cuda/attn_prefill_tile.cuh"
#include "cuda/attn_sparse.cuh"
#include "cuda/attn_split_tile.cuh"
#include "cuda/device.cuh"
#include "cuda/sm90.cuh"

enum {
    CONSUMERS = 2,
    GROUP_THREADS = 128,
    THREADS = (1 + CONSUMERS) * GROUP_THREADS,
    PAIR_KEYS = 2 * PAGE_TOKENS,
    COLUMN = 64, /* elements of a swizzled row */
    COLUMN_BYTES = PAIR_KEYS * COLUMN * 2,
    PAGE_COLUMN_BYTES = PAGE_TOKENS * COLUMN * 2,
    SM90_SHARED_BYTES = 227 * 1024, /* that a block may have */
    TURN_BARRIER = 1, /* named barriers 1 and 2: consumer 0's and 1's turn */
    PRODUCER_REGISTERS = 24,
    CONSUMER_REGISTERS = 240,
    LIST_BARRIER = 3, /* all producers: the columns are listed, the other pairs under way */
    SIDE_BARRIER = 4, /* 4 and 5: those of keys and those of values */
    SIDE_THREADS = GROUP_THREADS / 2,
    SPARSE_PRODUCER_REGISTERS = 40,
    SPARSE_CONSUMER_REGISTERS = 232
};

template <int D> struct sm90_plan {
    static constexpr int STAGES = D == 128 ? 2 : 4;
    static constexpr int TILE_BYTES = D / COLUMN * COLUMN_BYTES;
    unsigned char q[TILE_BYTES];
    unsigned char k[STAGES][TILE_BYTES], v[STAGES][TILE_BYTES];
    uint64_t q_full, tail_full, k_full[STAGES], k_empty[STAGES], v_full[STAGES], v_empty[STAGES];
};

/* With room for the columns of a sparse tile behind the rest. */
template <int D> struct sparse_plan {
    struct sm90_plan<D> dense;
    int32_t columns[1]; /* sparse_view.max_columns, in whole pairs */
};

struct sm90_maps {
    CUtensorMap q, pool;
};

struct sparse_maps {
    CUtensorMap q, pool, groups; /* the pool twice: in boxes of a page and of a group */
};

/* --- producer: one warp; lane 0 gives the orders --- */

template <int D>
static __device__ void load_queries(struct sm90_plan<D> &plan, const CUtensorMap *queries,
                                    int first_row, int head) {
    barrier_arrive_expect(&plan.q_full, sm90_plan<D>::TILE_BYTES);
    for (int c = 0; c < D / COLUMN; c++)
        tensor_load(plan.q + c * COLUMN_BYTES, queries, head * D + c * COLUMN, first_row,
                    &plan.q_full);
}

/* Of a split tile, row after row with all heads of a group: a box of heads and rows. */
template <int D>
static __device__ void load_group(struct sm90_plan<D> &plan, const CUtensorMap *queries,
                                  const struct split_tile &t) {
    const int group = t.pairs.group;
    barrier_arrive_expect(&plan.q_full, ATTN_PREFILL_TILE / group * group * D * 2);
    for (int c = 0; c < D / COLUMN; c++)
        tensor_load(plan.q + c * COLUMN_BYTES, queries, c * COLUMN, t.kv_head * group,
                    t.rows.first_row, &plan.q_full);
}

/* Rows from `row` on of both pages. */
template <int D>
static __device__ void load_pages(unsigned char *to, const CUtensorMap *pool, int row, int page0,
                                  int page1, uint64_t *bar) {
    barrier_arrive_expect(bar, sm90_plan<D>::TILE_BYTES);
    for (int c = 0; c < D / COLUMN; c++) {
        tensor_load(to + c * COLUMN_BYTES, pool, c * COLUMN, row, page0, bar);
        tensor_load(to + c * COLUMN_BYTES + PAGE_COLUMN_BYTES, pool, c * COLUMN, row, page1, bar);
    }
}

/* Slots past the end hold anything, and 0 times NaN would be NaN: their values become 0. */
template <int D>
static __device__ void clear_tail(unsigned char *v, struct key_pair pair, int n_slots, int lane) {
    for (int row = 0; row < PAIR_KEYS; row++) {
        const int block = row < PAGE_TOKENS ? pair.first : pair.second;
        if (block * PAGE_TOKENS + row % PAGE_TOKENS < n_slots) continue;
        for (int i = lane; i < D / 8; i += 32)
            *(uint4 *)(v + i / 8 * COLUMN_BYTES + row * 128 + i % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
}

template <int D>
static __device__ void load_values(struct sm90_plan<D> &plan, const CUtensorMap *pool, int stage,
                                   int row, int page0, int page1, struct key_pair pair,
                                   int n_slots, uint32_t &tail_parity, int lane) {
    if ((max(pair.first, pair.second) + 1) * PAGE_TOKENS <= n_slots) {
        if (lane == 0) load_pages<D>(plan.v[stage], pool, row, page0, page1, &plan.v_full[stage]);
        return;
    }
    if (lane == 0) load_pages<D>(plan.v[stage], pool, row, page0, page1, &plan.tail_full);
    barrier_wait(&plan.tail_full, tail_parity);
    tail_parity ^= 1;
    clear_tail<D>(plan.v[stage], pair, n_slots, lane);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) barrier_arrive(&plan.v_full[stage]);
}

/* Keys and values; somebody else gives the order for Q. */
template <int D, typename Pairs>
static __device__ void produce(struct sm90_plan<D> &plan, const struct sm90_maps &maps,
                               const struct prefill_tile &t, const Pairs &pairs, int kv_head,
                               int n_kv_heads) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    const int lane = threadIdx.x % 32, keys = kv_head * PAGE_TOKENS,
              values = (n_kv_heads + kv_head) * PAGE_TOKENS;
    uint32_t tail_parity = 0;
    struct key_pair pair = pairs.at(0);
    int page0 = page_of_block(t, pair.first), page1 = page_of_block(t, pair.second);
    for (int j = 0; j < pairs.n; j++) {
        const int stage = j % STAGES;
        const uint32_t parity = j / STAGES % 2 ^ 1; /* the first round finds the stages empty */
        /* The next pair's page numbers are on their way while this one waits for its stage. */
        const struct key_pair next = pairs.at(min(j + 1, pairs.n - 1));
        const int next0 = page_of_block(t, next.first), next1 = page_of_block(t, next.second);
        barrier_wait(&plan.k_empty[stage], parity);
        if (lane == 0)
            load_pages<D>(plan.k[stage], &maps.pool, keys, page0, page1, &plan.k_full[stage]);
        barrier_wait(&plan.v_empty[stage], parity);
        load_values<D>(plan, &maps.pool, stage, values, page0, page1, pair, t.n_slots, tail_parity,
                       lane);
        pair = next, page0 = next0, page1 = next1;
    }
}

/* --- producers of a sparse tile --- */

/* Keys or values: where they go, and their rows in a page. */
template <int D> struct side {
    unsigned char *to; /* [STAGES][TILE_BYTES] */
    uint64_t *full, *empty;
    int first_row, id;
};

template <int D>
static __device__ __forceinline__ struct side<D> side_of(struct sm90_plan<D> &plan, int id,
                                                         int kv_head, int n_kv_heads) {
    return id == 0 ? side<D>{plan.k[0], plan.k_full, plan.k_empty, kv_head * PAGE_TOKENS, id}
                   : side<D>{plan.v[0], plan.v_full, plan.v_empty,
                             (n_kv_heads + kv_head) * PAGE_TOKENS, id};
}

template <int D>
static __device__ __forceinline__ void wait_empty(const struct side<D> &side, int pair) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    barrier_wait(&side.empty[pair % STAGES], pair / STAGES % 2 ^ 1);
}

/* A lane's share of a pair: `rows` slots from one on, 64 elements wide. */
struct box {
    int rows, to_row, column; /* a column past the last: nothing */
    int page, row;            /* in the pool */
};

/* Four lanes' groups, highest first, that are a page: the last lane takes it all.  Order within a
 * pair is free where there is nothing to mask, and such groups are never the repeated ones. */
static __device__ __forceinline__ int join_groups(struct box &box, int slot, int lane) {
    const int last = SPARSE_PAGE_GROUPS - 1, behind = last - lane % SPARSE_PAGE_GROUPS;
    const int lowest = __shfl_sync(~0u, slot, lane | last);
    const uint32_t fits = __ballot_sync(~0u, lowest % PAGE_TOKENS == 0 &&
                                                 slot == lowest + behind * SPARSE_GROUP);
    if ((~fits >> (lane & ~last) & ((1 << SPARSE_PAGE_GROUPS) - 1)) != 0) return slot;
    box.rows = PAGE_TOKENS;
    box.to_row -= lane % SPARSE_PAGE_GROUPS * SPARSE_GROUP;
    if (behind > 0) box.column = INT32_MAX;
    return lowest;
}

/* A whole warp asks. */
static __device__ __forceinline__ struct box box_of(const struct prefill_tile &t,
                                                    const struct sparse_keys &keys, int pair,
                                                    int lane) {
    const bool pages = keys.has_pages(pair);
    struct box box;
    box.rows = pages ? PAGE_TOKENS : SPARSE_GROUP;
    box.to_row = pages ? lane % 2 * PAGE_TOKENS : lane % SPARSE_TILE_GROUPS * SPARSE_GROUP;
    box.column = pages ? lane / 2 : lane / SPARSE_TILE_GROUPS;
    int slot = keys.slot(pair, box.to_row);
    if (!pages) slot = join_groups(box, slot, lane);
    box.page = page_of_block(t, slot / PAGE_TOKENS);
    box.row = slot % PAGE_TOKENS;
    return box;
}

template <int D>
static __device__ __forceinline__ void load_box(unsigned char *to, const struct sparse_maps &maps,
                                                const struct box &box, int first_row,
                                                uint64_t *bar, int lane) {
    if (lane == 0) barrier_arrive_expect(bar, sm90_plan<D>::TILE_BYTES);
    __syncwarp();
    if (box.column < D / COLUMN)
        tensor_load(to + box.column * COLUMN_BYTES + box.to_row * COLUMN * 2,
                    box.rows == PAGE_TOKENS ? &maps.pool : &maps.groups, box.column * COLUMN,
                    first_row + box.row, box.page, bar);
}

/* A side's first warp: pairs [from, end), none of them columns. */
template <int D>
static __device__ void produce_boxes(struct sm90_plan<D> &plan, const struct sparse_maps &maps,
                                     const struct prefill_tile &t, const struct sparse_keys &keys,
                                     const struct side<D> &side, int from, int end, int lane) {
    if (from == end) return;
    constexpr int STAGES = sm90_plan<D>::STAGES, BYTES = sm90_plan<D>::TILE_BYTES;
    uint32_t tail_parity = 0;
    struct box next = box_of(t, keys, from, lane);
    for (int j = from; j < end; j++) {
        const struct box box = next;
        const int stage = j % STAGES, block = keys.causal_block(j);
        unsigned char *to = side.to + stage * BYTES;
        /* Known early: a distance and then a page number are waited for. */
        next = box_of(t, keys, min(j + 1, end - 1), lane);
        wait_empty(side, j);
        if (side.id == 0 || (block + 2) * PAGE_TOKENS <= t.n_slots) {
            load_box<D>(to, maps, box, side.first_row, &side.full[stage], lane);
            continue;
        }
        load_box<D>(to, maps, box, side.first_row, &plan.tail_full, lane);
        barrier_wait(&plan.tail_full, tail_parity);
        tail_parity ^= 1;
        clear_tail<D>(to, {block, block + 1}, t.n_slots, lane);
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) barrier_arrive(&side.full[stage]);
    }
}

/* A warp's half of a pair of columns, from key `first` of the pair on: a lane looks up two slots,
 * and D / 8 lanes copy a row. */
template <int D>
static __device__ __forceinline__ void copy_columns(unsigned char *to, const struct kv_pool &kv,
                                                    const struct prefill_tile &t,
                                                    const int32_t *columns, int n_valid, int first,
                                                    int first_row, int lane) {
    constexpr int LANES = D / 8;
    const char *from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int slot = columns[min(first + h * 32 + lane, n_valid - 1)] & COLUMN_SLOT;
        from[h] = (const char *)kv.base + t.pages[slot / PAGE_TOKENS] * kv.page_bytes +
                  (first_row + slot % PAGE_TOKENS) * (D * 2);
    }
    const int chunk = lane % LANES;
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll 4
        for (int i = 0; i < 32; i += 32 / LANES) {
            const int source = i + lane / LANES, row = first + h * 32 + source;
            const char *at = (const char *)__shfl_sync(~0u, (unsigned long long)from[h], source);
            copy_async(to + chunk / 8 * COLUMN_BYTES + row * 128 + (chunk % 8 ^ row % 8) * 16,
                       at + chunk * 16, true);
        }
}

/* Both warps of a side.  Keys and values come by ordinary copies, which the tensor cores see after
 * the fence. */
template <int D>
static __device__ void produce_columns(const struct kv_pool &kv, const struct prefill_tile &t,
                                       const struct sparse_keys &keys, const struct side<D> &side,
                                       const int32_t *columns) {
    constexpr int STAGES = sm90_plan<D>::STAGES, BYTES = sm90_plan<D>::TILE_BYTES;
    const int thread = threadIdx.x % SIDE_THREADS;
    for (int j = keys.n_listed; j < keys.n_shared; j++) {
        wait_empty(side, j);
        copy_columns<D>(side.to + j % STAGES * BYTES, kv, t,
                        columns + (j - keys.n_listed) * PAIR_KEYS, keys.n_valid(j),
                        thread / 32 * (PAIR_KEYS / 2), side.first_row, thread % 32);
        copy_async_wait_all();
        fence_async_proxy();
        named_sync(SIDE_BARRIER + side.id, SIDE_THREADS);
        if (thread == 0) barrier_arrive(&side.full[j % STAGES]);
    }
}

/* The four warps of the producing group.  Before they meet, the first warp of each side has waited
 * for every stage's last pair but one: whoever waits for a stage after that cannot mistake an
 * earlier phase for the one it needs. */
template <int D>
static __device__ void produce_sparse(struct sparse_plan<D> &plan, const struct sparse_maps &maps,
                                      const struct attn_prefill_params &p,
                                      const struct sparse_view &s, const struct prefill_tile &t,
                                      const struct sparse_keys &keys, int head) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_kv_heads = p.kv.n_kv_heads;
    const struct side<D> side =
        side_of(plan.dense, warp / 2, head / (p.n_heads / n_kv_heads), n_kv_heads);
    if (threadIdx.x == 0) load_queries(plan.dense, &maps.q, t.first_row, head);
    if (warp == 1 && keys.n_columns)
        list_columns(s, head, keys.own, 0, plan.columns, keys.n_columns);
    const bool boxes = warp % 2 == 0;
    if (boxes) produce_boxes(plan.dense, maps, t, keys, side, 0, keys.n_listed, lane);
    if (keys.n_columns) {
        named_sync(LIST_BARRIER, GROUP_THREADS);
        produce_columns(p.kv, t, keys, side, plan.columns);
    }
    if (boxes) produce_boxes(plan.dense, maps, t, keys, side, keys.n_shared, keys.n, lane);
}

/* --- consumers --- */

/* Accumulator fragments: element e of 4-tuple n is row lane / 4 + e / 2 * 8 of the warp's 16 rows,
 * column n * 8 + lane % 4 * 2 + e % 2.  Hides the slots that the rows may not see; `apart`: how
 * many more the second of the thread's rows sees. */
static __device__ __forceinline__ void mask_scores(float (&s)[64], struct key_pair pair,
                                                   int visible, int apart = 8) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int block = i < 32 ? pair.first : pair.second;
        const int slot = block * PAGE_TOKENS + i % 32 / 4 * 8 + column + i % 2;
        if (slot >= visible + i % 4 / 2 * apart) s[i] = -INFINITY;
    }
}

/* Hides what lies before the rows' windows; that of the thread's first row begins at slot
 * `first`. */
static __device__ __forceinline__ void mask_before(float (&s)[64], struct key_pair pair, int first,
                                                   int apart = 8) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++) {
        const int block = i < 32 ? pair.first : pair.second;
        const int slot = block * PAGE_TOKENS + i % 32 / 4 * 8 + column + i % 2;
        if (slot < first + i % 4 / 2 * apart) s[i] = -INFINITY;
    }
}

/* Hides all keys from n_valid on. */
static __device__ __forceinline__ void mask_behind(float (&s)[64], int n_valid) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 64; i++)
        if (i / 4 * 8 + column + i % 2 >= n_valid) s[i] = -INFINITY;
}

/* Hides the columns that a half visits with their groups. */
static __device__ __forceinline__ void mask_columns(float (&s)[64], const int32_t *columns,
                                                    int half) {
    const int column = threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if ((uint32_t)columns[n * 8 + column + e] >> (COLUMN_HIDDEN + half) & 1)
                s[4 * n + e] = s[4 * n + e + 2] = -INFINITY;
}

/* What the rows may not see of pair j: this thread's first row, and a consumer whose first row sees
 * first_visible slots.  columns: of a sparse tile. */
static __device__ __forceinline__ void hide(float (&s)[64], const struct dense_pairs &pairs, int j,
                                            const struct prefill_tile &t, const int32_t *, int row,
                                            int first_visible) {
    const struct key_pair pair = pairs.at(j);
    if ((max(pair.first, pair.second) + 1) * PAGE_TOKENS > first_visible)
        mask_scores(s, pair, t.first_visible + row);
}

static __device__ __forceinline__ void hide(float (&s)[64], const struct window_pairs &pairs, int j,
                                            const struct prefill_tile &t, const int32_t *, int row,
                                            int first_visible) {
    const struct key_pair pair = pairs.at(j);
    if ((pair.second + 1) * PAGE_TOKENS > first_visible)
        mask_scores(s, pair, t.first_visible + row);
    if (pair.first * PAGE_TOKENS < first_visible + ATTN_PREFILL_TILE / CONSUMERS - pairs.window)
        mask_before(s, pair, t.first_visible + row - pairs.window);
}

/* Rows of the tile are group times closer, which the second condition leaves room for. */
static __device__ __forceinline__ void hide(float (&s)[64], const struct split_pairs &pairs, int j,
                                            const struct prefill_tile &t, const int32_t *, int row,
                                            int first_visible) {
    const struct key_pair pair = pairs.at(j);
    const bool behind = (pair.second + 1) * PAGE_TOKENS > first_visible;
    const bool before =
        pair.first * PAGE_TOKENS < first_visible + ATTN_PREFILL_TILE / CONSUMERS - pairs.window;
    if (!behind && !before) return;
    const int at = row_of(pairs, row), apart = row_of(pairs, row + 8) - at;
    if (behind) mask_scores(s, pair, t.first_visible + at, apart);
    if (before) mask_before(s, pair, t.first_visible + at - pairs.window, apart);
}

static __device__ __forceinline__ void hide(float (&s)[64], const struct sparse_keys &keys, int j,
                                            const struct prefill_tile &t, const int32_t *columns,
                                            int row, int first_visible) {
    const int block = keys.causal_block(j), n_valid = keys.n_valid(j);
    /* Room for whole pairs is there: what lies behind the list is masked below. */
    if (keys.has_columns(j))
        mask_columns(s, columns + (j - keys.n_listed) * PAIR_KEYS, row / SPARSE_HALF);
    if ((block + 2) * PAGE_TOKENS > first_visible)
        mask_scores(s, {block, block + 1}, t.first_visible + row);
    if (n_valid < PAIR_KEYS) mask_behind(s, n_valid);
}

/* Turns scores into weights; factor[h] is what earlier sums and outputs are multiplied by.  A row
 * that has seen nothing keeps the maximum -inf, which must not meet another -inf in a subtraction;
 * where the maximum stays, the factor is exactly 1, so that masked blocks leave no trace. */
static __device__ __forceinline__ void update_softmax(float (&s)[64], float (&top)[2],
                                                      float (&sum)[2], float (&factor)[2],
                                                      float scale) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = top[h];
#pragma unroll
        for (int i = 2 * h; i < 64; i += 4) m = fmaxf(m, fmaxf(s[i], s[i + 1]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        const float base = m == -INFINITY ? 0.0f : m;
        factor[h] = exp2_fast((top[h] - base) * scale);
        top[h] = m;
        const float shift = base * scale;
        float total = 0.0f;
#pragma unroll
        for (int i = 2 * h; i < 64; i += 4) {
            s[i] = exp2_fast(fmaf(s[i], scale, -shift));
            s[i + 1] = exp2_fast(fmaf(s[i + 1], scale, -shift));
            total += s[i] + s[i + 1];
        }
        sum[h] = fmaf(sum[h], factor[h], total);
    }
}

template <int N>
static __device__ __forceinline__ void scale_rows(float (&o)[N], const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < N; i++) o[i] *= factor[i % 4 / 2];
}

/* The accumulator's layout, two 8-column tuples at a time, is wgmma's layout for A in registers. */
static __device__ __forceinline__ void round_weights(uint32_t (&w)[32], const float (&s)[64]) {
#pragma unroll
    for (int i = 0; i < 32; i++) w[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

template <int D>
static __device__ __forceinline__ void issue_scores(float (&s)[64], uint64_t q, uint64_t k) {
#pragma unroll
    for (int d = 0; d < D; d += 16) {
        const int at = d / COLUMN * COLUMN_BYTES + d % COLUMN * 2;
        wgmma_shared_a(s, wgmma_advance(q, at), wgmma_advance(k, at), d > 0);
    }
    wgmma_commit();
}

template <int D>
static __device__ __forceinline__ void issue_values(float (&o)[D / 2], const uint32_t (&w)[32],
                                                    uint64_t v) {
#pragma unroll
    for (int k = 0; k < PAIR_KEYS / 16; k++)
        wgmma_register_a(o, w + 4 * k, wgmma_advance(v, k * 16 * 128));
    wgmma_commit();
}

/* After a wait for wgmma: one thread speaks for the warpgroup, whose products complete together;
 * and another one for a warpgroup that does not take the pair. */
static __device__ __forceinline__ void release(uint64_t *bar, int thread, bool shared) {
    if (thread < (shared ? 1 : CONSUMERS)) barrier_arrive(bar);
}

struct consumer {
    int me, thread; /* warpgroup 0 or 1, thread in it */
    uint64_t q;     /* its 64 rows */
};

/* What a consumer thread holds of its rows: scores, weights, output, and of two rows the maximum,
 * the sum and the last factor. */
template <int D> struct rows_state {
    float s[64], o[D / 2], top[2], sum[2], factor[2];
    uint32_t w[32];
};

/* The first pair's weights; there are no products yet to run beside the softmax. */
template <int D, typename Weigh>
static __device__ __forceinline__ void first_pair(struct sm90_plan<D> &plan,
                                                  struct rows_state<D> &r, const struct consumer &c,
                                                  const Weigh &weigh) {
    barrier_wait(&plan.q_full, 0);
    barrier_wait(&plan.k_full[0], 0);
    wgmma_fence();
    issue_scores<D>(r.s, c.q, wgmma_matrix(plan.k[0], 0));
    wgmma_wait<0>();
    wgmma_pin(r.s);
    release(&plan.k_empty[0], c.thread, true); /* the first pair is for both */
    weigh(r.s, 0);
    round_weights(r.w, r.s);
}

/* Pair j's scores and softmax, with the values of the pair before it under way meanwhile. */
template <int D, typename Pairs, typename Weigh>
static __device__ __forceinline__ void next_pair(struct sm90_plan<D> &plan, struct rows_state<D> &r,
                                                 const struct consumer &c, const Pairs &pairs,
                                                 int j, const Weigh &weigh) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    const int last = pairs.before(j), stage = j % STAGES, before = last % STAGES;
    barrier_wait(&plan.k_full[stage], j / STAGES % 2);
    named_sync(TURN_BARRIER + c.me, CONSUMERS * GROUP_THREADS);
    wgmma_pin(r.s);
    wgmma_pin(r.o);
    wgmma_fence();
    issue_scores<D>(r.s, c.q, wgmma_matrix(plan.k[stage], 0));
    barrier_wait(&plan.v_full[before], last / STAGES % 2);
    wgmma_fence(); /* again: after the wait's branches the compiler would serialise */
    issue_values<D>(r.o, r.w, wgmma_matrix(plan.v[before], COLUMN_BYTES));
    /* Every turn that is handed over is taken: the last of all is handed to nobody. */
    if (j + 1 < pairs.n || (c.me == 0 && pairs.is_shared(j)))
        named_arrive(TURN_BARRIER + 1 - c.me, CONSUMERS * GROUP_THREADS);
    wgmma_wait<1>();
    wgmma_pin(r.s);
    release(&plan.k_empty[stage], c.thread, pairs.is_shared(j));
    weigh(r.s, j);
    wgmma_wait<0>();
    wgmma_pin(r.o);
    release(&plan.v_empty[before], c.thread, pairs.is_shared(last));
    scale_rows(r.o, r.factor);
    round_weights(r.w, r.s);
}

template <int D>
static __device__ __forceinline__ void last_values(struct sm90_plan<D> &plan,
                                                   struct rows_state<D> &r, int last) {
    constexpr int STAGES = sm90_plan<D>::STAGES;
    barrier_wait(&plan.v_full[last % STAGES], last / STAGES % 2);
    wgmma_pin(r.o);
    wgmma_fence();
    issue_values<D>(r.o, r.w, wgmma_matrix(plan.v[last % STAGES], COLUMN_BYTES));
    wgmma_wait<0>();
    wgmma_pin(r.o);
}

/* store(row of the matrix, largest score in base 2, sum of weights, accumulators as store_row()
 * takes them) */
template <int D, bool CAPPED, typename Pairs, typename Store>
static __device__ __forceinline__ void consume(struct sm90_plan<D> &plan,
                                               const struct attn_prefill_params &p,
                                               const struct prefill_tile &t, const Pairs &pairs,
                                               const int32_t *columns, int me,
                                               const Store &store) {
    const int thread = threadIdx.x % GROUP_THREADS;
    const int row =
        me * 64 + thread / 32 * 16 + thread % 32 / 4; /* of the matrix: the thread's first */
    const int first_visible =
        t.first_visible + row_of(pairs, me * 64);    /* of this consumer's first row */
    const float scale = p.scale.outer * 1.44269504f; /* softmax in base 2 */
    const struct consumer c = {me, thread, wgmma_matrix(plan.q + me * 64 * 128, 0)};
    struct rows_state<D> r;
    const auto weigh = [&](float(&s)[64], int j) {
        if constexpr (CAPPED) cap_products(s, p.scale.inner);
        hide(s, pairs, j, t, columns, row, first_visible);
        update_softmax(s, r.top, r.sum, r.factor, scale);
    };
#pragma unroll
    for (int i = 0; i < D / 2; i++) r.o[i] = 0.0f;
#pragma unroll
    for (int h = 0; h < 2; h++) r.top[h] = -INFINITY, r.sum[h] = 0.0f;

    if (me == 1 && pairs.n > 1)
        named_arrive(TURN_BARRIER, CONSUMERS * GROUP_THREADS); /* 0 begins */
    first_pair(plan, r, c, weigh);
    int j = pairs.after(0, me);
    for (; j < pairs.n; j = pairs.after(j, me)) next_pair(plan, r, c, pairs, j, weigh);
    last_values(plan, r, pairs.before(j));
#pragma unroll
    for (int h = 0; h < 2; h++)
        store(row + 8 * h, r.top[h] * scale, r.sum[h],
              [&](int n) { return make_float2(r.o[4 * n + 2 * h], r.o[4 * n + 2 * h + 1]); });
}

/* --- kernel --- */

template <int D> static __device__ void init_barriers(struct sm90_plan<D> &plan) {
    barrier_init(&plan.q_full, 1);
    barrier_init(&plan.tail_full, 1);
    for (int i = 0; i < sm90_plan<D>::STAGES; i++) {
        barrier_init(&plan.k_full[i], 1);
        barrier_init(&plan.v_full[i], 1);
        barrier_init(&plan.k_empty[i], CONSUMERS);
        barrier_init(&plan.v_empty[i], CONSUMERS);
    }
    barriers_publish();
}

template <int D, bool WINDOW, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_prefill_sm90_kernel(const __grid_constant__ struct sm90_maps maps,
                             const __grid_constant__ struct attn_prefill_params p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    struct sm90_plan<D> &plan = *reinterpret_cast<struct sm90_plan<D> *>(shared);
    /* The shuffle tells the compiler that a whole warp takes one branch; without it wgmma is
     * serialised. */
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0), head = blockIdx.x;
    const struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    const auto pairs = pairs_of<WINDOW>(p, t);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&maps.q);
        tensor_map_prefetch(&maps.pool);
        init_barriers(plan);
    }
    __syncthreads();
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        const int n_kv_heads = p.kv.n_kv_heads, kv_head = head / (p.n_heads / n_kv_heads);
        if (threadIdx.x == 0) load_queries(plan, &maps.q, t.first_row, head);
        if (threadIdx.x < 32) produce<D>(plan, maps, t, pairs, kv_head, n_kv_heads);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<D, CAPPED>(plan, p, t, pairs, nullptr, group - 1,
                           [&](int row, float top, float sum, const auto &pair) {
                               store_row<D>(p, t, row, head, top, sum, pair);
                           });
    }
}

template <int D, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_split_sm90_kernel(const __grid_constant__ struct sm90_maps maps,
                           const __grid_constant__ struct attn_prefill_params p,
                           const __grid_constant__ struct attn_split_view s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    struct sm90_plan<D> &plan = *reinterpret_cast<struct sm90_plan<D> *>(shared);
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0);
    const struct split_tile t = split_tile_of(p, s, blockIdx.y, blockIdx.x);
    if (t.pairs.n == 0) {
        store_nothing(p, s, t, ATTN_PREFILL_TILE);
        return;
    }
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&maps.q);
        tensor_map_prefetch(&maps.pool);
        init_barriers(plan);
    }
    __syncthreads();
    if (group == 0) {
        registers_lower<PRODUCER_REGISTERS>();
        if (threadIdx.x == 0) load_group(plan, &maps.q, t);
        if (threadIdx.x < 32) produce<D>(plan, maps, t.rows, t.pairs, t.kv_head, p.kv.n_kv_heads);
    } else {
        registers_raise<CONSUMER_REGISTERS>();
        consume<D, CAPPED>(plan, p, t.rows, t.pairs, nullptr, group - 1,
                           [&](int row, float top, float sum, const auto &pair) {
                               store_split_row<D>(p, s, t, ATTN_PREFILL_TILE, row, top, sum, pair);
                           });
    }
}

template <int D, bool CAPPED>
static __global__ void __launch_bounds__(THREADS, 1)
    attn_sparse_sm90_kernel(const __grid_constant__ struct sparse_maps maps,
                            const __grid_constant__ struct attn_prefill_params p,
                            const __grid_constant__ struct sparse_view s) {
    extern __shared__ __align__(1024) unsigned char shared[];
    struct sparse_plan<D> &plan = *reinterpret_cast<struct sparse_plan<D> *>(shared);
    const int group = __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0);
    const int head = blockIdx.z * gridDim.x + blockIdx.x;
    const struct prefill_tile t = prefill_tile_of(p, blockIdx.y);
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&maps.q);
        tensor_map_prefetch(&maps.pool);
        tensor_map_prefetch(&maps.groups);
        init_barriers(plan.dense);
    }
    const struct sparse_keys keys = sparse_keys_of(s, t, head);
    __syncthreads();
    if (group == 0) {
        registers_lower<SPARSE_PRODUCER_REGISTERS>();
        produce_sparse<D>(plan, maps, p, s, t, keys, head);
    } else {
        registers_raise<SPARSE_CONSUMER_REGISTERS>();
        consume<D, CAPPED>(plan.dense, p, t, keys, plan.columns, group - 1,
                           [&](int row, float top, float sum, const auto &pair) {
                               store_row<D>(p, t, row, head, top, sum, pair);
                           });
    }
}

/* --- launchers --- */

template <int D>
static cudaError_t map_queries(CUtensorMap *map, const struct attn_prefill_params &p) {
    return tensor_map_matrix(map, p.q, p.n_total_rows, (uint64_t)p.n_heads * D, p.q_stride * 2,
                             ATTN_PREFILL_TILE);
}

template <int D>
static cudaError_t map_pool(CUtensorMap *map, const struct kv_pool &kv, uint32_t box_rows) {
    const uint64_t page_rows = (uint64_t)2 * kv.n_kv_heads * PAGE_TOKENS;
    return tensor_map_stack(map, kv.base, kv.n_pages, kv.page_bytes, page_rows, D, D * 2, box_rows);
}

template <int D>
static cudaError_t launch(const struct attn_prefill_params &p, cudaStream_t stream) {
    const int bytes = sizeof(struct sm90_plan<D>);
    const bool capped = p.scale.inner > 0;
    const auto windowed =
        capped ? attn_prefill_sm90_kernel<D, true, true> : attn_prefill_sm90_kernel<D, true, false>;
    const auto wide = capped ? attn_prefill_sm90_kernel<D, false, true>
                             : attn_prefill_sm90_kernel<D, false, false>;
    const auto kernel = p.window > 0 ? windowed : wide;
    struct sm90_maps maps;
    cudaError_t status = map_queries<D>(&maps.q, p);
    if (status == cudaSuccess) status = map_pool<D>(&maps.pool, p.kv, PAGE_TOKENS);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<dim3(p.n_heads, p.n_items), THREADS, bytes, stream>>>(maps, p);
    return cudaGetLastError();
}

/* A stack of one matrix a row, whose rows are its heads. */
template <int D>
static cudaError_t map_groups(CUtensorMap *map, const struct attn_prefill_params &p) {
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    return tensor_map_stack(map, p.q, p.n_total_rows, p.q_stride * 2, p.n_heads, D, D * 2, group,
                            ATTN_PREFILL_TILE / group);
}

template <int D>
static cudaError_t launch_split(const struct attn_prefill_params &p,
                                const struct attn_split_view &s, cudaStream_t stream) {
    const int bytes = sizeof(struct sm90_plan<D>);
    const auto kernel =
        p.scale.inner > 0 ? attn_split_sm90_kernel<D, true> : attn_split_sm90_kernel<D, false>;
    struct sm90_maps maps;
    cudaError_t status = map_groups<D>(&maps.q, p);
    if (status == cudaSuccess) status = map_pool<D>(&maps.pool, p.kv, PAGE_TOKENS);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<dim3(p.kv.n_kv_heads, s.n_items), THREADS, bytes, stream>>>(maps, p, s);
    return cudaGetLastError();
}

/* Consumers look at the list a pair at a time. */
template <int D> static size_t sparse_bytes(const struct sparse_view &s) {
    const size_t n_pairs = (s.max_columns + PAIR_KEYS - 1) / PAIR_KEYS;
    return sizeof(struct sparse_plan<D>) + n_pairs * PAIR_KEYS * sizeof(int32_t);
}

template <int D>
static cudaError_t launch_sparse(const struct attn_prefill_params &p, const struct sparse_view &s,
                                 cudaStream_t stream) {
    const int bytes = (int)sparse_bytes<D>(s);
    const uint32_t group = p.n_heads / p.kv.n_kv_heads;
    const auto kernel =
        p.scale.inner > 0 ? attn_sparse_sm90_kernel<D, true> : attn_sparse_sm90_kernel<D, false>;
    struct sparse_maps maps;
    cudaError_t status = map_queries<D>(&maps.q, p);
    if (status == cudaSuccess) status = map_pool<D>(&maps.pool, p.kv, PAGE_TOKENS);
    if (status == cudaSuccess) status = map_pool<D>(&maps.groups, p.kv, SPARSE_GROUP);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<dim3(group, p.n_items, p.kv.n_kv_heads), THREADS, bytes, stream>>>(maps, p, s);
    return cudaGetLastError();
}

bool attn_prefill_sm90_is_there(void) {
    return runs_sm90_code(attn_prefill_sm90_kernel<128, false, false>);
}

bool attn_sparse_sm90_fits(const struct sparse_view &s, uint32_t head_dim) {
    return (head_dim == 64 ? sparse_bytes<64>(s) : sparse_bytes<128>(s)) <= SM90_SHARED_BYTES;
}

cudaError_t launch_attn_prefill_sm90(const struct attn_prefill_params &p, cudaStream_t stream) {
    if (p.n_items == 0) return cudaSuccess; /* an empty grid is a launch error */
    if (p.kv.dtype != DTYPE_BF16) return cudaErrorInvalidValue;
    switch (p.kv.head_dim) {
    case 64: return launch<64>(p, stream);
    case 128: return launch<128>(p, stream);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_attn_split_sm90(const struct attn_prefill_params &p,
                                   const struct attn_split_view &s, cudaStream_t stream) {
    if (s.n_items == 0) return cudaSuccess;
    if (p.kv.dtype != DTYPE_BF16) return cudaErrorInvalidValue;
    switch (p.kv.head_dim) {
    case 64: return launch_split<64>(p, s, stream);
    case 128: return launch_split<128>(p, s, stream);
    default: return cudaErrorInvalidValue;
    }
}

cudaError_t launch_attn_sparse_sm90(const struct attn_prefill_params &p,
                                    const struct sparse_view &s, cudaStream_t stream) {
    if (p.n_items == 0) return cudaSuccess;
    if (p.kv.dtype != DTYPE_BF16) return cudaErrorInvalidValue;
    switch (p.kv.head_dim) {
    case 64: return launch_sparse<64>(p, s, stream);
    case 128: return launch_sparse<128>(p, s, stream);
    default: return cudaErrorInvalidValue;
    }
}
