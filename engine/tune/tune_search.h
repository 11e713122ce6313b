/* tune_search.h - the search of head patterns without a model: candidates, their measurements, and
 * the choice (MInference section 3.2).
 *
 *   recall    of a row: the share of its attention that falls on the keys that a candidate visits,
 *             2^(lse of those - lse of all).  A head's is the mean over rows that see enough keys.
 *   cost      of a head: its part of the time of a run in which all heads had the candidate, as a
 *             multiple of its part of the dense run's.  The time of the index is divided evenly,
 *             that of attention by the pairs that each head visited.
 *
 * The objective decides which candidate a head gets:
 *
 *   recall    the cheapest one with enough recall; one that does not cost less than dense attention
 *             is never chosen
 *   flops     the one with the highest recall, whatever its cost: candidates have been fitted to
 *             one budget of pairs for each head (tune_fit.h)
 *
 * Thread: any.  Memory: tune_results owns its arrays; nothing else allocates. */
#ifndef ENGINE_TUNE_TUNE_SEARCH_H
#define ENGINE_TUNE_TUNE_SEARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/sparse.h"

struct error;

enum { TUNE_MAX_CANDIDATES = 24, TUNE_MAX_SAMPLES = 64, TUNE_MAX_RUNGS = 16 };

/* Writes the candidates that do not visit all of a prompt of n_tokens; returns how many. */
uint32_t tune_candidates(uint32_t n_tokens, struct attn_pattern out[TUNE_MAX_CANDIDATES]);

/* Returns the first row that counts for recall: rows before it see so few keys that every candidate
 * visits them all. */
uint32_t tune_first_row(uint32_t n_tokens);

/* Adds the recall of n_rows rows to sums [n_heads].  sparse, dense: their lse, f32
 * [n_rows, n_heads]. */
void tune_add_recall(double *sums, const float *sparse, const float *dense, uint32_t n_rows,
                     uint32_t n_heads);

/* The measurements of one layer with one sample. */
struct tune_layer {
    bool done;
    double dense_s;
    double *index_s, *attention_s; /* [n_candidates], of all heads together */
    float *recall, *density;       /* [n_candidates][n_heads] */
};

struct tune_results {
    uint32_t n_samples, n_layers, n_heads, n_candidates;
    struct tune_layer *layers;     /* [n_samples][n_layers] */
    void *arena;                   /* memory of the layers' arrays */
    struct attn_pattern *patterns; /* [n_layers][n_candidates][n_heads]: those measured; for a layer
                                      that is not fitted yet, those its fit begins with */
    bool *fitted;                  /* [n_layers]: its patterns are final.  PATTERN_DENSE among them:
                                      no size of the candidate fits the head */
    double *similarity;            /* [n_samples][n_layers][n_layers]: tune_filters.h */
    bool *compared;                /* [n_samples]: its similarity is known */
};

/* Creates empty results.  candidates [n_candidates]: the same for every head.  fitted: they are
 * used as they are; otherwise they are fitted for each layer. */
int tune_results_init(struct tune_results *out, uint32_t n_samples, uint32_t n_layers,
                      uint32_t n_heads, uint32_t n_candidates,
                      const struct attn_pattern *candidates, bool fitted, struct error *err);
void tune_results_fini(struct tune_results *results); /* a zeroed struct is allowed */
struct tune_layer *tune_results_at(const struct tune_results *results, uint32_t sample,
                                   uint32_t layer);
/* Returns the patterns of all heads, [n_heads], for one candidate. */
struct attn_pattern *tune_results_patterns(const struct tune_results *results, uint32_t layer,
                                           uint32_t candidate);
double *tune_results_similarity(const struct tune_results *results, uint32_t sample);

enum tune_objective { TUNE_RECALL, TUNE_FLOPS };

/* The recall demanded of a head. */
struct tune_goal {
    enum tune_objective objective;
    double target; /* TUNE_RECALL: the cheapest candidate that has it in every sample is chosen; if
                      none has, the one of highest recall */
    double floor;  /* a head whose candidates are all below this is dense */
};

struct tune_choice {
    int32_t candidate;                /* -1: dense */
    double mean_recall, worst_recall; /* over samples */
    double cost, density;
};
#define TUNE_DENSE ((struct tune_choice){-1, 1, 1, 1, 1})

/* Chooses the candidate of a head; every sample of the layer must be done. */
struct tune_choice tune_choose(const struct tune_results *results, const struct tune_goal *goal,
                               uint32_t layer, uint32_t head);

/* The mean measurements of a candidate, over all heads, samples and the layers that are done. */
struct tune_finding {
    double recall, density;
};
struct tune_finding tune_finding_of(const struct tune_results *results, uint32_t candidate);

/* ---- the ladder: the prompt lengths to measure to find where sparse prompts become faster ---- */

enum { TUNE_FIRST_RUNG = 1024 };

/* The measurement of prompts of one length. */
struct tune_rung {
    uint32_t n_tokens;
    double dense_s, sparse_s;
};

/* Returns the length to measure next; rungs are in order of length.  First lengths double up to
 * `top`, until sparse prompts have won often enough.  Then, a few times, the length is halfway
 * between the last one that lost and the next one.  0: enough is known, or there are
 * TUNE_MAX_RUNGS. */
uint32_t tune_next_rung(const struct tune_rung *rungs, uint32_t n, uint32_t top);
/* Inserts the rung in order of length among the n; rungs has space for one more. */
void tune_insert_rung(struct tune_rung *rungs, uint32_t n, const struct tune_rung *rung);

#define TUNE_NEVER UINT32_MAX

/* Returns the shortest measured length from which on no sparse prompt was slower, rounded up to a
 * tile.  TUNE_NEVER: sparse prompts of the longest length were slower. */
uint32_t tune_break_even(const struct tune_rung *rungs, uint32_t n);

#endif
