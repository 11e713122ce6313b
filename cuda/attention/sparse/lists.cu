/* lists.cu - converts chosen lines to what every tile visits: distances and their marks, single
 * columns of each tile, and the cost of all of that.
 *
 *   diagonals  groups   D[c] : some chosen o has o / SPARSE_GROUP == c
 *   distance d of a half     : any of D[d - 1] .. D[d + 3], or d in -3 .. 0
 *
 * In row r of the half, diagonal o meets the slot r - o after the half's first.  With 0 <= r < 64
 * and o / 16 == c, that slot's group is at a distance of c - 3 .. c + 1.  So distance d is visited
 * if one of the five D[d - 1 .. d + 3] holds.
 *
 *   marks      bit m = d + 4, so that D[d - 1 .. d + 3] = D[m - 5 .. m - 1]: word w of the marks
 *              needs words w - 1 and w of D
 *   lists      of distances from a tile: the lower half's marks and, 4 bits further, the upper's
 *
 * Costs are counted in whole pairs of row and slot, in 64-bit integers, whose sum does not depend
 * on the order.  Sums over heads and layers are doubles, added in the order of heads.
 *
 * Oracle: engine/cpu/, exact. */
#include "cuda/attention/sparse/sparse_index.h"
#include "cuda/common/topk.cuh"
#include "engine/device/sparse.h"

enum { THREADS = 256, WARPS = THREADS / 32, RULE_THREADS = 128 };

static_assert(SPARSE_HALF_GROUPS == 4 && SPARSE_MARK_SHIFT == 4, "the picture above");

enum list { LIST_BOTH, LIST_LOWER, LIST_UPPER, N_LISTS };

/* ---- distances ---- */

static __device__ __forceinline__ bool has_distances(uint32_t kind) {
    return kind == PATTERN_A_SHAPE || kind == PATTERN_VERTICAL_SLASH;
}

/* How far a head's groups reach. */
struct reach {
    int32_t n_first;
    uint32_t last_mark;  /* group 0's, seen from the last tile's lower half */
    uint32_t local_mark; /* A-shape: the last mark that is set; 0: diagonals decide */
};

static __device__ __forceinline__ struct reach reach_of(const struct sparse_build &b,
                                                        const struct attn_pattern &p) {
    const uint32_t n_groups = (b.view.n_slots + SPARSE_GROUP - 1) / SPARSE_GROUP;
    const bool local = p.kind == PATTERN_A_SHAPE;
    const uint32_t first = local ? p.p1 : (uint32_t)SPARSE_MIN_COLUMNS;
    struct reach r;
    r.n_first = (int32_t)min(first / SPARSE_GROUP + (first % SPARSE_GROUP != 0), n_groups);
    r.last_mark = sparse_tile_group(b.view, b.view.n_tiles - 1) + SPARSE_MARK_SHIFT;
    r.local_mark = 0;
    /* Row 0 of the tile sees p2 - 1 slots before its own. */
    if (local)
        r.local_mark = SPARSE_MARK_SHIFT +
                       (p.p2 ? (p.p2 - 1) / SPARSE_GROUP + ((p.p2 - 1) % SPARSE_GROUP != 0) : 0);
    return r;
}

/* Loads the bits of 32 groups of diagonals; groups past either end are 0. */
static __device__ __forceinline__ uint32_t load_groups(const uint8_t *groups, uint32_t n_bytes,
                                                       int32_t word) {
    uint32_t x = 0;
    for (int32_t i = 0; i < 4; i++) {
        const int32_t at = word * 4 + i;
        if (at >= 0 && at < (int32_t)n_bytes) x |= (uint32_t)groups[at] << 8 * i;
    }
    return x;
}

/* Returns the bits of a word whose numbers, counted from word 0 on, are below n. */
static __device__ __forceinline__ uint32_t bits_below(uint32_t n, uint32_t word) {
    if (n >= 32 * word + 32) return 0xffffffffu;
    return n <= 32 * word ? 0 : (1u << (n - 32 * word)) - 1;
}

