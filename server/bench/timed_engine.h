/* timed_engine.h - an engine for measurements: batches of prompts through it, and how long they
 * take.
 *
 * Thread: main; the engine has its own.  Memory: the engine's; a run allocates its requests. */
#ifndef SERVER_BENCH_TIMED_ENGINE_H
#define SERVER_BENCH_TIMED_ENGINE_H

#include <semaphore.h>

#include "engine/engine.h"

struct timed_engine {
    struct engine *engine;
    const struct engine_info *info;
    sem_t bell; /* rung when the engine has events */
};

/* config as engine_setup_config() makes it.  Every prompt is computed, for nothing is cached, and
 * no tokenizer is loaded, for no text is wanted.  *out must stay where it is. */
int timed_engine_open(struct timed_engine *out, struct engine_config config, struct error *err);
void timed_engine_close(struct timed_engine *timed); /* an opened one */

/* Prompts of one length that are submitted together; each sequence generates n_generate tokens. */
struct timed_batch {
    const uint32_t *tokens; /* [n_sequences][n_prompt] */
    uint32_t n_prompt, n_sequences, n_generate;
    struct kv_choice kv;
    struct prefill_choice prefill;
    uint32_t *generated; /* [n_generate], of a single sequence, or NULL */
    /* Called when the engine has told something, with the steps since the beginning; or NULL. */
    void (*stepped)(void *ctx, uint64_t n_steps);
    void *ctx;
};

/* What one batch showed. */
struct timing {
    double total_seconds;  /* from submission to the last sequence's end */
    double decode_seconds; /* from the first step in which every sequence generated to the first
                              one's end */
    uint64_t decode_tokens;
    double context_tokens; /* of all sequences, the mean of that time */
    uint32_t n_generated;  /* tokens in timed_batch.generated */
    struct prefill_usage prefill; /* of the one that finished last, */
    struct kv_usage kv;           /* too */
};

int timed_engine_run(struct timed_engine *timed, const struct timed_batch *batch,
                     struct timing *out, struct error *err);

#endif
