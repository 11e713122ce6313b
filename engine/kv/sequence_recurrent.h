/* sequence_recurrent.h - the recurrent state of a sequence (recurrent.h), and the checkpoints that
 * it leaves.
 *
 *   rows in a step   from       to
 *   the first        zeros      7         a text that nothing is cached of
 *   the next         7          7         in place
 *                    7 is a checkpoint now: it must stay as it is
 *   the next         7          9         a slot of its own; nothing is copied
 *
 * A checkpoint is left where a block ends:
 *
 *   - every checkpoint_tokens tokens (kv_space.h);
 *   - where the prompt leaves what is cached of it: others may leave it there, too;
 *   - before the prompt's last message, which may be edited: if that is RECURRENT_MIN_LAST tokens
 *     behind where the sequence began;
 *   - at the prompt's last one, from which its other choices begin;
 *   - at the newest one of the answer, in place of the one before: there the next turn begins.
 *
 * No step of a prompt crosses such an end, so that the state there is in a slot between two steps.
 *
 * A step with guesses leaves its state in a slot of its own, and the sequence holds both until its
 * results are there.  If a guess was wrong, the sequence goes on from the state before the step.
 * It computes the rows of tokens that were right again, with the next one.
 *
 *   guesses          7          9         7 stays, in `before`
 *   all right        9          9         7 is released
 *   or else          7          9         9 is released, and taken again where need be
 *
 * Those rows write their keys and values again.  So no step with guesses completes a block unless
 * all are right: a block may be shared.
 *
 * A sequence that keeps a budget leaves none.  While it is suspended it keeps its slot, as it keeps
 * its pages' contents (saved.h).
 *
 * Checkpoints wait for the results of their step, as blocks do, before others find them.  They are
 * left as far as there are slots: a sequence's take half of them at most, the newest ones, so that
 * others can start.  A running sequence takes those that are cached, the least
 * recently used first; without any it goes on in place.
 *
 * Thread: engine.  Memory: a list of what waits, made by prepare. */
#ifndef ENGINE_KV_SEQUENCE_RECURRENT_H
#define ENGINE_KV_SEQUENCE_RECURRENT_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct kv_sequence;
struct step_seq;

/* For fewer tokens a step is not cut. */
enum { RECURRENT_MIN_LAST = 512 };

/* The most that wait at a time beside those of every checkpoint_tokens tokens.  A prompt's blocks
 * are inserted at its end, all at once. */
enum { RECURRENT_MAX_PENDING = 8 };

/* A state that becomes the checkpoint behind the text's first n_tokens tokens. */
struct pending_checkpoint {
    uint32_t n_tokens, slot;
    bool is_passing; /* it was left while tokens were generated: the next one takes its place */
};

/* What a sequence has of the pool of states; only sequence_recurrent.c opens it. */
struct sequence_recurrent {
    uint32_t slot;   /* with the state behind its stored tokens; CHECKPOINT_NONE: there are none */
    uint32_t next;   /* taken: the next step's state goes here; CHECKPOINT_NONE: into `slot` */
    uint32_t stored; /* the checkpoint that `next` gets from the store; CHECKPOINT_NONE */
    uint32_t branch; /* tokens of the text whose blocks were cached when it started */
    uint32_t before; /* the state before a step with guesses, until its results are there, */
    uint32_t n_before;                  /* and how many tokens were stored then */
    bool guesses;                       /* the next step has guesses */
    struct pending_checkpoint *pending; /* [max_pending] */
    uint32_t n_pending, max_pending;
    uint32_t passing; /* its block whose checkpoint is_passing; CHECKPOINT_NONE */
};

/* Begins without a state. */
void sequence_recurrent_init(struct kv_sequence *kv);
/* Makes the list of checkpoints that wait.  ERR_NOMEM. */
int sequence_recurrent_prepare(struct kv_sequence *kv);
/* Frees it; all slots have been given back. */
void sequence_recurrent_fini(struct kv_sequence *kv);
/* Returns how many slots the sequence lacks to start: 1 or 0. */
uint32_t sequence_recurrent_missing(const struct kv_sequence *kv);
/* Begins from the checkpoint of the last block that was found, if any was.  n_cached: tokens whose
 * blocks are cached, whether or not there is a checkpoint. */
void sequence_recurrent_match(struct kv_sequence *kv, uint32_t n_cached);
/* Makes sure that the next step can write its state.  What it lacks to start must be available. */
void sequence_recurrent_take(struct kv_sequence *kv);
/* Counts the checkpoint that the sequence begins from, and reads it if it is in the store.
 * ERR_DEVICE. */
int sequence_recurrent_resume(struct kv_sequence *kv, struct error *err);
/* Returns the most guesses that the next step may have behind the row of the newest token, which
 * the text's n_tokens tokens end with. */
uint32_t sequence_recurrent_max_guesses(const struct kv_sequence *kv, uint32_t n_tokens);
/* Takes a slot for the state of the next step, which has guesses.  ERR_FULL: there is none. */
int sequence_recurrent_guess(struct kv_sequence *kv);
/* Notes that the next step has no guesses after all. */
void sequence_recurrent_forget_guesses(struct kv_sequence *kv);
/* Ends a step with guesses of which n_tokens tokens in all are right.  Returns how many of them are
 * stored: the others must be computed again. */
uint32_t sequence_recurrent_take_back(struct kv_sequence *kv, uint32_t n_tokens);
/* Returns the most rows of the next step, so that it does not pass the next checkpoint of the
 * prompt; UINT32_MAX: any number. */
uint32_t sequence_recurrent_max_rows(const struct kv_sequence *kv);
/* Takes slots for the checkpoints in the next n_rows rows of a layer-major prompt, as far as there
 * are slots.  The slices of all layers leave their states there. */
void sequence_recurrent_begin_slices(struct kv_sequence *kv, uint32_t n_rows);
/* Returns the most rows of a slice that begins with row first_row; UINT32_MAX: any number.  The
 * slice does not pass the next of these checkpoints. */
uint32_t sequence_recurrent_slice_rows(const struct kv_sequence *kv, uint32_t first_row);
/* Says in *seq from where and to where the state of a step or slice goes.  Its n_rows rows begin
 * with row first_row behind the stored tokens. */
void sequence_recurrent_describe(const struct kv_sequence *kv, uint32_t first_row, uint32_t n_rows,
                                 struct step_seq *seq);
/* Notes that a step has been planned, and that its n_rows rows are counted as stored. */
void sequence_recurrent_commit(struct kv_sequence *kv, uint32_t n_rows);
/* Gives the prefix cache the checkpoints of blocks that have been inserted. */
void sequence_recurrent_insert(struct kv_sequence *kv, uint32_t n_tokens);
/* Gives all slots back. */
void sequence_recurrent_release(struct kv_sequence *kv);

#endif
