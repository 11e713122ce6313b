/* publisher.h - publishes which blocks the prefix cache has, over ZeroMQ, as vLLM does.
 *
 *   feed (engine thread) ──► publisher thread ──PUB──► [topic][number, 8 bytes][events]
 *                                  └──ROUTER──► asked with [number]: all messages since, then
 *                                               number -1 and no events
 *
 * Numbers are big-endian and begin at 0; the first message says that all blocks are gone.  A reader
 * that finds a gap asks for a replay.  A slow reader loses messages, and delays no other.
 *
 * Thread: started and stopped by one thread.  Memory: the feed, and the replayed messages
 * (replay.h). */
#ifndef SERVER_KV_EVENTS_PUBLISHER_H
#define SERVER_KV_EVENTS_PUBLISHER_H

#include <stdint.h>

struct error;
struct kv_feed;
struct kv_publisher; /* opaque: the fields live in publisher.c */

/* All borrowed until kv_publisher_stop(). */
struct kv_publisher_config {
    const char *endpoint;        /* such as tcp://0.0.0.0:5557 */
    const char *replay_endpoint; /* NULL: there is no replay */
    const char *topic;
    uint32_t rank; /* among data-parallel engines; the messages tell it */
};

/* Binds the sockets and starts the thread.  ERR_INVALID names the setting whose endpoint cannot be
 * bound, or says that the program was built without ZeroMQ. */
int kv_publisher_start(struct kv_publisher **out, const struct kv_publisher_config *config,
                       struct error *err);
/* Returns the feed that the engine is to tell; it lives until kv_publisher_stop(). */
struct kv_feed *kv_publisher_feed(struct kv_publisher *publisher);
/* Publishes what is left in the feed, and joins the thread. */
void kv_publisher_stop(struct kv_publisher *publisher); /* NULL is allowed */

#endif
