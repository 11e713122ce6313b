/* sequence_state.h - what a sequence that keeps a budget takes from the cache of states
 * (state_cache.h), and what it leaves there.
 *
 *   text      [ prompt ……………………………… | generated …… ]
 *   states                           ▲              ▲
 *                 before the prompt's last token    at the end
 *
 * A sequence resumes the longest state that begins its text: it copies the state's pages, or takes
 * them if there are too few for both.  The first token does not wait for the copy where rows only
 * add slots until a step's end (kv_state_ops.cuts).  There the sequence exchanges its own pages
 * for the state's.  Their contents are copied back behind its first step, before it evicts, or as
 * soon as another sequence needs the state (kv_state.pending_copy_from).
 *
 * The state before the prompt's last token serves other requests with the same prompt: they compute
 * only the last token, for its logits.  It depends only on the prompt's first n - 1 tokens, so
 * other prompts with the same beginning can use it, too.  Without scores a row only adds a slot:
 * the pages are copied behind the step that computes the last row, before it evicts.  With scores
 * each row changes those of all tokens.  The last row is then a step of its own, and the pages are
 * copied before it.
 *
 * The state at the end is the sequence's own pages.  They are brought into the form in which a
 * prompt resumes at once, so that the next one does not wait for that (kv_state_ops.finish).  A
 * sequence that resumes it goes on as if its new tokens had been appended to the ended one: a new
 * turn (kv_sequence.turn).  A batch-invariant space has no such state, because what a text gives
 * must not depend on its history.
 *
 * Layers with a window are part of a state, with the pages that the window sees.
 *
 * Thread: engine.  Memory: prepare makes what is needed; nothing is allocated afterwards. */
#ifndef ENGINE_KV_SEQUENCE_STATE_H
#define ENGINE_KV_SEQUENCE_STATE_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct kv_kind;
struct kv_sequence;
struct kv_state;
struct kv_state_key;

/* A prompt with fewer rows to compute gets no state before its last token: copying it, and a step
 * more, would cost about as much. */
enum { STATE_MIN_ROWS = 128 };

/* What a sequence has to do with states; only sequence_state.c opens it. */
struct sequence_state {
    const struct kv_kind *kind; /* that decides what its states are; NULL: it has none */
    uint64_t name;              /* a hash of all that decides the prompt's last state; 0: unknown */
    uint32_t n_valid;           /* tokens whose results are known to be valid */
    struct kv_state *matched;   /* held: the sequence is about to resume it; or NULL */
    struct kv_state *borrowed;  /* its pages are in the lists until a step is submitted; or NULL */
    struct kv_state *coming;    /* its own before the prompt's last token, not published; or NULL */
    struct kv_state *ending;    /* the sequence's own at its end, empty until then; or NULL */
};

/* Finds out whether the new sequence, whose plan is set, has states. */
void sequence_state_init(struct kv_sequence *kv);
/* Allocates the sequence's own states, which have no pages yet.  ERR_NOMEM. */
int sequence_state_prepare(struct kv_sequence *kv);
/* Sets *key to the key of states that the sequence may resume.  Sets *n_most to the most tokens of
 * the text's first n_max that one may have.  Returns false if the sequence has no states. */
bool sequence_state_key(const struct kv_sequence *kv, uint32_t n_max, struct kv_state_key *key,
                        uint32_t *n_most);
/* Returns the longest cached state that the sequence can resume, of the text's first n_max tokens;
 * NULL: there is none.  Changes nothing. */
struct kv_state *sequence_state_find(const struct kv_sequence *kv, const uint32_t *tokens,
                                     uint32_t n_max);
/* Takes that state out of the cache for the sequence, which has no pages.  It holds the state until
 * it takes it over, resumes it or unmatches it.  The state's tokens count as stored from now on,
 * and lists of layers with windows begin behind them; unmatching does not undo that. */
void sequence_state_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max);
/* Tells whether the sequence holds a matched state. */
bool sequence_state_is_matched(const struct kv_sequence *kv);
/* Makes the matched state's pages the sequence's own, instead of copying them, if it has at least
 * n_lacking pages.  The state is gone then.  Does nothing if it is offloaded, or without one. */
void sequence_state_take_over(struct kv_sequence *kv, uint64_t n_lacking);
/* Fills the sequence's reserved pages with what the matched state holds: copies it, or exchanges
 * pages (borrowed).  There must be a matched state; it goes back to the cache, after ERR_DEVICE,
 * too. */
int sequence_state_resume(struct kv_sequence *kv, struct error *err);
/* Copies borrowed pages' contents to the state's own, if there are any.  Called before the
 * sequence's pages lose what the state holds.  ERR_DEVICE. */
int sequence_state_return(struct kv_sequence *kv, struct error *err);
/* Returns the matched state to the cache, if there is one. */
void sequence_state_unmatch(struct kv_sequence *kv);

/* Returns the most rows of the next step, so that it does not pass the state before the prompt's
 * last token; UINT32_MAX: any number. */
uint32_t sequence_state_max_rows(const struct kv_sequence *kv);
/* Submits the copies that follow a submitted step and precede its evictions.  These are those of
 * sequence_state_return(), and the state before the prompt's last token, if it is due and there are
 * pages.  tokens: the sequence's text, which is copied as the state's name.  ERR_DEVICE. */
int sequence_state_submitted(struct kv_sequence *kv, const uint32_t *tokens, struct error *err);
/* Notes that the first n_tokens tokens are valid.  If the state before the prompt's last token has
 * been copied and has fewer tokens, others find it from now on. */
void sequence_state_publish(struct kv_sequence *kv, uint32_t n_tokens);
/* Tells whether `other`, which must be running, is to publish a state that `kv`, which has not
 * begun, can resume: their prompts are equal.  tokens, others: the texts of both, whose hashes both
 * remember. */
bool sequence_state_is_coming(struct kv_sequence *kv, const uint32_t *tokens,
                              struct kv_sequence *other, const uint32_t *others);
/* Ends all that the sequence has to do with states: returns what it borrowed or matched, and frees
 * its own that are not published. */
void sequence_state_release(struct kv_sequence *kv);

#endif