static __device__ __forceinline__ uint32_t marks_of(const struct sparse_build &b, uint32_t head,
                                                    const struct reach &r, uint32_t word) {
    const uint32_t n_bytes = (b.view.n_slots + SPARSE_UNIT - 1) / SPARSE_UNIT;
    const uint8_t *groups = b.near_diagonals + head * (b.stride / SPARSE_UNIT);
    const uint32_t own = word ? 0 : 0x1eu; /* distances -3 .. 0 */
    uint32_t marks = 0;
    if (r.local_mark) {
        marks = bits_below(r.local_mark + 1, word);
    } else {
        const uint64_t two = (uint64_t)load_groups(groups, n_bytes, (int32_t)word) << 32 |
                             load_groups(groups, n_bytes, (int32_t)word - 1);
        for (uint32_t i = 0; i < 5; i++) marks |= (uint32_t)(two >> (27 + i));
    }
    if (word == 0) marks &= ~1u; /* no half visits distance -4 */
    return (marks | own) & bits_below(r.last_mark + SPARSE_HALF_GROUPS + 1, word);
}

/* Returns, as bits of a word, which distances of groups before a tile are on a list. */
static __device__ __forceinline__ uint32_t listed_of(const struct sparse_build &b, uint32_t head,
                                                     const struct reach &r, enum list list,
                                                     uint32_t word) {
    const uint32_t lower = marks_of(b, head, r, word), next = marks_of(b, head, r, word + 1),
                   upper = lower >> SPARSE_HALF_GROUPS | next << (32 - SPARSE_HALF_GROUPS);
    const uint32_t listed = list == LIST_BOTH    ? lower & upper
                            : list == LIST_LOWER ? lower & ~upper
                                                 : upper & ~lower;
    const uint32_t own = bits_below(SPARSE_MARK_SHIFT + 1, word);
    return listed & ~own & bits_below(r.last_mark + 1, word);
}

/* Writes each head's marks and lists of distances, in a block per head. */
static __global__ void __launch_bounds__(THREADS)
    sparse_distances_kernel(const struct sparse_build b) {
    __shared__ uint32_t sums[2][WARPS];
    const uint32_t head = blockIdx.x;
    let_next_start();
    wait_for_previous();
    const struct attn_pattern p = b.patterns[head];
    if (threadIdx.x == 0) b.visited[head] = 0;
    if (!has_distances(p.kind)) {
        if (threadIdx.x == 0) b.view.heads[head] = {(int32_t)p.kind, 0, 0, 0};
        return;
    }
    const struct reach r = reach_of(b, p);
    uint32_t *const marks = b.view.marks + (size_t)head * b.view.mark_words;
    int32_t *const distances = b.view.distances + (size_t)head * b.view.max_distances;
    for (uint32_t word = threadIdx.x; word < b.view.mark_words; word += THREADS)
        marks[word] = marks_of(b, head, r, word);
    uint32_t n = 0, half = 0;
    int32_t counts[N_LISTS];
    for (uint32_t list = 0; list < N_LISTS; list++) {
        const uint32_t before = n;
        for (uint32_t base = 0; base < b.view.mark_words; base += THREADS, half ^= 1) {
            const uint32_t word = base + threadIdx.x;
            uint32_t total, bits = listed_of(b, head, r, (enum list)list, word);
            uint32_t at = n + block_exclusive_sum<THREADS>(__popc(bits), sums[half], &total);
            for (; bits; bits &= bits - 1)
                distances[at++] = (int32_t)(32 * word) + __ffs(bits) - 1 - SPARSE_MARK_SHIFT;
            n += total;
        }
        counts[list] = (int32_t)(n - before);
    }
    if (threadIdx.x) return;
    const uint32_t n_columns = max(p.p1, (uint32_t)SPARSE_MIN_COLUMNS);
    b.view.heads[head] = {(int32_t)p.kind,
                          r.n_first,
                          counts[LIST_BOTH],
                          counts[LIST_LOWER],
                          counts[LIST_UPPER],
                          p.kind == PATTERN_A_SHAPE ? 0 : (int32_t)min(n_columns, b.view.n_slots)};
}

/* ---- columns, and what a tile visits ---- */

/* Returns how many of the ascending numbers are <= x. */
static __device__ __forceinline__ int32_t count_up_to(const int32_t *ascending, int32_t n,
                                                      int32_t x) {
    int32_t low = 0;
    while (low < n) {
        const int32_t middle = (low + n) / 2;
        if (ascending[middle] <= x) low = middle + 1;
        else n = middle;
    }
    return low;
}

/* How many columns each half visits, and how many at least one does. */
struct column_counts {
    uint32_t lower, upper, either;
};

