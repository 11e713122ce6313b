/* step.h - one pass of the model over the rows (tokens) of many sequences.
 *
 * The engine describes a step once, and step_begin() gives the description to the device.  Every
 * operation up to the next step_begin() refers to it.  Sequences that generate come first, n_decode
 * of them with one row each; attn_decode computes them.  Sequences that compute any number of rows
 * of a prompt follow; attn_prefill computes them.  All are in the order of their rows.
 *
 * Thread: engine.  Memory: borrowed until the step's last operation has returned. */
#ifndef ENGINE_DEVICE_STEP_H
#define ENGINE_DEVICE_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/evict.h"
#include "engine/device/layer_set.h"
#include "engine/device/pages.h"

struct attn_sparse;    /* sparse.h */
struct kv_observation; /* select.h */
struct kv_select;      /* select.h */
struct select_limits;  /* select.h */
struct sparse_limits;  /* sparse.h */

/* In step.tokens, STEP_SAMPLED | i is the token that sample row i of the previous step gave,
 * counting the rows of all its sample operations.  The device knows it already, the host does not.
 * A row whose result is invalid may give any token of the vocabulary. */
#define STEP_SAMPLED 0x80000000u

/* One layer of one sequence as a step sees it. */
struct kv_view {
    const uint32_t *pages; /* host, in slot order: slot s is in pages[s / PAGE_TOKENS] */
    uint32_t n_slots;      /* slots in use once this step's rows have been appended */
    uint32_t append_slot;  /* slot of the sequence's first row; the next rows follow.  For a full
                              bounded cache KV_FREE_SLOT, with one row and n_slots = capacity + 1.
                              A prompt's first row follows tokens that are in order (evict.h) */
};

/* Slots of the pool of recurrent states (recurrent.h).  One has the sequence's state before its
 * first row in the step.  The state after its last row goes into the other, which may be the same.
 * No other sequence of the step has the second one, as either. */
struct state_slots {
    uint32_t from; /* or STATE_ZERO */
    uint32_t to;
};

struct step_seq {
    uint32_t first_row;             /* in [0, n_rows) */
    uint32_t n_rows;                /* >= 1; exactly 1 for the first n_decode sequences */
    const struct kv_view *layers;   /* [step.n_layers] */
    const struct kv_budget *budget; /* NULL: attention evicts nothing */
    /* The layers that have the budget; they have the same n_slots and append_slot.  NULL: all.  A
     * budget that counts positions in the cache is that of all layers without a window. */
    const struct layer_set *budgeted;
    uint32_t n_before; /* tokens of the text before the first row */
    /* With a budget: */
    bool begins_chunk;  /* prompts: the first row begins a chunk.  With KV_SCORE_WINDOW, scores from
                           earlier chunks are reset before this step's rows count */
    uint32_t score_row; /* prompts: the sequence's rows from this one on count for scores */
    bool compress;      /* prompts: the last row ends a chunk.  After this step the first
                           min(n_slots, capacity) slots hold the kept tokens */
    /* NULL: attention is dense.  At most one sequence of a step has this.  It computes a prompt,
     * and its rows are some of those that are indexed together.  Rows that attn_prefill computes
     * begin at a multiple of SPARSE_TILE from first_slot.  If it has a budget, its keys are rotated
     * before they are stored, and rows that count for scores are not before dense_from. */
    const struct attn_sparse *sparse;
    /* NULL: each layer's slots are those of its view.  Otherwise select() also chooses which tokens
     * are in the first n_selected slots of sparse layers without a budget.  Only for sequences that
     * decode; filters have no budget. */
    const struct kv_select *select;
    struct state_slots state; /* of models with recurrent layers */
    /* NULL: the newest query chooses.  Otherwise the last ones do, and filters keep the token
     * scores of the step's last rows. */
    const struct kv_observation *observed;
};

/* Query row i of a sequence sees slots [0, n_slots - n_rows + i]: the rows are the newest tokens,
 * causal among themselves.  In a layer with a window it sees only the newest of these. */
struct step {
    uint32_t n_rows, n_seqs, n_decode, n_layers; /* n_layers: that attend */
    bool has_states; /* the model has recurrent layers, so step_seq.state counts */
    /* Host [n_layers]: the most slots that a row sees, including its own; 0: all.  NULL: all slots
     * in all layers.  In a layer with a window no sequence has a budget.  A sequence that selects
     * has the slots of the text there, and a sparse one is dense.  Slots of another one may begin
     * where the text no longer matters. */
    const uint32_t *windows;
    const uint32_t *tokens; /* host [n_rows]; or STEP_SAMPLED | i */
    /* Host [n_rows], RoPE positions; with cache_positions, ranks, and row i of the sequence then
     * has the position n_before + i in layers without the budget. */
    const uint32_t *positions;
    const struct step_seq *seqs;
};

/* Returns the budget of a sequence in this layer, or NULL if the layer evicts nothing. */
static inline const struct kv_budget *step_budget(const struct step_seq *seq, uint32_t layer) {
    const bool is_budgeted = !seq->budgeted || layer_set_has(seq->budgeted, layer);
    return is_budgeted ? seq->budget : NULL;
}

/* Returns the budget of a sequence in this layer if it counts positions in the cache there; else
 * NULL. */
static inline const struct kv_budget *step_ranked(const struct step_seq *seq, uint32_t layer) {
    const struct kv_budget *budget = step_budget(seq, layer);
    return budget && budget->cache_positions ? budget : NULL;
}

/* Returns the first layer that has the sequence's budget. */
static inline uint32_t step_first_budgeted(const struct step_seq *seq) {
    return seq->budgeted ? layer_set_next(seq->budgeted, 0) : 0;
}

static inline uint32_t step_window(const struct step *step, uint32_t layer) {
    return step->windows ? step->windows[layer] : 0;
}

/* The largest step that will come, and the shape of its model. */
struct step_limits {
    uint32_t max_rows, max_seqs;
    uint32_t max_seq_pages;    /* of a sequence, in each layer */
    uint64_t max_slots;        /* of all sequences, in a layer; shared slots count once */
    uint64_t max_prompt_slots; /* if page_is_scaled(): of attn_prefill's sequences, in a layer */
    enum page_format kv_format;
    bool tracked;            /* as in struct kv_pool: sequences may have budgets */
    uint32_t max_logit_rows; /* of one sample operation */
    uint32_t n_layers, n_heads, n_kv_heads, head_dim, n_vocab;
    struct kv_shape windowed; /* of layers with a window, if they have other heads; else zeroed */
    uint32_t n_freqs;         /* the most of any layer */
    const struct sparse_limits *sparse; /* NULL: no sequence is sparse */
    const struct select_limits *select; /* NULL: no sequence has a kv_select */
};

#endif
