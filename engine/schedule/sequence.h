/* sequence.h - one request while the engine works on it.
 *
 *   tokens: [ prompt …………………… | generated …… ] and n_sampled more, sampled by in-flight steps
 *           [ kv.n_tokens stored  | n_rows in this step | … ]
 *
 * The rows of an in-flight step count as stored, and the token it samples as the sequence's next
 * one, still unknown; so the step after it can be planned.  If that token ends the sequence, the
 * row after it was computed in vain.  The sequence is then `over`, but it lives and keeps its pages
 * until the last step that has rows of it completes.
 *
 * Where the next tokens are guessed (drafter.h), the guesses lie behind the tokens, and the step
 * that has their rows is the sequence's only one in flight:
 *
 *   tokens: [ prompt | generated | n_drafts guesses ]
 *           [ kv.n_tokens stored | 1 + n_drafts rows ]
 *
 * The step samples a token for each of these rows.  Those up to the first one that is not its guess
 * become the sequence's next tokens; the rows of the other guesses are taken back.
 *
 * No row of a layer-major prompt counts as stored until its last slice is planned; `slice` says
 * where the next one begins.  Preemption loses that progress.
 *
 * Preemption only suspends the KV sequence.  Where stored keys and values are lost, the generated
 * tokens remain and are computed again, like a prompt or one by one.  Random numbers are indexed by
 * generated token, so computing a token again does not change the sample.
 *
 * Thread: created on any, then owned by the engine thread.  Memory: one request's; the final event
 * is allocated at create, so that no shortage can keep a request from ending. */
#ifndef ENGINE_SCHEDULE_SEQUENCE_H
#define ENGINE_SCHEDULE_SEQUENCE_H

#include "engine/base/error.h"
#include "engine/device/layer_slice.h"
#include "engine/device/sample.h"
#include "engine/device/sparse.h"
#include "engine/kv/kv_sequence.h"
#include "engine/request/constraint.h"
#include "engine/request/output.h"
#include "engine/request/request.h"
#include "engine/request/sampling.h"
#include "engine/schedule/request_plan.h"
#include "engine/schedule/timing.h"
#include "engine/speculate/drafter.h"

/* What all sequences of an engine share; they borrow it. */
struct sequence_shared {
    const struct kv_space *space;
    const struct tokenizer *tokenizer;
    const uint32_t *eos; /* [n_eos] */
    uint32_t n_eos, n_vocab;
    struct prefill_support prefill;
    uint32_t max_rows;                  /* of a step */
    uint32_t max_long_rows;             /* of a layer-major prompt */
    struct recent_answers *recent;      /* NULL: no request sees what another one was answered */
    struct shared_credit *guess_credit; /* for guesses; NULL: the backend does not run ahead */
    struct constraint_credit *grammar_credit;
};

struct event_list;
struct kv_kept;

/* A request's sequence.  The scheduler and prefill_queue.c set its members that plan steps. */
struct sequence {
    struct sequence *prev, *next; /* in the waiting list */
    const struct sequence_shared *shared;
    uint64_t id;
    int32_t priority;
    uint32_t tenant, weight;
    double share_tag; /* fair_share.h; set by the scheduler */
    void *user;
    struct sampling_params params; /* owned */
    uint32_t *tokens;              /* owned */
    uint32_t n_prompt, n_tokens, token_capacity;
    struct kv_sequence kv;
    struct error failure; /* why it cannot start or go on */
    uint32_t n_done;      /* tokens stored by completed steps, or found in the cache */
    struct prefill_plan prefill;
    enum prefill_order
        prefill_order;        /* for the rest of the prompt; PREFILL_CHUNKED if none is left */
    struct layer_slice slice; /* PREFILL_LAYER_MAJOR: the next one; its n_rows is not set */
    uint32_t n_together;      /* tokens of the prompt that are computed as a prompt, even where a
                                 step has one row of them (kv_plan_together(); prefill.n_together
                                 once rows are sparse) */
    bool is_sparse_chunk;     /* PREFILL_SPARSE_CHUNKED: the planned chunk chooses its keys */
    bool was_sparse;          /* some prompt rows were computed sparsely; all rows of a sparse
                                 layer-major prompt are */
    uint32_t refused_owner;   /* prefill_queue.n_owners when it was refused: it waits for the end
                                 of that owner; 0: it waits for none */
    struct sparse_totals visited;
    uint32_t n_rows;     /* in the step that is being planned */
    uint32_t n_inflight; /* in-flight steps that have rows of the sequence */
    uint32_t n_sampled;  /* how many of these steps sample a token of it */
    uint32_t draw_row;   /* sample row of the newest such token */
    uint32_t n_drafts;   /* guesses with rows in the step that is planned or in flight */
    bool speculates;
    bool may_draft;         /* the newest known token lets it guess, so it should not run ahead */
    bool has_waited;        /* it left out a step because it may guess, and has not guessed since */
    struct drafter drafter; /* if it speculates */
    struct speculation_usage speculation; /* its guesses so far */
    uint32_t n_cached; /* tokens found in the prefix cache at the first admission */
    bool admitted;     /* has run before */
    bool over;         /* has had its final event */
    bool failed;       /* its final event was an error */
    bool progress;     /* events say how much of the prompt has been computed */
    struct timing timing;
    struct sampling_state sampling;
    struct constraint constraint;
    struct output output;
    /* Prompt log-probabilities so far; NULL: not asked for, or sent. */
    struct engine_event *prompt_event;
    struct token_logprob *prompt_tops;
    uint32_t n_scored;           /* prompt tokens whose log-probability is known */
    struct kv_kept *kept;        /* for the final event; NULL: not asked for */
    struct engine_event *ending; /* the final event, should there be no memory for a better one */
};

