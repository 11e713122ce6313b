/* disk.h - a tier below the caches in memory: items that leave them are written to files, and read
 * back when a request needs them, also after a restart.
 *
 *   engine thread                                     pool threads
 *   kv_disk_begin_write, fill, kv_disk_end_write ──►  checksum, write, rename, remove the oldest
 *   kv_disk_read ──────────────────────────────────►  read, check everything
 *   kv_disk_take_done ◄────────────────────────────   items, or that there is none; wake()
 *
 * An item is a block of the prefix cache, a state, or a checkpoint (format.h).  The tier does not
 * know what is in its pages.  The engine thread never waits for a file: it asks the index, which is
 * in memory, and queues copies.  Copies that wait to be written take at most DISK_WRITE_BYTES, and
 * files that are being read DISK_READ_BYTES, or one item each if that is larger.  What does not fit
 * is not written, and costs only hits; so does a disk that is full or fails.
 *
 * Copies from a device that runs ahead may not be there yet when begin_write's caller returns.  So
 * the tier counts submitted steps, and knows which of them have completed.
 *
 * Thread: engine; kv_disk_stats and kv_disk_failure: any.  Memory: see above; the index grows with
 * the files. */
#ifndef ENGINE_KV_DISK_DISK_H
#define ENGINE_KV_DISK_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/kv/disk/format.h"
#include "engine/kv/disk/index.h"

struct error;
struct kv_disk; /* opaque: the fields live in disk.c */

#define DISK_WRITE_BYTES ((uint64_t)512 << 20)
#define DISK_READ_BYTES ((uint64_t)256 << 20)

struct kv_disk_config {
    const char *path;
    uint64_t max_bytes; /* of all files together */
    /* Called by pool threads when there is something to take; or NULL. */
    void (*wake)(void *ctx);
    void *wake_ctx;
};

struct kv_disk_stats {
    uint64_t n_items, bytes, max_bytes;
    uint64_t n_written, written_bytes, n_read, read_bytes;
    uint64_t n_dropped; /* not written: the queue was full */
    uint64_t n_evicted; /* removed: the least recently used, for newer ones */
    uint64_t n_refused; /* removed: damaged, or of another server */
    uint64_t n_failed;  /* reads and writes that the system refused */
};

/* A file on its way. */
struct disk_job {
    struct disk_job *next;
    struct disk_id id;
    struct disk_head head; /* of a job that was read: as the file has it */
    char *file;            /* owned: all of it; NULL: there is none */
    char *pages;           /* in it */
    size_t size, capacity; /* of the file; of its memory */
    uint32_t *tokens;      /* owned: the key's, of a read */
    uint64_t written_at;   /* kv_disk_n_submitted() when its pages were copied */
    uint64_t owner;        /* of a read, for the caller */
    bool writes, failed;
};

/* Opens the tier's folder, and starts to look what is there.  ERR_INVALID, ERR_IO, ERR_NOMEM. */
int kv_disk_open(struct kv_disk **out, const struct kv_disk_config *config, struct error *err);
/* Waits until the index is complete; from then on items of this identity are found and written.
 * identity: all that decides the bits of pages beside their keys.  page_bytes: of all pages.
 * writer: the part of it that kv_disk_former_writer() tells the next server, in a few words. */
int kv_disk_begin(struct kv_disk *disk, struct digest_value identity, uint64_t page_bytes,
                  const char *writer, struct error *err);
/* Returns the words of the server that used the folder before this one, if they are others and it
 * has left files; else NULL. */
const char *kv_disk_former_writer(const struct kv_disk *disk);
/* Stops the threads; what has not been written is lost.  NULL is allowed. */
void kv_disk_close(struct kv_disk *disk);
/* Returns random words that stay the same as long as the folder: one pair for each purpose. */
struct digest_value kv_disk_secret(const struct kv_disk *disk, uint64_t purpose);

/* Returns the name, kind and length by which the index knows the item of this key. */
struct disk_id kv_disk_id(const struct kv_disk *disk, const struct disk_key *key);
bool kv_disk_can_read(struct kv_disk *disk, const struct disk_id *id); /* all of it is there */
/* Looks for the longest state of more than n_min and at most n_max of these tokens; key has kind
 * and words.  Sets the key's n_tokens and tokens; false: there is none. */
bool kv_disk_find_state(struct kv_disk *disk, struct disk_key *key, const uint32_t *tokens,
                        uint32_t n_min, uint32_t n_max);
void kv_disk_touch(struct kv_disk *disk, const struct disk_id *id); /* it was used */

uint64_t kv_disk_max_bytes(const struct kv_disk *disk); /* as configured */

/* ---- writing ---- */

/* Returns a job with space for the item's pages, which the caller fills before it ends the write.
 * NULL: the item is there already, or there is no room (is_full says which; may be NULL). */
struct disk_job *kv_disk_begin_write(struct kv_disk *disk, const struct disk_key *key,
                                     const struct disk_id *id, const uint32_t notes[DISK_N_NOTES],
                                     uint32_t n_pages, bool *is_full);
/* Hands the job over; failed: forgets it. */
void kv_disk_end_write(struct kv_disk *disk, struct disk_job *job, bool failed);
void kv_disk_count_dropped(struct kv_disk *disk); /* an item that there was no room for */
/* Waits until all that was handed over is written, or until this time of clock_seconds(). */
void kv_disk_flush(struct kv_disk *disk, double until_s);

/* ---- steps ---- */

/* Returns how many steps have been submitted so far. */
uint64_t kv_disk_n_submitted(const struct kv_disk *disk);
/* Tells whether all has completed that was submitted when kv_disk_n_submitted() was this. */
bool kv_disk_has_completed(const struct kv_disk *disk, uint64_t n_submitted);
void kv_disk_submitted(struct kv_disk *disk); /* a step */
/* Notes that all but the newest n_newer steps have given their results; hands copies that wait for
 * that to the pool.  all: and everything else that was submitted (backend sync). */
void kv_disk_completed(struct kv_disk *disk, uint32_t n_newer, bool all);

/* ---- reading ---- */

/* Queues a read; NULL: no room now, or no memory. */
struct disk_job *kv_disk_read(struct kv_disk *disk, const struct disk_key *key,
                              const struct disk_id *id, uint64_t owner);
/* Returns reads that are over, linked; the caller frees each.  One that failed has no pages. */
struct disk_job *kv_disk_take_done(struct kv_disk *disk);
void kv_disk_free(struct kv_disk *disk, struct disk_job *job); /* of a read */

/* ---- any thread ---- */

/* Writes the counts since the start, and the sizes of what is on disk now. */
void kv_disk_stats(struct kv_disk *disk, struct kv_disk_stats *out);
/* Returns how many reads and writes the system has refused, and the newest reason. */
uint64_t kv_disk_failure(struct kv_disk *disk, struct error *out);

#endif
