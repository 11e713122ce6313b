/* tune_filters.h - which layers best choose tokens for the others (OmniKV section 4.2), from how
 * alike layers are.
 *
 *   similarity[l][j], j >= l   of what candidates are worth to layer j, the share of those that
 *                              layer l would choose; [l][l] is what l's own choice finds
 *   lost                       summed over the sparse layers j: 1 - similarity[j's filter][j].
 *                              Layers that see everything lose nothing, and those with a window
 *                              neither choose nor follow
 *
 * What tokens are worth, and which are chosen, is select()'s to say (backend.h).
 *
 * Thread: any.  Memory: none that outlives a call. */
#ifndef ENGINE_TUNE_TUNE_FILTERS_H
#define ENGINE_TUNE_TUNE_FILTERS_H

#include <stdint.h>

#include "engine/sparsity/filters.h"

enum { TUNE_MAX_FILTERS = 4, TUNE_N_CHOICES = 5 };

/* The share of the whole worth that lies on the chosen ones; 0 where nothing is worth anything.
 * What is worth less than nothing, or NaN, counts as nothing. */
double tune_share(const float *worth, uint32_t n_worth, const uint32_t *chosen, uint32_t n_chosen);

struct tune_filters {
    struct filters filters;
    uint32_t n_dense; /* layers that see everything */
    double lost;
    double kept; /* of what the model answers without filters; told by a trial (tune_trial.c) */
};

struct tune_filter_goal {
    uint32_t max_filters; /* <= TUNE_MAX_FILTERS */
    uint32_t max_dense;
    uint32_t n_wait; /* layers behind each filter that are not sparse, whatever they are */
    const uint32_t *windows; /* as in struct step */
};

/* Those that lose least, least first, with nothing kept; every filter has layers that follow it,
 * n_wait layers behind.  similarity [n_layers][n_layers].  Returns how many there are: 0 when
 * max_dense has no room for one filter; ERR_NOMEM. */
int tune_filters_choose(struct tune_filters best[TUNE_N_CHOICES], const double *similarity,
                        uint32_t n_layers, const struct tune_filter_goal *goal, struct error *err);

/* Sorts sets that have been tried: by what they keep, those that keep as much by how many layers
 * are sparse; of equals the one before stays before. */
void tune_filters_rank(struct tune_filters *sets, uint32_t n);

#endif
