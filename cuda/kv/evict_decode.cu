/* evict_decode.cu - after a decode step's attention: adds to each cached token's score the
 * attention it received, and evicts one token from a full cache.  Caches without scores are left to
 * evict_oldest.cu.
 *
 *   scores   f32 [n_kv_heads][score_stride][group]   as attention wrote them
 *   lse      f32 [n_rows][n_heads], base 2           p = 2^(score * log2 e - lse)
 *   states   struct kv_page_state, one a page and KV head
 *
 * A second kernel computes the totals of a sequence, over its layers and heads.
 *
 * Grid:   one block per (KV head, row); a thread takes every BLOCK-th slot.  Threads combine only
 *         the eviction order, never a sum, so the result has one value.
 * Bound:  memory: 4 * group + 20 bytes a slot.      Oracle: engine/cpu/. */
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "cuda/kv/evict.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum { BLOCK = 1024, N_WARPS = BLOCK / 32 };

struct plan {
    unsigned long long first[N_WARPS]; /* each warp's lowest (leave_order, position) */
    uint32_t victim_rank, age;
    float given; /* the share of the row's attention that the victim received */
};

/* The slot that is evicted first, among those that a thread has seen. */
struct leaver {
    unsigned long long order; /* (leave_order, position): different for each slot */
    uint32_t slot;
    float received;
};

struct item {
    const struct device_budget *budget;
    const int32_t *pages;
    const float *scores, *lse;
    uint32_t kv_head, group, n_slots, n_text;
};

/* Returns the attention that a slot received, summed in the order of the heads. */
static __device__ __forceinline__ float attention_received(const struct item &item, uint32_t slot) {
    const float *scores = item.scores + (size_t)slot * item.group;
    float sum = 0.0f;
    for (uint32_t i = 0; i < item.group; i++)
        sum += exp2_fast(fmaf(scores[i], LOG2_E, -item.lse[i]));
    return sum;
}

/* Updates a slot's score, and *leaver if the slot would be evicted earlier. */
static __device__ __forceinline__ void visit_slot(const struct kv_pool &kv, const struct item &item,
                                                  uint32_t slot, struct leaver *leaver) {
    const struct device_budget &b = *item.budget;
    struct kv_page_state *state = page_state(kv, item.pages[slot / PAGE_TOKENS], item.kv_head);
    const uint32_t at = slot % PAGE_TOKENS, position = state->position[at];
    const float received = attention_received(item, slot), before = state->score[at];
    const float score =
        b.score == KV_SCORE_DECAY ? fmaf(b.decay, before, received) : before + received;
    state->score[at] = score;
    if (!may_leave(b, item.n_text, position)) return;
    const unsigned long long order =
        (unsigned long long)leave_order(b, item.n_text, position, score) << 32 | position;
    if (order >= leaver->order) return;
    leaver->order = order;
    leaver->slot = slot;
    leaver->received = received;
}

static __device__ __forceinline__ unsigned long long block_min(unsigned long long x,
                                                               struct plan *plan) {
    for (int step = 16; step > 0; step /= 2) {
        const unsigned long long other = __shfl_xor_sync(~0u, x, step);
        x = other < x ? other : x;
    }
    if (threadIdx.x % 32 == 0) plan->first[threadIdx.x / 32] = x;
    __syncthreads();
    for (uint32_t i = 0; i < N_WARPS; i++) x = plan->first[i] < x ? plan->first[i] : x;
    return x;
}

/* Evicts the calling thread's slot, which becomes the KV head's free slot. */
static __device__ void evict(const struct kv_pool &kv, const struct item &item,
                             const struct leaver &leaver, struct plan *plan) {
    struct kv_page_state *first = page_state(kv, item.pages[0], item.kv_head);
    const int32_t page = item.pages[leaver.slot / PAGE_TOKENS];
    plan->victim_rank = page_state(kv, page, item.kv_head)->rank[leaver.slot % PAGE_TOKENS];
    plan->age = item.n_text - (uint32_t)leaver.order; /* its low 32 bits are the position */
    plan->given = leaver.received / (float)item.group;
    first->free_slot = leaver.slot;
    first->n_evictions++;
}

/* Adds the victim to the lost attention, with the whole block, after evict(). */
static __device__ void lose_victim(const struct evict_params &p, const struct item &item,
                                   const struct plan &plan) {
    struct kv_page_state *first = page_state(p.kv, item.pages[0], item.kv_head);
    if (threadIdx.x < KV_LOST_TERMS)
        note_loss(first, item.n_text, plan.given,
                  sink_share(p.sinks, item.lse, item.kv_head * item.group, item.group),
                  plan.given * (float)plan.age * fade_after(threadIdx.x, plan.age));
    __syncthreads(); /* lost_at has been read */
    if (threadIdx.x == 0) first->lost_at = item.n_text;
}

