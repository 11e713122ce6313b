/* kv_choice.h - what a request wants its KV cache to keep.  The server fills it in, the engine
 * checks it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_KV_CHOICE_H
#define ENGINE_REQUEST_KV_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/evict.h"

/* How much of its text a request keeps in the KV cache (backend.h, struct kv_budget). */
enum kv_type {
    KV_FULL,         /* all of it */
    KV_STREAMING,    /* the first n_sink tokens and the n_recent newest */
    KV_HEAVY_HITTER, /* those, and the n_heavy others with the highest scores */
    KV_OFFLOAD /* all of it; while it generates, sparse layers see only the newest tokens and those
                  that a filter layer selected (struct kv_select), and may have the others in the
                  host pool */
};
enum { KV_N_TYPES = KV_OFFLOAD + 1, KV_DEFAULT_CHUNK = 512, KV_DEFAULT_WINDOW = 64 };

/* Zeroed: full.  In a bounded cache each KV head keeps n_sink + n_recent + n_heavy tokens.
 *
 * Positions must fit the model's trained context: with cache_positions the kv_choice_slots() of the
 * cache, otherwise the whole text. */
struct kv_choice {
    enum kv_type type;
    uint32_t n_sink, n_recent, n_heavy; /* n_recent >= 1; n_heavy of KV_HEAVY_HITTER only, >= 1 */
    enum kv_score score;                /* of KV_HEAVY_HITTER; else KV_SCORE_NONE */
    float decay;                        /* of KV_SCORE_DECAY, (0, 1) */
    /* For KV_SCORE_WINDOW (struct kv_budget): */
    uint32_t window;         /* 0: KV_DEFAULT_WINDOW */
    enum kv_pooling pooling; /* needs `whole`, and n_recent >= window */
    uint32_t kernel;         /* odd, unless pooling is KV_POOLING_NONE */
    bool whole;     /* the prompt is one chunk: computed with full attention, then compressed */
    uint32_t chunk; /* else: prompt tokens between two compressions; 0: KV_DEFAULT_CHUNK */
    bool cache_positions; /* a token's position is its rank among the kept tokens (struct
                             kv_budget); otherwise its position in the text */
    /* For KV_OFFLOAD: */
    uint32_t n_selected; /* selected tokens, >= n_sink; rounded up to whole pages */
    uint32_t n_tail;     /* newest tokens; rounded up to whole pages */
    bool on_device;      /* all tokens stay in the KV cache: faster while they fit */
};

static inline bool kv_type_is_bounded(enum kv_type type) {
    return type == KV_STREAMING || type == KV_HEAVY_HITTER;
}

static inline bool kv_choice_is_bounded(const struct kv_choice *kv) {
    return kv_type_is_bounded(kv->type);
}

/* Returns how many tokens of the prompt are computed between two compressions. */
static inline uint32_t kv_choice_chunk(const struct kv_choice *kv, uint32_t n_prompt) {
    if (kv->whole) return n_prompt;
    return kv->chunk ? kv->chunk : KV_DEFAULT_CHUNK;
}

static inline uint64_t kv_choice_capacity(const struct kv_choice *kv) {
    return (uint64_t)kv->n_sink + kv->n_recent + kv->n_heavy;
}

/* Returns the most slots that a bounded sequence needs, which is while its prompt, or the last
 * chunk of it, is computed. */
static inline uint64_t kv_choice_slots(const struct kv_choice *kv, uint32_t n_prompt) {
    const uint64_t capacity = kv_choice_capacity(kv);
    if (kv->whole) return n_prompt > capacity ? n_prompt : capacity + 1;
    return capacity + kv_choice_chunk(kv, n_prompt) + 1;
}

#endif
