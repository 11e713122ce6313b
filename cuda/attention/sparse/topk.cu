/* topk.cu - chooses the columns and the diagonals with the highest scores for every vertical-slash
 * head, and the columns that a filter chooses for all heads.  Columns become an ascending list.  Of
 * diagonals only the groups of SPARSE_GROUP neighbours that contain one are kept, because tiles
 * visit groups.
 *
 *   scores  f32 >= 0 [N]; what is always chosen counts as infinite
 *   units   SPARSE_UNIT neighbouring scores: a warp reads one at a time, a lane four
 *   warps   of the team own neighbouring runs of units, so the order of warps is that of scores
 *
 * The passes for the digits, and the last two, which count and write, read the scores from L2.
 *
 * Grid: a cluster for each (head, columns or diagonals), or for a filter's columns alone; a single
 * block before 9.0.  Bound: L2, 5
 * passes of 4 (columns) or 8 bytes a score.  Oracle: engine/cpu/, ties to the lower index. */
#include "cuda/attention/sparse/sparse_index.h"
#include "cuda/common/topk.cuh"
#include "engine/device/sparse.h"

enum { THREADS = 512, WARPS = THREADS / 32, CLUSTER = 8, KINDS = 2 };

static_assert(SPARSE_UNIT == 4 * 32 && SPARSE_UNIT == 8 * SPARSE_GROUP,
              "four scores a lane, and a byte of groups a unit");

/* ---- scores ---- */

struct lines {
    const float *a, *b; /* scores are a + b; b may be NULL.  Not read if they are synthetic */
    uint32_t n, k, n_forced;
    uint32_t synthetic, head, n_in_window; /* attn_sparse; n_in_window: UINT32_MAX for columns */
};

/* Returns h(x) as attn_sparse.synthetic defines it. */
static __device__ __forceinline__ float synthetic_share(const struct lines &l, uint32_t x) {
    uint32_t v = x * 0x9e3779b9u + l.head * 0x85ebca6bu + l.synthetic;
    v = (v ^ v >> 16) * 0x7feb352du;
    v = (v ^ v >> 15) * 0x846ca68bu;
    v ^= v >> 16;
    return (float)(v >> 9) * 0x1p-23f;
}

static __device__ __forceinline__ float synthetic_score(const struct lines &l, uint32_t i) {
    if (l.n_in_window == UINT32_MAX) return synthetic_share(l, 0x80000000u | i);
    return i < l.n_in_window ? 2.0f : 1.0f + synthetic_share(l, i / 64);
}

static __device__ __forceinline__ uint32_t key_of(const struct lines &l, uint32_t i, float score) {
    if (i < l.n_forced) return 0x7f800000u;
    if (l.synthetic) score = synthetic_score(l, i);
    return score > 0.0f ? __float_as_uint(score) : 0; /* NaN: 0 */
}

static __device__ __forceinline__ struct lines lines_of(const struct sparse_build &b, uint32_t head,
                                                        bool diagonals) {
    if (b.n_chosen) return {b.columns, nullptr, b.view.first_slot, b.n_chosen, 0, 0, 0, UINT32_MAX};
    const struct attn_pattern p = b.patterns[head];
    const size_t at = head * b.stride;
    const uint32_t n = b.view.n_slots,
                   forced = diagonals ? SPARSE_MIN_DIAGONALS : SPARSE_MIN_COLUMNS;
    struct lines l = {b.columns + at, nullptr, n, 0, forced, b.synthetic, head, UINT32_MAX};
    l.k = min(n, max(diagonals ? p.p2 : p.p1, forced));
    if (!diagonals) return l;
    l.a = b.lower + at;
    l.b = b.upper + at;
    l.n_in_window = p.p2 / 2;
    return l;
}

/* Loads four scores of a lane. */
static __device__ __forceinline__ float4 load_scores(const struct lines &l, uint32_t first) {
    const float4 x = *reinterpret_cast<const float4 *>(l.a + first);
    if (!l.b) return x;
    const float4 y = *reinterpret_cast<const float4 *>(l.b + first);
    return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
}

/* Loads a lane's four keys of a unit; 0 past the end, where nothing was ever written. */
static __device__ __forceinline__ void load_unit(uint32_t (&keys)[4], const struct lines &l,
                                                 uint32_t unit) {
    const uint32_t first = unit * SPARSE_UNIT + threadIdx.x % 32 * 4;
    float scores[4] = {};
    if (!l.synthetic && first + 4 <= l.n) {
        const float4 x = load_scores(l, first);
        scores[0] = x.x, scores[1] = x.y, scores[2] = x.z, scores[3] = x.w;
    } else if (!l.synthetic) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (first + i < l.n) scores[i] = l.a[first + i] + (l.b ? l.b[first + i] : 0.0f);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        keys[i] = first + i < l.n ? key_of(l, first + i, scores[i]) : 0;
}

/* ---- the choice ---- */

/* A lane's place among the keys: how many before its own are above and equal. */
struct place {
    uint32_t above, equal;
};

/* Counts the keys above and equal in the warp's units; every lane gets the sums. */
static __device__ struct place count_units(const struct lines &l, const struct select_result &best,
                                           uint32_t begin, uint32_t end) {
    struct place n = {0, 0};
    for (uint32_t unit = begin; unit < end; unit++) {
        const uint32_t first = unit * SPARSE_UNIT + threadIdx.x % 32 * 4;
        uint32_t keys[4];
        load_unit(keys, l, unit);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            n.above += keys[i] > best.key;
            n.equal += keys[i] == best.key && first + i < l.n;
        }
    }
    n.above = __reduce_add_sync(0xffffffffu, n.above);
    n.equal = __reduce_add_sync(0xffffffffu, n.equal);
    return n;
}

