/* load_progress.h - tells the log how far the weights are, about once a second, and at the end what
 * loading them took.
 *
 * Thread: the one that creates the engine.  Memory: the caller's struct. */
#ifndef SERVER_SETTINGS_LOAD_PROGRESS_H
#define SERVER_SETTINGS_LOAD_PROGRESS_H

#include <stdint.h>

struct load_progress {
    uint64_t begun_ns, told_ns;
};

/* As engine_config.load_progress; ctx is the struct.  done 0 begins. */
void load_progress_tell(void *ctx, uint64_t done, uint64_t total);

#endif
