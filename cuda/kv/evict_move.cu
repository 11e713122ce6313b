/* evict_move.cu - after a chunk of a prompt: moves the tokens that stay into the first `capacity`
 * slots, in place, in the order of the text.
 *
 *   before   A B C D E F G H      with scores evict_chunk.cu has listed the slots that stay (here
 *   after    A D G H              0 3 6 7); without, these are the sinks' and the newest tokens'
 *
 * Tokens only move to lower slots: they are read in batches, ascending, and a batch is read before
 * any of it is written.
 *
 * Grid:   (parts of a KV head, sequences, layers).  A part is the states of its tokens, with the
 *         scales of their rows; or 2 words of each key or value.
 * Bound:  memory, what stays is read and written.       Oracle: engine/cpu/. */
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "cuda/kv/evict.cuh"
#include "engine/base/sizes.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum { BLOCK = 256, DEPTH = 8, PART_WORDS = 2 };

struct item {
    const struct device_budget *budget;
    const int32_t *pages;
    const uint32_t *list; /* [capacity]: the slots that stay; NULL: the newest */
    uint32_t kv_head, n_evicted;
};

/* Describes the block's work; returns false if it has none. */
static __device__ __forceinline__ bool item_of(const struct evict_layers &p, uint32_t kv_head,
                                               struct item *item) {
    const struct device_step &s = *p.step;
    const uint32_t seq = s.n_decode + blockIdx.y, layer = p.first_layer + blockIdx.z;
    item->budget = budget_of(s, seq, layer);
    if (!item->budget || !item->budget->compress) return false;
    if (p.has_scores != (item->budget->score != KV_SCORE_NONE)) return false;
    const uint32_t n_slots = (uint32_t)s.n_slots[(size_t)layer * s.n_seqs + seq];
    if (n_slots <= item->budget->capacity) return false;
    item->pages = pages_of(s, layer, seq);
    item->list = p.has_scores ? list_of(p.attn_stats, *item->budget, kv_head, p.group) : nullptr;
    item->kv_head = kv_head;
    item->n_evicted = n_slots - item->budget->capacity;
    return true;
}

/* Returns the slot whose token moves to slot `to`. */
static __device__ __forceinline__ uint32_t source_of(const struct item &item, uint32_t to) {
    if (item.list) return item.list[to];
    return to < item.budget->n_sink ? to : to + item.n_evicted;
}

/* Moves one word of each slot, with the whole block; at(slot) is its address.  Threads take slots
 * `first`, first + stride and so on; those that are not `active` take none. */
template <typename At>
static __device__ __forceinline__ void move_words(const struct item &item, uint32_t first,
                                                  uint32_t stride, bool active, const At &at) {
    using word = std::remove_reference_t<decltype(*at(0))>;
    for (uint32_t base = 0; base < item.budget->capacity; base += DEPTH * stride) {
        word held[DEPTH];
        bool moves[DEPTH];
#pragma unroll
        for (uint32_t i = 0; i < DEPTH; i++) {
            const uint32_t to = base + i * stride + first;
            moves[i] = false;
            if (!active || to >= item.budget->capacity) continue;
            const uint32_t from = source_of(item, to);
            moves[i] = from != to;
            if (moves[i]) held[i] = *at(from);
        }
        __syncthreads(); /* the batch is read */
#pragma unroll
        for (uint32_t i = 0; i < DEPTH; i++)
            if (moves[i]) *at(base + i * stride + first) = held[i];
    }
}

/* Moves what a page holds of a token beside its key and value. */
static __device__ __forceinline__ void move_states(const struct kv_pool &kv,
                                                   const struct item &item) {
    const auto state_of = [&](uint32_t slot) {
        return page_state(kv, item.pages[slot / PAGE_TOKENS], item.kv_head);
    };
    const auto move = [&](const auto &at) { move_words(item, threadIdx.x, BLOCK, true, at); };
    move([&](uint32_t slot) { return &state_of(slot)->position[slot % PAGE_TOKENS]; });
    move([&](uint32_t slot) { return &state_of(slot)->score[slot % PAGE_TOKENS]; });
    for (uint32_t is_v = 0; page_is_scaled(kv.format) && is_v < 2; is_v++)
        move([&](uint32_t slot) {
            return row_scale(kv, item.pages[slot / PAGE_TOKENS],
                             kv_row(&kv, is_v, item.kv_head, slot % PAGE_TOKENS));
        });
    for (uint32_t slot = threadIdx.x; slot < item.budget->capacity; slot += BLOCK)
        state_of(slot)->rank[slot % PAGE_TOKENS] = slot;
    if (threadIdx.x > 0) return;
    state_of(0)->free_slot = item.budget->capacity;
    state_of(0)->n_evictions++;
}

/* Moves words [PART_WORDS * part, PART_WORDS * (part + 1)) of the keys' rows, then the values'. */
template <typename T>
static __device__ __forceinline__ void move_rows(const struct kv_pool &kv, const struct item &item,
                                                 uint32_t is_v, uint32_t part, uint32_t row_words) {
    const uint32_t word = part * PART_WORDS + threadIdx.x % PART_WORDS,
                   first_row = kv_row(&kv, is_v, item.kv_head, 0);
    move_words(item, threadIdx.x / PART_WORDS, BLOCK / PART_WORDS, word < row_words,
               [&](uint32_t slot) {
                   return page_at<T>(kv, item.pages[slot / PAGE_TOKENS]) +
                          (size_t)(first_row + slot % PAGE_TOKENS) * row_words + word;
               });
}

/* A KV head's parts: the states, then those of its keys, then those of its values.  T, a divisor
 * of a row, is the word that a thread moves at a time. */
template <typename T>
static __global__ void __launch_bounds__(BLOCK)
    evict_move_kernel(const struct evict_layers p, uint32_t row_words) {
    const uint32_t row_parts = (row_words + PART_WORDS - 1) / PART_WORDS,
                   n_parts = 1 + 2 * row_parts, part = blockIdx.x % n_parts;
    struct item item;
    let_next_start();
    wait_for_previous();
    if (!item_of(p, blockIdx.x / n_parts, &item)) return;
    if (part == 0) move_states(p.kv, item);
    else move_rows<T>(p.kv, item, (part - 1) / row_parts, (part - 1) % row_parts, row_words);
}

template <typename T>
static cudaError_t launch_words(const struct evict_layers &p, uint32_t n_seqs, uint32_t row_bytes,
                                struct launch launch) {
    const uint32_t row_words = row_bytes / sizeof(T),
                   row_parts = (uint32_t)div_up(row_words, PART_WORDS);
    const dim3 grid(p.kv.n_kv_heads * (1 + 2 * row_parts), n_seqs, p.n_layers);
    return launch_kernel(launch, evict_move_kernel<T>, grid, BLOCK, 0, p, row_words);
}

cudaError_t launch_evict_move(const struct evict_layers *p, uint32_t n_seqs, struct launch launch) {
    const uint32_t row_bytes = page_row_bytes(p->kv.format, p->kv.head_dim);
    if (n_seqs == 0 || p->n_layers == 0) return cudaSuccess;
    return row_bytes % sizeof(uint4) == 0 ? launch_words<uint4>(*p, n_seqs, row_bytes, launch)
                                          : launch_words<uint16_t>(*p, n_seqs, row_bytes, launch);
}
