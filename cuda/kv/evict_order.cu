/* evict_order.cu - puts the tokens of full bounded caches into the order of the text, so that a
 * chunk of a prompt can follow generated tokens.
 *
 *   slots   0 1 2 3 4      a token belongs into the slot of its rank, and what is in the free slot
 *   ranks   0 3 1 . 2      behind all of them
 *   cycle   1 3 4 2        what is in each of its slots belongs into the next one
 *
 * One thread follows the cycles and lists them.  Moving every token of a cycle of n slots one slot
 * on is the same as mirroring it twice, and a mirror swaps pairs that have nothing to do with each
 * other:
 *
 *   list    a b c d        slot i of the list with slot n - 1 - i
 *           d c b a        then slot i with slot n - i, all but the first
 *           d a b c
 *
 * So each warp has pairs of its own, and all their loads are under way at once.  A cycle longer
 * than the list goes in parts: each begins with the cycle's first slot, which holds what the last
 * part has moved out.
 *
 * Grid:   one block per (KV head, layer).
 * Shared: the list, 8 KB, and the ranks of all slots, up to 36 KB; more ranks stay where they are.
 * Bound:  memory: all tokens are read and written twice; before that, one rank after the other.
 * Oracle: engine/cpu/, bit-exact. */
#include "cuda/common/pages.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum {
    BLOCK = 512,
    LISTED = 1024,
    MOST_SHARED_RANKS = 9 * 1024,
};

struct item {
    const int32_t *pages;
    uint32_t kv_head, capacity;
    uint32_t *ranks; /* shared [capacity + 1], or NULL */
};

/* Parts of cycles, one behind the other. */
struct list {
    uint32_t slot[LISTED];
    uint16_t first[LISTED];   /* where this slot's part begins */
    uint16_t n_slots[LISTED]; /* of the part that begins here */
    uint32_t n;
};

/* ---- cycles ---- */

static __device__ __forceinline__ struct kv_page_state *state_of(const struct kv_pool &kv,
                                                                 const struct item &item,
                                                                 uint32_t slot) {
    return page_state(kv, item.pages[slot / PAGE_TOKENS], item.kv_head);
}

static __device__ __forceinline__ uint32_t *stored_rank(const struct kv_pool &kv,
                                                        const struct item &item, uint32_t slot) {
    return &state_of(kv, item, slot)->rank[slot % PAGE_TOKENS];
}

static __device__ __forceinline__ uint32_t *rank_of(const struct kv_pool &kv,
                                                    const struct item &item, uint32_t slot) {
    return item.ranks ? item.ranks + slot : stored_rank(kv, item, slot);
}

/* Reads the ranks into shared memory if they fit.  Then makes the free slot the last one: what it
 * holds is a token behind all others. */
static __device__ __forceinline__ void read_ranks(const struct kv_pool &kv,
                                                  const struct item &item) {
    if (item.ranks)
        for (uint32_t slot = threadIdx.x; slot <= item.capacity; slot += BLOCK)
            item.ranks[slot] = *stored_rank(kv, item, slot);
    __syncthreads(); /* the ranks are there */
    if (threadIdx.x > 0) return;
    struct kv_page_state *first = state_of(kv, item, 0);
    *rank_of(kv, item, first->free_slot) = item.capacity;
    first->free_slot = item.capacity;
}

static __device__ __forceinline__ void write_ranks(const struct kv_pool &kv,
                                                   const struct item &item) {
    for (uint32_t slot = threadIdx.x; slot < item.capacity; slot += BLOCK)
        *stored_rank(kv, item, slot) = slot;
}

/* Tells how far the thread that follows the cycles has come.  Slots before `start` have the tokens
 * that belong there; so has every slot that was listed, as soon as the lists so far are moved. */
struct walk {
    uint32_t start;
    uint32_t next; /* the slot where what is in the slot listed last belongs */
    bool is_open;  /* the cycle of `start` goes on at `next` */
};

/* Finds the next cycle; says whether there is one. */
static __device__ __forceinline__ bool find_cycle(const struct kv_pool &kv, const struct item &item,
                                                  struct walk *walk) {
    if (walk->is_open) return true;
    while (walk->start < item.capacity && *rank_of(kv, item, walk->start) == walk->start)
        walk->start++;
    if (walk->start == item.capacity) return false;
    uint32_t *rank = rank_of(kv, item, walk->start);
    walk->next = *rank;
    *rank = walk->start;
    return true;
}

/* Lists the slots of a cycle, or as many as there is room for.  A slot's rank becomes its own when
 * it is listed. */
