/* select.h - layers that attend to chosen tokens of a long text, and the operations for them.
 *
 * Selections (struct kv_select; OmniKV section 4).  Tokens that matter to one layer matter to the
 * next ones, too.  So while tokens of a long text are generated, only some layers attend to all of
 * it.  The *filters* among these also choose tokens.  The *sparse* layers after a filter, its
 * group, attend to the chosen tokens and to the newest ones, the tail.  No token is lost: the next
 * step chooses anew.  Layers with a window do not take part.  They attend to the newest tokens as
 * always, wherever they are: between a filter and its group, or among the group.
 *
 *   a filter's slots       [ token 0, 1, 2 …                    n_candidates …            newest ]
 *   a sparse layer's slots [ the n_selected chosen, any order ] [ the tail: n_candidates … newest ]
 *   the source             [ token 0, 1, 2 … n_candidates - 1   … ]   of every sparse layer
 *
 * select() follows the filter's attention.  It chooses tokens, and copies the keys and values of
 * newly chosen ones from the source to slots of tokens that were not chosen again.  The source is
 * the host pool (struct host_pool), or pages of the same pool.
 *
 * Tokens are chosen by the newest query, or by a window of the last KV_OBSERVED queries (struct
 * kv_observation).  Then every query's token scores are kept while it is in the window.
 *
 *   token scores   [ page 0: query 0 … 15, PAGE_TOKENS floats each ][ page 1: … ] …
 *
 * The query at position p of the text has place p % KV_OBSERVED.  With KV_SELECTOR_ACCUMULATED
 * there is one place, which has the sum.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_DEVICE_SELECT_H
#define ENGINE_DEVICE_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/attention.h"
#include "engine/device/pages.h"

struct backend;
struct error;
struct host_pool;
struct layer_group;

/* Returns how many slots' tokens one page of kv_select.state_pages names. */
static inline uint32_t kv_state_slots(const struct kv_pool *kv) {
    return (uint32_t)(kv->page_bytes / sizeof(uint32_t));
}

/* By which queries tokens are chosen (OmniKV section 4.2: the context selector; the last one is how
 * H2O section 4 finds heavy hitters). */
enum kv_selector {
    KV_SELECTOR_LAST,        /* the newest one */
    KV_SELECTOR_UNIFORM,     /* the last KV_OBSERVED, all alike */
    KV_SELECTOR_EXPONENTIAL, /* the same; each counts half as much as the one behind it */
    KV_SELECTOR_ACCUMULATED  /* all of the text, for the tokens of pages that are whole for them */
};

enum { KV_OBSERVED = 16, KV_SCORE_RUN_BYTES = PAGE_TOKENS * sizeof(float) };

/* The token scores of a sequence's last queries.  A query's token scores are defined as in struct
 * select_args, for all slots that it sees; NaN counts as 0. */
struct kv_observation {
    enum kv_selector selector; /* not KV_SELECTOR_LAST */
    uint32_t first; /* rows at this position of the text and later ones are observed.  They are at
                       most KV_OBSERVED rows of the step; with KV_SELECTOR_ACCUMULATED all rows */
    uint32_t n_scored; /* the first n_scored tokens get scores; a multiple of PAGE_TOKENS.  Each
                          observed row sees them; with KV_SELECTOR_ACCUMULATED the last one does,
                          and others give scores to the whole pages that they see */
    /* Host [n_groups][n_pages], as many pages for each group as the runs of its tokens take. */
    const uint32_t *pages;
    uint32_t n_pages;
};

/* Returns how many runs of PAGE_TOKENS scores a page has space for; a run is in one page. */
static inline uint32_t kv_score_runs(const struct kv_pool *kv) {
    return (uint32_t)(kv->page_bytes / KV_SCORE_RUN_BYTES);
}

/* Returns how many runs each page of the text has. */
static inline uint32_t kv_observed_runs(enum kv_selector selector) {
    return selector == KV_SELECTOR_ACCUMULATED ? 1 : KV_OBSERVED;
}

/* Which tokens the sparse layers see of a sequence that generates, or that computes its prompt's
 * last token in the same way. */
struct kv_select {
    uint32_t n_selected;   /* slots for chosen tokens; a multiple of PAGE_TOKENS */
    uint32_t n_candidates; /* tokens to choose from; a multiple of PAGE_TOKENS, > n_selected */
    uint32_t n_sink;       /* the first tokens, always chosen; <= n_selected */
    bool fresh;            /* the slots are empty, so all chosen tokens are fetched */
    /* Host: for each group as many pages as a uint32_t [n_selected] takes, kv_state_slots() of them
     * in a page.  They name the token in each slot. */
    const uint32_t *state_pages;
    /* The source: host blocks, host [n_candidates / PAGE_TOKENS].  If it is NULL, the source is the
     * pages of each layer [n_layers]; those of layers that are not sparse are unused. */
    const uint32_t *blocks;
    const uint32_t *const *pool_pages;
};

/* Arguments of select(), for the sequences that have a kv_select.  A candidate's token score is the
 * largest softmax weight (f32) that any query head of `attn`'s layer gives it.  The softmax is over
 * all slots that the row sees.  If the sequence has a kv_observation, candidates are chosen by the
 * weighted sum of the token scores of the last KV_OBSERVED queries, the newest one among them.  The
 * query before counts 1 or, with KV_SELECTOR_EXPONENTIAL, 1 / 2, and so on; the sum begins with the
 * oldest query.  With KV_SELECTOR_ACCUMULATED all queries count 1.  The first n_sink candidates are
 * chosen, and the best others up to n_selected.  Ties go to the lower token; NaN counts as the
 * lowest score.  The chosen tokens are in the slots of the group's sparse layers before their
 * attention runs. */
struct select_args {
    struct attn_args attn; /* of the filter's attn_decode */
    const struct layer_group *group;
    uint32_t group_index;          /* among all groups: selects its state_pages */
    uint32_t first_host_layer;     /* the host layer of group->first */
    const struct host_pool *store; /* NULL: no sequence has host blocks */
    /* f32 [n_candidates], or NULL: the token scores of the candidates of the step's first sequence,
     * which has a kv_select; -1 for NaN.  The search of filters asks for them, with a group that
     * has no sparse layers. */
    float *token_scores;
};

/* The work of select() for one sequence in one step: tokens of one layer, summed over the
 * groups. */
struct select_total {
    uint32_t n_chosen, n_fetched;
    uint32_t n_copies; /* n_fetched, each counted once for every sparse layer of its group */
};

/* The largest selections that will come. */
struct select_limits {
    uint32_t max_slots;                  /* of a sequence with a kv_select, in a filter layer */
    uint32_t max_selected;               /* the largest n_selected of a kv_select */
    uint32_t n_groups, max_group_layers; /* sparse layers of the largest group */
};

/* NULL in backend_ops: this backend cannot select. */
struct select_ops {
    /* Selects as struct select_args says.  Called after attn_decode of a filter layer and before
     * that of the group's first sparse layer. */
    int (*select)(struct backend *be, const struct select_args *args, struct error *err);
    /* Keeps the token scores of the observed rows of sequences without a kv_select: select() keeps
     * those of the others.  Called with the same arguments, after attn_decode and attn_prefill of a
     * filter layer.  Softmax is over all slots that a row sees, also where the prompt is sparse. */
    int (*observe)(struct backend *be, const struct select_args *args, struct error *err);
    /* Fills totals, host [step.n_decode], for the sequences with a kv_select; called after the last
     * layer, and valid after collect() or sync(). */
    int (*totals)(struct backend *be, struct select_total *totals, struct error *err);
};

#endif
