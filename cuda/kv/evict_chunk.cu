/* evict_chunk.cu - after a chunk of a prompt with scores: chooses the tokens that stay, and adds up
 * what the chunk's last row gave to the others, whose keys are read again.
 *
 *   slots  0 1 2 3 4 5 6 7        list  0 1 4 6        evict_move.cu moves them by this list
 *          S   .   . .   R
 *
 * Slots are in the order of the text, so a slot's number breaks ties.  The list takes the place of
 * the sequence's scores (struct attn_stats): n_slots words per KV head.
 *
 * Grid:   one block per (KV head, sequence).
 * Bound:  latency.       Oracle: engine/cpu/. */
#include "cuda/common/bias.cuh"
#include "cuda/common/pages.cuh"
#include "cuda/common/rotation.cuh"
#include "cuda/common/step.cuh"
#include "cuda/kv/evict.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum { BLOCK = 1024, N_WARPS = BLOCK / 32, BINS = 256 };
enum { LANE_DIMS = 16 }; /* elements of a key in a lane; launch_evict_scores checks head_dim */

struct item {
    const struct device_budget *budget;
    const int32_t *pages;
    uint32_t *list; /* [n_slots] */
    uint32_t kv_head, n_slots, n_text;
    uint32_t last_row; /* the chunk's last row, in the step's matrices, */
    uint32_t query;    /* and with slopes its position */
};

/* Describes the block's work; returns false if nothing is evicted. */
static __device__ __forceinline__ bool item_of(const struct evict_params &p, uint32_t kv_head,
                                               uint32_t seq, struct item *item) {
    const struct device_step &s = *p.step;
    item->budget = budget_of(s, seq, p.layer);
    if (!item->budget || !item->budget->compress) return false;
    if (item->budget->score == KV_SCORE_NONE) return false;
    item->n_slots = (uint32_t)s.n_slots[(size_t)p.layer * s.n_seqs + seq];
    if (item->n_slots <= item->budget->capacity) return false;
    item->pages = pages_of(s, p.layer, seq);
    item->kv_head = kv_head;
    item->n_text = item->budget->n_before + (uint32_t)s.seq_rows[seq];
    item->last_row = (uint32_t)(s.first_row[seq] + s.seq_rows[seq]) - 1;
    if (p.bias.slopes) item->query = query_place(p.bias, seq, item->last_row);
    item->list = list_of(p.attn_stats, *item->budget, kv_head, p.n_heads / p.kv.n_kv_heads);
    return true;
}

/* ---- choosing the retained slots ---- */

struct plan {
    uint32_t bins[BINS];
    uint32_t counts[N_WARPS];
    float given[N_WARPS], terms[N_WARPS][KV_LOST_TERMS]; /* note_loss() */
    uint32_t digit, n_below; /* the digit being found, and how many orders are below it */
};

struct candidate {
    uint32_t order; /* leave_order(): the lowest is evicted first */
    bool may_leave;
};

static __device__ __forceinline__ float score_at(const struct evict_params &p,
                                                 const struct item &item, uint32_t slot) {
    return page_state(p.kv, item.pages[slot / PAGE_TOKENS], item.kv_head)
        ->score[slot % PAGE_TOKENS];
}

/* Returns the slot's score after pooling (enum kv_pooling). */
static __device__ __forceinline__ float pooled_score(const struct evict_params &p,
                                                     const struct item &item, uint32_t slot) {
    const struct device_budget &b = *item.budget;
    const uint32_t half = b.kernel / 2,
                   n_pooled = item.n_slots > b.window ? item.n_slots - b.window : 0;
    if (b.pooling == KV_POOLING_NONE || slot >= n_pooled) return score_at(p, item, slot);
    float pooled = 0.0f;
    for (uint32_t i = slot > half ? slot - half : 0; i <= slot + half && i < n_pooled; i++) {
        const float score = score_at(p, item, i);
        if (b.pooling == KV_POOLING_AVERAGE) pooled += score;
        else if (score > pooled) pooled = score;
    }
    return pooled;
}

static __device__ __forceinline__ struct candidate candidate_of(const struct evict_params &p,
                                                                const struct item &item,
                                                                uint32_t slot) {
    const struct kv_page_state *state =
        page_state(p.kv, item.pages[slot / PAGE_TOKENS], item.kv_head);
    const uint32_t position = state->position[slot % PAGE_TOKENS];
    struct candidate c = {0, may_leave(*item.budget, item.n_text, position)};
    if (c.may_leave)
        c.order = leave_order(*item.budget, item.n_text, position, pooled_score(p, item, slot));
    return c;
}

