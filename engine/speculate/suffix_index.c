/* suffix_index.c - see suffix_index.h (the chains: as in LZ77 compressors). */
#include "engine/speculate/suffix_index.h"

#include <stdbool.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"

static uint32_t n_slots_for(uint32_t n_most) {
    uint32_t n_slots = 64;
    while (n_slots < n_most && n_slots < SUFFIX_MAX_POSITIONS) n_slots *= 2;
    return n_slots;
}

size_t suffix_index_bytes(uint32_t n_most) {
    return 2 * (size_t)n_slots_for(n_most) * sizeof(uint32_t);
}

int suffix_index_init(struct suffix_index *index, uint32_t n_most) {
    const uint32_t n_slots = n_slots_for(n_most);
    *index = (struct suffix_index){.n_slots = n_slots};
    index->heads = calloc(2 * (size_t)n_slots, sizeof(*index->heads));
    if (!index->heads) return ERR_NOMEM;
    index->earlier = index->heads + n_slots;
    return 0;
}

void suffix_index_fini(struct suffix_index *index) {
    free(index->heads);
    *index = (struct suffix_index){0};
}

/* Returns the head of the chain for the tokens before a position, which is SUFFIX_MIN at least. */
static uint32_t *head_of(const struct suffix_index *index, const uint32_t *tokens,
                         uint32_t position) {
    uint32_t hash = 0;
    for (uint32_t i = 1; i <= SUFFIX_MIN; i++)
        hash = (hash ^ tokens[position - i]) * UINT32_C(2654435761);
    return &index->heads[(hash ^ hash >> 15) & (index->n_slots - 1)];
}

/* Leaves out the text's end: nothing follows it yet. */
void suffix_index_extend(struct suffix_index *index, const uint32_t *tokens, uint32_t n_tokens,
                         uint32_t n_most) {
    uint32_t at = max_u32(index->n_indexed + 1, SUFFIX_MIN);
    if (n_tokens > index->n_slots) at = max_u32(at, n_tokens - index->n_slots);
    for (; at < n_tokens && n_most > 0; at++, n_most--) {
        uint32_t *head = head_of(index, tokens, at);
        index->earlier[at & (index->n_slots - 1)] = *head;
        *head = at;
        index->n_indexed = at;
    }
}

/* Returns for how many tokens, at most SUFFIX_MAX, the text before `end` is the text's end. */
static uint32_t match_length(const uint32_t *tokens, uint32_t n_tokens, uint32_t end) {
    const uint32_t most = min_u32(end, SUFFIX_MAX);
    uint32_t n = 0;
    while (n < most && tokens[end - 1 - n] == tokens[n_tokens - 1 - n]) n++;
    return n;
}

static void consider(struct suffix_match *best, const uint32_t *tokens, uint32_t n_tokens,
                     uint32_t end) {
    const uint32_t length = match_length(tokens, n_tokens, end);
    if (length >= SUFFIX_MIN && length > best->length) *best = (struct suffix_match){end, length};
}

/* Tells whether the chain's link at this position is still there: positions share slots. */
static bool has_link(const struct suffix_index *index, uint32_t position) {
    return position > 0 && index->n_indexed - position < index->n_slots;
}

struct suffix_match suffix_index_find(const struct suffix_index *index, const uint32_t *tokens,
                                      uint32_t n_tokens, uint32_t hint) {
    struct suffix_match best = {0};
    if (n_tokens < SUFFIX_MIN) return best;
    if (hint > 0 && hint < n_tokens) consider(&best, tokens, n_tokens, hint);
    uint32_t at = *head_of(index, tokens, n_tokens);
    for (uint32_t n = 0; n < SUFFIX_MAX_VISITED && has_link(index, at); n++) {
        if (at < n_tokens) consider(&best, tokens, n_tokens, at);
        if (best.length == SUFFIX_MAX) break;
        const uint32_t next = index->earlier[at & (index->n_slots - 1)];
        if (next >= at) break;
        at = next;
    }
    return best;
}