/* Returns how many keys above and equal lie before this warp's, from the counts of all warps. */
template <typename Plan>
static __device__ struct place place_of_warp(Plan *plan, const struct team &team,
                                             const struct place &mine) {
    const uint32_t warp = threadIdx.x / 32;
    struct place before = {0, 0};
    if (threadIdx.x % 32 == 0) {
        plan->warp_sums[0][warp] = mine.above;
        plan->warp_sums[1][warp] = mine.equal;
    }
    __syncthreads();
    if (threadIdx.x < 2) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < WARPS; i++) sum += plan->warp_sums[threadIdx.x][i];
        plan->taken[threadIdx.x] = sum;
    }
    team_sync(team);
    for (uint32_t rank = 0; rank < team.rank; rank++) {
        const uint32_t *taken = team_view(team, plan->taken, rank);
        before.above += taken[0];
        before.equal += taken[1];
    }
    for (uint32_t i = 0; i < warp; i++) {
        before.above += plan->warp_sums[0][i];
        before.equal += plan->warp_sums[1][i];
    }
    return before;
}

struct output {
    int32_t *list; /* of columns; NULL: `groups` is written */
    uint8_t *groups;
};

/* Returns which of a lane's four keys are chosen, as bits.  *at becomes the place of the first in
 * the list; *place moves on to the next unit. */
static __device__ __forceinline__ uint32_t take_unit(const uint32_t (&keys)[4],
                                                     const struct select_result &best,
                                                     uint32_t n_valid, struct place *place,
                                                     uint32_t *at) {
    uint32_t above = 0, equal = 0, bits = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        above += keys[i] > best.key;
        equal += keys[i] == best.key && i < n_valid;
    }
    const uint32_t both = warp_inclusive_sum(above | equal << 16); /* 128 at most */
    const uint32_t all = __shfl_sync(0xffffffffu, both, 31);
    const uint32_t before = place->above + (both & 0xffff) - above;
    uint32_t ties = place->equal + (both >> 16) - equal;
    *at = before + min(ties, best.n_equal);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        if (keys[i] > best.key) bits |= 1u << i;
        else if (keys[i] == best.key && i < n_valid && ties++ < best.n_equal) bits |= 1u << i;
    }
    place->above += all & 0xffff;
    place->equal += all >> 16;
    return bits;
}

static __device__ void write_units(const struct lines &l, const struct select_result &best,
                                   struct place place, const struct output &out, uint32_t begin,
                                   uint32_t end) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t unit = begin; unit < end; unit++) {
        const uint32_t first = unit * SPARSE_UNIT + lane * 4;
        uint32_t keys[4], at;
        load_unit(keys, l, unit);
        const uint32_t bits = take_unit(keys, best, l.n > first ? l.n - first : 0, &place, &at);
        if (out.list) {
            for (uint32_t i = 0; i < 4; i++)
                if (bits >> i & 1) out.list[at++] = (int32_t)(first + i);
            continue;
        }
        uint32_t any = __ballot_sync(0xffffffffu, bits != 0), byte = 0;
        any |= any >> 1;
        any |= any >> 2; /* bit 4 i: any lane of group i */
        for (uint32_t i = 0; i < 8; i++) byte |= (any >> 4 * i & 1) << i;
        if (lane == 0) out.groups[unit] = (uint8_t)byte;
    }
}

static __global__ void __launch_bounds__(THREADS)
    sparse_select_kernel(const struct sparse_build b) {
    __shared__ struct select_plan<THREADS> plan;
    let_next_start();
    wait_for_previous();
    const struct team team = team_of_block();
    const uint32_t job = blockIdx.x / team.size, head = job / KINDS;
    const bool diagonals = job % KINDS;
    if (!b.n_chosen && b.patterns[head].kind != PATTERN_VERTICAL_SLASH) return; /* the whole team */
    const struct lines l = lines_of(b, head, diagonals);
    const uint32_t n_units = (l.n + SPARSE_UNIT - 1) / SPARSE_UNIT, n_warps = team.size * WARPS;
    const uint32_t share = (n_units + n_warps - 1) / n_warps;
    const uint32_t begin = min((team.rank * WARPS + threadIdx.x / 32) * share, n_units);
    const uint32_t end = min(begin + share, n_units);
    const auto for_each = [&](const auto &visit) {
        for (uint32_t unit = begin; unit < end; unit++) {
            const uint32_t first = unit * SPARSE_UNIT + threadIdx.x % 32 * 4;
            uint32_t keys[4];
            load_unit(keys, l, unit);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                if (first + i < l.n) visit(keys[i]);
        }
    };
    const struct select_result best = select_largest<THREADS>(&plan, team, l.k, for_each);
    const struct place mine = count_units(l, best, begin, end);
    const struct place place = place_of_warp(&plan, team, mine);
    struct output out = {};
    if (diagonals) out.groups = b.near_diagonals + head * (b.stride / SPARSE_UNIT);
    else out.list = sparse_columns(b.view, head);
    write_units(l, best, place, out, begin, end);
    team_sync(team); /* other blocks may still be reading this block's counts */
}

static cudaError_t launch_jobs(const struct sparse_build *b, uint32_t n_jobs,
                               struct launch launch) {
    static const bool has_clusters = runs_sm90_code(sparse_select_kernel);
    const uint32_t cluster = has_clusters ? CLUSTER : 1;
    return launch_clusters(launch, sparse_select_kernel, cluster, cluster * n_jobs, THREADS, 0, *b);
}

cudaError_t launch_sparse_select(const struct sparse_build *b, struct launch launch) {
    return launch_jobs(b, KINDS * b->view.n_heads, launch);
}

cudaError_t launch_sparse_choose(const struct sparse_build *b, struct launch launch) {
    return launch_jobs(b, 1, launch);
}