/* Finds the bin in which the k-th (from 1) lies, with the first warp.  A lane has 8 bins. */
static __device__ __forceinline__ void find_bin(struct plan *plan, uint32_t k) {
    const uint32_t lane = threadIdx.x;
    uint32_t sum = 0;
    for (uint32_t i = 0; i < BINS / 32; i++) sum += plan->bins[lane * (BINS / 32) + i];
    uint32_t below = sum;
    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(~0u, below, step);
        if (lane >= step) below += other;
    }
    below -= sum;
    if (k <= below || k > below + sum) return;
    uint32_t bin = lane * (BINS / 32);
    while (below + plan->bins[bin] < k) below += plan->bins[bin++];
    plan->digit = bin;
    plan->n_below = below;
}

/* Returns the order of the last slot that is evicted, found digit by digit; *n_equal becomes how
 * many slots of that order are evicted. */
static __device__ uint32_t find_threshold(const struct evict_params &p, const struct item &item,
                                          struct plan *plan, uint32_t *n_equal) {
    uint32_t prefix = 0, mask = 0, k = item.n_slots - item.budget->capacity;
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < BINS) plan->bins[threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t slot = threadIdx.x; slot < item.n_slots; slot += BLOCK) {
            const struct candidate c = candidate_of(p, item, slot);
            if (c.may_leave && (c.order & mask) == prefix)
                atomicAdd(&plan->bins[c.order >> shift & (BINS - 1)], 1u);
        }
        __syncthreads();
        if (threadIdx.x < 32) find_bin(plan, k);
        __syncthreads();
        k -= plan->n_below;
        prefix |= plan->digit << shift;
        mask |= (uint32_t)(BINS - 1) << shift;
    }
    *n_equal = k;
    return prefix;
}

/* Returns how many threads before this one have the flag; *total becomes how many have it in
 * all. */
static __device__ __forceinline__ uint32_t count_before(bool flag, struct plan *plan,
                                                        uint32_t *total) {
    const uint32_t warp = threadIdx.x / 32, votes = __ballot_sync(~0u, flag);
    __syncthreads(); /* the counts of the previous call are read */
    if (threadIdx.x % 32 == 0) plan->counts[warp] = (uint32_t)__popc(votes);
    __syncthreads();
    uint32_t before = 0, sum = 0;
    for (uint32_t i = 0; i < N_WARPS; i++) {
        if (i == warp) before = sum;
        sum += plan->counts[i];
    }
    *total = sum;
    return before + (uint32_t)__popc(votes & ((1u << threadIdx.x % 32) - 1));
}

static __device__ void list_kept(const struct evict_params &p, const struct item &item,
                                 struct plan *plan, uint32_t threshold, uint32_t n_equal) {
    uint32_t n_listed = 0, n_equal_seen = 0;
    for (uint32_t base = 0; base < item.n_slots; base += BLOCK) {
        const uint32_t slot = base + threadIdx.x;
        struct candidate c = {0, false};
        if (slot < item.n_slots) c = candidate_of(p, item, slot);
        uint32_t n_new;
        const bool equal = c.may_leave && c.order == threshold;
        const uint32_t older = n_equal_seen + count_before(equal, plan, &n_new);
        n_equal_seen += n_new;
        const bool leaves = c.may_leave && (c.order < threshold || (equal && older < n_equal));
        const bool stays = slot < item.n_slots && !leaves;
        const uint32_t to = n_listed + count_before(stays, plan, &n_new);
        n_listed += n_new;
        if (stays) item.list[to] = slot;
    }
}

/* ---- attention lost to evictions ---- */

static __device__ bool is_listed(const struct item &item, uint32_t slot) {
    uint32_t low = 0, high = item.budget->capacity;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (item.list[middle] < slot) low = middle + 1;
        else high = middle;
    }
    return low < item.budget->capacity && item.list[low] == slot;
}

/* Returns what the score of the chunk's last row gets less in a slot. */
static __device__ __forceinline__ float cost_of(const struct evict_params &p,
                                                const struct item &item, uint32_t head,
                                                uint32_t slot) {
    if (!p.bias.slopes) return 0.0f;
    const struct kv_page_state *state =
        page_state(p.kv, item.pages[slot / PAGE_TOKENS], item.kv_head);
    const uint32_t *keys = item.budget->cache_positions ? state->rank : state->position;
    return distance_cost(p.bias.slopes[head], item.query, keys[slot % PAGE_TOKENS]);
}

/* Returns the share of the chunk's last row's attention that a slot received, the mean over the
 * group, with a whole warp.  In prompts a slot's number is its rank. */
