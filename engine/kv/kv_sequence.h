/* kv_sequence.h - what one sequence keeps in the KV cache.
 *
 *   kv_sequence ── plan.kinds ──► what each layer keeps (kind.h)
 *       ├─ layers[0]: pages 4, 9, 2, …     every layer owns its own list of pages, so that layers
 *       ├─ layers[1]: pages 7, 1, 3, …     may keep different amounts
 *       └─ views[]: the block tables of the next step
 *
 * The scheduler calls these functions and never asks for the policy.  The life of a sequence:
 *
 *   prepare ─► start ─► reserve ─► view ─► commit ─► submitted ─► insert ─► done
 *               ▲          ▲                                                  │
 *               │          └────────────────── the next step ─────────────────┤
 *               └─────────────────────────── suspend ◄────────────────────────┤
 *                                                                             ▼
 *                                                           leave_state ─► sequence_fini
 *
 *   prepare      once: makes capacity, and hashes the prompt's blocks
 *   ask          before start and reserve: how many rows, pages and host blocks can it have?
 *   start        finds what is cached of its text, takes pages, and fills them
 *   reserve      takes pages for the step's rows
 *   view         describes the step to the device
 *   commit       counts the rows as stored, though the device has only been told of them
 *   submitted    submits the copies that follow the step
 *   insert       shares the rows' pages, if their results are valid; else it is left out
 *   done         gives back pages that no later row sees
 *   suspend      gives all pages back; the sequence starts again later
 *   leave_state  it has ended: its state may serve others
 *
 * Another step may be planned, up to submitted, before insert and done of this one.
 *
 * Thread: engine.  No page is released (and handed out again) while a step that uses it is in
 * flight: the scheduler sees to that.
 * Memory: lists grow geometrically, in prepare, reserve and suspend only; nothing is allocated in
 * view, commit or insert. */
#ifndef ENGINE_KV_KV_SEQUENCE_H
#define ENGINE_KV_KV_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/plan.h"
#include "engine/kv/read_ahead.h"
#include "engine/kv/selection.h"
#include "engine/kv/sequence_prefix.h"
#include "engine/kv/sequence_recurrent.h"
#include "engine/kv/sequence_state.h"
#include "engine/kv/swap.h"
#include "engine/request/usage.h"

struct error;
struct evict_total;
struct kv_kept;
struct kv_saved;
struct layer_slice;
struct select_total;

/* What was available, beside what was to be left, when kv_start() failed; negative: less than
 * that.  Zeroed: it has not failed since the sequence ran last. */
struct kv_refusal {
    bool is_set;
    int64_t pages, blocks, states;
};

/* What one sequence has of the cache, embedded in struct sequence.  A member struct is opened only
 * by the file whose header declares it. */
struct kv_sequence {
    const struct kv_space *space;
    struct kv_plan plan;
    uint64_t salt;     /* of its blocks and states: others with another salt do not share them */
    uint32_t n_tokens; /* stored, or about to be by an in-flight step */
    uint32_t n_found;  /* tokens of these that kv_match() found */
    uint32_t turn;     /* tokens before the present turn of a conversation, which it took from a
                          state at the end of another sequence; its prompt's chunks begin here */
    bool prompt_done;  /* the last step of its prompt has completed; kinds/bounded.c */
    struct kv_refusal refusal;
    struct kv_usage counted; /* what steps have reported so far */
    /* Its lists (lists.h): */
    struct page_list *layers; /* [n_layers] */
    struct kv_view *views;    /* [n_layers] */
    struct page_list buffers; /* both buffers of a layer-major prompt that is cut to a budget */
    uint32_t n_holes;         /* places without a page in the list of each sparse layer, between
                                 match and reserve */
    uint32_t n_expired;       /* first pages that windowed layers have given back, or never had */
    /* Its parts: */
    struct sequence_prefix prefix;       /* blocks of the text, shared with others */
    struct sequence_state state;         /* states, where it keeps a budget */
    struct sequence_recurrent recurrent; /* its recurrent state, where the model has such layers */
    struct sequence_reading reading;     /* what the disk has of it */
    struct kv_selection selection;       /* what sparse layers see */
    struct kv_swap swap;                 /* its pages in the host pool, while it is suspended */
    struct kv_saved *saved; /* NULL, or pages that cannot be computed again, in memory */
};

/* Initialises kv for a sequence of this plan, without pages; the space is borrowed, the plan
 * copied.  ERR_NOMEM: nothing is left behind. */
