/* runner.h - runs sequences through a decoder step by step, as the engine does, for tests.
 *
 * Owns a backend (the CPU's unless told otherwise), a model, a page pool and a decoder.  Pages are
 * handed out in a scrambled order, so that a page list is never 0, 1, 2 by luck.  Any failure fails
 * the calling cmocka test.
 *
 * Thread: the test's.  Memory: a sequence's pages come back when it is destroyed. */
#ifndef TESTS_MODEL_RUNNER_H
#define TESTS_MODEL_RUNNER_H

#include "engine/cpu/cpu.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/device/sample.h"
#include "engine/device/step.h"
#include "engine/model/decoder.h"
#include "engine/model/model.h"

struct attn_sparse;
struct backend;

struct runner {
    struct backend *be;
    struct model *model;
    struct decoder *decoder;
    struct kv_pool kv;
    const struct attn_sparse *sparse; /* of every step's sequence with more than one row, or NULL */
    uint32_t *free_pages;             /* [n_free] used as a stack */
    uint32_t n_free;
    struct state_pool states; /* of models with recurrent layers: N_SEQS sequences' */
    uint32_t n_seqs;          /* that have been begun */
};

struct runner_seq {
    uint32_t **pages; /* [n_layers][n_pages] */
    uint32_t n_pages; /* per layer */
    uint32_t n_tokens;
    struct state_slots state; /* of its newest step; each step goes to the other one of two slots */
};

/* One sequence's rows in a step. */
struct runner_rows {
    struct runner_seq *seq;
    const uint32_t *tokens;
    uint32_t n;
};

/* context: as in model_source.  kv_format is that of the pages; n_pages counts pages of all layers
 * together. */
void runner_open(struct runner *runner, const char *dir, uint32_t context,
                 const struct cpu_config *cpu, uint32_t n_pages, enum page_format kv_format,
                 const struct decoder_limits *limits);
/* The same on a backend of the caller's making, which the runner takes. */
void runner_open_on(struct runner *runner, const char *dir, uint32_t context, struct backend *be,
                    uint32_t n_pages, enum page_format kv_format,
                    const struct decoder_limits *limits);
void runner_close(struct runner *runner);

void runner_seq_init(struct runner *runner, struct runner_seq *seq, uint32_t max_tokens);
void runner_seq_fini(struct runner *runner, struct runner_seq *seq);

/* One step; those with one row come first in `rows`.  Samples refer to rows of the step.
 * logits may be NULL. */
void runner_step(struct runner *runner, const struct runner_rows *rows, uint32_t n_seqs,
                 const struct sample_row *samples, uint32_t n_samples,
                 struct sample_result *results, float *logits);

/* Stores n tokens of a sequence that has none, layer by layer, in slices of at most `rows` rows;
 * between two slices `between` (may be NULL) runs. */
void runner_feed_long(struct runner *runner, struct runner_seq *seq, const uint32_t *tokens,
                      uint32_t n, uint32_t rows, void (*between)(void *ctx), void *ctx);

/* A sample row that takes the most likely token. */
struct sample_row runner_greedy(uint32_t logit_row);

/* Feeds one sequence n tokens in steps of at most `chunk` and returns the greedy token after the
 * last; logits, if not NULL, is [n_vocab] and receives those of the last token. */
uint32_t runner_feed(struct runner *runner, struct runner_seq *seq, const uint32_t *tokens,
                     uint32_t n, uint32_t chunk, float *logits);

#endif
