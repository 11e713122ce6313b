/* thread.c - see thread.h. */
#include "engine/base/thread.h"

#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"

enum { USEFUL = 32 };

sigset_t signals_block(void) {
    sigset_t all, former;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &former);
    return former;
}

void signals_restore(sigset_t former) {
    pthread_sigmask(SIG_SETMASK, &former, NULL);
}

int thread_start(pthread_t *out, void *(*run)(void *arg), void *arg) {
    const sigset_t former = signals_block();
    const int failure = pthread_create(out, NULL, run, arg);
    signals_restore(former);
    return failure ? ERR_NOMEM : 0;
}

uint32_t threads_useful(uint64_t n_parts) {
    const long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    const uint64_t most = n_processors < 1 ? 1 : min_u64((uint64_t)n_processors, USEFUL);
    return (uint32_t)max_u64(min_u64(most, n_parts), 1);
}

void threads_run(uint32_t n, void *(*run)(void *arg), void *args, size_t arg_size) {
    pthread_t threads[THREADS_MOST];
    char *arg = args;
    uint32_t n_started = 0;
    while (n_started + 1 < n &&
           thread_start(&threads[n_started], run, arg + (n_started + 1) * arg_size) == 0)
        n_started++;
    run(arg);
    for (uint32_t i = n_started + 1; i < n; i++) run(arg + i * arg_size);
    for (uint32_t i = 0; i < n_started; i++) pthread_join(threads[i], NULL);
}
