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

/* The selection of a sequence whose plan has one; else zeroed.  Only selection.c and the kinds
 * `selected` and `moved` open it. */
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
    struct page_list scratch; /* two buffers of a layer-major prompt's pages; else pages that a
                                 batch-invariant sequence takes before its lists need them */
};

/* Frees the selection's arrays; its pages have been given back before. */
void selection_fini(struct kv_sequence *kv);

/* ---- for other files ---- */

/* Tells whether sparse layers' lists are for selected tokens and the tail, and no longer for the
 * text.  In a layer-major prompt they are so from the start.  A sequence that begins anew is as at
 * its start. */
bool selection_left_text(const struct kv_sequence *kv);
/* Returns how many of n_tokens tokens in all need pages in lists of the text now.  These are all,
 * but for generated tokens that are computed again row by row while sparse layers have the text. */
uint64_t selection_n_listed(const struct kv_sequence *kv, uint64_t n_tokens);
/* Returns how many pages of the pool the selection has beside the lists: held and scratch pages. */
uint32_t selection_n_pages(const struct kv_sequence *kv);
/* Returns how many tokens of a sparse layer lie in the host pool only.  It is the same number in
 * each sparse layer. */
uint32_t selection_n_offloaded(const struct kv_sequence *kv);
/* Returns the list of held pages (see above). */
const struct page_list *selection_held(const struct kv_sequence *kv);
/* Returns the sequence's own list of token blocks, in the order of the text.  It is the sequence's;
 * the caller may change it.  Empty where the sequence moves no tokens to the host. */
struct page_list *selection_token_blocks(struct kv_sequence *kv);
/* Returns the token block of the text's block i, which has been copied there. */
uint32_t selection_token_block(const struct kv_sequence *kv, uint32_t i);

/* Remembers which tokens were selected; the caller saves the held pages' contents. */
void selection_suspend(struct kv_sequence *kv);
/* Returns how many held pages have contents that a suspended sequence needs again.  These are all
 * if it had selected at selection_suspend(), or if its plan keeps token scores; else none. */
uint32_t selection_n_filled(const struct kv_sequence *kv);
/* Restores what selection_suspend() remembered; the held pages have their contents back. */
void selection_resume(struct kv_sequence *kv);
/* Gives the held pages back to the pool, but does not forget which tokens were selected. */
void selection_give_back(struct kv_sequence *kv);

/* ---- for the kinds that select ---- */

/* Returns how many pages the selected tokens take in a layer. */
uint32_t selection_chosen_pages(const struct kv_plan *plan);
/* Returns the most pages that the tail takes in a layer. */
uint32_t selection_tail_pages(const struct kv_plan *plan);
/* Returns the most pages that a sparse layer sees: both together. */
uint32_t selection_seen_pages(const struct kv_plan *plan);
/* Returns how many pages the state of slots and the token scores take, for all groups together. */
uint32_t selection_state_pages(const struct kv_space *space, const struct kv_plan *plan);

/* Makes capacity for n_held held pages, which are all that selection_hold() takes.  Called once.
 * ERR_NOMEM. */
int selection_prepare(struct kv_sequence *kv, uint32_t n_held);
/* Returns how many of the held pages have not been taken yet. */
uint32_t selection_missing(const struct kv_sequence *kv);
/* Takes all held pages unless they are taken; the caller has made sure that they are free. */
void selection_hold(struct kv_sequence *kv);

/* Tells whether the next step, of n_rows rows, selects.  It has one row, behind what is computed as
 * a prompt, and there are more candidates than selected tokens. */
bool selection_is_due(const struct kv_sequence *kv, uint32_t n_rows);
/* Describes the selection of a step for which selection_is_due() is true: points seq->select to it.
 * The caller, a kind, says there where the unselected tokens are.  The views of sparse layers are
 * still those of the whole text, until selection_view() replaces them. */
void selection_describe(struct kv_sequence *kv, struct step_seq *seq);
/* Makes `pages`, which have the selected slots and the tail, the view of a sparse layer.  Called
 * after selection_describe(). */
void selection_view(struct kv_sequence *kv, uint32_t layer, const uint32_t *pages);

/* Describes, in seq->observed, which rows of a step of n_rows rows give token scores, if the plan
 * selects by more than the newest query.  Of a slice: with the rows of the slices before it. */
void selection_observe(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq);

/* Adds to *kept which of the first n_tokens tokens the newest step saw in a sparse layer.  These
 * are the selected ones and the tail, or all if no step has selected.  ERR_DEVICE: *kept has some
 * of them. */
int selection_add_kept(const struct kv_sequence *kv, uint32_t layer, uint32_t n_tokens,
                       struct kv_kept *kept, struct error *err);

/* Gives the held pages back, and forgets which tokens are selected.  What selection_suspend()
 * remembered stays. */
void selection_drop(struct kv_sequence *kv);

#endif
