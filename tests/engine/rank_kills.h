/* rank_kills.h - lets an operation of a backend fail, the n-th time that it is called.
 *
 * Thread: one backend of a process at a time; operations on any.  Memory: static. */
#ifndef TESTS_ENGINE_RANK_KILLS_H
#define TESTS_ENGINE_RANK_KILLS_H

#include <stdint.h>

struct backend;

/* The moments at which a rank can fail. */
enum rank_kill {
    KILL_LOAD, /* a weight of the model */
    KILL_STEP,
    KILL_PRODUCT,
    KILL_APPEND,
    KILL_PROMPT,   /* a prompt's attention */
    KILL_DECODE,   /* that of rows that decode */
    KILL_SUM,      /* before the rank has added its part */
    KILL_EXCHANGE, /* before it has sent its rows */
    KILL_COLUMNS,  /* before it has sent its logits */
    KILL_SAMPLE,
    KILL_GRAPH,
    KILL_EVICT,    /* a row that decodes */
    KILL_COMPRESS, /* a prompt */
    KILL_SELECT,
    KILL_INDEX,   /* of a sparse prompt */
    KILL_OFFLOAD, /* to the host pool */
    KILL_COLLECT, /* when results are taken */
    N_KILLS
};

extern const char *const rank_kill_names[N_KILLS];

/* Takes a backend, until rank_kills_end(); it does not fail yet. */
void rank_kills_begin(struct backend *be);
/* Lets the n-th call from now on of this kind fail, and all later ones. */
void rank_kills_at(enum rank_kill kind, uint32_t n);
/* Returns how many calls of a kind there have been since the beginning. */
uint32_t rank_kills_calls(enum rank_kill kind);
void rank_kills_end(void);

#endif
