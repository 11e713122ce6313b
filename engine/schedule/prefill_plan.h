/* prefill_plan.h - what a request's choice of prefill comes to: which of its prompt's rows are
 * computed sparsely, in which order, and by which name the prefix cache knows what comes of it.
 *
 *   layer by layer   rows [cached, n_prompt - 1), all indexed together (model/decoder.h), where the
 *                    room for long prompts has that many; the last token is an ordinary row
 *   in chunks        each piece is indexed by itself; pieces begin at whole pages, so a few rows
 *                    may be dense to get there
 *   ordinary         dense: few rows, or not sparse at all
 *
 * A prompt whose pages do not fit (kv_plan.layer_major) goes layer by layer in any case, sparse or
 * dense.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_SCHEDULE_PREFILL_PLAN_H
#define ENGINE_SCHEDULE_PREFILL_PLAN_H

#include "engine/request/kv_choice.h"
#include "engine/request/prefill_choice.h"

enum prefill_order { PREFILL_CHUNKED, PREFILL_SPARSE_CHUNKED, PREFILL_LAYER_MAJOR };

/* What an engine can do and prefers. */
struct prefill_support {
    bool available; /* the backend chooses keys, and there is room for it */
    const struct attn_pattern *patterns; /* or NULL */
    uint32_t n_heads_in_all;             /* of all layers: how many patterns there are */
    uint32_t min_sparse_tokens;
    uint64_t key[2]; /* random: clients choose salts, and must not guess names of sparse blocks */
};

/* A request's choice, worked out. */
struct prefill_plan {
    bool is_sparse;    /* where there are min_rows rows to compute */
    uint32_t min_rows; /* the prompt's last one not counted */
    uint32_t last;     /* the slot of the prompt's last token */
    bool no_reuse;     /* and it is sparse: no blocks are taken from the prefix cache */
    struct attn_sparse sparse; /* but for the rows */
};

struct prefill_plan prefill_plan_make(const struct prefill_choice *choice,
                                      const struct prefill_support *support, enum kv_type kv,
                                      uint32_t n_prompt, bool scores_prompt);
/* The salt of a request's blocks: another one wherever their contents may be others.  What is
 * sparse depends on what it was computed with; whoever must not notice that is the only `owner` of
 * its blocks (0: they are shared). */
uint64_t prefill_salt(const struct prefill_plan *plan, const struct prefill_support *support,
                      uint64_t cache_salt, uint64_t owner);

/* How to compute a prompt of which n_stored tokens are stored.  max_long_rows: of the room for long
 * prompts. */
enum prefill_order prefill_order(const struct prefill_plan *plan, uint32_t n_stored,
                             uint32_t max_long_rows);
/* Rows of the next piece in chunks: at most `most` of the n_left behind n_stored tokens.
 * *is_sparse: they choose keys. */
uint32_t prefill_chunk_rows(uint32_t n_stored, uint32_t n_left, uint32_t most, bool *is_sparse);

/* For n_rows rows from slot `first` on that are indexed together. */
struct attn_sparse prefill_rows(const struct prefill_plan *plan, uint32_t first, uint32_t n_rows);

/* Adds what a step visited. */
void sparse_totals_add(struct sparse_totals *to, const struct sparse_totals *step);
/* Of the pairs that are causal, those that were visited; 0: there were none. */
double sparse_density(const struct sparse_totals *totals);
/* Of a prompt whose sparse steps visited this; was_sparse: it had such steps.  n_cached: tokens
 * that it found in the prefix cache. */
struct prefill_usage prefill_usage(const struct prefill_plan *plan, bool was_sparse,
                                   const struct sparse_totals *visited, uint32_t n_cached);

#endif
