/* select_slots.cu - assigns the chosen tokens to slots: which tokens have a slot already, which are
 * new, and from where the new ones are fetched.
 *
 *   chosen   bits [n_candidates], those above the n_selected-th key; ties are decided here
 *   state    u32 [n_selected], in pages of the pool: the token that each slot holds
 *   fetches  new tokens, ascending, into the slots that are free, ascending
 *
 * The bit of a token that already has a slot is cleared.  The bits that are left are the new
 * tokens, as many as slots are free.  Each thread has a run of neighbouring words, or slots, so
 * that sums over the threads before it give the places.
 *
 * Grid: one block a row.  Rows take their places in the list of fetches in the order in which
 * blocks reach it; the order does not change the result.  Bound: L2, four passes over n_candidates
 * / 8 bytes of bits.  Oracle: engine/cpu/, exact for equal bits. */
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "cuda/common/topk.cuh"
#include "engine/device/pages.h"
#include "engine/device/select.h"

enum { THREADS = 1024 };

struct plan {
    uint32_t sums[3][THREADS / 32]; /* three sums over the block need space of their own */
    uint32_t first_fetch;
};

/* A row, and the thread's run of words and of slots. */
struct row_slots {
    struct device_select s;
    uint32_t row, word, end_word, slot, end_slot;
    uint32_t *chosen, *free_slots;
    const uint32_t *equal;
};

static __device__ struct row_slots slots_of(const struct select_params &p) {
    struct row_slots r = {};
    r.row = blockIdx.x;
    r.s = p.step->selects[r.row];
    const uint32_t n_words = r.s.n_candidates / 32, words = (n_words + THREADS - 1) / THREADS,
                   slots = (r.s.n_selected + THREADS - 1) / THREADS;
    r.word = min(threadIdx.x * words, n_words);
    r.end_word = min(r.word + words, n_words);
    r.slot = min(threadIdx.x * slots, r.s.n_selected);
    r.end_slot = min(r.slot + slots, r.s.n_selected);
    r.chosen = p.room.chosen + r.s.keys_at / 32;
    r.equal = p.room.equal + r.s.keys_at / 32;
    r.free_slots = p.room.free_slots + (size_t)r.row * p.room.max_selected;
    return r;
}

static __device__ __forceinline__ uint32_t *state_of(const struct select_params &p,
                                                     const struct device_select &s, uint32_t slot) {
    const uint32_t n_pages = (s.n_selected + p.state_slots - 1) / p.state_slots;
    const size_t page =
        (size_t)p.step->select_lists[s.states + p.group_index * n_pages + slot / p.state_slots];
    return page_at<uint32_t>(p.kv, page) + slot % p.state_slots;
}

static __device__ uint32_t count_bits(const uint32_t *bits, uint32_t word, uint32_t end) {
    uint32_t n = 0;
#pragma unroll 8
    for (; word < end; word++) n += __popc(bits[word]);
    return n;
}

static __device__ uint32_t lowest_bits(uint32_t word, uint32_t n) {
    uint32_t out = 0;
    for (; n > 0; n--, word &= word - 1) out |= word & (0 - word);
    return out;
}

/* Settles ties: of the keys that equal the last one, the lowest tokens are taken. */
static __device__ void choose_ties(const struct row_slots &r, struct plan *plan, uint32_t n_equal) {
    const uint32_t mine = count_bits(r.equal, r.word, r.end_word);
    uint32_t total, before = block_exclusive_sum<THREADS>(mine, plan->sums[0], &total);
    for (uint32_t w = r.word; w < r.end_word && before < n_equal; w++) {
        const uint32_t word = r.equal[w], n = __popc(word), room = n_equal - before;
        if (word) r.chosen[w] |= n <= room ? word : lowest_bits(word, room);
        before += n;
    }
    __syncthreads();
}

/* Clears the token's bit among the chosen ones; returns false if it was not set. */
static __device__ bool is_chosen_again(const struct row_slots &r, uint32_t token) {
    if (token >= r.s.n_candidates) return false; /* such as UINT32_MAX, of a slot without a token */
    const uint32_t bit = 1u << token % 32;
    return atomicAnd(&r.chosen[token / 32], ~bit) & bit;
}

