/* kv_choice.h - what a request wants its KV cache to keep.  The server fills it in, the engine
 * checks it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_KV_CHOICE_H
#define ENGINE_REQUEST_KV_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/evict.h"
#include "engine/device/layer_set.h"
#include "engine/device/select.h"

/* How a request's cache comes to its contents.  Every policy is made of one of these. */
enum kv_mechanism {
    KV_WHOLE,    /* it keeps the whole text */
    KV_BOUNDED,  /* it keeps a budget: the first n_sink tokens, the n_recent newest and, if there is
                    a score, the n_heavy others with the highest scores (struct kv_budget) */
    KV_SELECTING /* it keeps the whole text.  While it generates, sparse layers see only the newest
                    tokens and those that a filter layer selected (struct kv_select).  They may
                    have the others in the host pool */
};
enum { KV_DEFAULT_CHUNK = 512, KV_DEFAULT_WINDOW = 64 };

/* Zeroed: everything is kept.  In a bounded cache each KV head keeps n_sink + n_recent + n_heavy
 * tokens.
 *
 * Positions must fit the model's trained context: with cache_positions the kv_choice_slots() of the
 * cache, otherwise the whole text. */
struct kv_choice {
    enum kv_mechanism mechanism;
    uint8_t type; /* the policy's row in kv_policies.h: for names and counters only */
    /* For KV_BOUNDED, but for n_sink, which KV_SELECTING has, too: */
    uint32_t n_sink, n_recent, n_heavy; /* n_recent >= 1; n_heavy >= 1 with a score, else 0 */
    enum kv_score score;
    float decay; /* of KV_SCORE_DECAY, (0, 1) */
    /* For KV_SCORE_WINDOW (struct kv_budget): */
    uint32_t window;         /* 0: KV_DEFAULT_WINDOW */
    enum kv_pooling pooling; /* needs `whole`, and n_recent >= window */
    uint32_t kernel;         /* odd, unless pooling is KV_POOLING_NONE */
    bool whole;     /* the prompt is one chunk: computed with full attention, then compressed */
    uint32_t chunk; /* else: prompt tokens between two compressions; 0: KV_DEFAULT_CHUNK */
    bool cache_positions; /* a token's position is its rank among the kept tokens (struct
                             kv_budget); otherwise its position in the text */
    /* For KV_SELECTING: */
    uint32_t n_selected;       /* selected tokens, >= n_sink; rounded up to whole pages */
    uint32_t n_tail;           /* newest tokens; rounded up to whole pages */
    enum kv_selector selector; /* by which queries tokens are selected (select.h) */
    bool on_device;            /* all tokens stay in the KV cache: faster while they fit */
};

/* Layers that keep something else than the request's other layers.  Zeroed: there are none. */
struct kv_override {
    struct layer_set layers;
    struct kv_choice choice; /* KV_BOUNDED, without cache_positions */
};

static inline bool kv_choice_is_bounded(const struct kv_choice *kv) {
    return kv->mechanism == KV_BOUNDED;
}

static inline bool kv_choice_selects(const struct kv_choice *kv) {
    return kv->mechanism == KV_SELECTING;
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