static __device__ __forceinline__ void list_cycle(const struct kv_pool &kv, const struct item &item,
                                                  struct walk *walk, struct list *list) {
    const uint32_t first = list->n;
    uint32_t n = first, slot = walk->start;
    for (;;) {
        list->slot[n] = slot;
        list->first[n++] = first;
        slot = walk->next;
        walk->is_open = slot != walk->start;
        if (!walk->is_open || n == LISTED) break;
        uint32_t *rank = rank_of(kv, item, slot);
        walk->next = *rank;
        *rank = slot;
    }
    list->n_slots[first] = n - first;
    list->n = n;
}

/* Lists cycles as long as there is room for two slots: a part of one would move nothing. */
static __device__ __forceinline__ void list_cycles(const struct kv_pool &kv,
                                                   const struct item &item, struct walk *walk,
                                                   struct list *list) {
    list->n = 0;
    while (list->n + 2 <= LISTED && find_cycle(kv, item, walk)) list_cycle(kv, item, walk, list);
}

/* ---- swapping tokens ---- */

template <typename T> static __device__ __forceinline__ void swap_words(T *a, T *b) {
    const T word = *a;
    *a = *b;
    *b = word;
}

/* Swaps what two slots hold, with a warp: keys and values as words of type T, then the rest. */
template <typename T>
static __device__ __forceinline__ void swap_tokens(const struct kv_pool &kv,
                                                   const struct item &item, uint32_t a,
                                                   uint32_t b) {
    const uint32_t lane = threadIdx.x % 32, at_a = a % PAGE_TOKENS, at_b = b % PAGE_TOKENS;
    const int32_t page_a = item.pages[a / PAGE_TOKENS], page_b = item.pages[b / PAGE_TOKENS];
    const uint32_t per_row = page_row_bytes(kv.format, kv.head_dim) / sizeof(T);
    const auto row_of = [&](uint32_t is_v, uint32_t at) {
        return kv_row(&kv, is_v, item.kv_head, at);
    };
    for (uint32_t i = lane; i < 2 * per_row; i += 32) {
        const uint32_t is_v = i / per_row, word = i % per_row;
        swap_words(page_at<T>(kv, page_a) + (size_t)row_of(is_v, at_a) * per_row + word,
                   page_at<T>(kv, page_b) + (size_t)row_of(is_v, at_b) * per_row + word);
    }
    struct kv_page_state *state_a = page_state(kv, page_a, item.kv_head),
                         *state_b = page_state(kv, page_b, item.kv_head);
    if (lane == 0) swap_words(&state_a->position[at_a], &state_b->position[at_b]);
    if (lane == 1) swap_words(&state_a->score[at_a], &state_b->score[at_b]);
    if (page_is_scaled(kv.format) && lane >= 2 && lane < 4)
        swap_words(row_scale(kv, page_a, row_of(lane - 2, at_a)),
                   row_scale(kv, page_b, row_of(lane - 2, at_b)));
}

/* Mirrors the listed parts: slot i of n with slot last - i, where last is n - 1 or n. */
template <typename T>
static __device__ __forceinline__ void mirror(const struct kv_pool &kv, const struct item &item,
                                              const struct list &list, bool all_but_first) {
    for (uint32_t at = threadIdx.x / 32; at < list.n; at += BLOCK / 32) {
        const uint32_t first = list.first[at], i = at - first;
        if (all_but_first && i == 0) continue;
        const uint32_t other = list.n_slots[first] - (all_but_first ? 0 : 1) - i;
        if (i < other) swap_tokens<T>(kv, item, list.slot[at], list.slot[first + other]);
    }
}

template <typename T>
static __global__ void __launch_bounds__(BLOCK) evict_order_kernel(const struct order_params p) {
    __shared__ uint32_t shared_ranks[MOST_SHARED_RANKS];
    __shared__ struct list list;
    const struct kv_pool &kv = p.kv;
    const struct item item = {p.table + (size_t)blockIdx.y * p.layer_pages, blockIdx.x, p.capacity,
                              p.capacity < MOST_SHARED_RANKS ? shared_ranks : nullptr};
    let_next_start();
    wait_for_previous();
    struct walk walk = {};
    read_ranks(kv, item);
    for (;;) {
        if (threadIdx.x == 0) list_cycles(kv, item, &walk, &list);
        __syncthreads(); /* the cycles are listed */
        if (list.n == 0) break;
        mirror<T>(kv, item, list, false);
        __syncthreads(); /* each part is backwards */
        mirror<T>(kv, item, list, true);
        __syncthreads(); /* the list may be written anew */
    }
    write_ranks(kv, item);
}

cudaError_t launch_evict_order(const struct order_params *p, struct launch launch) {
    if (p->n_layers == 0) return cudaSuccess;
    const dim3 grid(p->kv.n_kv_heads, p->n_layers);
    const bool by_16_bytes = page_row_bytes(p->kv.format, p->kv.head_dim) % sizeof(uint4) == 0;
    return launch_kernel(launch,
                         by_16_bytes ? evict_order_kernel<uint4> : evict_order_kernel<uint8_t>,
                         grid, BLOCK, 0, *p);
}
