/* thread.h - starts threads that no signal interrupts: signals are the main loop's, and elsewhere a
 * SIGPIPE becomes EPIPE.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_THREAD_H
#define ENGINE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Keeps every signal from this thread, and from those that it starts, also through a library.
 * Returns the former mask. */
sigset_t signals_block(void);
void signals_restore(sigset_t former);

/* Does pthread_create() with every signal blocked.  ERR_NOMEM. */
int thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);

#endif
