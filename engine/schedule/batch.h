/* batch.h - the arrays of one step: rows, sequences, and which logits to sample; or of one slice of
 * a long prompt.
 *
 * Thread: engine.  Memory: sized for the largest step at create; nothing is allocated in a step. */
#ifndef ENGINE_SCHEDULE_BATCH_H
#define ENGINE_SCHEDULE_BATCH_H

#include "engine/device/backend.h"
#include "engine/device/layer_slice.h"
#include "engine/schedule/step_time.h"

struct error;
struct sequence;

struct batch_entry {
    struct sequence *seq;
    uint32_t first_sample, n_samples;
    uint32_t n_stored; /* tokens in the sequence's cache once the step has run */
};

struct batch {
    struct step step;
    struct batch_entry *entries; /* [step.n_seqs], in the step's order */
    struct sample_row *samples;  /* [n_samples] */
    struct sample_result *results;
    struct evict_total *totals; /* [step.n_seqs], of those with a budget */
    struct select_total *selected; /* [step.n_decode], of those that select: */
    bool selects;                  /* there is one */
    uint32_t n_samples;
    enum step_time_kind kind;     /* STEP_TIME_SLICE: `slice`, nothing to sample, else a step */
    struct layer_slice slice;
    struct sequence *sparse; /* the one that chooses keys, or NULL; it has `visited` in the end */
    struct attn_sparse choice;
    struct sparse_totals visited;
    double prompt_work;      /* step_time.h */
    bool decodes;            /* some sequence generates */
    double planned_s;        /* when */
    uint32_t max_rows, max_seqs;
    uint32_t *tokens, *positions;
    struct step_seq *seqs;
};

int batch_init(struct batch *batch, uint32_t max_rows, uint32_t max_seqs, struct error *err);
void batch_fini(struct batch *batch); /* a zeroed struct is allowed */

/* Describes the step in which each sequence with n_rows > 0 runs that many rows.  A token that is
 * still to be drawn by the step in flight is left for the device to fill in. */
void batch_build(struct batch *batch, struct sequence *const *seqs, uint32_t n_seqs);
/* Describes the sequence's next slice (sequence.h), n_rows rows of it. */
void batch_build_slice(struct batch *batch, struct sequence *seq, uint32_t n_rows);

/* Behind its submission: whatever became of pages that are whole from now on has been submitted,
 * too.  ERR_DEVICE. */
int batch_submitted(const struct batch *batch, struct error *err);

/* True when the entry's last row draws a token. */
bool batch_samples(const struct batch *batch, const struct batch_entry *entry);

#endif
