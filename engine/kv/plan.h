/* plan.h - what a request's choice of a KV policy comes to: whether it can be honoured, and what
 * the sequence will keep.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_KV_PLAN_H
#define ENGINE_KV_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/request/kv_choice.h"

struct error;
struct kv_policy_ops;
struct kv_space;

/* Tokens that a text may have.  Counters and arrays of tokens that grow by half stay far inside 32
 * bits. */
#define KV_MAX_TEXT ((uint32_t)INT32_MAX)

/* A sequence's choice, worked out. */
struct kv_plan {
    const struct kv_policy_ops *policy;
    enum kv_type type;       /* to count by, not to ask */
    struct kv_budget budget; /* where not everything is kept */
    uint32_t chunk;          /* tokens of the prompt between two compressions */
    /* Where sparse layers see what is selected: whole pages of chosen tokens, of which n_sink are
     * the first ones, and of the newest. */
    uint32_t n_selected, n_tail, n_sink;
    /* And the prompt, but for its last token, goes layer by layer, with pages of sparse layers, and
     * of those with a window, there for two of them at a time (offload.c). */
    bool layer_major;
    uint32_t n_prompt;
    uint32_t n_most; /* tokens that the text may come to have, <= KV_MAX_TEXT */
    uint32_t step_rows; /* that a step, or a prompt's slices together, may append at most, to lists
                           of layers with a window */
};

/* What an engine can do. */
struct kv_limits {
    uint32_t max_model_len;   /* of texts that are kept whole */
    uint32_t trained_context; /* the model's */
    uint32_t window;          /* its layers', 0: none */
    bool bounded_caches;
    bool selections;       /* there are filter layers, and the backend selects: */
    uint32_t max_selected; /* so many at most; 0 where it does not */
    bool has_host_pool;        /* the system's memory keeps what is not on the device */
};

/* ERR_INVALID, or ERR_TOO_LONG where the text's length matters: err says what is wrong with the
 * choice, or with the choice for this text. */
int kv_choice_check(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens,
                    const struct kv_limits *limits, struct error *err);
/* The choice has passed the check.  Texts that are too short for a selection are kept like any
 * other. */
struct kv_plan kv_plan_make(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens);

/* The prompt goes layer by layer if not all of its pages fit the space, its rows fit the room for
 * such prompts, and its last token can select.  How long the answer may become does not matter: the
 * same prompt is computed in the same way.  For prompts of which only the last row needs logits;
 * step_rows is known. */
void kv_plan_by_layers(struct kv_plan *plan, const struct kv_space *space, uint32_t max_long_rows);

/* Tokens of the prompt that are computed together; what follows comes one by one, as if it had been
 * generated. */
static inline uint32_t kv_plan_together(const struct kv_plan *plan) {
    return plan->n_prompt - plan->layer_major;
}

/* In a step whose row comes behind n_tokens tokens sparse layers see n_selected of the first so
 * many: all but the tail.  If these are no more than n_selected, there is nothing to choose. */
uint32_t kv_plan_candidates(const struct kv_plan *plan, uint32_t n_tokens);

#endif
