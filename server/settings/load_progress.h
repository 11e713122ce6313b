/* load_progress.h - logs how far the weights are loaded, about once a second, and at the end how
 * long loading took.  Another thread may stop it.
 *
 * Thread: the one that creates the engine.  Memory: the caller's struct. */
#ifndef SERVER_SETTINGS_LOAD_PROGRESS_H
#define SERVER_SETTINGS_LOAD_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct load_progress {
    uint64_t begun_ns, told_ns;
    uint32_t n_replicas, n_begun; /* n_replicas: each of several is named by its number */
    const atomic_bool *stops;     /* true: no more is to be loaded; NULL: nothing stops it */
};

/* Implements engine_config.load_progress; ctx is the struct.  done 0 begins. */
bool load_progress_tell(void *ctx, uint64_t done, uint64_t total);

#endif
