/* timed_engine.h - an engine for measurements: runs batches of prompts through it and times them.
 *
 * Thread: main; the engine has its own.  Memory: the engine's; a run allocates its requests. */
#ifndef SERVER_BENCH_TIMED_ENGINE_H
#define SERVER_BENCH_TIMED_ENGINE_H

#include <semaphore.h>

#include "engine/engine.h"

struct timed_engine {
    struct engine *engine;
    const struct engine_info *info;
    sem_t bell; /* posted when the engine has events */
};

/* Opens an engine; config comes from engine_setup_config().  Every prompt is computed, because
 * prefix caching is off.  No tokenizer is loaded, because no text is needed.  *out must not
 * move. */
int timed_engine_open(struct timed_engine *out, struct engine_config config, struct error *err);
void timed_engine_close(struct timed_engine *timed); /* one that was opened */

/* Prompts of one length, submitted together; each sequence generates n_generate tokens. */
struct timed_batch {
    const uint32_t *tokens; /* [n_sequences][n_prompt] */
    uint32_t n_prompt, n_sequences, n_generate;
    struct kv_choice kv;
    struct prefill_choice prefill;
    uint32_t *generated; /* [n_generate], of a single sequence, or NULL */
    float *scores;       /* [n_prompt]: log-probabilities of a single prompt's tokens; NULL: none */
    /* Called after the engine's events, with the steps since the beginning; or NULL. */
    void (*stepped)(void *ctx, uint64_t n_steps);
    void *ctx;
};

/* The measurements of one batch. */
struct timing {
    double total_seconds;  /* from submission to the last sequence's end */
    double decode_seconds; /* from the first step in which all generated to the first one's end */
    uint64_t decode_tokens;
    double context_tokens; /* tokens in context, summed over the sequences; the mean of that time */
    uint32_t n_generated;  /* tokens in timed_batch.generated */
    struct prefill_usage prefill; /* of the sequence that finished last, */
    struct kv_usage kv;           /* as is this */
};

int timed_engine_run(struct timed_engine *timed, const struct timed_batch *batch,
                     struct timing *out, struct error *err);

#endif