/* Counts a tile's columns, by a whole warp. */
static __device__ struct column_counts count_columns(const struct sparse_view &v, uint32_t head,
                                                     int32_t R) {
    const int32_t *columns = sparse_columns(v, head);
    const int32_t n = v.heads[head].n_columns, end = R * SPARSE_GROUP;
    struct column_counts count = {};
    for (int32_t i = threadIdx.x % 32; i < n && columns[i] < end; i += 32) {
        const int32_t g = columns[i] / SPARSE_GROUP;
        const bool lower = !sparse_covers(v, head, R, 0, g),
                   upper = !sparse_covers(v, head, R, 1, g);
        count.lower += lower, count.upper += upper, count.either += lower || upper;
    }
    return {__reduce_add_sync(0xffffffffu, count.lower),
            __reduce_add_sync(0xffffffffu, count.upper),
            __reduce_add_sync(0xffffffffu, count.either)};
}

/* Counts the slots before the tile that each half visits in whole groups. */
static __device__ __forceinline__ void count_slots(const struct sparse_view &v, uint32_t head,
                                                   int32_t R, uint64_t *lower, uint64_t *upper) {
    const struct sparse_head h = v.heads[head];
    const int32_t *both = v.distances + (size_t)head * v.max_distances, n_first = min(h.n_first, R),
                  reach = R - n_first; /* farther: first groups */
    const int32_t n_both = n_first + count_up_to(both, h.n_both, reach);
    *lower = (uint64_t)(n_both + count_up_to(both + h.n_both, h.n_lower, reach)) * SPARSE_GROUP;
    *upper = (uint64_t)(n_both + count_up_to(both + h.n_both + h.n_lower, h.n_upper, reach)) *
             SPARSE_GROUP;
}

/* Counts each tile's columns and what the tile visits, in a warp per tile. */
static __global__ void __launch_bounds__(THREADS) sparse_tiles_kernel(const struct sparse_build b) {
    const struct sparse_view &v = b.view;
    const uint32_t tile = blockIdx.x * WARPS + threadIdx.x / 32, head = blockIdx.y;
    let_next_start();
    wait_for_previous();
    const struct sparse_head h = v.heads[head];
    if (!has_distances(h.kind) || tile >= v.n_tiles) return;
    const int32_t R = (int32_t)sparse_tile_group(v, tile);
    const struct column_counts n_columns = count_columns(v, head, R);
    if (threadIdx.x % 32) return;
    v.column_count[(size_t)head * v.max_tiles + tile] = (int32_t)n_columns.either;
    if (tile >= v.first_dense_tile) return;
    const uint64_t rows = min(v.n_rows - tile * SPARSE_TILE, (uint32_t)SPARSE_TILE),
                   n_lower = min(rows, (uint64_t)SPARSE_HALF), n_upper = rows - n_lower;
    uint64_t lower, upper;
    count_slots(v, head, R, &lower, &upper);
    atomicAdd(&b.visited[head],
              (unsigned long long)(n_lower * (lower + n_columns.lower) +
                                   n_upper * (upper + n_columns.upper) + rows * (rows + 1) / 2));
}

cudaError_t launch_sparse_lists(const struct sparse_build *b, struct launch launch) {
    const dim3 grid((b->view.n_tiles + WARPS - 1) / WARPS, b->view.n_heads);
    const cudaError_t status =
        launch_kernel(launch, sparse_distances_kernel, b->view.n_heads, THREADS, 0, *b);
    if (status != cudaSuccess) return status;
    return launch_kernel(launch, sparse_tiles_kernel, grid, THREADS, 0, *b);
}

/* ---- the rule ---- */

/* Counts the pairs of a row in [first, end) and a slot that it may see. */
static __device__ __forceinline__ uint64_t causal_pairs(uint64_t first, uint64_t end) {
    return end > first ? (end * (end + 1) - first * (first + 1)) / 2 : 0;
}

