/* prefill_choice.h - how a request wants its prompt computed, as the server says it and the engine
 * takes it.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_REQUEST_PREFILL_CHOICE_H
#define ENGINE_REQUEST_PREFILL_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"

enum prefill_mode {
    PREFILL_AUTO,  /* sparse where that is faster: engine_config.min_sparse_tokens */
    PREFILL_DENSE, /* every row visits all keys before it */
    PREFILL_SPARSE /* each head visits the keys of its pattern */
};

#define PREFILL_DENSE_ABOVE 0.7f /* the default of dense_above */

/* Under auto, fewer rows than this to compute are dense, whatever min_sparse_tokens says. */
enum { PREFILL_MIN_AUTO_ROWS = 513 };

/* Rows that a prompt gets in a step in any case, so that it goes on. */
enum { PREFILL_MIN_STEP_ROWS = 64 };

/* Zeroed: auto, with the engine's patterns.  Requests share cached prefixes only where they agree
 * in all of this, and sparse ones never with dense ones. */
struct prefill_choice {
    enum prefill_mode mode;
    const struct attn_pattern *patterns; /* host [n_layers][n_heads], borrowed until the request's
                                            final event; NULL: engine_config.patterns */
    float dense_above;   /* as in struct attn_sparse; 0: PREFILL_DENSE_ABOVE */
    uint32_t dense_tail; /* the last so many tokens of the prompt are dense; layer by layer its
                            last one is in any case */
    uint32_t synthetic;  /* as in struct attn_sparse */
    /* What is sparse takes no blocks that other requests have left, whose keys were chosen for
     * another end: it is a function of the request alone.  It gives its blocks to others. */
    bool no_reuse;
};

/* How a prompt was computed. */
struct prefill_usage {
    enum prefill_mode mode; /* PREFILL_SPARSE: at least a part of it; else PREFILL_DENSE */
    double density;         /* pairs of row and slot visited, of those that are causal; dense: 1 */
    double index_s, attention_s; /* the device was busy with; sparse steps only */
    uint32_t n_reused; /* tokens that came from sparse blocks of the prefix cache */
};

#endif
