/* kv_choice.h - what a request wants its KV cache to keep, as the server says it and the engine
 * takes it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_KV_CHOICE_H
#define ENGINE_REQUEST_KV_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"

/* How much of its text a request keeps in the KV cache (backend.h, struct kv_budget). */
enum kv_type {
    KV_FULL,        /* all of it */
    KV_STREAMING,   /* the first n_sink tokens and the n_recent newest */
    KV_HEAVY_HITTER, /* those, and the n_heavy of the others that attention needs most */
    KV_OFFLOAD /* all of it; but while it generates, sparse layers see only what a filter layer
                  selected and the newest tokens (struct kv_select), and may have the rest in the
                  system's memory */
};
enum { KV_N_TYPES = KV_OFFLOAD + 1, KV_DEFAULT_CHUNK = 512, KV_DEFAULT_WINDOW = 64 };

/* Zeroed: full.  Of a bounded cache each KV head keeps n_sink + n_recent + n_heavy tokens.  Counted
 * inside the cache, positions need a budget that fits the model's trained context together with a
 * chunk of the prompt and one token more, or with the prompt that is read whole; counted in the
 * text, they need a text that fits it. */
struct kv_choice {
    enum kv_type type;
    uint32_t n_sink, n_recent, n_heavy; /* n_recent >= 1; n_heavy of KV_HEAVY_HITTER only, >= 1 */
    enum kv_score score;                /* of KV_HEAVY_HITTER; else KV_SCORE_NONE */
    float decay;                        /* of KV_SCORE_DECAY, (0, 1) */
    /* Of KV_SCORE_WINDOW (struct kv_budget): */
    uint32_t window; /* 0: KV_DEFAULT_WINDOW */
    enum kv_pooling pooling; /* needs `whole`, and n_recent >= window */
    uint32_t kernel;         /* odd, if something is pooled */
    bool whole;     /* the prompt is one chunk: it is read with everything in sight, then pruned */
    uint32_t chunk; /* else: tokens of it between two compressions; 0: KV_DEFAULT_CHUNK */
    bool cache_positions; /* a token's position is its rank among those that are kept (struct
                             kv_budget); otherwise that in the text */
    /* Of KV_OFFLOAD: */
    uint32_t n_selected; /* >= n_sink, and */
    uint32_t n_tail;     /* newest ones; both are rounded up to whole pages */
    bool on_device;      /* nothing is moved: faster, as long as there is room */
};

static inline bool kv_type_is_bounded(enum kv_type type) {
    return type == KV_STREAMING || type == KV_HEAVY_HITTER;
}

static inline bool kv_choice_is_bounded(const struct kv_choice *kv) {
    return kv_type_is_bounded(kv->type);
}

/* Tokens of the prompt between two compressions. */
static inline uint32_t kv_choice_chunk(const struct kv_choice *kv, uint32_t n_prompt) {
    if (kv->whole) return n_prompt;
    return kv->chunk ? kv->chunk : KV_DEFAULT_CHUNK;
}

static inline uint64_t kv_choice_capacity(const struct kv_choice *kv) {
    return (uint64_t)kv->n_sink + kv->n_recent + kv->n_heavy;
}

/* Slots that a bounded sequence needs at most: while its prompt, or the last chunk of it, is
 * computed. */
static inline uint64_t kv_choice_slots(const struct kv_choice *kv, uint32_t n_prompt) {
    const uint64_t capacity = kv_choice_capacity(kv);
    if (kv->whole) return n_prompt > capacity ? n_prompt : capacity + 1;
    return capacity + kv_choice_chunk(kv, n_prompt) + 1;
}

#endif
