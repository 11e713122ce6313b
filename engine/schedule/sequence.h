/* sequence.h - one request while the engine works on it.
 *
 *   tokens: [ prompt …………………… | generated …… ] n_sampled tokens more, drawn by steps in flight
 *           [ kv.n_tokens stored  | n_rows in this step | … ]
 *
 * While a step is in flight its rows count as stored and the token it draws as the sequence's
 * next, unknown as yet: the step after it can be planned.  Should that token end the sequence, the
 * row after it was computed in vain; the sequence is `over`, but lives (and keeps its pages) until
 * the last step it has rows in has landed.
 *
 * Of a prompt that is computed layer by layer nothing counts as stored until its last slice is
 * planned; `slice` says where the next one begins.  When the sequence loses its place that progress
 * is lost.
 *
 * Preemption only suspends the KV sequence.  Where its policy forgets what is stored, generated
 * tokens stay and are computed again, like a prompt or one by one; draws are numbered by generated
 * token, so computing again does not change what is drawn.
 *
 * Thread: created on any, then owned by the engine thread.  Memory: one request's; the final event
 * is allocated at create, so that no shortage can keep a request from ending. */
#ifndef ENGINE_SCHEDULE_SEQUENCE_H
#define ENGINE_SCHEDULE_SEQUENCE_H

#include "engine/device/layer_slice.h"
#include "engine/kv/policy.h"
#include "engine/request/output.h"
#include "engine/request/request.h"
#include "engine/request/sampling.h"
#include "engine/schedule/prefill_plan.h"

/* What all requests of an engine share; borrowed. */
struct sequence_shared {
    const struct kv_space *space;
    const struct tokenizer *tokenizer;
    const uint32_t *eos; /* [n_eos] */
    uint32_t n_eos;
    struct prefill_support prefill;
    uint32_t max_rows;      /* of a step */
    uint32_t max_long_rows; /* of prompts that go layer by layer */
};

struct event_list;

struct sequence {
    struct sequence *prev, *next; /* in the waiting list */
    const struct sequence_shared *shared;
    uint64_t id;
    int32_t priority;
    void *user;
    struct sampling_params params; /* owned */
    uint32_t *tokens;              /* owned */
    uint32_t n_prompt, n_tokens, token_capacity;
    struct kv_sequence kv;
    uint32_t n_done;  /* tokens stored by steps that have landed, or found in the cache */
    struct prefill_plan prefill;
    enum prefill_order way;     /* while rows of the prompt are left to be computed that way */
    struct layer_slice slice;  /* PREFILL_LAYER_MAJOR: the next, but for its n_rows */
    bool is_sparse_piece;     /* PREFILL_SPARSE_CHUNKED: the rows in the step that is being planned */
    bool was_sparse;          /* some of its rows have been computed sparsely; of a prompt that
                                 goes layer by layer, all do */
    uint32_t refused_turn;    /* the scheduler's turn that it waits for the end of */
    struct sparse_totals visited;
    uint64_t n_chosen, n_fetched, n_copies; /* by select(), in its steps so far */
    float retained_attention;    /* of struct evict_total, after these steps; NAN: not tracked */
    uint32_t n_rows;    /* in the step that is being planned */
    uint32_t n_inflight; /* steps in flight that it has rows in */
    uint32_t n_sampled;   /* of these, how many draw a token */
    uint32_t draw_row;  /* sample row of the newest of these draws */
    uint32_t n_cached;  /* found in the prefix cache when first admitted */
    bool admitted;      /* has run before */
    bool over;          /* has had its final event */
    struct sampling_state sampling;
    struct output output;
    /* Prompt log-probabilities so far; NULL: not asked for, or sent. */
    struct engine_event *prompt_event;
    struct token_logprob *prompt_tops;
    uint32_t n_scored;           /* prompt tokens whose log-probability is known */
    struct engine_event *ending; /* the final event, should there be no memory for a better one */
};

/* What the request's choice of a KV policy comes to; it has been checked. */
struct kv_plan sequence_kv_plan(const struct sequence_shared *shared,
                                const struct engine_request *request);

/* Takes over the request's arrays on success.  ERR_NOMEM. */
int sequence_create(struct sequence **out, const struct sequence_shared *shared,
                    const struct engine_request *request, uint64_t id);
/* Frees the request's arrays, too, unless `abandon` gave them back to the caller first. */
void sequence_destroy(struct sequence *seq); /* NULL is allowed */
/* Forgets the request's arrays: a submit that failed half way. */
void sequence_abandon(struct sequence *seq);

uint32_t sequence_n_generated(const struct sequence *seq);
/* How many of its first tokens it may take from the prefix cache. */
uint32_t sequence_n_reusable(const struct sequence *seq);
/* Rows that can be computed now: tokens that are not stored in the cache yet. */
uint32_t sequence_n_left(const struct sequence *seq);
/* True when the sequence's next row cannot be described before the token in flight is known: a
 * penalty counts it. */
bool sequence_awaits_sample(const struct sequence *seq);

/* What has become of its text by now. */
struct kv_usage sequence_usage(const struct sequence *seq);

/* Rows of logits the sequence needs from its n_rows rows, the first of which is row first_row of
 * the step: appends to rows and returns how many (<= n_rows). */
uint32_t sequence_sample_rows(const struct sequence *seq, uint32_t first_row,
                              struct sample_row *rows);

/* Takes the results for those rows of a step that has stored the sequence's first n_stored tokens.
 * Appends to events what there is to say; returns true when that was the final event. */
bool sequence_accept(struct sequence *seq, uint32_t n_stored, const struct sample_row *rows,
                     const struct sample_result *results, uint32_t n, struct event_list *events);

/* Ends the sequence early with FINISH_CANCELLED or FINISH_ERROR (code, text). */
void sequence_end(struct sequence *seq, enum finish_reason reason, int code, const char *text,
                  struct event_list *events);

#endif
