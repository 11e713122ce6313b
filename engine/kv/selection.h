/* selection.h - what a sequence's sparse layers see while it generates (backend.h, Selections), for
 * the two policies that let them.
 *
 *   a sparse layer's pages  [ n_selected: chosen tokens ][ tail: n_tail, and up to 63 tokens more ]
 *   held pages              [ n_groups: the state of its slots ][ … ]
 *
 * Thread: engine.  Memory: see policy.h; selection_prepare() makes the list of held pages. */
#ifndef ENGINE_KV_SELECTION_H
#define ENGINE_KV_SELECTION_H

#include <stdbool.h>
#include <stdint.h>

struct kv_plan;
struct kv_sequence;
struct kv_space;
struct step_seq;

/* Pages for chosen tokens, and the most that the tail may lie in. */
uint32_t selection_chosen_pages(const struct kv_plan *plan);
uint32_t selection_tail_pages(const struct kv_plan *plan);
/* State pages of all groups. */
uint32_t selection_state_pages(const struct kv_space *space, const struct kv_plan *plan);

/* Tokens before the first row that selects.  For plans of texts that come to select: so many, and
 * KV_MAX_TEXT at most. */
uint32_t selection_first(const struct kv_plan *plan);

/* Room for n_held pages to be held.  ERR_NOMEM. */
int selection_prepare(struct kv_sequence *kv, uint32_t n_held);
/* Of the held pages, those that are not there yet. */
uint32_t selection_missing(const struct kv_sequence *kv);
/* Takes them; so many are free. */
void selection_hold(struct kv_sequence *kv);

/* True when the step of so many rows selects: it is one of a generated token, or of one that is
 * computed like it, and there is something to choose. */
bool selection_is_due(const struct kv_sequence *kv, uint32_t n_rows);
/* Describes such a step but for where the store is; the views are still to be those of `full`. */
void selection_describe(struct kv_sequence *kv, struct step_seq *seq);
/* The view of a sparse layer of a step that has been described. */
void selection_view(struct kv_sequence *kv, uint32_t layer, const uint32_t *pages);

/* Gives the held pages back: nothing is chosen any more. */
void selection_drop(struct kv_sequence *kv);

#endif
