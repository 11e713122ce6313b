/* evict.h - caches that evict tokens on the device, and the operations for them.
 *
 * Bounded caches (struct kv_budget; H2O section 3, StreamingLLM section 3).  Between steps every KV
 * head of every layer keeps at most `capacity` tokens, chosen by itself.  A new token attends to
 * all of them and to itself before one is evicted, so there are capacity + 1 slots.  The evicted
 * token's slot is free, and the next token is written there.  No token is moved while the sequence
 * generates:
 *
 *   slots    0  1  2  3 … capacity         each KV head has its own free slot: decode()
 *   before   A  S  .  B … T                chooses it, the next rope_append writes there
 *   step     A  S  U  B … T                all capacity + 1 slots are attended to
 *   after    A  S  U  . … T                B had the lowest score
 *
 * Prompts are computed in chunks, whose slots follow the kept tokens' in order of the text.  After
 * a chunk (step_seq.compress) chunk() moves the tokens it keeps to the first `capacity` slots, in
 * the order of the text.  Each head's state of its tokens (struct kv_page_state) is in their pages,
 * after keys and values.
 *
 * Without scores the oldest tokens are evicted, the same ones from the same slots in every KV head
 * of every layer.  Then oldest() does what decode() and chunk() do, for all layers at once.
 *
 * A chunk may also follow generated tokens: the next turn of a conversation.  Before that, order()
 * closes the free slot: it moves the kept tokens to the first `capacity` slots, in the order of the
 * text, as after a chunk.
 *
 *   before   A  S  U  . … T
 *   after    A  S  T  … U .                ranks are slots again; the next row's slot is `capacity`
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_DEVICE_EVICT_H
#define ENGINE_DEVICE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

struct attn_args;
struct backend;
struct error;
struct kv_pool;
struct kv_view;

/* The least share of the newest query's attention that kept tokens are taken to get, since lost
 * attention is divided by it. */
#define KV_LEAST_KEPT 0x1p-10f

/* How tokens between the sinks and the recent ones are scored: by the attention probabilities they
 * received, summed over the query heads of their KV head's group, in f32. */
enum kv_score {
    KV_SCORE_NONE,  /* no scores: the oldest is evicted; capacity = n_sink + n_recent */
    KV_SCORE_SUM,   /* the sum over all queries */
    KV_SCORE_MEAN,  /* the same, divided by the number of queries that could see the token */
    KV_SCORE_DECAY, /* score = decay * score + p, query after query */
    KV_SCORE_WINDOW /* the sum over the last `window` queries of the newest chunk of the prompt,
                       without earlier chunks; queries of generated tokens add to it like SUM */
};

/* How the scores of a prompt's tokens before its last `window` are pooled when it is compressed
 * (SnapKV section 4).  A token is judged by the scores of `kernel` tokens, of which it is the
 * middle one; there are fewer at both ends.  Their largest counts, or their sum in the order of the
 * text.  The stored scores do not change. */
enum kv_pooling { KV_POOLING_NONE, KV_POOLING_MAX, KV_POOLING_AVERAGE };

/* Which tokens of its text a sequence keeps between steps: the first n_sink, the n_recent newest,
 * and the others with the highest scores.  When scores are equal the older token is evicted first.
 * NaN counts as the lowest score. */
struct kv_budget {
    uint32_t capacity; /* >= n_sink + n_recent; n_recent >= 1 */
    uint32_t n_sink, n_recent;
    enum kv_score score;
    float decay;             /* (0, 1) */
    uint32_t window;         /* of KV_SCORE_WINDOW, >= 1; else 0 */
    enum kv_pooling pooling; /* of KV_SCORE_WINDOW, for a prompt in one chunk; window <= n_recent */
    uint32_t kernel;         /* odd; 0 with KV_POOLING_NONE */
    /* Keys are stored before RoPE and rotated when they are read: a token's position is its rank.
     * Otherwise positions are those of the text. */
    bool cache_positions;
};

/* Tells whether attention decides what is evicted; if not, it is the oldest tokens. */
static inline bool kv_has_scores(const struct kv_budget *budget) {
    return budget->score != KV_SCORE_NONE;
}

#define KV_FREE_SLOT UINT32_MAX /* as append_slot: each KV head's own free slot */

/* The cost of one sequence's evictions so far, over its layers and KV heads. */
struct evict_total {
    float retained_attention; /* the share of attention that kept tokens get (kv_page_state):
                             mean over layers and heads; NAN: no scores, or no eviction yet */
    uint32_t n_evictions;     /* of one KV head of one layer */
};

/* NULL in backend_ops: no sequence can have a budget here, and no pool is `tracked`. */
struct evict_ops {
    /* For the sequences whose budget has scores (kv_has_scores()): updates these from the queries
     * and the keys, then evicts tokens.  decode() is for [0, n_decode), chunk() for the rest.
     * Called after the attention of a layer, with the same arguments. */
    int (*decode)(struct backend *be, const struct attn_args *args, struct error *err);
    int (*chunk)(struct backend *be, const struct attn_args *args, struct error *err);
    /* For the sequences whose budget has no scores: evicts their oldest tokens in n_layers layers
     * from first_layer on.  These do not depend on queries, so one call serves all layers of a
     * step.  Called after the attention of the last of them, or after all other operations of the
     * step. */
    int (*oldest)(struct backend *be, const struct kv_pool *kv, uint32_t first_layer,
                  uint32_t n_layers, struct error *err);
    /* Orders the tokens of a full cache, which has n_slots = capacity + 1 in each of its layers
     * (host [n_layers]).  The lists may change as soon as this returns.  Called between steps; no
     * step in flight has rows of the sequence. */
    int (*order)(struct backend *be, const struct kv_pool *kv, const struct kv_view *layers,
                 uint32_t n_layers, struct error *err);
    /* Fills totals, host [step.n_seqs], with what sequences with a budget have evicted by then;
     * called after the last layer, and valid after collect() or sync(). */
    int (*totals)(struct backend *be, const struct kv_pool *kv, struct evict_total *totals,
                  struct error *err);
};

#endif
