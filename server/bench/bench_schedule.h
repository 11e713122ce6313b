/* bench_schedule.h - computes in which step the engine's scheduler reads which of a batch's
 * prompts.  So `quire bench` knows how long sequences generate before all of them do, and how many
 * tokens they have by then.
 *
 *   step          1     2     3     4     prompts of 3 tokens, steps of 4 rows
 *   sequence 0    ppp   1     1     1     p: rows of its prompt, the last of which samples a token
 *   sequence 1    p     pp    1     1     1: another token
 *   sequence 2          p     pp    1     behind[2] is 2, n_first 1, n_last 2
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_BENCH_BENCH_SCHEDULE_H
#define SERVER_BENCH_BENCH_SCHEDULE_H

#include <stdint.h>

enum { BENCH_MAX_BATCH = 4096 };

struct bench_shape {
    uint32_t n_sequences; /* from 1 to BENCH_MAX_BATCH */
    uint32_t n_prompt;    /* tokens of each, at least 1 */
    uint32_t max_rows;    /* of a step, at least n_sequences */
    uint32_t chunk;       /* a prompt's rows in a step do not cross a multiple of it */
    uint32_t n_alone;     /* steps of others while one prompt owns the prefill; 0: none does */
};

struct bench_schedule {
    uint32_t n_first; /* steps until the first sequence has a token */
    uint32_t n_last;  /* the step in which the last prompt begins, counted from 1 */
    /* [n_sequences], by how many steps each one's first token is later; rising. */
    uint32_t behind[BENCH_MAX_BATCH];
};

void bench_schedule_make(struct bench_schedule *out, const struct bench_shape *shape);

#endif
