/* attend.cuh - what a tile of a sparse prompt visits (sparse_view.h), as pairs of 128 keys in the
 * order in which the attention kernels take them.
 *
 *   pair 0      the two pages of the tile's own rows, causal; slots past the end are masked
 *   pairs 1 ..  entries, all of them before the tile: groups that both halves visit, the nearest
 *               first, and then the first groups; or pages
 *   then        columns, which have to be listed first: list_columns()
 *   then        groups of one half alone: a pair of the lower half's, one of the upper half's, and
 *               so on.  Two consumers with a half each are then never more than a pair apart
 *
 *   dense       pairs of pages as in dense_pairs; nothing else
 *   filters     pairs of pages from the tile's own down to the first indexed slot, and columns
 *
 * Every row of a tile sees its own slot in the first pair.  If the last pair of a kind lacks
 * entries or columns, it repeats the last one, whose values are finite, and masks the copies:
 * n_valid().  A column that one half visits with its group is masked for that half.
 *
 * The halves' pairs have to alternate, and the lower half's comes first.  In an index (lists.cu)
 * the lower half alone has as many groups as the upper one, or up to 4 more.  One reason is that a
 * half visits all distances 1 .. 4 or, in an A-shape, a run of distances from 1 on.  The other is
 * that for every other distance d that is visited while d + 4 is not, there is one the other way
 * round.  If an index is different, empty pairs fill the gap.
 *
 * Thread: device code, by whole warps where it says so.  Memory: none. */
#ifndef CUDA_ATTENTION_SPARSE_ATTEND_CUH
#define CUDA_ATTENTION_SPARSE_ATTEND_CUH

#include "cuda/attention/prefill/tile.cuh"
#include "cuda/attention/sparse/sparse_view.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"

/* Returns `from` plus how many of the ascending numbers list[from, end) are at most x.  A whole
 * warp calls it and makes 32 probes a round, because each round waits for memory. */
static __device__ inline int count_up_to(const int32_t *list, int from, int end, int x) {
    while (from < end) {
        const int step = (end - from + 31) / 32, probe = from + (threadIdx.x % 32 + 1) * step - 1;
        from += __popc(__ballot_sync(~0u, probe < end && list[probe] <= x)) * step;
        end = min(end, from + step - 1);
    }
    return from;
}

/* A listed column: its slot, and above that a bit for each half that must not see it. */
enum { COLUMN_HIDDEN = 30, COLUMN_SLOT = (1 << COLUMN_HIDDEN) - 1 };

struct sparse_keys {
    int n;                          /* pairs */
    int n_shared;                   /* the pairs for both halves */
    int n_listed;                   /* the pairs before the columns */
    int listed_tail, column_tail;   /* keys of the last pair of each kind */
    int first_block, blocks_a_pair; /* pair 0's first block, and how far it falls from pair to pair:
                                       by 2, or at once below 0 */
    bool consecutive, paged; /* consecutive: listed pairs follow each other; paged: entries are
                                pages */
    int own;                 /* the tile's first slot */
    int n_entries, n_columns;
    const int32_t *entries;       /* pages, or distances from 1 on */
    int n_in_window;              /* entries that are distances; the others are first groups */
    const int32_t *lower, *upper; /* distances that one half visits alone */
    int n_lower, n_upper;

    /* Returns the first block of a pair that may need a causal mask, else a negative number. */
    __device__ int causal_block(int pair) const { return first_block - pair * blocks_a_pair; }
    __device__ int n_valid(int pair) const {
        if (pair >= n_shared) {
            const int left = (half_of(pair) ? n_upper : n_lower) * SPARSE_GROUP -
                             (pair - n_shared) / 2 * (2 * PAGE_TOKENS);
            return max(0, min(left, 2 * PAGE_TOKENS));
        }
        if (pair == n_listed - 1) return listed_tail;
        return pair == n_shared - 1 ? column_tail : 2 * PAGE_TOKENS;
    }
    __device__ bool has_pages(int pair) const { return consecutive || paged || pair == 0; }
    __device__ bool has_columns(int pair) const { return pair >= n_listed && pair < n_shared; }