/* Creates a sequence of an admitted request and its plan.  On success the caller owns *out, and the
 * sequence owns the request's arrays.  ERR_NOMEM. */
int sequence_create(struct sequence **out, const struct sequence_shared *shared,
                    const struct engine_request *request, const struct request_plan *plan,
                    uint64_t id);
/* Frees the sequence, and the request's arrays unless sequence_abandon() came first. */
void sequence_destroy(struct sequence *seq); /* NULL is allowed */
/* Returns ownership of the request's arrays to the caller, because not all sequences of a submit
 * could be created; sequence_destroy() follows. */
void sequence_abandon(struct sequence *seq);

/* Returns how many tokens have been generated, without those of in-flight steps. */
uint32_t sequence_n_generated(const struct sequence *seq);
/* Returns how many tokens of the sequence are not stored yet, the in-flight one among them.  The
 * next step can have no more rows of it.  0: what comes next depends on an in-flight step, which
 * has its guesses, samples its last token, or samples one that it may guess from.  Also 0 if a
 * grammar forces so many tokens behind the in-flight one that it pays to wait for it.  n_running:
 * the sequences that share the step. */
uint32_t sequence_n_left(const struct sequence *seq, uint32_t n_running);
/* Guesses up to `most` tokens behind the sequence's own, reserves pages for them, and returns their
 * number, which is how many rows it needs more.  0: it does not speculate, nothing is guessed, or
 * its next row is not that of its newest token.  n_running: the sequences that share the step. */
uint32_t sequence_draft(struct sequence *seq, uint32_t most, uint32_t n_running);
/* Takes the price of the delay by others' guesses in the same step from a sequence without guesses.
 * Returns false, and takes nothing, if its credit does not cover it or it does not speculate. */
bool sequence_pays_delay(struct sequence *seq);
/* Returns what a waiting sequence asks of the KV cache (kv_ask()) to start.  n_tokens: its tokens,
 * or in a batch-invariant space all that it may ever have.  n_max: tokens that may be reused.
 * left: zero. */
struct kv_wish sequence_wish(const struct sequence *seq);

/* Writes to rows[] how to sample those of the n_rows rows behind the sequence's first n_before
 * tokens that score the prompt or draw a token.  Returns their number, at most n_rows.  first_row:
 * the number of the first of the n_rows rows in the step.  Sets *reads_tokens if there are any, and
 * what they sample depends on the tokens before them: a grammar reads these, or a penalty counts
 * them.  Else leaves it as it is. */
uint32_t sequence_sample_rows(const struct sequence *seq, uint32_t n_before, uint32_t n_rows,
                              uint32_t first_row, struct sample_row *rows, bool *reads_tokens);
/* Completes a row that draws a token: the tokens that the grammar allows, and the counts that
 * penalties need.  Called when all tokens before it are known, and before the row is sampled. */
void sequence_complete_row(struct sequence *seq, struct sample_row *row);

/* Takes the n results of the rows that sequence_sample_rows() wrote, from a completed step: the
 * first n_stored tokens are stored, rows of guesses included.  Takes wrong guesses back, inserts
 * and gives back pages, and appends the sequence's events; true: one is the final event. */
bool sequence_accept(struct sequence *seq, uint32_t n_stored, const struct sample_row *rows,
                     const struct sample_result *results, uint32_t n, struct event_list *events);

/* Appends an event that n_processed tokens of the prompt have been computed or found in the caches.
 * Does nothing if the request does not ask for such events, or without memory. */
void sequence_report(const struct sequence *seq, uint32_t n_processed, struct event_list *events);

/* Drops the results of a step that was in flight when the sequence ended.  Remembers whether they
 * were valid, because the prefix cache may keep the pages only then. */
void sequence_accept_late(struct sequence *seq, uint32_t n_stored,
                          const struct sample_result *results, uint32_t n);
/* Calls kv_leave_state() for an ended sequence, unless it failed: later requests may resume its
 * state.  Called right before it is destroyed. */
void sequence_leave_state(struct sequence *seq);

/* Appends the final event of a sequence that ends early: FINISH_CANCELLED, or FINISH_ERROR with
 * code and text.  Needs no memory.  The caller frees the sequence. */
void sequence_end(struct sequence *seq, enum finish_reason reason, int code, const char *text,
                  struct event_list *events);

#endif