static __global__ void __launch_bounds__(RULE_THREADS)
    sparse_rule_kernel(const struct sparse_build b) {
    __shared__ uint64_t visited[RULE_THREADS];
    __shared__ uint32_t kinds[RULE_THREADS], is_dense[RULE_THREADS];
    const struct sparse_view &v = b.view;
    struct sparse_totals &t = b.account->totals;
    const uint64_t end =
        min(v.first_slot + (uint64_t)v.first_dense_tile * SPARSE_TILE, (uint64_t)v.n_slots);
    const uint64_t sparse = causal_pairs(v.first_slot, end),
                   all = causal_pairs(v.first_slot, v.n_slots);
    let_next_start();
    wait_for_previous();
    for (uint32_t base = 0; base < v.n_heads; base += RULE_THREADS) {
        const uint32_t head = base + threadIdx.x;
        if (head < v.n_heads) {
            const uint32_t kind = b.patterns[head].kind;
            const uint64_t n = kind == PATTERN_DENSE ? sparse : b.visited[head];
            const bool above =
                kind != PATTERN_DENSE && (double)n > (double)b.dense_above * (double)sparse;
            if (b.density) b.density[head] = sparse ? (float)((double)n / (double)sparse) : 1.0f;
            if (above) v.heads[head].kind = PATTERN_DENSE;
            kinds[threadIdx.x] = kind;
            is_dense[threadIdx.x] = above;
            visited[threadIdx.x] = all - sparse + (above ? sparse : n);
        }
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < min(v.n_heads - base, (uint32_t)RULE_THREADS);
             i++) {
            t.visited[kinds[i]] += (double)visited[i];
            t.causal[kinds[i]] += (double)all;
            t.n_dense += is_dense[i];
        }
        __syncthreads();
    }
}

cudaError_t launch_sparse_rule(const struct sparse_build *b, struct launch launch) {
    return launch_kernel(launch, sparse_rule_kernel, 1, RULE_THREADS, 0, *b);
}

/* ---- what filters choose ---- */

static __global__ void __launch_bounds__(THREADS)
    sparse_filtered_kernel(const struct sparse_view view, uint32_t n_columns) {
    let_next_start();
    wait_for_previous();
    for (uint32_t head = threadIdx.x; head < view.n_heads; head += THREADS)
        view.heads[head] = {PATTERN_FILTERS, 0, 0, 0, 0, (int32_t)n_columns};
}

cudaError_t launch_sparse_filtered(const struct sparse_view *view, uint32_t n_columns,
                                   struct launch launch) {
    return launch_kernel(launch, sparse_filtered_kernel, 1, THREADS, 0, *view, n_columns);
}

static __global__ void sparse_count_kernel(struct sparse_account *account,
                                           struct sparse_pairs pairs) {
    let_next_start();
    wait_for_previous();
    account->totals.visited[PATTERN_FILTERS] += pairs.visited;
    account->totals.causal[PATTERN_FILTERS] += pairs.causal;
}

cudaError_t launch_sparse_count(struct sparse_account *account, struct sparse_pairs pairs,
                                struct launch launch) {
    return launch_kernel(launch, sparse_count_kernel, 1, 1, 0, account, pairs);
}

/* ---- time ---- */

static __global__ void sparse_stamp_kernel(struct sparse_account *account,
                                           enum sparse_stamp stamp) {
    let_next_start();
    wait_for_previous();
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    const double seconds = (double)(now - account->begun) * 1e-9;
    switch (stamp) {
    case SPARSE_BEGINS: account->begun = now; break;
    case SPARSE_INDEX_ENDS: account->totals.index_s += seconds; break;
    case SPARSE_ATTENTION_ENDS: account->totals.attention_s += seconds; break;
    }
}

cudaError_t launch_sparse_stamp(struct sparse_account *account, enum sparse_stamp stamp,
                                struct launch launch) {
    return launch_kernel(launch, sparse_stamp_kernel, 1, 1, 0, account, stamp);
}

/* ---- for tests ---- */

static __global__ void __launch_bounds__(THREADS)
    sparse_visited_kernel(const struct sparse_view view, uint32_t head, uint32_t half, bool *out) {
    const uint32_t slot = blockIdx.x * THREADS + threadIdx.x;
    const uint32_t end = view.first_slot + (half + 1) * SPARSE_HALF;
    let_next_start();
    wait_for_previous();
    if (slot < view.n_slots) out[slot] = slot < end && sparse_visits(view, head, half, slot);
}

cudaError_t launch_sparse_visited(const struct sparse_view *view, uint32_t head, uint32_t half,
                                  bool *out, struct launch launch) {
    return launch_kernel(launch, sparse_visited_kernel, (view->n_slots + THREADS - 1) / THREADS,
                         THREADS, 0, *view, head, half, out);
}