static __global__ void __launch_bounds__(BLOCK) evict_decode_kernel(const struct evict_params p) {
    __shared__ struct plan plan;
    const struct device_step &s = *p.step;
    const uint32_t kv_head = blockIdx.x, row = blockIdx.y;
    let_next_start();
    wait_for_previous();
    if (row >= s.n_decode) return;
    struct item item;
    item.budget = budget_of(s, row, p.layer);
    if (!item.budget || item.budget->score == KV_SCORE_NONE) return;
    item.group = p.n_heads / p.kv.n_kv_heads;
    item.pages = pages_of(s, p.layer, row);
    item.lse = p.attn_stats.lse + (size_t)row * p.n_heads + kv_head * item.group;
    item.scores =
        p.attn_stats.scores +
        (kv_head * p.attn_stats.score_stride + (size_t)item.budget->scores_at) * item.group;
    item.kv_head = kv_head;
    item.n_slots = (uint32_t)s.n_slots[(size_t)p.layer * s.n_seqs + row];
    item.n_text = item.budget->n_before + 1;

    struct leaver leaver = {~0ull, 0, 0.0f};
    for (uint32_t slot = threadIdx.x; slot < item.n_slots; slot += BLOCK)
        visit_slot(p.kv, item, slot, &leaver);
    if (item.n_slots <= item.budget->capacity) return;
    const unsigned long long first = block_min(leaver.order, &plan);
    if (leaver.order == first && first != ~0ull) evict(p.kv, item, leaver, &plan);
    __syncthreads();
    lose_victim(p, item, plan);
    for (uint32_t slot = threadIdx.x; slot < item.n_slots; slot += BLOCK) {
        struct kv_page_state *state = page_state(p.kv, item.pages[slot / PAGE_TOKENS], kv_head);
        uint32_t *rank = &state->rank[slot % PAGE_TOKENS];
        if (*rank > plan.victim_rank) --*rank;
    }
}

cudaError_t launch_evict_decode(const struct evict_params *p, uint32_t n_rows,
                                struct launch launch) {
    if (n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, evict_decode_kernel, dim3(p->kv.n_kv_heads, n_rows), BLOCK, 0, *p);
}

/* ---- totals ---- */

enum { TOTALS_BLOCK = 256 };
static constexpr float LN_2 = 0.6931471805599453f;

static __global__ void __launch_bounds__(TOTALS_BLOCK)
    evict_totals_kernel(const struct device_step *step, const struct kv_pool kv,
                        struct evict_total *totals) {
    __shared__ float shared[32];
    const struct device_step &s = *step;
    const uint32_t seq = blockIdx.x;
    let_next_start();
    wait_for_previous();
    const bool bounded = s.budgets && s.budgets[seq].capacity > 0;
    /* n_evictions is the same for all heads; n_heads counts those of layers with the budget. */
    uint32_t n_evictions = 0, n = 0, n_heads = 0;
    float sum = 0.0f;
    if (bounded) n = s.n_layers * kv.n_kv_heads;
    for (uint32_t i = threadIdx.x; i < n; i += TOTALS_BLOCK) {
        const uint32_t layer = i / kv.n_kv_heads;
        if (!has_layer(s.budgets[seq], layer)) continue;
        const struct kv_page_state *first =
            page_state(kv, pages_of(s, layer, seq)[0], i % kv.n_kv_heads);
        float loss = 0.0f;
        for (uint32_t k = 0; k < KV_LOST_TERMS; k++) loss += ldexpf(first->lost[k], -(int)k);
        sum += 1.0f / (1.0f + LN_2 * loss);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x > 0) return;
    for (uint32_t layer = 0; bounded && layer < s.n_layers; layer++) {
        if (!has_layer(s.budgets[seq], layer)) continue;
        if (n_heads == 0) n_evictions = page_state(kv, pages_of(s, layer, seq)[0], 0)->n_evictions;
        n_heads += kv.n_kv_heads;
    }
    const bool is_known = n_evictions > 0 && s.budgets[seq].score != KV_SCORE_NONE;
    totals[seq].retained_attention = is_known ? sum / (float)n_heads : nanf("");
    totals[seq].n_evictions = n_evictions;
}

cudaError_t launch_evict_totals(const struct device_step *step, const struct kv_pool *kv,
                                struct evict_total *totals, uint32_t n_seqs, struct launch launch) {
    if (n_seqs == 0) return cudaSuccess;
    return launch_kernel(launch, evict_totals_kernel, n_seqs, TOTALS_BLOCK, 0, step, *kv, totals);
}
