/* evict_oldest.cu - after a decode step: evicts a token from each full cache without scores, in
 * many layers at once.
 *
 *   ranks    0 1 4 2 3      the first n_sink (here 2) ranks are the sinks', and the oldest token
 *   after    0 1 3 . 2      behind them has rank n_sink: its slot becomes the free one
 *
 * So a slot's rank tells alone what becomes of it.  Nothing is compared.
 *
 * Grid:   one block per (KV head, row, layer); a thread takes four slots at a time.
 * Bound:  latency; 8 bytes a slot.      Oracle: engine/cpu/, bit-exact. */
#include "cuda/common/pages.cuh"
#include "cuda/common/step.cuh"
#include "engine/device/evict.h"
#include "engine/device/pages.h"

enum { BLOCK = 256, PER_THREAD = 4 };
static_assert(offsetof(struct kv_page_state, rank) % sizeof(uint4) == 0 &&
                  sizeof(struct kv_page_state) % sizeof(uint4) == 0 &&
                  PAGE_TOKENS % PER_THREAD == 0,
              "four ranks are loaded as one word");

static __global__ void __launch_bounds__(BLOCK) evict_oldest_kernel(const struct evict_layers p) {
    const struct device_step &s = *p.step;
    const uint32_t kv_head = blockIdx.x, row = blockIdx.y, layer = p.first_layer + blockIdx.z;
    let_next_start();
    wait_for_previous();
    if (row >= s.n_decode) return;
    const struct device_budget *budget = budget_of(s, row, layer);
    if (!budget || budget->score != KV_SCORE_NONE) return;
    const uint32_t n_slots = (uint32_t)s.n_slots[(size_t)layer * s.n_seqs + row],
                   leaver = budget->n_sink;
    if (n_slots <= budget->capacity) return;
    const int32_t *pages = pages_of(s, layer, row);
    for (uint32_t slot = PER_THREAD * threadIdx.x; slot < n_slots; slot += PER_THREAD * BLOCK) {
        struct kv_page_state *state = page_state(p.kv, pages[slot / PAGE_TOKENS], kv_head);
        uint4 *at = reinterpret_cast<uint4 *>(&state->rank[slot % PAGE_TOKENS]), words = *at;
        uint32_t ranks[PER_THREAD] = {words.x, words.y, words.z, words.w};
#pragma unroll
        for (uint32_t i = 0; i < PER_THREAD; i++) {
            if (slot + i >= n_slots) continue;
            if (ranks[i] == leaver) {
                struct kv_page_state *first = page_state(p.kv, pages[0], kv_head);
                first->free_slot = slot + i;
                first->n_evictions++;
            }
            if (ranks[i] > leaver) ranks[i]--;
        }
        *at = make_uint4(ranks[0], ranks[1], ranks[2], ranks[3]);
    }
}

cudaError_t launch_evict_oldest(const struct evict_layers *p, uint32_t n_rows,
                                struct launch launch) {
    if (n_rows == 0 || p->n_layers == 0) return cudaSuccess;
    return launch_kernel(launch, evict_oldest_kernel, dim3(p->kv.n_kv_heads, n_rows, p->n_layers),
                         BLOCK, 0, *p);
}
