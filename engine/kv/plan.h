/* plan.h - what a request's choice of a KV policy comes to: whether it can be honoured, and what
 * the sequence will keep.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_KV_PLAN_H
#define ENGINE_KV_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/collective.h"
#include "engine/device/evict.h"
#include "engine/device/layer_group.h"
#include "engine/request/kv_choice.h"

struct error;
struct kv_kinds;
struct kv_space;

/* The most tokens of a text.  So counters, and arrays that grow by half, stay inside 32 bits. */
#define KV_MAX_TEXT ((uint32_t)INT32_MAX)

/* How many page buffers a layer-major prompt has: a slice leaves one layer and enters the next. */
enum { KV_N_BUFFERS = 2 };

/* What a sequence will keep: its request's choice, worked out. */
struct kv_plan {
    const struct kv_kinds *kinds; /* of the layers, by their role (kind.h) */
    struct layer_set budgeted;    /* layers that keep a budget while others do not; or empty */
    bool outgrows;                /* the text may be longer than the model's context */
    uint8_t type;                 /* kv_choice.type, for counters; the code never branches on it */
    struct kv_budget budget;      /* of the kind `bounded`, where it is assigned; else zeroed */
    uint32_t chunk;               /* under a budget: tokens of the prompt between two evictions */
    bool is_whole;                /* the chunk is the whole prompt */
    /* Tokens that sparse layers see: selected ones, among them the first n_sink, and the newest
     * ones (the tail).  The first two numbers are multiples of PAGE_TOKENS. */
    uint32_t n_selected, n_tail, n_sink;
    enum kv_selector selector; /* of kinds that select; else KV_SELECTOR_LAST */
    /* The prompt is computed layer by layer: all of it if its end decides what is kept, else all
     * but its last token.  Layers that will keep a part of it then share two buffers of pages
     * (kinds/bounded.c, kinds/moved.c). */
    bool layer_major;
    uint32_t n_buffer_pages; /* of each buffer; 0 unless the prompt is layer-major */
    uint32_t n_prompt;       /* tokens of the prompt, */
    uint32_t n_before_last;  /* and of it before its last message; 0: unknown */
    uint32_t n_most;         /* tokens that the text may have in the end, <= KV_MAX_TEXT */
    uint32_t step_rows; /* the most rows that a step, or a prompt's slices, append to a window */
};

/* What an engine can do, which decides which choices are refused. */
struct kv_limits {
    uint32_t max_model_len;   /* of texts that are kept whole */
    uint32_t trained_context; /* the model's */
    uint32_t n_layers;        /* the model's */
    bool all_windowed;        /* all of its layers have a window, so that none has a budget */
    bool learned_positions;   /* and part of what is cached: they cannot be counted in the cache */
    bool bounded_caches;
    const struct layer_group *groups; /* [n_groups], of `selections` */
    uint32_t n_groups;
    bool selections;       /* there are filter layers, and the backend selects */
    uint32_t max_selected; /* tokens that it selects at most; 0: it does not select */
    const char *device;    /* the backend's name */
    bool has_host_pool;    /* the system's memory keeps what is not on the device */
    uint32_t n_ranks;      /* that share the model (device/collective.h); 0: it is not shared */
    enum ranks_share ranks_share;
    bool repeats_heads; /* several of them have the same KV head */
};

/* Checks the choice for a prompt of n_prompt tokens and an answer of up to max_tokens; err says
 * what is wrong.  ERR_INVALID; ERR_TOO_LONG: the text is too long for the model or the engine. */
int kv_choice_check(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens,
                    const struct kv_limits *limits, struct error *err);
/* Returns the plan of a choice that has passed the check.  A text too short for a selection is kept
 * whole.  The caller then calls kv_plan_divide(), sets step_rows and calls kv_plan_by_layers(). */
struct kv_plan kv_plan_make(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens);

/* Checks what some layers of a request keep, if its other layers have the choice `rest`, which has
 * passed its own check.  An override without layers passes.  ERR_INVALID. */
int kv_override_check(const struct kv_override *override, const struct kv_choice *rest,
                      uint32_t n_prompt, const struct kv_limits *limits, struct error *err);
/* Gives the budget of a checked override to its layers, if it has any.  Then takes the budget, the
 * override's or that of all layers, from layers with a window: these keep what their window sees.
 * If no layer keeps it then, the plan has no budget. */
void kv_plan_divide(struct kv_plan *plan, const struct kv_override *override,
                    const struct kv_space *space);

/* Tells whether the prompt's last row decides what is kept of it: there is a budget.  So that row
 * is computed together with those before it, never like a generated token. */
static inline bool kv_plan_ends_prompt(const struct kv_plan *plan) {
    return plan->budget.capacity > 0;
}

/* Returns how many of the prompt's last rows must see everything, because they decide what is kept:
 * the observation window.  1 under any other budget, 0 without one. */
static inline uint32_t kv_plan_n_exact(const struct kv_plan *plan) {
    return plan->budget.window > 0 ? plan->budget.window : kv_plan_ends_prompt(plan);
}

/* Makes the prompt layer-major if the pool has too few pages for it, or under a budget if
 * is_by_layers says so.  Only plans that move tokens, or whose budget is of the whole prompt, can
 * be.  Its rows must fit max_long_rows, and where tokens are moved its last token must select.  The
 * answer's length does not matter.  step_rows must be set; a layer-major prompt makes it 1. */
void kv_plan_by_layers(struct kv_plan *plan, const struct kv_space *space, uint32_t max_long_rows,
                       bool is_by_layers);

/* Tells whether nothing is evicted or left out: neither a budget nor a selection.  So it does not
 * matter which tokens are computed together. */
static inline bool kv_plan_sees_all(const struct kv_plan *plan) {
    return plan->budget.capacity == 0 && plan->n_selected == 0;
}

/* Returns how many tokens of the prompt are computed as a prompt.  That is all, or all but the last
 * one, which is then computed as if it had been generated. */
static inline uint32_t kv_plan_together(const struct kv_plan *plan) {
    return plan->n_prompt - (plan->layer_major && !kv_plan_ends_prompt(plan));
}

/* Returns how many tokens are candidates for the selection in a step whose row follows n_tokens
 * tokens.  These are all n_tokens + 1 but the tail, in whole pages.  If there are no more than
 * n_selected, nothing is selected and all are seen. */
uint32_t kv_plan_candidates(const struct kv_plan *plan, uint32_t n_tokens);

/* Returns how many of a text's last rows must be computed even if its keys and values are cached.
 * Their queries decide what is selected.  At least 1; UINT32_MAX: all rows. */
uint32_t kv_plan_n_observed(const struct kv_plan *plan);

/* Tells whether sparse layers' tokens that are not selected move to the host pool. */
bool kv_plan_moves(const struct kv_plan *plan);
/* Returns the most tokens that the text has while all layers attend to it (KV_PHASE_TEXT).  That is
 * n_most, unless sparse layers leave it before; in a layer-major prompt 0. */
uint32_t kv_plan_n_read(const struct kv_plan *plan);

#endif
