/* timed_engine.c - see timed_engine.h. */
#include "server/bench/timed_engine.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "server/settings/engine_setup.h"

static void ring(void *bell) {
    sem_post(bell);
}

int timed_engine_open(struct timed_engine *out, struct engine_config config, struct error *err) {
    *out = (struct timed_engine){0};
    config.prefix_caching = false;
    config.tokens_only = true;
    config.wake = ring;
    config.wake_ctx = &out->bell;
    sem_init(&out->bell, 0, 0);
    const int rc = engine_setup_create(&out->engine, &config, err);
    if (rc) sem_destroy(&out->bell);
    else out->info = engine_info(out->engine);
    return rc;
}

void timed_engine_close(struct timed_engine *timed) {
    engine_destroy(timed->engine);
    sem_destroy(&timed->bell);
}

/* ---- one batch ---- */

static int make_request(struct engine_request *out, const struct timed_batch *batch, uint32_t i,
                        struct error *err) {
    const size_t bytes = batch->n_prompt * sizeof(*out->prompt);
    *out = (struct engine_request){.n_prompt = batch->n_prompt,
                                   .params = sampling_defaults(),
                                   .kv = batch->kv,
                                   .prefill = batch->prefill};
    out->params.sampler.temperature = 0;
    out->params.ignore_eos = true;
    out->params.max_tokens = batch->n_generate;
    if (batch->scores) out->params.n_prompt_logprobs = 0;
    out->prompt = malloc(bytes);
    if (!out->prompt) return error_set(err, ERR_NOMEM, "no memory for a prompt to be timed");
    memcpy(out->prompt, batch->tokens + (size_t)i * batch->n_prompt, bytes);
    return 0;
}

static int submit(struct timed_engine *timed, const struct timed_batch *batch, struct error *err) {
    const uint32_t n = batch->n_sequences;
    struct engine_request *requests = calloc(n, sizeof(*requests));
    uint64_t *ids = calloc(n, sizeof(*ids));
    int rc = requests && ids ? 0 : error_set(err, ERR_NOMEM, "no memory for requests to be timed");
    for (uint32_t i = 0; rc == 0 && i < n; i++) rc = make_request(&requests[i], batch, i, err);
    if (rc == 0) rc = engine_submit(timed->engine, requests, n, ids, err);
    if (rc < 0 && requests) { /* the requests are still ours */
        for (uint32_t i = 0; i < n; i++) free(requests[i].prompt);
    }
    free(requests);
    free(ids);
    return rc;
}

/* Stores the event's tokens and returns how many the single sequence has now. */
static uint32_t take_tokens(const struct engine_event *event, uint32_t n, uint32_t *generated) {
    for (uint32_t i = 0; i < event->n_tokens; i++) generated[n++] = event->tokens[i].token;
    return n;
}

static void take_scores(const struct engine_event *event, const struct timed_batch *batch) {
    for (uint32_t i = 0; i < event->n_tokens && i < batch->n_prompt; i++)
        batch->scores[i] = event->tokens[i].logprob;
}

/* Takes the engine's events and counts the sequences that are done. */
static int take_finished(struct timed_engine *timed, const struct timed_batch *batch,
                         uint32_t *n_finished, struct timing *out, struct error *err) {
    int rc = 0;
    struct engine_event *event = engine_take_events(timed->engine), *next;
    for (; event; event = next) {
        next = event->next;
        if (batch->scores && event->kind == EVENT_PROMPT) take_scores(event, batch);
        if (batch->generated)
            out->n_generated = take_tokens(event, out->n_generated, batch->generated);
        *n_finished += event->kind == EVENT_FINISH;
        if (event->kind == EVENT_FINISH) {
            out->prefill = event->prefill;
            out->kv = event->kv;
        }
        if (event->kind == EVENT_FINISH && event->reason == FINISH_ERROR) {
            rc = error_set(err, event->error_code, "a request that was timed failed: %s",
                           event->error_text);
        }
        engine_event_free(event);
    }
    return rc;
}

/* The engine's statistics.  They are more exact than events: an event may hold a token back until
 * its text is complete. */
struct counts {
    struct engine_stats last;
    uint64_t tokens_at_start;
    double decoding_since; /* 0: not every sequence generates yet */
    uint64_t tokens_then;
};

/* Ends the measurement when the first sequence is done: the tokens generated since all of them
 * decoded count. */
static void end_decoding(const struct counts *c, const struct timed_batch *batch, uint64_t tokens,
                         double time, struct timing *out) {
    out->decode_seconds = time - c->decoding_since;
    out->decode_tokens = tokens - c->tokens_then;
    out->context_tokens = (double)batch->n_sequences * batch->n_prompt +
                          ((double)tokens + (double)c->tokens_then) / 2 -
                          (double)c->tokens_at_start;
}

static void count_step(struct counts *c, const struct engine_stats *now, uint32_t n_sequences,
                       double time) {
    const uint64_t n_steps = now->n_steps - c->last.n_steps,
                   n_tokens = now->generated_tokens - c->last.generated_tokens;
    if (c->decoding_since == 0 && n_steps > 0 && n_tokens == n_steps * n_sequences) {
        c->decoding_since = time;
        c->tokens_then = now->generated_tokens;
    }
    c->last = *now;
}

int timed_engine_run(struct timed_engine *timed, const struct timed_batch *batch,
                     struct timing *out, struct error *err) {
    struct counts counts = {0};
    uint32_t n_finished = 0;
    const double start = clock_seconds();
    *out = (struct timing){0};
    engine_stats(timed->engine, &counts.last);
    counts.tokens_at_start = counts.last.generated_tokens;
    const uint64_t steps_at_start = counts.last.n_steps;
    int rc = submit(timed, batch, err);
    while (rc == 0 && n_finished < batch->n_sequences) {
        struct engine_stats now;
        while (sem_wait(&timed->bell) != 0) { /* interrupted by a signal */
        }
        const double time = clock_seconds();
        const bool is_first = n_finished == 0;
        engine_stats(timed->engine, &now);
        rc = take_finished(timed, batch, &n_finished, out, err);
        if (is_first && n_finished > 0 && counts.decoding_since > 0)
            end_decoding(&counts, batch, now.generated_tokens, time, out);
        if (n_finished == batch->n_sequences) out->total_seconds = time - start;
        count_step(&counts, &now, batch->n_sequences, time);
        if (batch->stepped) batch->stepped(batch->ctx, now.n_steps - steps_at_start);
    }
    return rc;
}
