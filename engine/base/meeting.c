/* meeting.c - see meeting.h. */
#include "engine/base/meeting.h"

#include "engine/base/error.h"
#include "engine/base/thread.h"

enum { SPIN_ROUNDS = 4000 };

void meeting_init(struct meeting *meeting, uint32_t n_threads) {
    *meeting = (struct meeting){.n = n_threads};
    pthread_mutex_init(&meeting->lock, NULL);
    pthread_cond_init(&meeting->met, NULL);
}

void meeting_fini(struct meeting *meeting) {
    pthread_cond_destroy(&meeting->met);
    pthread_mutex_destroy(&meeting->lock);
}

static bool is_over(struct meeting *meeting, unsigned number) {
    return atomic_load(&meeting->n_held) != number || atomic_load(&meeting->interrupted);
}

static void wake(struct meeting *meeting) {
    pthread_mutex_lock(&meeting->lock);
    pthread_cond_broadcast(&meeting->met);
    pthread_mutex_unlock(&meeting->lock);
}

static void await(struct meeting *meeting, unsigned number) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (is_over(meeting, number)) return;
        thread_pause();
    }
    pthread_mutex_lock(&meeting->lock);
    while (!is_over(meeting, number)) pthread_cond_wait(&meeting->met, &meeting->lock);
    pthread_mutex_unlock(&meeting->lock);
}

int meeting_attend(struct meeting *meeting, struct error *err) {
    const unsigned number = atomic_load(&meeting->n_held);
    if (atomic_fetch_add(&meeting->n_arrived, 1) + 1 == meeting->n) {
        atomic_store(&meeting->n_arrived, 0);
        atomic_fetch_add(&meeting->n_held, 1);
        wake(meeting);
    } else {
        await(meeting, number);
    }
    /* A meeting that all have come to counts, even if another thread has failed since. */
    if (atomic_load(&meeting->n_held) != number) return 0;
    return error_set(err, ERR_STOPPED, "another rank has failed");
}

void meeting_interrupt(struct meeting *meeting) {
    atomic_store(&meeting->interrupted, true);
    wake(meeting);
}

void meeting_resume(struct meeting *meeting) {
    atomic_store(&meeting->n_arrived, 0);
    atomic_store(&meeting->interrupted, false);
}
