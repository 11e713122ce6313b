/* kv_feed.c - a ring with one writer and one reader, see kv_feed.h.
 *
 * `head` and `tail` only grow; the ring's size is a power of two.  A reader that is about to sleep
 * says so and looks once more; the writer puts and then looks whether the reader sleeps.  Both in
 * one order for all threads, so one of them notices the other. */
#include "engine/kv/kv_feed.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/base/error.h"

struct kv_feed {
    atomic_uint_least64_t head, tail; /* events put, events taken */
    atomic_uint_least64_t n_broken;
    atomic_bool is_broken, sleeps;
    uint32_t epoch; /* the engine's */
    int descriptor;
    struct kv_feed_event events[KV_FEED_EVENTS];
};

int kv_feed_create(struct kv_feed **out, struct error *err) {
    struct kv_feed *feed = calloc(1, sizeof(*feed));
    if (!feed) return error_set(err, ERR_NOMEM, "no memory for the feed of KV events");
    feed->epoch = 1;
    feed->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (feed->descriptor < 0) {
        const int failure = errno;
        free(feed);
        return error_set(err, ERR_IO, "no descriptor for KV events: %s", strerror(failure));
    }
    *out = feed;
    return 0;
}

void kv_feed_destroy(struct kv_feed *feed) {
    if (!feed) return;
    close(feed->descriptor);
    free(feed);
}

void kv_feed_wake(struct kv_feed *feed) {
    const uint64_t one = 1;
    /* It fails only if the descriptor is readable already. */
    if (write(feed->descriptor, &one, sizeof(one)) < 0) return;
}

static void wake_sleeper(struct kv_feed *feed) {
    if (atomic_exchange(&feed->sleeps, false)) kv_feed_wake(feed);
}

static void break_feed(struct kv_feed *feed) {
    feed->epoch = feed->epoch == UINT32_MAX ? 1 : feed->epoch + 1;
    atomic_fetch_add(&feed->n_broken, 1);
    atomic_store(&feed->is_broken, true);
}

bool kv_feed_put(struct kv_feed *feed, const struct kv_feed_event *event) {
    if (atomic_load(&feed->is_broken)) return false;
    const uint64_t head = atomic_load(&feed->head);
    const bool is_full = head - atomic_load(&feed->tail) == KV_FEED_EVENTS;
    if (is_full) {
        break_feed(feed);
    } else {
        feed->events[head % KV_FEED_EVENTS] = *event;
        atomic_store(&feed->head, head + 1);
    }
    wake_sleeper(feed);
    return !is_full;
}

uint32_t kv_feed_epoch(const struct kv_feed *feed) {
    return feed->epoch;
}

bool kv_feed_take(struct kv_feed *feed, struct kv_feed_event *out) {
    const uint64_t tail = atomic_load(&feed->tail);
    if (atomic_load(&feed->head) == tail) return false;
    *out = feed->events[tail % KV_FEED_EVENTS];
    atomic_store(&feed->tail, tail + 1);
    return true;
}

static bool is_empty(const struct kv_feed *feed) {
    return atomic_load(&feed->head) == atomic_load(&feed->tail);
}

bool kv_feed_mend(struct kv_feed *feed) {
    if (!atomic_load(&feed->is_broken) || !is_empty(feed)) return false;
    atomic_store(&feed->is_broken, false);
    return true;
}

int kv_feed_descriptor(const struct kv_feed *feed) {
    return feed->descriptor;
}

bool kv_feed_sleep(struct kv_feed *feed) {
    uint64_t n;
    if (read(feed->descriptor, &n, sizeof(n)) < 0 && errno != EAGAIN) return false;
    atomic_store(&feed->sleeps, true);
    return is_empty(feed) && !atomic_load(&feed->is_broken);
}

uint64_t kv_feed_n_put(const struct kv_feed *feed) {
    return atomic_load(&feed->head);
}

uint64_t kv_feed_n_broken(const struct kv_feed *feed) {
    return atomic_load(&feed->n_broken);
}
