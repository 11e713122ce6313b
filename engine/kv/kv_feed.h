/* kv_feed.h - tells another thread which blocks the prefix cache has, as they come and go.
 *
 *   prefix cache ──put──► ring of KV_FEED_EVENTS ──take──► reader
 *                          └► full: the feed is broken until the reader has seen all of it
 *
 * The engine thread never waits for the reader.  If the ring is full the feed breaks: events are
 * refused, and nothing that was told counts any more.  The reader takes what is left and mends the
 * feed, and must forget all blocks then.  Blocks that are used again are told again.
 *
 * Thread: the engine puts, one reader takes, any reads the counts.  Memory: the ring, at create. */
#ifndef ENGINE_KV_KV_FEED_H
#define ENGINE_KV_KV_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/pages.h"

struct error;
struct kv_feed; /* opaque: the fields live in kv_feed.c */

enum { KV_FEED_EVENTS = 1 << 14 };

enum kv_place { KV_NOWHERE, KV_ON_DEVICE, KV_ON_HOST };

struct kv_feed_event {
    bool is_added; /* to the place; else it is removed from there */
    bool has_parent;
    enum kv_place place;
    uint64_t hash, parent;        /* of the chain of tokens; unique in this process */
    uint32_t tokens[PAGE_TOKENS]; /* of a block that is added */
};

/* Creates an empty feed with its descriptor.  ERR_NOMEM; ERR_IO: the system has no descriptor. */
int kv_feed_create(struct kv_feed **out, struct error *err);
void kv_feed_destroy(struct kv_feed *feed); /* NULL is allowed */

/* Puts an event into the ring.  Returns false if the feed is broken, or breaks by it. */
bool kv_feed_put(struct kv_feed *feed, const struct kv_feed_event *event);
/* Returns a number that changes when the feed breaks: what was told under another one is forgotten.
 * Never 0.  Thread: engine. */
uint32_t kv_feed_epoch(const struct kv_feed *feed);

/* Takes the oldest event; false: there is none. */
bool kv_feed_take(struct kv_feed *feed, struct kv_feed_event *out);
/* Returns true if the feed was broken and all of it has been taken; it is whole from now on. */
bool kv_feed_mend(struct kv_feed *feed);
/* Returns a descriptor that becomes readable when there is something to take or to mend, once the
 * reader has called kv_feed_sleep(). */
int kv_feed_descriptor(const struct kv_feed *feed);
/* Asks for the next event to make the descriptor readable.  False: there is something to take or to
 * mend already. */
bool kv_feed_sleep(struct kv_feed *feed);
/* Makes the descriptor readable.  Thread: any. */
void kv_feed_wake(struct kv_feed *feed);

/* Returns how many events have been put into the ring so far. */
uint64_t kv_feed_n_put(const struct kv_feed *feed);
uint64_t kv_feed_n_broken(const struct kv_feed *feed); /* how often */

#endif