int kv_sequence_init(struct kv_sequence *kv, const struct kv_space *space,
                     const struct kv_plan *plan, uint64_t salt);
/* Gives back all that the sequence holds, and frees its memory; a zeroed struct is allowed. */
void kv_sequence_fini(struct kv_sequence *kv);

/* Makes capacity for the prompt and hashes its blocks; called once, before anything else.  prompt:
 * [plan.n_prompt], not kept.  ERR_NOMEM. */
int kv_prepare(struct kv_sequence *kv, const uint32_t *prompt);

/* ---- before a step, or a start ---- */

/* What kv_ask() is asked, and kv_start() grants. */
struct kv_wish {
    uint64_t n_tokens;     /* in all, for which it needs pages; 0: that is not asked */
    struct kv_amount left; /* what must stay available for other sequences */
    /* Of a sequence that waits; else NULL, and 0: its text, and how many of the text's first tokens
     * may be found.  The tokens must stay where they are until it has started. */
    const uint32_t *tokens;
    uint32_t n_max;
};

/* The answer of kv_ask().  The first four members are answered whatever is asked. */
struct kv_grant {
    uint32_t n_rows;              /* the most that the next step may have */
    uint32_t n_resident;          /* stored tokens that the policy has not evicted; where layers
                                     differ, the smallest number of all */
    uint32_t n_shown;             /* the most slots that a layer shows the next row, less its own */
    uint32_t n_token_blocks;      /* token blocks (prefix_cache.h) that it has, also those that the
                                     prefix cache shares; without those of swapped pages */
    struct kv_amount missing;     /* what kv_reserve() takes for n_tokens */
    struct kv_amount unavailable; /* how much of that cannot be had beside what must be left */
    uint32_t n_found;    /* tokens that kv_start() would find; for a wish without n_tokens */
    bool waits_for_disk; /* it is held back while its files are read; others may start.  False where
                            kv_start() would not try */
};

/* Returns what the sequence can have.  Takes nothing, but begins to read from disk for a sequence
 * that waits (read_ahead.h), if the wish has both tokens and n_tokens. */
struct kv_grant kv_ask(struct kv_sequence *kv, const struct kv_wish *wish);

/* Starts a sequence without pages as it wishes: kv_match(), kv_reserve() and kv_resume(), all or
 * nothing.  ERR_FULL, ERR_NOMEM: nothing has been taken.  After either it returns ERR_FULL at once
 * while no more is available than then.  ERR_DEVICE: the sequence cannot continue. */
int kv_start(struct kv_sequence *kv, const struct kv_wish *wish, struct error *err);

/* ---- its life ---- */

/* Takes the pages and host blocks that n_tokens tokens in all need beyond what it has, all or none.
 * Evicts what is cached if need be.  ERR_FULL: that is not enough; ERR_NOMEM. */
int kv_reserve(struct kv_sequence *kv, uint32_t n_tokens);
/* Describes a step or slice that appends n_rows tokens, whose pages are reserved.  first_row: 0 in
 * a step, layer_slice.first_row in a slice; row 0 is the first token that is not stored yet.  Fills
 * *seq, but for its first_row; what it points to is the sequence's, until the next kv_view(). */
void kv_view(struct kv_sequence *kv, uint32_t first_row, uint32_t n_rows, struct step_seq *seq);
/* Counts n_rows more tokens, which will be stored once the planned step has run. */
void kv_commit(struct kv_sequence *kv, uint32_t n_rows);
/* Does the same for a step with guesses behind the row of the newest token: n_tokens counts them.
 * Then kv_take_back() must follow its results, or kv_forget_guesses() if it is not planned. */
int kv_reserve_guesses(struct kv_sequence *kv, uint32_t n_tokens);
void kv_forget_guesses(struct kv_sequence *kv);
/* Forgets all but the first n_tokens tokens: the others were wrong guesses, and the next rows take
 * their slots.  With a recurrent state it may forget more, which are computed again.  The plan must
 * allow it (kv_plan_can_undo_rows()), and no step with rows of the sequence may be in flight. */
void kv_take_back(struct kv_sequence *kv, uint32_t n_tokens);
/* Submits the copies that follow a submitted step (slice NULL) or slice.  They go to the host pool,
 * if a kind needs that.  After a step they go to the state before the prompt's last token, if it is
 * due.  The next step has not been submitted yet.  tokens: the sequence's text.  ERR_DEVICE. */
int kv_submitted(struct kv_sequence *kv, const uint32_t *tokens, const struct layer_slice *slice,
                 struct error *err);
