/* kind.h - what the layers of a sequence keep of its text: one table of functions for each kind.
 *
 *   full      all pages of the text                                          kinds/full.c
 *   window    the pages that the next row's window sees                      kinds/window.c
 *   bounded   a budget of tokens, evicted in place; the device decides       kinds/bounded.c
 *   selected  all pages; for generated tokens the layer sees selected ones   kinds/selected.c
 *   moved     the selected tokens and the tail; the host pool has the rest   kinds/moved.c
 *
 * A sequence's plan assigns a kind to each role of a layer (kv_space.h): kv_plan_make() takes one
 * of the kv_kinds below.  kv_sequence.c asks each kind that is assigned, once, for all of its
 * layers.  So a rule that concerns several kinds is in kv_sequence.c, and a kind knows its own
 * layers only.  There is one exception: in a layer-major prompt, moved.c serves layers with a
 * window, too.
 *
 * A kind leaves NULL what it does not do; only most() and ask() are required.
 *
 * Thread: engine (most: any).  Memory: prepare() makes the capacity of all that take() takes. */
#ifndef ENGINE_KV_KIND_H
#define ENGINE_KV_KIND_H

#include "engine/kv/kv_space.h"

struct error;
struct kv_kept;
struct kv_plan;
struct kv_sequence;
struct layer_slice;
struct step_seq;

/* The two phases of a sequence that moves tokens.  Others stay in the first. */
enum kv_phase {
    KV_PHASE_TEXT,     /* all layers attend to the text */
    KV_PHASE_SELECTION /* sparse layers have left it; steps have one row */
};

/* Which pages other sequences may share.  A sequence shares the least of what its kinds allow. */
enum kv_sharing {
    KV_SHARES_TEXT,   /* those of all tokens */
    KV_SHARES_PROMPT, /* those of the prompt */
    KV_SHARES_STATES, /* none, but another sequence may go on from all that it had (state_cache.h);
                         the kinds of all its layers must then have kv_state_ops */
    KV_SHARES_NOTHING
};

/* What a kind needs for a text of n_tokens tokens. */
struct kv_need {
    uint32_t n_rows;         /* the most that the next step may have; UINT32_MAX: any number */
    uint32_t n_listed;       /* pages that the list of each of its layers must have in all */
    struct kv_amount beside; /* what take() would take now, which is in no list */
};

/* How the layers of a kind are part of a state (state_cache.h).  Without KV_SHARES_STATES a kind
 * has pages() alone. */
struct kv_state_ops {
    /* Returns which pages of each list hold what is kept of the text's first n_tokens tokens. */
    struct kv_range (*pages)(const struct kv_sequence *kv, uint32_t n_tokens);
    /* Tells whether a step's rows write only their own slots before the work that kv_submitted()
     * submits.  Then a state before any of these rows can be copied there. */
    bool (*cuts)(const struct kv_sequence *kv);
    /* Brings an ended sequence's pages into the form in which a prompt may resume.  ERR_DEVICE. */
    int (*finish)(struct kv_sequence *kv, struct error *err);
    /* Returns the position inside the policy's cycle after n_tokens tokens.  The chunks of the
     * newest prompt began at token `turn`.  A sequence may resume a state only if its own phase
     * there is equal. */
    uint32_t (*phase)(const struct kv_sequence *kv, uint32_t turn, uint32_t n_tokens);
};

/* A kind: what is always so, and its functions. */
struct kv_kind {
    enum kv_sharing sharing;
    bool grows;         /* takes pages as the text grows; else all at the start */
    bool moves;         /* what is not selected moves to the host pool */
    bool can_undo_rows; /* rows of wrong guesses can be removed: others take their slots */
    bool is_unique; /* what it keeps cannot be computed again from the tokens, or its lists are not
                       the text's pages: it is saved when the sequence is suspended */
    const struct kv_state_ops *states; /* NULL: its layers cannot be part of a state */

    /* ---- demand ---- */

    /* Returns the most pages that n_layers layers of the kind hold together in this phase, with the
     * state of a selection.  The text has at most n_tokens tokens. */
    uint64_t (*most)(const struct kv_space *space, const struct kv_plan *plan, enum kv_phase phase,
                     uint32_t n_tokens, uint32_t n_layers);
    /* Returns what the sequence needs now to have n_tokens tokens in all. */
    struct kv_need (*ask)(const struct kv_sequence *kv, uint64_t n_tokens);

    /* ---- a life: prepare, then take, describe, submitted and done for each step ---- */

    /* Makes capacity, and begins with nothing stored; called once.  ERR_NOMEM. */
    int (*prepare)(struct kv_sequence *kv);
    /* Notes that kv_match() has found the text's first blocks, all of which the sequence uses. */
    void (*matched)(struct kv_sequence *kv);
    /* Completes kv_resume(): what was found is in the lists' pages, but for what only this kind can
     * bring there.  ERR_DEVICE. */
    int (*resumed)(struct kv_sequence *kv, struct error *err);
    /* Takes what n_tokens tokens need beside the lists; the caller has made it free. */
    void (*take)(struct kv_sequence *kv, uint64_t n_tokens);
    /* Describes its part of a step that appends n_rows tokens: replaces the views of its layers,
     * and sets what seq says about them.  All views describe the whole text before. */
    void (*describe)(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq);
    /* Submits work that follows a submitted step (slice NULL) or slice and precedes the next one,
     * such as copies to the host pool.  The step's tokens are committed.  ERR_DEVICE. */
    int (*submitted)(struct kv_sequence *kv, const struct layer_slice *slice, struct error *err);
    /* Gives back pages that no row behind the first n_tokens tokens needs.  The rows of these
     * tokens have been computed. */
    void (*done)(struct kv_sequence *kv, uint32_t n_tokens);
    /* Returns how many of the first n_tokens tokens are not evicted once stored; NULL: all. */
    uint32_t (*n_resident)(const struct kv_sequence *kv, uint32_t n_tokens);
    /* Adds to `kept` which of the first n_tokens tokens the next row of the layer would still see.
     * These tokens have been computed, and no step is in flight.  NULL: all in the layer's window.
     * ERR_DEVICE. */
    int (*add_kept)(const struct kv_sequence *kv, uint32_t layer, uint32_t n_tokens,
                    struct kv_kept *kept, struct error *err);
    /* Gives back all that it holds beside the lists, and begins with nothing stored, unless the
     * sequence has swapped data; no step is in flight. */
    void (*release)(struct kv_sequence *kv);
};

extern const struct kv_kind kv_kind_full, kv_kind_window, kv_kind_bounded;

/* A set of kinds that a plan assigns to a model's layers. */
struct kv_kinds {
    const struct kv_kind *of[KV_N_ROLES];      /* by the layer's role */
    const struct kv_kind *all[KV_N_ROLES + 1]; /* each of these once, then NULL */
    const struct kv_kinds *divided; /* the set for a sequence some of whose layers have a budget, if
                                       the other layers have the kinds of this one; or NULL */
};

extern const struct kv_kinds kv_kinds_full, kv_kinds_bounded, kv_kinds_selected, kv_kinds_moved,
    kv_kinds_divided;

/* Returns how many first pages of a list the views of layers with a window leave out.  0 unless
 * kv_plan.outgrows is set: block tables must not grow with such a text. */
uint32_t kv_window_n_left_out(const struct kv_sequence *kv);

#endif
