/* absent.c - the publisher in a program without ZeroMQ. */
#include <stddef.h>

#include "engine/base/error.h"
#include "server/kv_events/publisher.h"

int kv_publisher_start(struct kv_publisher **out, const struct kv_publisher_config *config,
                       struct error *err) {
    (void)out, (void)config;
    return error_set(err, ERR_INVALID,
                     "--kv-events: this program was built without ZeroMQ (libzmq)");
}

struct kv_feed *kv_publisher_feed(struct kv_publisher *publisher) {
    (void)publisher;
    return NULL;
}

void kv_publisher_stop(struct kv_publisher *publisher) {
    (void)publisher;
}