/* Puts the blocks of the first n_tokens tokens into the prefix cache, or publishes the state before
 * the prompt's last token, whichever the kind shares.  The rows of these tokens have completed with
 * valid results. */
void kv_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens);
/* Notes that the rows of the first n_tokens tokens gave valid results, which kv_leave_state() asks
 * for.  Publishes the state before the prompt's last token, if it is among these rows and has been
 * copied.  Called for a sequence that has ended; kv_insert() does this itself. */
void kv_mark_valid(struct kv_sequence *kv, uint32_t n_tokens);
/* Gives back pages that no row behind the first n_tokens tokens sees; their steps are complete. */
void kv_done(struct kv_sequence *kv, uint32_t n_tokens);
/* Notes what a completed step reported of the sequence, for kv_report(): adds the selection's
 * numbers, and replaces the retained attention.  NULL: it did not select, or had no budget. */
void kv_count(struct kv_sequence *kv, const struct evict_total *evicted,
              const struct select_total *selected);
/* Gives every page back, so that kv_start() must come next.  Contents that cannot be computed again
 * are first saved in memory, others swapped to the host pool if it has space.  Cannot fail if
 * nothing has been computed since kv_match().  ERR_NOMEM, ERR_DEVICE: it cannot continue. */
int kv_suspend(struct kv_sequence *kv, struct error *err);
/* Puts an ended sequence's pages into the cache of states, as the state after its stored tokens.
 * Its kind must have states, and the stored tokens must be valid and include the prompt.  No step
 * with rows of it may be in flight.  tokens: [n_tokens], from malloc, its text, which may go on
 * behind the stored tokens.  Returns true if the cache now owns pages and tokens, even if it
 * dropped them at once.  Else, also if the device fails, the caller has both. */
bool kv_leave_state(struct kv_sequence *kv, uint32_t *tokens, uint32_t n_tokens);

/* ---- what kv_start() does, one by one ---- */

/* Uses what the prefix cache has of the first n_max tokens, holds a cached state of some, or claims
 * its own swapped data.  Returns how many tokens kv_resume() will have stored. */
uint32_t kv_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max);
/* Fills the reserved pages with what kv_suspend() saved or swapped, and what kv_match() found that
 * has no pages yet.  Called right after kv_reserve().  ERR_DEVICE. */
int kv_resume(struct kv_sequence *kv, struct error *err);

/* ---- other questions, which change nothing ---- */

/* Returns the most pages and host blocks that a sequence of this plan needs at once, however long
 * its text.  Computed again it may hold more, if the pool has more.  Thread: any. */
struct kv_amount kv_most(const struct kv_space *space, const struct kv_plan *plan);
/* Tells whether `kv` should wait before it starts.  Then `other`, which is computing its prompt,
 * will soon insert a block of the text of `kv`, or the state of an equal prompt.  tokens, others:
 * both texts.  Remembers hashes in both sequences. */
bool kv_should_wait(struct kv_sequence *kv, const uint32_t *tokens, struct kv_sequence *other,
                    const uint32_t *others);
/* Tells whether kv_take_back() is allowed: all the plan's kinds can undo rows.  Thread: any. */
bool kv_plan_can_undo_rows(const struct kv_plan *plan);
/* Returns the most that the sequence, whose text has n_tokens tokens, may have to take for the next
 * token.  That is a page in every layer, if pages are taken as the text grows, and the host blocks
 * for PAGE_TOKENS more tokens. */
struct kv_amount kv_growth(const struct kv_sequence *kv, uint32_t n_tokens);
/* Returns how many pages of the pool the sequence holds: in its lists, its selection and its
 * buffers.  Pages that it shares with others count in full. */
uint32_t kv_n_used(const struct kv_sequence *kv);

/* Returns all numbers of a usage report (usage.h).  Resident and evicted tokens are those of the
 * first n_tokens tokens, which are stored.  Budget and offloaded tokens are as they are now.  The
 * others are what kv_count() has noted so far. */
struct kv_usage kv_report(const struct kv_sequence *kv, uint32_t n_tokens);
/* Fills *kept: in which share of layers and heads the next row would see each of the first n_tokens
 * tokens.  These are all that is stored.  No step may be in flight unless kv_plan_sees_all().
 * ERR_DEVICE. */
int kv_list_kept(const struct kv_sequence *kv, uint32_t n_tokens, struct kv_kept *kept,
                 struct error *err);

#endif
