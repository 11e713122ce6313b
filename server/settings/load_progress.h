/* load_progress.h - logs how far the weights are loaded, about once a second, and at the end how
 * long loading took.
 *
 * Thread: the one that creates the engine.  Memory: the caller's struct. */
#ifndef SERVER_SETTINGS_LOAD_PROGRESS_H
#define SERVER_SETTINGS_LOAD_PROGRESS_H

#include <stdint.h>

struct load_progress {
    uint64_t begun_ns, told_ns;
};

/* Implements engine_config.load_progress; ctx is the struct.  done 0 begins. */
void load_progress_tell(void *ctx, uint64_t done, uint64_t total);

#endif
