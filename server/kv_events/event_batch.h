/* event_batch.h - what the prefix cache's feed tells, as vLLM writes it: one message of events.
 *
 *   [time, [event, …], rank]      rank: among data-parallel engines
 *   {"type": "BlockStored", "block_hashes": […], "parent_block_hash": …, "token_ids": […],
 *    "block_size": 64, "medium": "GPU" or "CPU", …}
 *   {"type": "BlockRemoved", "block_hashes": […], "medium": …}
 *   {"type": "AllBlocksCleared"}
 *
 * Neighbours in the feed become one event where they can: blocks of one chain that are stored, and
 * blocks that are removed.
 *
 * Thread: the publisher's.  Memory: the message grows. */
#ifndef SERVER_KV_EVENTS_EVENT_BATCH_H
#define SERVER_KV_EVENTS_EVENT_BATCH_H

#include <stdbool.h>
#include <stdint.h>

struct kv_feed_event;
struct msgpack;

/* Writes a message.  cleared: it says first that all blocks are gone.  events: [n], oldest
 * first. */
void event_batch_write(struct msgpack *out, double time_s, uint32_t rank, bool cleared,
                       const struct kv_feed_event *events, uint32_t n);

#endif