static __device__ float last_share(const struct evict_params &p, const struct item &item,
                                   const int32_t *key_pages, uint32_t slot) {
    const struct kv_pool &kv = keys_of(p, *item.budget).kv;
    const bool rotates = must_rotate(p, *item.budget);
    const uint32_t lane = threadIdx.x % 32, dim = p.kv.head_dim,
                   group = p.n_heads / p.kv.n_kv_heads;
    const char *key =
        row_at(kv, key_pages[slot / PAGE_TOKENS], kv_row(&kv, 0, item.kv_head, slot % PAGE_TOKENS));
    const __nv_bfloat16 *q = static_cast<const __nv_bfloat16 *>(p.q) + item.last_row * p.q_stride +
                             (size_t)item.kv_head * group * dim;
    const float *lse =
        p.attn_stats.lse + (size_t)item.last_row * p.n_heads + (size_t)item.kv_head * group;
    float k[LANE_DIMS] = {}, share = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < LANE_DIMS; i++) {
        const uint32_t d = lane + 32 * i;
        if (d >= dim) continue;
        k[i] = rotates ? rotated_element(key, kv.format, d, p.rotations, slot)
                       : load_element(key, d, kv.format);
    }
    for (uint32_t head = 0; head < group; head++) {
        float dot = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < LANE_DIMS; i++)
            if (lane + 32 * i < dim) dot += to_float(q[head * dim + lane + 32 * i]) * k[i];
        const float score =
            score_of(p.scale, warp_sum(dot)) - cost_of(p, item, item.kv_head * group + head, slot);
        share += exp2_fast(fmaf(score, LOG2_E, -lse[head]));
    }
    return share / (float)group;
}

/* Returns the same that the sinks received. */
static __device__ float last_sink_share(const struct evict_params &p, const struct item &item) {
    const uint32_t group = p.n_heads / p.kv.n_kv_heads, head = item.kv_head * group;
    return sink_share(p.sinks, p.attn_stats.lse + (size_t)item.last_row * p.n_heads + head, head,
                      group);
}

/* Adds the slots that are not listed to the lost attention, with the whole block, before keys and
 * states move.  A warp takes every N_WARPS-th slot, a lane one of the terms. */
static __device__ void lose_unlisted(const struct evict_params &p, const struct item &item,
                                     uint32_t seq, struct plan *plan) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int32_t *key_pages = pages_of(*keys_of(p, *item.budget).step, p.layer, seq);
    struct kv_page_state *first = page_state(p.kv, item.pages[0], item.kv_head);
    float given = 0.0f, term = 0.0f;
    for (uint32_t slot = warp; slot < item.n_slots; slot += N_WARPS) {
        if (is_listed(item, slot)) continue;
        const uint32_t age =
            item.n_text - page_state(p.kv, item.pages[slot / PAGE_TOKENS], item.kv_head)
                              ->position[slot % PAGE_TOKENS];
        const float share = last_share(p, item, key_pages, slot);
        given += share;
        term += share * (float)age * fade_after(lane, age);
    }
    if (lane == 0) plan->given[warp] = given;
    if (lane < KV_LOST_TERMS) plan->terms[warp][lane] = term;
    __syncthreads();
    given = term = 0.0f;
    if (threadIdx.x < KV_LOST_TERMS) {
        for (uint32_t i = 0; i < N_WARPS; i++) {
            given += plan->given[i];
            term += plan->terms[i][lane];
        }
        note_loss(first, item.n_text, given, last_sink_share(p, item), term);
    }
    __syncthreads(); /* lost_at has been read */
    if (threadIdx.x == 0) first->lost_at = item.n_text;
}

static __global__ void __launch_bounds__(BLOCK) evict_select_kernel(const struct evict_params p) {
    __shared__ struct plan plan;
    struct item item;
    uint32_t n_equal;
    let_next_start();
    wait_for_previous();
    const uint32_t seq = p.step->n_decode + blockIdx.y;
    if (!item_of(p, blockIdx.x, seq, &item)) return;
    const uint32_t threshold = find_threshold(p, item, &plan, &n_equal);
    list_kept(p, item, &plan, threshold, n_equal);
    __syncthreads(); /* the list is there */
    lose_unlisted(p, item, seq, &plan);
}

cudaError_t launch_evict_select(const struct evict_params *p, uint32_t n_seqs,
                                struct launch launch) {
    if (n_seqs == 0) return cudaSuccess;
    return launch_kernel(launch, evict_select_kernel, dim3(p->kv.n_kv_heads, n_seqs), BLOCK, 0, *p);
}
