/* prefill_choice.h - how a request wants its prompt computed.  The server fills it in, the engine
 * checks it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_PREFILL_CHOICE_H
#define ENGINE_REQUEST_PREFILL_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/request/kv_choice.h"

struct attn_pattern;

enum prefill_mode {
    PREFILL_AUTO,  /* sparse where that is faster: engine_config.min_sparse_tokens */
    PREFILL_DENSE, /* every row visits all keys before it */
    PREFILL_SPARSE /* each head visits the keys of its pattern */
};

/* Why a prompt was computed densely. */
enum dense_reason {
    DENSE_NOT,         /* it was not */
    DENSE_ASKED,       /* the mode is dense */
    DENSE_UNAVAILABLE, /* the server computes no prompt sparsely */
    DENSE_KV_POLICY,   /* what is kept needs all pairs of row and key */
    DENSE_SCORED,      /* auto, and the prompt's log-probabilities are asked for */
    DENSE_NO_PATTERNS, /* auto, and there is no pattern file */
    DENSE_SHORT,       /* auto, and the prompt is shorter than min_sparse_tokens */
    DENSE_LONG,        /* the prompt is longer than sparse prompts may be */
    DENSE_CACHED,      /* most of the prompt was in the prefix cache */
    N_DENSE_REASONS
};

#define PREFILL_DENSE_ABOVE 0.7f /* the default of dense_above */

/* Under PREFILL_AUTO, a prompt with fewer rows left to compute is dense, whatever min_sparse_tokens
 * says. */
enum { PREFILL_MIN_AUTO_ROWS = 513 };

/* The rows that the first prefill chunk of a step may have in any case, so that prompts always
 * advance. */
enum { PREFILL_MIN_STEP_ROWS = 64 };

/* Zeroed: auto, with the engine's patterns.  Sparse requests never share cached prefixes with dense
 * ones, and share them with each other only if patterns, dense_above, dense_tail and synthetic are
 * equal. */
struct prefill_choice {
    enum prefill_mode mode;
    enum dense_reason why_dense;         /* of the mode dense; DENSE_NOT is DENSE_ASKED */
    const struct attn_pattern *patterns; /* host [n_layers][n_heads], borrowed until the request's
                                            final event; NULL: engine_config.patterns */
    float dense_above;                   /* as in struct attn_sparse; 0: PREFILL_DENSE_ABOVE */
    uint32_t dense_tail; /* how many last tokens of the prompt are dense; of a layer-major prompt
                            the last one is in any case */
    uint32_t synthetic;  /* as in struct attn_sparse */
    /* A sparse prompt takes no blocks from other requests, whose keys were chosen for the end of
     * another prompt.  So its result depends on the request alone.  Others may take its blocks. */
    bool no_reuse;
};

/* What keeps a prompt dense.  A sparse prefill leaves out pairs of row and key. */
struct dense_rule {
    bool (*applies)(const struct kv_choice *kv, bool scores_prompt);
    const char *needs; /* what sparse prefill needs instead, for errors: then no prompt is sparse.
                          NULL: only auto is dense, and a request may ask for sparse */
};

/* Returns the first rule that applies to the request's layers, or NULL.  override: NULL, or layers
 * that keep something else than those of kv.  Nothing else decides what goes with sparse
 * prefill. */
const struct dense_rule *prefill_dense_rule(const struct kv_choice *kv,
                                            const struct kv_override *override, bool scores_prompt);
/* Returns why a prompt of this mode stays dense by the rule, which may be NULL; DENSE_NOT: it does
 * not. */
enum dense_reason prefill_why_dense(const struct dense_rule *rule, enum prefill_mode mode);

/* How a prompt was computed. */
struct prefill_usage {
    enum prefill_mode mode;      /* PREFILL_SPARSE: at least a part of it; else PREFILL_DENSE */
    double density;              /* share of the causal pairs of row and slot visited; dense: 1 */
    double index_s, attention_s; /* device time of sparse steps */
    uint32_t n_reused;           /* tokens from sparse blocks of the prefix cache */
    enum dense_reason why_dense; /* PREFILL_DENSE */
};

#endif
