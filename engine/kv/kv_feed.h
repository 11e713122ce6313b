/* kv_feed.h - tells another thread which blocks the prefix cache has, as they come and go.
 *
 *   prefix cache ──put──► ring of KV_FEED_EVENTS ──take──► reader
 *                          └► full: the feed is broken until the reader has seen all of it
 *
 * The engine thread never waits for the reader.  If the ring is full the feed breaks: it refuses
 * events until it is mended.  The reader takes the events that are in the ring, mends the feed, and
 * forgets all blocks that it has heard of.  The engine puts a block again when it is used again.
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

/* Where the cache has a block: not at all, in pages, or in host blocks. */
enum kv_place { KV_NOWHERE, KV_ON_DEVICE, KV_ON_HOST };

/* The prefix cache has got a block in a place, or has it there no more. */
struct kv_feed_event {
    bool is_added; /* to the place; else removed from it */
    bool has_parent;
    enum kv_place place;
    uint64_t hash, parent;        /* of the chain of tokens; unique in this process */
    uint32_t tokens[PAGE_TOKENS]; /* of a block that is added */
};

/* Creates an empty feed, which the caller owns, with its descriptor.  ERR_NOMEM; ERR_IO: the system
 * has no descriptor.  *out is set on success only. */
int kv_feed_create(struct kv_feed **out, struct error *err);
void kv_feed_destroy(struct kv_feed *feed); /* NULL is allowed */

/* Puts a copy of the event into the ring.  Returns false if it is dropped, because the feed is
 * broken or breaks now: the ring is full.  Thread: engine. */
bool kv_feed_put(struct kv_feed *feed, const struct kv_feed_event *event);
/* Returns a number, never 0, that changes each time the feed breaks.  The reader forgets what was
 * put under another number.  Thread: engine. */
uint32_t kv_feed_epoch(const struct kv_feed *feed);

/* Moves the oldest event from the ring to *out; false: there is none.  Thread: the reader's. */
bool kv_feed_take(struct kv_feed *feed, struct kv_feed_event *out);
/* Mends a broken feed from which all events have been taken, and returns true: the reader must
 * forget all blocks.  Otherwise changes nothing.  Thread: the reader's. */
bool kv_feed_mend(struct kv_feed *feed);
/* Returns the feed's descriptor, for poll().  It becomes readable at the first event, or break,
 * after kv_feed_sleep(). */
int kv_feed_descriptor(const struct kv_feed *feed);
/* Makes the descriptor unreadable until the next event.  False: do not wait for it, there is
 * something to take or to mend already.  Thread: the reader's. */
bool kv_feed_sleep(struct kv_feed *feed);
/* Makes the descriptor readable.  Thread: any. */
void kv_feed_wake(struct kv_feed *feed);

/* Returns how many events have been put into the ring so far. */
uint64_t kv_feed_n_put(const struct kv_feed *feed);
/* Returns how often the feed has broken so far. */
uint64_t kv_feed_n_broken(const struct kv_feed *feed);

#endif
