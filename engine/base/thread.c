/* thread.c - see thread.h. */
#include "engine/base/thread.h"

#include "engine/base/error.h"

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
