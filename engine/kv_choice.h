/* kv_choice.h - what a request wants its KV cache to keep, as the server says it and the engine takes
 * it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_KV_CHOICE_H
#define ENGINE_KV_CHOICE_H

#include <stdint.h>

#include "engine/backend.h"

/* How much of its text a request keeps in the KV cache (backend.h, struct kv_budget). */
enum kv_type {
    KV_FULL,        /* all of it */
    KV_STREAMING,   /* the first n_sink tokens and the n_recent newest */
    KV_HEAVY_HITTER /* those, and the n_heavy of the others that attention needs most */
};
enum { KV_N_TYPES = KV_HEAVY_HITTER + 1, KV_DEFAULT_CHUNK = 512 };

/* Zeroed: full.  Each KV head keeps n_sink + n_recent + n_heavy tokens.  A request whose text may
 * outgrow the model's trained context counts positions inside the cache, which must then fit that
 * context together with a chunk of the prompt. */
struct kv_choice {
    enum kv_type type;
    uint32_t n_sink, n_recent, n_heavy; /* n_recent >= 1; n_heavy of KV_HEAVY_HITTER only, >= 1 */
    enum kv_score score;                /* of KV_HEAVY_HITTER; else KV_SCORE_NONE */
    float decay;                        /* of KV_SCORE_DECAY, (0, 1) */
    uint32_t chunk; /* tokens of the prompt between two compressions; 0: KV_DEFAULT_CHUNK */
};

static inline uint64_t kv_choice_capacity(const struct kv_choice *kv) {
    return (uint64_t)kv->n_sink + kv->n_recent + kv->n_heavy;
}

#endif
