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

#include "engine/device/select.h"
#include "engine/device/step.h"
#include "engine/kv/page_list.h"

struct error;
struct kv_kept;
struct kv_plan;
struct kv_sequence;
struct kv_space;
struct step_seq;

/* The selection of a sequence whose plan has one; else zeroed.  Only selection.c and the two kinds
 * open it. */
struct kv_selection {
    struct kv_select select;        /* of its newest step that selected; n_candidates 0: none did */
    struct kv_observation observed; /* of its newest step that observed */
    struct kv_select suspended;     /* `select` when the sequence was swapped out */
    struct page_list
        held; /* select.state_pages, observed.pages, then the kind's own; all or none */
    /* kinds/selected.c: */
    uint32_t *tables;           /* [n_host_layers][its pages]: sparse layers' block tables */
    const uint32_t **all_pages; /* [n_layers]: select.pool_pages */
    /* kinds/moved.c: */
    struct page_list blocks; /* select.blocks, in the order of the text */
    uint32_t n_block_holes;  /* places in it without a host block, between match and reserve */
    uint32_t n_written;      /* blocks that have been copied to the host pool */
    uint32_t n_offloaded;    /* tokens that sparse layers have in the host pool only */
    bool left_text;          /* sparse layers' lists hold their selection and grow no more: */
    uint32_t tail_start;     /* the first token of the tail's pages in them */
    bool recomputes_by_row;  /* generated tokens are computed again one by one, not like a prompt */
    struct page_list scratch; /* two buffers of a layer-major prompt's pages; else pages that are
                                 taken ahead */
};

/* Frees what the selection has allocated; its pages have been given back. */
void selection_fini(struct kv_sequence *kv);

/* ---- for other files ---- */

/* Tells whether sparse layers have left the text: their lists then hold what they have selected of
 * it, and the tail. */
bool selection_left_text(const struct kv_sequence *kv);
/* Returns how many of n_tokens tokens need pages in lists now.  Those that are computed one by one
 * come after sparse layers have left the text. */
uint64_t selection_n_listed(const struct kv_sequence *kv, uint64_t n_tokens);
/* Returns how many pages the sequence has beside its lists. */
uint32_t selection_n_pages(const struct kv_sequence *kv);
/* Returns how many tokens sparse layers have in the host pool only. */
uint32_t selection_n_offloaded(const struct kv_sequence *kv);
/* Returns the pages that the selection holds beside the lists. */
const struct page_list *selection_held(const struct kv_sequence *kv);
/* Returns the list of the sequence's token blocks, in the order of the text. */
struct page_list *selection_token_blocks(struct kv_sequence *kv);
/* Returns the token block of the text's block i, which has been copied there. */
uint32_t selection_token_block(const struct kv_sequence *kv, uint32_t i);

/* Remembers what was chosen, until selection_resume(); the held pages may then be dropped. */
void selection_suspend(struct kv_sequence *kv);
/* Returns how many of the held pages had been filled when the selection was suspended. */
uint32_t selection_n_filled(const struct kv_sequence *kv);
/* Chooses again what selection_suspend() remembered; the held pages have their contents back. */
void selection_resume(struct kv_sequence *kv);
/* Gives the held pages back, but does not forget what was chosen. */
void selection_give_back(struct kv_sequence *kv);

/* ---- for the kinds that select ---- */

/* Returns how many pages the chosen tokens take. */
uint32_t selection_chosen_pages(const struct kv_plan *plan);
/* Returns the most pages that the tail takes. */
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
/* Makes `pages` the view of a sparse layer: the selected slots and the tail.  To be called after
 * selection_describe(). */
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
