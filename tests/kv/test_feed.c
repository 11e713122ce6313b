/* test_feed.c - the feed hands every event over in order or breaks, and a sleeping reader is always
 * woken. */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/kv/kv_feed.h"
#include "tests/test.h"

enum { N_EVENTS = 200000 };

static struct kv_feed_event event_of(uint64_t hash) {
    struct kv_feed_event event = {.is_added = true, .place = KV_ON_DEVICE, .hash = hash};
    for (unsigned i = 0; i < PAGE_TOKENS; i++) event.tokens[i] = (uint32_t)hash + i;
    return event;
}

static struct kv_feed *new_feed(void) {
    struct kv_feed *feed = NULL;
    struct error err = {0};
    assert_int_equal(kv_feed_create(&feed, &err), 0);
    return feed;
}

TEST(events_come_in_order) {
    struct kv_feed *feed = new_feed();
    struct kv_feed_event event;
    assert_false(kv_feed_take(feed, &event));
    for (uint64_t i = 0; i < 3ull * KV_FEED_EVENTS; i++) {
        event = event_of(i);
        assert_true(kv_feed_put(feed, &event));
        if (i % 2 == 0) continue; /* two wait at most */
        for (uint64_t k = i - 1; k <= i; k++) {
            assert_true(kv_feed_take(feed, &event));
            assert_int_equal(event.hash, k);
            assert_int_equal(event.tokens[PAGE_TOKENS - 1], k + PAGE_TOKENS - 1);
        }
    }
    assert_int_equal(kv_feed_n_put(feed), 3ull * KV_FEED_EVENTS);
    assert_int_equal(kv_feed_n_broken(feed), 0);
    kv_feed_destroy(feed);
}

TEST(a_full_ring_breaks_until_it_is_read) {
    struct kv_feed *feed = new_feed();
    struct kv_feed_event event = event_of(1);
    const uint32_t epoch = kv_feed_epoch(feed);
    for (unsigned i = 0; i < KV_FEED_EVENTS; i++) assert_true(kv_feed_put(feed, &event));
    assert_int_equal(kv_feed_epoch(feed), epoch);
    assert_false(kv_feed_put(feed, &event));
    const uint32_t broken = kv_feed_epoch(feed);
    assert_int_not_equal(broken, epoch);
    assert_true(kv_feed_take(feed, &event)); /* there is space, but what was lost is lost */
    assert_false(kv_feed_put(feed, &event));
    assert_false(kv_feed_mend(feed)); /* not all of it has been seen */
    while (kv_feed_take(feed, &event)) continue;
    assert_true(kv_feed_mend(feed));
    assert_false(kv_feed_mend(feed)); /* once */
    assert_true(kv_feed_put(feed, &event));
    assert_int_equal(kv_feed_epoch(feed), broken);
    assert_int_equal(kv_feed_n_broken(feed), 1);
    kv_feed_destroy(feed);
}

static void *put_all(void *arg) {
    for (uint64_t i = 0; i < N_EVENTS;) {
        const struct kv_feed_event event = event_of(i);
        i += kv_feed_put(arg, &event);
    }
    return NULL;
}

/* The reader sleeps whenever there is nothing.  A lost wake would leave it asleep for good. */
TEST(a_sleeping_reader_is_woken) {
    struct kv_feed *feed = new_feed();
    struct kv_feed_event event;
    pthread_t writer;
    uint64_t last = 0, n = 0;
    assert_int_equal(pthread_create(&writer, NULL, put_all, feed), 0);
    while (last + 1 < N_EVENTS) {
        while (kv_feed_take(feed, &event)) {
            assert_true(n == 0 || event.hash > last);
            assert_int_equal(event.tokens[1], (uint32_t)event.hash + 1);
            last = event.hash;
            n++;
        }
        (void)kv_feed_mend(feed);
        struct pollfd readable = {.fd = kv_feed_descriptor(feed), .events = POLLIN};
        if (last + 1 < N_EVENTS && kv_feed_sleep(feed))
            assert_int_equal(poll(&readable, 1, 20000), 1);
    }
    pthread_join(writer, NULL);
    assert_in_range(n, 1, N_EVENTS);
    kv_feed_destroy(feed);
}
