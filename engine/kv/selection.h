/* selection.h - what a sequence's sparse layers see while it generates (engine/device/select.h),
 * for the two kinds that select.
 *
 *   a sparse layer's pages  [ n_selected: chosen tokens ][ tail: n_tail, and up to 63 tokens more ]
 *   held pages              [ n_groups: the state of its slots ]
 *                           [ n_groups: token scores of the last queries ][ … ]
 *
 * Thread: engine.  Memory: see kv_sequence.h; selection_prepare() makes the list of held pages. */
#ifndef ENGINE_KV_SELECTION_H
#define ENGINE_KV_SELECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/step.h"

struct error;
struct kv_kept;
struct kv_plan;
struct kv_sequence;
struct kv_space;
struct step_seq;

/* Returns how many pages the chosen tokens take; the second, the most that the tail takes. */
uint32_t selection_chosen_pages(const struct kv_plan *plan);
uint32_t selection_tail_pages(const struct kv_plan *plan);
/* Returns the most pages that a sparse layer sees: both together. */
uint32_t selection_seen_pages(const struct kv_plan *plan);
/* Returns how many pages the selection's state takes, for all groups. */
uint32_t selection_state_pages(const struct kv_space *space, const struct kv_plan *plan);

/* Makes capacity for n_held held pages.  ERR_NOMEM. */
int selection_prepare(struct kv_sequence *kv, uint32_t n_held);
/* Returns how many of the held pages have not been taken yet. */
uint32_t selection_missing(const struct kv_sequence *kv);
/* Takes these pages; the caller has made sure that they are free. */
void selection_hold(struct kv_sequence *kv);

/* Returns true if a step of n_rows rows selects.  Its row is then a generated token, or is computed
 * like one, and there is something to choose. */
bool selection_is_due(const struct kv_sequence *kv, uint32_t n_rows);
/* Describes such a step in seq, but for where the unselected tokens are.  The views are still those
 * of the whole text. */
void selection_describe(struct kv_sequence *kv, struct step_seq *seq);
/* Sets the view of a sparse layer, after selection_describe(). */
void selection_view(struct kv_sequence *kv, uint32_t layer, const uint32_t *pages);

/* Describes which rows of any step of n_rows rows are observed, if the plan selects by more than
 * the newest query.  The rows may be those of a slice, and of the slices before it. */
void selection_observe(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq);

/* Notes what a sparse layer's newest step saw of the first n_tokens tokens, all that is stored: the
 * chosen tokens and the tail.  If none has selected, that is all of them.  ERR_DEVICE. */
int selection_add_kept(const struct kv_sequence *kv, uint32_t layer, uint32_t n_tokens,
                       struct kv_kept *kept, struct error *err);

/* Gives the held pages back and forgets what was chosen. */
void selection_drop(struct kv_sequence *kv);

#endif