    /* A pair is taken by both halves, or by the one that half_of() returns. */
    __device__ bool is_shared(int pair) const { return pair < n_shared; }
    __device__ int half_of(int pair) const { return (pair - n_shared) % 2; }
    /* Return the pair that a half takes after this one, and before it. */
    __device__ int after(int pair, int half) const {
        if (pair + 1 < n_shared) return pair + 1;
        return pair < n_shared ? n_shared + half : pair + 2;
    }
    __device__ int before(int pair) const {
        return pair < n_shared ? pair - 1 : max(pair - 2, n_shared - 1);
    }

    /* Returns the group of entry i in the pairs of a half alone; an empty pair has group 0 eight
     * times. */
    __device__ int group_alone(int half, int i) const {
        const int32_t *list = half ? upper : lower;
        const int n_listed_alone = half ? n_upper : n_lower;
        if (n_listed_alone == 0) return 0;
        return own / SPARSE_GROUP - list[min(i, n_listed_alone - 1)];
    }

    __device__ int group_shared(int i) const {
        const int entry = min(i, n_entries - 1);
        return entry < n_in_window ? own / SPARSE_GROUP - entries[entry] : n_entries - 1 - entry;
    }

    /* Returns the slot of key i of a pair that has no columns. */
    __device__ int slot(int pair, int i) const {
        if (consecutive || pair == 0) return causal_block(pair) * PAGE_TOKENS + i;
        if (paged) {
            const int page = min((pair - 1) * 2 + i / PAGE_TOKENS, n_entries - 1);
            return entries[page] * PAGE_TOKENS + i % PAGE_TOKENS;
        }
        const int at = i / SPARSE_GROUP, alone = pair - n_shared;
        const int group = is_shared(pair)
                              ? group_shared((pair - 1) * SPARSE_TILE_GROUPS + at)
                              : group_alone(alone % 2, alone / 2 * SPARSE_TILE_GROUPS + at);
        return group * SPARSE_GROUP + i % SPARSE_GROUP;
    }
};

/* Returns how many of `n` keys the last pair has; a full pair's number if there are none. */
static __device__ __forceinline__ int tail_keys(int n) {
    return n == 0 ? 2 * PAGE_TOKENS : (n - 1) % (2 * PAGE_TOKENS) + 1;
}

static __device__ __forceinline__ int pairs_of_keys(int n) {
    return (n + 2 * PAGE_TOKENS - 1) / (2 * PAGE_TOKENS);
}

static __device__ __forceinline__ void find_pages(struct sparse_keys &keys,
                                                  const struct sparse_view &s, size_t at) {
    keys.paged = true;
    keys.entries = s.blocks + at * s.max_blocks;
    keys.n_entries = count_up_to(keys.entries, 0, s.block_count[at], keys.own / PAGE_TOKENS - 1);
}

static __device__ __forceinline__ void find_groups(struct sparse_keys &keys,
                                                   const struct sparse_view &s, int head,
                                                   size_t at) {
    const struct sparse_head h = s.heads[head];
    const int R = keys.own / SPARSE_GROUP, n_first = min(h.n_first, R);
    const int reach = R - n_first; /* groups farther away are first groups */
    keys.entries = s.distances + (size_t)head * s.max_distances;
    keys.lower = keys.entries + h.n_both;
    keys.upper = keys.lower + h.n_lower;
    keys.n_in_window = count_up_to(keys.entries, 0, h.n_both, reach);
    keys.n_lower = count_up_to(keys.lower, 0, h.n_lower, reach);
    keys.n_upper = count_up_to(keys.upper, 0, h.n_upper, reach);
    keys.n_entries = keys.n_in_window + n_first;
    keys.n_columns = h.n_columns ? s.column_count[at] : 0;
}

/* Finds the slots that a filter chose, and those of the tiles from the first one to this one. */
static __device__ __forceinline__ void find_chosen(struct sparse_keys &keys,
                                                   const struct sparse_view &s, int head,
                                                   int tile) {
    keys.n_columns = s.heads[head].n_columns;
    keys.n_listed = tile + 1;
    keys.n_shared = keys.n = keys.n_listed + pairs_of_keys(keys.n_columns);
    keys.listed_tail = 2 * PAGE_TOKENS, keys.column_tail = tail_keys(keys.n_columns);
    keys.first_block = keys.own / PAGE_TOKENS, keys.blocks_a_pair = 2;
}

