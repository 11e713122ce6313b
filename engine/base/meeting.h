/* meeting.h - a place where threads wait for each other, again and again, until one of them calls
 * it off.
 *
 * Thread: any.  Memory: none but the struct. */
#ifndef ENGINE_BASE_MEETING_H
#define ENGINE_BASE_MEETING_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

struct meeting {
    uint32_t n; /* threads */
    pthread_mutex_t lock;
    pthread_cond_t met;
    atomic_uint n_arrived, n_held; /* n_held: meetings so far */
    atomic_bool interrupted;
};

void meeting_init(struct meeting *meeting, uint32_t n_threads);
void meeting_fini(struct meeting *meeting);

/* Waits until all threads have called it.  It spins briefly, then sleeps: there may be fewer
 * processors than threads.  ERR_STOPPED: it was interrupted before all were there. */
int meeting_attend(struct meeting *meeting, struct error *err);
/* Ends the calls of all threads with ERR_STOPPED, those that wait and later ones. */
void meeting_interrupt(struct meeting *meeting);
/* Lets the threads meet again.  None of them is in a call. */
void meeting_resume(struct meeting *meeting);

#endif
