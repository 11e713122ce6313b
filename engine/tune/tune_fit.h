/* tune_fit.h - makes candidates of equal cost: each published one becomes larger or smaller until
 * it visits as many pairs as a budget has (MInference section 3.2 and its Table 7).
 *
 * A pattern grows by steps of 50 keys, its two numbers in proportion, or by steps of a page.  The
 * pairs it visits grow with it, so a binary search finds the largest that fits:
 *
 *   begin ─► while not done: measure what `next` visits of the prompt, add ─► next: the result
 *
 * Thread: any.  Memory: the caller's. */
#ifndef ENGINE_TUNE_TUNE_FIT_H
#define ENGINE_TUNE_TUNE_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/sparse.h"

enum { TUNE_N_STARTS = 6 };

/* Writes the published candidates, from which fits begin. */
void tune_fit_starts(struct attn_pattern out[TUNE_N_STARTS]);

struct tune_fit {
    struct attn_pattern start;
    uint32_t fits, exceeds; /* the most steps known to fit, the fewest known not to */
};

/* Begins the fit of a pattern, for a prompt of n_tokens. */
void tune_fit_begin(struct tune_fit *fit, const struct attn_pattern *start, uint32_t n_tokens);
bool tune_fit_is_done(const struct tune_fit *fit);
/* Returns the pattern to try; once the fit is done, the largest that fits, or PATTERN_DENSE if none
 * does. */
struct attn_pattern tune_fit_next(const struct tune_fit *fit);
/* Notes whether the pattern that was tried is within the budget. */
void tune_fit_add(struct tune_fit *fit, bool is_within_budget);

#endif