static __device__ void free_slots(const struct select_params &p, const struct row_slots &r,
                                  struct plan *plan) {
    uint32_t n = 0, total;
    for (uint32_t slot = r.slot; slot < r.end_slot; slot++) {
        uint32_t *state = state_of(p, r.s, slot);
        if (!r.s.fresh && is_chosen_again(r, *state)) continue;
        *state = UINT32_MAX;
        n++;
    }
    uint32_t at = block_exclusive_sum<THREADS>(n, plan->sums[1], &total);
    for (uint32_t slot = r.slot; slot < r.end_slot; slot++)
        if (*state_of(p, r.s, slot) == UINT32_MAX) r.free_slots[at++] = slot;
    __syncthreads();
}

static __device__ uint32_t source_of(const struct select_params &p, const struct device_select &s,
                                     uint32_t token) {
    if (s.blocks < 0) return token;
    const uint32_t block = (uint32_t)p.step->select_lists[s.blocks + token / PAGE_TOKENS];
    return block * PAGE_TOKENS + token % PAGE_TOKENS;
}

/* Returns in how many layers of the group the row's sequence selects: in those without its
 * budget. */
static __device__ uint32_t n_following(const struct select_params &p, uint32_t row) {
    uint32_t n = p.n_layers;
    for (uint32_t layer = p.group.first; p.step->budgets && layer < p.group.end; layer++)
        n -= budget_of(*p.step, row, layer) != nullptr;
    return n;
}

static __device__ void count_fetches(const struct select_params &p, const struct row_slots &r,
                                     struct plan *plan, enum fetch_kind kind, uint32_t n) {
    struct select_total *total = &p.room.totals[r.row];
    if (threadIdx.x == 0) {
        plan->first_fetch = atomicAdd(&p.room.n_fetches[kind], n);
        if (p.group_index == 0) *total = {};
        total->n_chosen += r.s.n_selected;
        total->n_fetched += n;
        total->n_copies += n * n_following(p, r.row);
    }
    __syncthreads();
}

static __device__ void list_fetches(const struct select_params &p, const struct row_slots &r,
                                    struct plan *plan) {
    const enum fetch_kind kind = r.s.blocks < 0 ? FETCH_PAGES : FETCH_BLOCKS;
    const uint32_t mine = count_bits(r.chosen, r.word, r.end_word);
    uint32_t n, at = block_exclusive_sum<THREADS>(mine, plan->sums[2], &n);
    count_fetches(p, r, plan, kind, n);
    struct fetch *const fetches = p.room.fetches[kind] + plan->first_fetch;
    for (uint32_t w = r.word; w < r.end_word; w++)
        for (uint32_t bits = r.chosen[w]; bits; bits &= bits - 1, at++) {
            const uint32_t token = w * 32 + __ffs(bits) - 1, slot = r.free_slots[at];
            *state_of(p, r.s, slot) = token;
            fetches[at] = {r.row, slot, source_of(p, r.s, token), 0};
        }
}

static __global__ void __launch_bounds__(THREADS) slots_kernel(const struct select_params p) {
    __shared__ struct plan plan;
    let_next_start();
    wait_for_previous();
    if (blockIdx.x >= p.step->n_decode || !p.step->selects ||
        p.step->selects[blockIdx.x].n_selected == 0)
        return;
    const struct row_slots r = slots_of(p);
    const size_t row = r.row;
    choose_ties(r, &plan, p.room.found[row * SELECT_DIGITS * 2 + SELECT_DIGITS * 2 - 1]);
    free_slots(p, r, &plan);
    list_fetches(p, r, &plan);
    for (uint32_t i = threadIdx.x; i < SELECT_DIGITS * SELECT_BINS; i += THREADS)
        p.room.histograms[row * SELECT_DIGITS * SELECT_BINS + i] = 0;
}

cudaError_t launch_select_slots(const struct select_params *p, uint32_t n_rows,
                                struct launch launch) {
    if (n_rows == 0) return cudaSuccess;
    return launch_kernel(launch, slots_kernel, n_rows, THREADS, 0, *p);
}
