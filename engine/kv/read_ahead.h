/* read_ahead.h - brings what the tier on disk has of a waiting sequence's prompt into the caches.
 *
 *   waiting sequence ──kv_read_ahead()──► reading: jobs of the tier, in the order of the text
 *                                              │ they come back in any order
 *   blocks with pages, the last one's          │
 *   checkpoint, or a state  ◄──────────────────┘ kv_readings_advance()
 *
 * A sequence that waits asks once what the disk has beyond the caches.  If that is something, it is
 * held back while others run.  What arrives becomes unused blocks of the prefix cache, or a cached
 * state, and the sequence then finds these like any others.  So nothing is pinned: what is evicted
 * before the sequence starts, or does not arrive within seconds, is computed.  A checkpoint that
 * finds no free slot waits for one, as the sequence has to.
 *
 * At most READINGS_MAX sequences read at a time.  A read starts only if pages and recurrent states
 * for all sequences that wait for one are available.
 *
 * Thread: engine.  Memory: a reading is one allocation; files are bounded by disk/disk.h. */
#ifndef ENGINE_KV_READ_AHEAD_H
#define ENGINE_KV_READ_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct kv_amount;
struct kv_reading;
struct kv_sequence;
struct kv_space;

enum { READINGS_MAX = 4 };

/* Whether a sequence has asked the disk; the disk has something, but the read has not begun; it
 * runs; or nothing is left to read. */
enum kv_read_progress { KV_READ_UNASKED, KV_READ_WANTED, KV_READ_RUNNING, KV_READ_DONE };

/* What a sequence reads; only read_ahead.c opens it.  Zeroed: it has not asked. */
struct sequence_reading {
    enum kv_read_progress progress;
    uint32_t n_beginnings; /* readings that began since the sequence ran last */
    uint32_t n_cached;     /* tokens that the caches had when the last one ended, or none began */
    struct kv_reading *at; /* what it wants, or reads; else NULL */
};

/* All reads that run, of an engine; zeroed: none. */
struct kv_readings {
    struct kv_reading *all[READINGS_MAX];
    uint32_t n;
    uint64_t serial; /* of the newest; they count from 1 */
};

/* Asks what the disk has of the text's first n_max tokens, and begins to read it.  It asks again if
 * what was found is gone.  Returns true while the sequence must be held back: call it again then.
 * False: it may start.  That is so without a disk, with saved or swapped data, or with nothing to
 * read.  It is also so where no read runs and what it is missing (kv_missing()) is not available.
 * `tokens` must stay valid until the sequence has started. */
bool kv_read_ahead(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max,
                   struct kv_amount missing);
/* Ends the sequence's read, if there is one; what still arrives is dropped.  It may ask again. */
void kv_forget_reading(struct kv_sequence *kv);
/* Notes that the sequence runs: how often it may begin to read again is counted anew. */
void kv_reading_started(struct kv_sequence *kv);

/* Puts what has arrived for any sequence into the caches, asks for more, and ends reads that are
 * complete or that nothing arrives for.  Called between steps.  ERR_DEVICE. */
int kv_readings_advance(const struct kv_space *space, struct error *err);

#endif
