/* evict_order.cu - puts the tokens of full bounded caches into the order of the text, so that a
 * chunk of a prompt can follow generated tokens.
 *
 *   slots   0 1 2 3 4      a token belongs into the slot of its rank, and what is in the free slot
 *   ranks   0 3 1 . 2      behind all of them
 *
 * Each exchange puts one token into its place for good.  It happens once in a turn of a
 * conversation, so exchanges follow one another, and only layers and KV heads run at once.
 *
 * Grid:   one block per (KV head, layer, sequence); sequences that are not reordered end at once.
 * Shared: one word.       Bound: latency, at most `capacity` exchanges of two tokens.
 * Oracle: engine/cpu/, bit-exact. */
#include "cuda/kv/evict.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum { BLOCK = 128 };

struct item {
    const int32_t *pages;
    uint32_t kv_head;
};

static __device__ __forceinline__ struct kv_page_state *state_of(const struct kv_pool &kv,
                                                                 const struct item &item,
                                                                 uint32_t slot) {
    return page_state(kv, item.pages[slot / PAGE_TOKENS], item.kv_head);
}

template <typename T> static __device__ __forceinline__ void exchange(T *a, T *b) {
    const T kept = *a;
    *a = *b;
    *b = kept;
}

/* Exchanges the keys of two slots, or their values, with the whole block. */
static __device__ __forceinline__ void exchange_rows(const struct kv_pool &kv,
                                                     const struct item &item, uint32_t is_v,
                                                     uint32_t slot, uint32_t other) {
    const uint32_t head = (is_v * kv.n_kv_heads + item.kv_head) * PAGE_TOKENS,
                   n_bytes = kv.head_dim * element_bytes(kv.dtype);
    const int32_t page = item.pages[slot / PAGE_TOKENS],
                  other_page = item.pages[other / PAGE_TOKENS];
    const uint32_t row = head + slot % PAGE_TOKENS, other_row = head + other % PAGE_TOKENS;
    uint8_t *a = static_cast<uint8_t *>(kv.base) + (size_t)page * kv.page_bytes +
                 (size_t)row * n_bytes,
            *b = static_cast<uint8_t *>(kv.base) + (size_t)other_page * kv.page_bytes +
                 (size_t)other_row * n_bytes;
    if (n_bytes % sizeof(uint32_t) == 0)
        for (uint32_t i = threadIdx.x; i < n_bytes / sizeof(uint32_t); i += BLOCK)
            exchange(reinterpret_cast<uint32_t *>(a) + i, reinterpret_cast<uint32_t *>(b) + i);
    else
        for (uint32_t i = threadIdx.x; i < n_bytes; i += BLOCK) exchange(a + i, b + i);
    if (kv.dtype == DTYPE_FP8 && threadIdx.x == 0)
        exchange(row_scale(kv, page, row), row_scale(kv, other_page, other_row));
}

static __device__ __forceinline__ void exchange_states(const struct kv_pool &kv,
                                                       const struct item &item, uint32_t slot,
                                                       uint32_t other) {
    struct kv_page_state *a = state_of(kv, item, slot), *b = state_of(kv, item, other);
    const uint32_t at = slot % PAGE_TOKENS, other_at = other % PAGE_TOKENS;
    exchange(&a->position[at], &b->position[other_at]);
    exchange(&a->score[at], &b->score[other_at]);
    exchange(&a->rank[at], &b->rank[other_at]);
}

/* Makes the free slot the last one: what it holds is a token behind all others. */
static __device__ __forceinline__ void close_free_slot(const struct kv_pool &kv,
                                                       const struct item &item, uint32_t capacity) {
    struct kv_page_state *first = state_of(kv, item, 0);
    const uint32_t slot = first->free_slot;
    state_of(kv, item, slot)->rank[slot % PAGE_TOKENS] = capacity;
    first->free_slot = capacity;
}

static __global__ void __launch_bounds__(BLOCK)
    evict_order_kernel(const struct device_step *step, const struct kv_pool kv) {
    __shared__ uint32_t rank;
    const struct device_step &s = *step;
    const uint32_t layer = blockIdx.y, seq = blockIdx.z;
    let_next_start();
    wait_for_previous();
    const struct device_budget *budget = budget_of(s, seq);
    if (!budget || !budget->reorders) return;
    const struct item item = {pages_of(s, layer, seq), blockIdx.x};
    if (threadIdx.x == 0) close_free_slot(kv, item, budget->capacity);
    for (uint32_t slot = 0; slot < budget->capacity; slot++)
        for (;;) {
            __syncthreads(); /* the exchange before is complete */
            if (threadIdx.x == 0) rank = state_of(kv, item, slot)->rank[slot % PAGE_TOKENS];
            __syncthreads();
            const uint32_t other = rank;
            if (other == slot) break;
            exchange_rows(kv, item, 0, slot, other);
            exchange_rows(kv, item, 1, slot, other);
            if (threadIdx.x == 0) exchange_states(kv, item, slot, other);
        }
}

cudaError_t launch_evict_order(const struct device_step *step, const struct kv_pool *kv,
                               uint32_t n_layers, uint32_t n_seqs, struct launch launch) {
    if (n_seqs == 0) return cudaSuccess;
    return launch_kernel(launch, evict_order_kernel, dim3(kv->n_kv_heads, n_layers, n_seqs), BLOCK,
                         0, step, *kv);
}
