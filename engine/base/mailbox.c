/* mailbox.c - see mailbox.h. */
#include "engine/base/mailbox.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"

/* Links the item to the next one.  Items have different types, and only a copy of the bytes writes
 * their first member within the language's aliasing rules. */
static void set_next(void *item, void *next) {
    memcpy(item, &next, sizeof(next));
}

int mailbox_init(struct mailbox *box) {
    *box = (struct mailbox){0};
    if (pthread_mutex_init(&box->lock, NULL)) return ERR_NOMEM;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    const int failed = pthread_cond_init(&box->arrived, &attributes);
    pthread_condattr_destroy(&attributes);
    if (!failed) return 0;
    pthread_mutex_destroy(&box->lock);
    return ERR_NOMEM;
}

void mailbox_fini(struct mailbox *box) {
    assert(!box->first);
    pthread_cond_destroy(&box->arrived);
    pthread_mutex_destroy(&box->lock);
}

int mailbox_push(struct mailbox *box, void *first, void *last, bool *was_empty) {
    pthread_mutex_lock(&box->lock);
    bool closed = box->closed, empty = !box->first;
    if (!closed) {
        if (empty) box->first = first;
        else set_next(box->last, first);
        box->last = last;
        pthread_cond_signal(&box->arrived);
    }
    pthread_mutex_unlock(&box->lock);
    if (was_empty) *was_empty = empty && !closed;
    return closed ? ERR_FULL : 0;
}

static void *take_locked(struct mailbox *box) {
    void *first = box->first;
    box->first = box->last = NULL;
    return first;
}

void *mailbox_take(struct mailbox *box) {
    pthread_mutex_lock(&box->lock);
    void *first = take_locked(box);
    pthread_mutex_unlock(&box->lock);
    return first;
}

void mailbox_poke(struct mailbox *box) {
    pthread_mutex_lock(&box->lock);
    box->poked = true;
    pthread_cond_signal(&box->arrived);
    pthread_mutex_unlock(&box->lock);
}

static bool is_quiet(const struct mailbox *box) {
    return !box->first && !box->closed && !box->poked;
}

void *mailbox_wait(struct mailbox *box) {
    pthread_mutex_lock(&box->lock);
    while (is_quiet(box)) pthread_cond_wait(&box->arrived, &box->lock);
    box->poked = false;
    void *first = take_locked(box);
    pthread_mutex_unlock(&box->lock);
    return first;
}

void *mailbox_wait_until(struct mailbox *box, double until_s) {
    const struct timespec at = clock_at(until_s);
    int code = 0;
    pthread_mutex_lock(&box->lock);
    while (is_quiet(box) && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&box->arrived, &box->lock, &at);
    box->poked = false;
    void *first = take_locked(box);
    pthread_mutex_unlock(&box->lock);
    return first;
}

void *mailbox_close(struct mailbox *box) {
    pthread_mutex_lock(&box->lock);
    box->closed = true;
    void *first = take_locked(box);
    pthread_cond_broadcast(&box->arrived);
    pthread_mutex_unlock(&box->lock);
    return first;
}
