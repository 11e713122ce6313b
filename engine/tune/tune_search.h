/* tune_search.h - the search of head patterns without a model: candidates, what was measured of
 * them, and what is chosen (MInference section 3.2).
 *
 *   recall    of a row: the share of its attention that lies on the keys that a candidate visits,
 *             2^(lse of those - lse of all).  A head's is the mean over rows that see enough keys.
 *   cost      of a head: its part of the time of a run in which all heads had the candidate, as a
 *             multiple of its part of the dense run's.  The index is shared out evenly, attention
 *             by what each head visited.
 *
 * The objective says what a head gets of them:
 *
 *   recall    the cheapest candidate that finds enough; those that cost no less than dense
 *             attention are none
 *   flops     candidates have been fitted to one budget of pairs for each head (tune_fit.h): the
 *             one that finds most, whatever it took
 *
 * Thread: any.  Memory: tune_results owns its arrays; nothing else allocates. */
#ifndef ENGINE_TUNE_TUNE_SEARCH_H
#define ENGINE_TUNE_TUNE_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"

struct error;

enum { TUNE_MAX_CANDIDATES = 24, TUNE_MAX_SAMPLES = 64, TUNE_MAX_RUNGS = 16 };

/* Candidates that leave something out of a prompt of n_tokens; returns how many. */
uint32_t tune_candidates(uint32_t n_tokens, struct attn_pattern out[TUNE_MAX_CANDIDATES]);

/* The first row that counts: rows before it see so few keys that anything finds them all. */
uint32_t tune_first_row(uint32_t n_tokens);

/* Adds n_rows rows' recall to sums [n_heads]; lse f32 [n_rows, n_heads]. */
void tune_add_recall(double *sums, const float *sparse, const float *dense, uint32_t n_rows,
                     uint32_t n_heads);

/* What one layer of one sample showed. */
struct tune_layer {
    bool done;
    double dense_s;
    double *index_s, *attention_s; /* [n_candidates], of all heads together */
    float *recall, *density;       /* [n_candidates][n_heads] */
};

struct tune_results {
    uint32_t n_samples, n_layers, n_heads, n_candidates;
    struct tune_layer *layers; /* [n_samples][n_layers] */
    void *arena;               /* of what they point to */
    struct attn_pattern *patterns; /* [n_layers][n_candidates][n_heads]: what was measured; of a
                                      layer that is not fitted yet, where its fit begins */
    bool *fitted;                  /* [n_layers]; PATTERN_DENSE: no size of it fits the head */
    double *similarity;        /* [n_samples][n_layers][n_layers], struct tune_filters */
    bool *compared;            /* [n_samples]: that is known */
};

/* candidates [n_candidates]: every head's; fitted: as they are, or else layer by layer. */
int tune_results_init(struct tune_results *out, uint32_t n_samples, uint32_t n_layers,
                      uint32_t n_heads, uint32_t n_candidates,
                      const struct attn_pattern *candidates, bool fitted, struct error *err);
void tune_results_fini(struct tune_results *results); /* a zeroed struct is allowed */
struct tune_layer *tune_results_at(const struct tune_results *results, uint32_t sample,
                                   uint32_t layer);
/* Of all heads. */
struct attn_pattern *tune_results_patterns(const struct tune_results *results, uint32_t layer,
                                           uint32_t candidate);
double *tune_results_similarity(const struct tune_results *results, uint32_t sample);

enum tune_objective { TUNE_RECALL, TUNE_FLOPS };

/* What is asked of a head's recall. */
struct tune_goal {
    enum tune_objective objective;
    double target; /* TUNE_RECALL: the cheapest candidate that has it in every sample; */
    double floor;  /* if none has, the best one.  Below this the head is dense */
};

struct tune_choice {
    int32_t candidate;          /* -1: dense */
    double mean_recall, worst_recall; /* over samples */
    double cost, density;
};
#define TUNE_DENSE ((struct tune_choice){-1, 1, 1, 1, 1})

/* Every sample of the layer is done. */
struct tune_choice tune_choose(const struct tune_results *results, const struct tune_goal *goal,
                               uint32_t layer, uint32_t head);

/* A candidate on every head, over heads, samples and the layers that are done. */
struct tune_finding {
    double recall, density;
};
struct tune_finding tune_finding_of(const struct tune_results *results, uint32_t candidate);

/* ---- the ladder: which prompts tell from which length on sparse ones are faster ---- */

enum { TUNE_FIRST_RUNG = 1024 };

/* Prompts of one length. */
struct tune_rung {
    uint32_t n_tokens;
    double dense_s, sparse_s;
};

/* The length to measure next, of rungs by ascending length: doubling lengths up to top, until
 * sparse ones have won often enough; then, a few times, halfway between the last one that lost and
 * the next.  0: enough is known, or there is no room for more. */
uint32_t tune_next_rung(const struct tune_rung *rungs, uint32_t n, uint32_t top);
/* Into its place among the n; rungs has room for one more. */
void tune_insert_rung(struct tune_rung *rungs, uint32_t n, const struct tune_rung *rung);

#define TUNE_NEVER UINT32_MAX

/* The shortest length that was measured from which on sparse prompts were nowhere slower, rounded
 * up to a tile.  TUNE_NEVER: those of the longest were slower. */
uint32_t tune_break_even(const struct tune_rung *rungs, uint32_t n);

#endif
