/* counters.h - the routes' counters: answers, prompts, times.  server/ops/metrics.h writes them.
 *
 * Thread: loop, so nothing is locked.  Memory: fixed. */
#ifndef SERVER_API_COUNTERS_H
#define SERVER_API_COUNTERS_H

#include <stdint.h>

#include "engine/base/histogram.h"
#include "engine/request/prefill_choice.h"

enum { COUNTERS_N_CLASSES = 6, COUNTERS_MAX_HANDLERS = 128 };

/* Answers of one route to one method.  Both strings are constants. */
struct handler_counters {
    const char *handler, *method;
    uint64_t by_class[COUNTERS_N_CLASSES]; /* as in struct counters */
    struct histogram seconds;              /* where the time is known */
};

/* Zero-initialise. */
struct counters {
    uint64_t
        by_class[COUNTERS_N_CLASSES]; /* answers by first digit of the status; [0]: client gone */
    struct handler_counters handlers[COUNTERS_MAX_HANDLERS];
    uint32_t n_handlers;
    uint64_t sparse_prompts, dense_prompts; /* of sequences that have ended */
    uint64_t n_queue_full;                  /* requests refused because the queue was full */
    struct histogram whole;                 /* completions: seconds until the end */
    /* Of accepted completions: choices, and most tokens to generate; of ended ones: the tokens of
     * their longest choice. */
    struct histogram n_choices, max_tokens, longest;
};

/* Counts an answer.  handler: of the route (a constant), NULL: there is no such route.  seconds <
 * 0: not known. */
void counters_count_answer(struct counters *counters, const char *handler, const char *method,
                           unsigned status, double seconds);
void counters_count_prompt(struct counters *counters, enum prefill_mode mode);

#endif
