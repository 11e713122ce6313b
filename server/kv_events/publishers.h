/* publishers.h - a publisher for each of several replicas, as vLLM's data-parallel engines have it.
 *
 * Replica i publishes i ports behind the first one's, and its messages have its rank.  An endpoint
 * that is no TCP port gets `_dpI` behind its name instead.
 *
 * Thread: as in publisher.h.  Memory: their endpoints. */
#ifndef SERVER_KV_EVENTS_PUBLISHERS_H
#define SERVER_KV_EVENTS_PUBLISHERS_H

#include <stdint.h>

struct error;
struct kv_feed;
struct kv_publisher_config;
struct kv_publishers; /* opaque: the fields live in publishers.c */

/* Starts n publishers; config is that of the first one, and borrowed until kv_publishers_stop().
 * ERR_INVALID as in kv_publisher_start(). */
int kv_publishers_start(struct kv_publishers **out, const struct kv_publisher_config *config,
                        uint32_t n, struct error *err);
/* Returns the feed that engine i is to tell. */
struct kv_feed *kv_publishers_feed(struct kv_publishers *publishers, uint32_t i);
void kv_publishers_stop(struct kv_publishers *publishers); /* NULL is allowed */

#endif
