/* evict_order.cu - puts the tokens of full bounded caches into the order of the text, so that a
 * chunk of a prompt can follow generated tokens.
 *
 *   slots   0 1 2 3 4      a token belongs into the slot of its rank, and what is in the free slot
 *   ranks   0 3 1 . 2      behind all of them
 *   moves   1 3 4 2 1      a cycle of ranks: what is in each slot belongs into the next one
 *
 * One thread follows the cycles and lists the next moves.  Then every thread makes them for words
 * of its own, and carries the last one over to the next moves.  No word is another thread's, so the
 * loads of all listed moves are under way at once.
 *
 * Grid:   one block per (KV head, layer, sequence); sequences that are not reordered end at once.
 * Shared: the listed moves, and the words that are carried: 4.2 KB.
 * Bound:  latency, of one rank for each token and of one row for each list of moves.
 * Oracle: engine/cpu/, bit-exact. */
#include "cuda/kv/evict.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum {
    BLOCK = 160, /* the words of a token with a head dimension of 128 in 16 bits, and its state */
    MOVES = 16,
    MOST_WORDS = 1024 + 4, /* a key and a value in f32, head dimension 512; what else a slot has */
};

struct plan {
    struct {
        uint32_t slot;
        bool begins; /* a cycle: nothing is carried to this slot */
    } moves[MOVES];
    uint32_t n_moves;
    uint32_t carried[MOST_WORDS];
};

struct item {
    const int32_t *pages;
    uint32_t kv_head;
};

static __device__ __forceinline__ struct kv_page_state *state_of(const struct kv_pool &kv,
                                                                 const struct item &item,
                                                                 uint32_t slot) {
    return page_state(kv, item.pages[slot / PAGE_TOKENS], item.kv_head);
}

/* ---- which moves ---- */

/* Makes the free slot the last one: what it holds is a token behind all others. */
static __device__ __forceinline__ void close_free_slot(const struct kv_pool &kv,
                                                       const struct item &item, uint32_t capacity) {
    struct kv_page_state *first = state_of(kv, item, 0);
    const uint32_t slot = first->free_slot;
    state_of(kv, item, slot)->rank[slot % PAGE_TOKENS] = capacity;
    first->free_slot = capacity;
}

/* Tells how far the thread that follows the cycles has come.  Slots before `start` have the tokens
 * that belong there; so has every slot that was listed, as soon as the moves are made. */
struct walk {
    uint32_t start;
    uint32_t at; /* the slot that was listed last, if the cycle of `start` is not closed */
    bool is_open;
};

/* Lists up to MOVES moves.  A slot's rank becomes its own when what it held has been sent on. */
static __device__ __forceinline__ uint32_t list_moves(const struct kv_pool &kv,
                                                      const struct item &item, uint32_t capacity,
                                                      struct walk *walk, struct plan *plan) {
    uint32_t n = 0;
    while (n < MOVES) {
        if (!walk->is_open) {
            while (walk->start < capacity &&
                   state_of(kv, item, walk->start)->rank[walk->start % PAGE_TOKENS] == walk->start)
                walk->start++;
            if (walk->start == capacity) break;
            walk->at = walk->start;
            walk->is_open = true;
            plan->moves[n++] = {walk->at, true};
            continue;
        }
        uint32_t *rank = &state_of(kv, item, walk->at)->rank[walk->at % PAGE_TOKENS];
        const uint32_t next = *rank;
        *rank = walk->at;
        walk->at = next;
        walk->is_open = next != walk->start;
        plan->moves[n++] = {next, false};
    }
    return n;
}

/* ---- moving words ---- */

/* Moves one word of all tokens that are listed.  at(slot) is its place.  Takes the word that is
 * carried, and returns the next one. */
template <typename T, typename Place>
static __device__ __forceinline__ T move_word(const struct plan &plan, T carried, Place at) {
    const uint32_t n = plan.n_moves;
    T held[MOVES];
#pragma unroll
    for (uint32_t i = 0; i < MOVES; i++)
        if (i < n) held[i] = *at(plan.moves[i].slot);
#pragma unroll
    for (uint32_t i = 0; i < MOVES; i++) {
        if (i >= n) break;
        if (!plan.moves[i].begins) *at(plan.moves[i].slot) = carried;
        carried = held[i];
    }
    return carried;
}

