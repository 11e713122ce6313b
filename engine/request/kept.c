/* kept.c - see kept.h. */
#include "engine/request/kept.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/sizes.h"

struct kv_kept *kv_kept_create(uint32_t n_most) {
    const uint32_t capacity = min_u32(n_most, KV_KEPT_MAX);
    struct kv_kept *kept = calloc(1, sizeof(*kept) + capacity * sizeof(*kept->counts));
    if (kept) kept->capacity = capacity;
    return kept;
}

void kv_kept_begin(struct kv_kept *kept, uint32_t n_tokens, uint32_t n_heads) {
    kept->n_tokens = n_tokens;
    kept->n_heads = n_heads;
    kept->stride = 1;
    while (div_up(n_tokens, kept->stride) > kept->capacity) kept->stride *= 2;
    kept->n_counts = (uint32_t)div_up(n_tokens, kept->stride);
    memset(kept->counts, 0, kept->n_counts * sizeof(*kept->counts));
}

void kv_kept_add(struct kv_kept *kept, uint32_t first, uint32_t end, uint32_t n_heads) {
    end = min_u32(end, kept->n_tokens);
    while (first < end) {
        const uint32_t index = first / kept->stride,
                       n = min_u32(end, (index + 1) * kept->stride) - first;
        kept->counts[index] += n * n_heads;
        first += n;
    }
}

double kv_kept_share(const struct kv_kept *kept, uint32_t index) {
    assert(index < kept->n_counts);
    const uint32_t first = index * kept->stride, n = min_u32(kept->stride, kept->n_tokens - first);
    return kept->counts[index] / ((double)n * kept->n_heads);
}