/* Returns how many pairs are for one half alone, empty ones included. */
static __device__ __forceinline__ int pairs_alone(const struct sparse_keys &keys) {
    const int upper = pairs_of_keys(keys.n_upper * SPARSE_GROUP),
              lower = max(pairs_of_keys(keys.n_lower * SPARSE_GROUP), upper);
    return lower + max(upper, lower - 1);
}

/* Returns what the tile visits for a head.  A whole warp calls it. */
static __device__ __forceinline__ struct sparse_keys sparse_keys_of(const struct sparse_view &s,
                                                                    const struct prefill_tile &t,
                                                                    int head) {
    struct sparse_keys keys = {};
    keys.own = t.first_visible - 1;
    const int tile = (keys.own - (int)s.first_slot) / SPARSE_TILE, kind = s.heads[head].kind;
    const size_t at = (size_t)head * s.max_tiles + tile;
    keys.consecutive = true;
    if (kind == PATTERN_DENSE || (uint32_t)tile >= s.first_dense_tile) {
        keys.n_listed = keys.n_shared = keys.n = dense_pairs_of(t).n;
        keys.listed_tail = 2 * PAGE_TOKENS;
        keys.first_block = 2 * (keys.n - 1), keys.blocks_a_pair = 2;
        return keys;
    }
    if (kind == PATTERN_FILTERS) {
        find_chosen(keys, s, head, tile);
        return keys;
    }
    keys.consecutive = false;
    if (kind == PATTERN_BLOCK_SPARSE) find_pages(keys, s, at);
    else find_groups(keys, s, head, at);
    const int n_keys = keys.n_entries * (keys.paged ? PAGE_TOKENS : SPARSE_GROUP);
    keys.n_listed = 1 + pairs_of_keys(n_keys);
    keys.n_shared = keys.n_listed + pairs_of_keys(keys.n_columns);
    keys.n = keys.n_shared + pairs_alone(keys);
    keys.listed_tail = tail_keys(n_keys), keys.column_tail = tail_keys(keys.n_columns);
    keys.first_block = keys.own / PAGE_TOKENS, keys.blocks_a_pair = keys.first_block + 2;
    return keys;
}

/* Returns which halves cover the column, in the bits of a listed column.  If both bits are set, no
 * half visits it by itself. */
static __device__ __forceinline__ uint32_t hidden_column(const struct sparse_view &s, int head,
                                                         int own, int column) {
    const int R = own / SPARSE_GROUP, g = column / SPARSE_GROUP;
    return (uint32_t)sparse_covers(s, (uint32_t)head, R, 0, g) << COLUMN_HIDDEN |
           (uint32_t)sparse_covers(s, (uint32_t)head, R, 1, g) << (COLUMN_HIDDEN + 1);
}

/* Writes the next n_wanted columns of the tile whose first slot is `own`, taken from number `from`
 * on of the head's chosen columns.  Returns the number to continue from.  A whole warp calls it,
 * and other warps may read `to` after a barrier. */
static __device__ inline int list_columns(const struct sparse_view &s, int head, int own, int from,
                                          int32_t *to, int n_wanted) {
    const int lane = threadIdx.x % 32, n_columns = s.heads[head].n_columns;
    const int32_t *columns = sparse_columns(s, (uint32_t)head);
    int n = 0, ahead = from + lane < n_columns ? columns[from + lane] : own;
    while (n < n_wanted && from < n_columns) {
        const int column = ahead, next = from + 32 + lane;
        ahead = next < n_columns ? columns[next] : own;
        const uint32_t hidden = column < own ? hidden_column(s, head, own, column) : ~0u;
        const bool stays = hidden >> COLUMN_HIDDEN != 3;
        const uint32_t all = __ballot_sync(~0u, stays);
        const int place = n + __popc(all & ((1u << lane) - 1));
        if (stays && place < n_wanted) to[place] = (int32_t)(hidden | (uint32_t)column);
        const uint32_t left = __ballot_sync(~0u, stays && place == n_wanted);
        if (left) return from + __ffs(left) - 1;
        n += __popc(all);
        from += 32;
    }
    return from;
}

#endif