/* Moves word `word` of a token, of type T: those of its key and its value come first, then its
 * position and its score, then the scales of DTYPE_FP8. */
template <typename T>
static __device__ __forceinline__ void move_nth_word(const struct kv_pool &kv,
                                                     const struct item &item, struct plan &plan,
                                                     uint32_t word) {
    const uint32_t per_row = kv.head_dim * element_bytes(kv.dtype) / sizeof(T);
    uint32_t &carried = plan.carried[word];
    const auto row_of = [&](uint32_t is_v, uint32_t slot) {
        return (is_v * kv.n_kv_heads + item.kv_head) * PAGE_TOKENS + slot % PAGE_TOKENS;
    };
    const auto page_of = [&](uint32_t slot) { return item.pages[slot / PAGE_TOKENS]; };
    if (word < 2 * per_row) {
        carried = move_word(plan, (T)carried, [&](uint32_t slot) {
            uint8_t *page = static_cast<uint8_t *>(kv.base) + (size_t)page_of(slot) * kv.page_bytes;
            return reinterpret_cast<T *>(page) + (size_t)row_of(word / per_row, slot) * per_row +
                   word % per_row;
        });
    } else if (word == 2 * per_row) {
        carried = move_word(plan, carried, [&](uint32_t slot) {
            return &state_of(kv, item, slot)->position[slot % PAGE_TOKENS];
        });
    } else if (word == 2 * per_row + 1) {
        carried = __float_as_uint(move_word(plan, __uint_as_float(carried), [&](uint32_t slot) {
            return &state_of(kv, item, slot)->score[slot % PAGE_TOKENS];
        }));
    } else {
        const uint32_t is_v = word - (2 * per_row + 2);
        carried = move_word(plan, (uint8_t)carried, [&](uint32_t slot) {
            return row_scale(kv, page_of(slot), row_of(is_v, slot));
        });
    }
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK)
    evict_order_kernel(const struct device_step *step, const struct kv_pool kv) {
    __shared__ struct plan plan;
    const struct device_step &s = *step;
    const uint32_t layer = blockIdx.y, seq = blockIdx.z;
    let_next_start();
    wait_for_previous();
    const struct device_budget *budget = budget_of(s, seq);
    if (!budget || !budget->reorders) return;
    const struct item item = {pages_of(s, layer, seq), blockIdx.x};
    const uint32_t n_words = 2 * (kv.head_dim * element_bytes(kv.dtype) / (uint32_t)sizeof(T)) + 2 +
                             (kv.dtype == DTYPE_FP8 ? 2 : 0);
    struct walk walk = {};
    if (threadIdx.x == 0) close_free_slot(kv, item, budget->capacity);
    for (;;) {
        if (threadIdx.x == 0) plan.n_moves = list_moves(kv, item, budget->capacity, &walk, &plan);
        __syncthreads(); /* the moves are listed */
        if (plan.n_moves == 0) break;
        for (uint32_t word = threadIdx.x; word < n_words; word += BLOCK)
            move_nth_word<T>(kv, item, plan, word);
        __syncthreads(); /* the list may be written anew */
    }
}

cudaError_t launch_evict_order(const struct device_step *step, const struct kv_pool *kv,
                               uint32_t n_layers, uint32_t n_seqs, struct launch launch) {
    if (n_seqs == 0) return cudaSuccess;
    const dim3 grid(kv->n_kv_heads, n_layers, n_seqs);
    const uint32_t row_bytes = kv->head_dim * element_bytes(kv->dtype);
    const bool by_words = row_bytes % sizeof(uint32_t) == 0;
    if (2 * (row_bytes / (by_words ? sizeof(uint32_t) : 1)) + 4 > MOST_WORDS)
        return cudaErrorInvalidValue;
    return launch_kernel(launch,
                         by_words ? evict_order_kernel<uint32_t> : evict_order_kernel<uint8_t>,
                         grid, BLOCK, 0, step, *kv);
}
