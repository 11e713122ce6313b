/* batch.h - the arrays of one step (rows, sequences, which logits to sample), or of one slice of a
 * layer-major prompt.
 *
 * Thread: engine.  Memory: sized for the largest step at create; nothing is allocated in a step. */
#ifndef ENGINE_SCHEDULE_BATCH_H
#define ENGINE_SCHEDULE_BATCH_H

#include "engine/device/evict.h"
#include "engine/device/layer_slice.h"
#include "engine/device/sample.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "engine/schedule/step_time.h"

struct error;
struct sequence;

/* One sequence of a batch. */
struct batch_entry {
    struct sequence *seq;
    uint32_t first_sample, n_samples; /* its rows of `samples` */
    uint32_t n_stored;                /* its stored tokens once the step has run */
    bool draws; /* its last row of `samples` draws a token, and does not only score the prompt */
};

/* A step or a slice: what the device is given, and what it returns. */
struct batch {
    struct step step;
    struct batch_entry *entries; /* [step.n_seqs], in the step's order */
    struct sample_row *samples;  /* [n_samples] */
    struct sample_result *results;
    struct evict_total *totals;    /* [step.n_seqs]: batch_evicted() says which are valid */
    struct select_total *selected; /* [step.n_decode], valid for sequences that select */
    bool selects;                  /* some sequence does */
    /* What some row may sample depends on the tokens before it: batch_complete_samples() is due. */
    bool reads_tokens;
    uint32_t n_samples;
    uint32_t n_drafting;      /* sequences with rows of guesses */
    enum step_time_kind kind; /* a step, or a slice: then `slice` is valid */
    struct layer_slice slice;
    struct sequence *sparse; /* the sequence that chooses keys, or NULL; `visited` is added to it */
    struct attn_sparse choice;
    struct sparse_totals visited;
    double prompt_work; /* of the prompts' rows (step_time.h) */
    bool decodes;       /* some sequence generates */
    bool is_ahead;      /* it was planned while the batch before it was in flight */
    bool untimed;       /* includes the capture of a CUDA graph, so its time is not measured */
    double planned_s;   /* the time at which it was planned */
    uint32_t max_rows, max_seqs;  /* the arrays' sizes */
    uint32_t *tokens, *positions; /* [step.n_rows]: of the step */
    struct step_seq *seqs;        /* [step.n_seqs]: of the step */
};

/* Allocates the arrays for steps of at most max_rows rows and max_seqs sequences.  ERR_NOMEM:
 * nothing is left behind. */
int batch_init(struct batch *batch, uint32_t max_rows, uint32_t max_seqs, struct error *err);
void batch_fini(struct batch *batch); /* a zeroed struct is allowed */

/* Describes the step in which each of the n_seqs sequences with n_rows > 0 has that many rows,
 * those that generate first.  Their pages are reserved.  The device fills in a token that the
 * in-flight step has yet to sample. */
void batch_build(struct batch *batch, struct sequence *const *seqs, uint32_t n_seqs);
/* Describes the next slice of a layer-major prompt (seq->slice), of n_rows > 0 rows. */
void batch_build_slice(struct batch *batch, struct sequence *seq, uint32_t n_rows);

/* Calls kv_submitted() for each sequence, which submits the copies that follow the step or slice.
 * Called when that has been submitted, before decoder_submit_evictions() and before the next one.
 * Stops at the first ERR_DEVICE. */
int batch_submitted(const struct batch *batch, struct error *err);

/* Fills in what a grammar or a penalty decides of the rows to sample.  Called when the tokens of
 * all steps before this one are known, if reads_tokens is set. */
void batch_complete_samples(struct batch *batch);

/* Returns what the device reported of evictions of entry `at`, once the batch has run.  NULL: the
 * sequence has no budget, or more slices are to come. */
const struct evict_total *batch_evicted(const struct batch *batch, uint32_t at);

/* Tells whether all of the step's sequences generate, with guesses or without. */
bool batch_only_generates(const struct batch *batch);

#endif
