/* thread.h - starts threads, one or several, that no signal interrupts: signals are the main
 * loop's, and elsewhere a SIGPIPE becomes EPIPE.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_THREAD_H
#define ENGINE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>

/* Tells the processor that the thread spins. */
static inline void thread_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* many processors do nothing at `yield` */
#endif
}

/* Keeps every signal from this thread, and from those that it starts, also through a library.
 * Returns the former mask. */
sigset_t signals_block(void);
void signals_restore(sigset_t former);

/* Does pthread_create() with every signal blocked.  ERR_NOMEM. */
int thread_start(pthread_t *out, void *(*run)(void *arg), void *arg);

enum { THREADS_MOST = 64 };
/* Returns how many threads are useful for n_parts of work, at least one: a processor each, and a
 * part each. */
uint32_t threads_useful(uint64_t n_parts);
/* Calls run() for each i below n, at most THREADS_MOST, with args + i * arg_size, and waits for
 * all.  With arg_size 0 they share what they take.  The first call is the caller's, the others have
 * threads of their own; calls for which no thread could be started follow on the caller. */
void threads_run(uint32_t n, void *(*run)(void *arg), void *args, size_t arg_size);

#endif
