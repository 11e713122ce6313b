/* tune_filters.h - finds the layers that best choose tokens for the others (OmniKV section 4.2), by
 * the similarity of layers.
 *
 *   similarity[l][j], j >= l   the share of layer j's token scores that falls on the tokens that
 *                              layer l would choose; [l][l]: on those of its own choice
 *   lost                       the sum over the sparse layers j of 1 - similarity[j's filter][j].
 *                              Layers that attend to all tokens lose nothing; layers with a
 *                              window neither choose nor follow
 *
 * Token scores and chosen tokens are those of select() (engine/device/select.h).
 *
 * Thread: any.  Memory: none that outlives a call. */
#ifndef ENGINE_TUNE_TUNE_FILTERS_H
#define ENGINE_TUNE_TUNE_FILTERS_H

#include <stdint.h>

#include "engine/sparsity/filters.h"

enum { TUNE_MAX_FILTERS = 4, TUNE_N_CHOICES = 5 };

/* Returns the share of all token scores that falls on the chosen tokens; 0 if all scores are 0.
 * Negative scores and NaN count as 0. */
double tune_share(const float *token_scores, uint32_t n_scores, const uint32_t *chosen,
                  uint32_t n_chosen);

struct tune_filters {
    struct filters filters;
    uint32_t n_dense; /* layers that attend to all tokens */
    double lost;
    double kept; /* share of the answers without filters that a trial reproduced (tune_trial.c) */
};

struct tune_filter_goal {
    uint32_t max_filters; /* <= TUNE_MAX_FILTERS */
    uint32_t max_dense;
    uint32_t n_wait;         /* how many layers after each filter are not sparse, window or not */
    const uint32_t *windows; /* as in struct step */
};

/* Finds the sets of filters that lose least, in ascending order of `lost`, with `kept` 0.  Every
 * filter has layers that follow it, after n_wait others.  similarity [n_layers][n_layers].  Returns
 * how many sets there are, 0 if max_dense does not allow a single filter; ERR_NOMEM. */
int tune_filters_choose(struct tune_filters best[TUNE_N_CHOICES], const double *similarity,
                        uint32_t n_layers, const struct tune_filter_goal *goal, struct error *err);

/* Sorts sets that have been tried by `kept`, highest first, and sets that keep the same by the
 * number of sparse layers, most first.  The sort is stable. */
void tune_filters_rank(struct tune_filters *sets, uint32_t n);

#endif
