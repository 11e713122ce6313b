/* disk.c - a pool of threads over two queues; reads come first.
 *
 *   filling ──(the copies are there)──► writes ──┐
 *                                                ├─► a thread ──► index, stats
 *                            kv_disk_read ► reads┘        └─────► done ──► kv_disk_take_done
 *
 * One lock guards the queues, the index and the counts.  No file is touched under it.  An entry of
 * the index has 0 bytes while its item is being written: it is not read then, and not written
 * twice.
 *
 * Thread: see disk.h; `filling` and the counts of steps belong to the engine thread.  Memory: jobs
 * own their files' bytes. */
#include "engine/kv/disk/disk.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/disk/folder.h"

/* After a write that the system refused, others would fail as well for a while. */
static const double pause_s = 1;

enum { N_THREADS = 4, MAX_LENGTHS = 4096 };
/* Memory of files that were read is kept for the next ones: fresh pages cost as much as reading. */
enum { N_SPARES = 16, MAX_SPARE_BYTES = 16 << 20, HUGE_PAGE = 2 << 20 };

struct spare {
    char *bytes; /* NULL: none */
    size_t capacity;
};

struct job_list {
    struct disk_job *first, *last;
};

struct kv_disk {
    struct kv_disk_config config;
    struct disk_folder folder;
    struct digest_value identity;
    char former_writer[DISK_WRITER_BYTES]; /* empty: there is nothing to tell of one */
    uint64_t key[DIGEST_KEY_WORDS];        /* of names */
    uint64_t page_bytes;
    /* The engine thread's. */
    struct job_list filling;
    uint64_t n_submitted, n_completed; /* steps */
    uint32_t *lengths;                 /* [MAX_LENGTHS] */

    pthread_t threads[N_THREADS];
    unsigned n_threads;
    bool has_lock;
    pthread_mutex_t lock;
    pthread_cond_t work, room; /* there is a job; there is space for one */
    struct job_list reads, writes, done;
    uint64_t write_bytes, read_bytes; /* of jobs that are not over */
    uint64_t placed_bytes; /* of these, what space was made for, and the index does not count yet */
    struct spare spares[N_SPARES];
    struct disk_index *index;
    bool scanned, stops;
    struct error scan_failure, failure;
    double refused_at_s;
    struct kv_disk_stats stats;
};

static void append(struct job_list *list, struct disk_job *job) {
    job->next = NULL;
    if (list->last) list->last->next = job;
    else list->first = job;
    list->last = job;
}

static struct disk_job *take_first(struct job_list *list) {
    struct disk_job *job = list->first;
    if (!job) return NULL;
    list->first = job->next;
    if (!list->first) list->last = NULL;
    job->next = NULL;
    return job;
}

static void destroy_job(struct disk_job *job) {
    free(job->file);
    free(job->tokens);
    free(job);
}

static void destroy_jobs(struct job_list *list) {
    struct disk_job *job;
    while ((job = take_first(list))) destroy_job(job);
}

/* ---- pool threads ---- */

/* Waits for the condition until this time of clock_seconds(); false: that is over. */
static bool wait_until(struct kv_disk *disk, pthread_cond_t *condition, double until_s) {
    const struct timespec at = clock_at(until_s);
    return pthread_cond_timedwait(condition, &disk->lock, &at) != ETIMEDOUT;
}

static void note_failure(struct kv_disk *disk, const struct error *err) {
    disk->stats.n_failed++;
    disk->failure = *err;
}

/* Takes the least recently used item out of the index, if there are more bytes than may be. */
static bool take_oldest(struct kv_disk *disk, struct disk_id *out) {
    const struct disk_entry *oldest = disk_index_oldest(disk->index);
    const uint64_t bytes = disk_index_bytes(disk->index) + disk->placed_bytes;
    if (!oldest || bytes <= disk->config.max_bytes) return false;
    *out = oldest->id;
    disk_index_remove(disk->index, out);
    disk->stats.n_evicted++;
    return true;
}

/* Removes the least recently used files until `bytes` more fit; called without the lock. */
static void make_space(struct kv_disk *disk, uint64_t bytes) {
    struct disk_id oldest;
    for (bool found = true; found; bytes = 0) {
        pthread_mutex_lock(&disk->lock);
        disk->placed_bytes += bytes;
        found = take_oldest(disk, &oldest);
        pthread_mutex_unlock(&disk->lock);
        if (found) disk_folder_remove(&disk->folder, &oldest);
    }
}

static void write_job(struct kv_disk *disk, struct disk_job *job) {
    struct error err = {0};
    disk_format_write(job->file, &job->head);
    make_space(disk, job->size);
    const int code = disk_folder_write(&disk->folder, &job->id, job->file, job->size, &err);
    pthread_mutex_lock(&disk->lock);
    if (code) {
        disk_index_remove(disk->index, &job->id);
        note_failure(disk, &err);
        disk->refused_at_s = clock_seconds();
    } else {
        disk_index_set_bytes(disk->index, &job->id, job->size);
        disk->stats.n_written++;
        disk->stats.written_bytes += job->size;
    }
    disk->placed_bytes -= job->size;
    disk->write_bytes -= job->size;
    pthread_cond_broadcast(&disk->room);
    pthread_mutex_unlock(&disk->lock);
    destroy_job(job);
}

/* Tells whether a file is the one that was asked for. */
static bool is_asked_for(const struct kv_disk *disk, const struct disk_job *job,
                         const struct disk_head *head) {
    return digest_same(head->identity, disk->identity) && head->page_bytes == disk->page_bytes &&
           disk_key_same(&head->key, &job->head.key);
}

/* Takes memory for the job's file: a spare one that is not much too large, or new.  ERR_NOMEM. */
static int take_memory(struct kv_disk *disk, struct disk_job *job) {
    pthread_mutex_lock(&disk->lock);
    for (int i = 0; i < N_SPARES && !job->file; i++) {
        struct spare *spare = &disk->spares[i];
        if (!spare->bytes || spare->capacity < job->size || spare->capacity / 2 > job->size)
            continue;
        job->file = spare->bytes;
        job->capacity = spare->capacity;
        spare->bytes = NULL;
    }
    pthread_mutex_unlock(&disk->lock);
    if (job->file) return 0;
    const size_t align = job->size < HUGE_PAGE ? DISK_ALIGN : HUGE_PAGE;
    job->capacity = round_up(job->size, align);
    job->file = aligned_alloc(align, job->capacity);
    if (job->file && align == HUGE_PAGE) madvise(job->file, job->capacity, MADV_HUGEPAGE);
    return job->file ? 0 : ERR_NOMEM;
}

/* Keeps the job's memory for another, if there is a place; under the lock. */
static void keep_memory(struct kv_disk *disk, struct disk_job *job) {
    if (!job->file || job->capacity > MAX_SPARE_BYTES) return;
    for (int i = 0; i < N_SPARES; i++) {
        if (disk->spares[i].bytes) continue;
        disk->spares[i] = (struct spare){job->file, job->capacity};
        job->file = NULL;
        return;
    }
}

static int read_file(struct kv_disk *disk, struct disk_job *job, struct error *err) {
    struct disk_head head;
    if (take_memory(disk, job))
        return error_set(err, ERR_NOMEM, "no memory for a file of %zu bytes", job->size);
    const int code = disk_folder_read(&disk->folder, &job->id, job->file, job->size, err);
    if (code) return code;
    if (disk_format_read(&head, job->file, job->size) || !is_asked_for(disk, job, &head))
        return ERR_INVALID;
    job->head = head;
    job->pages = job->file + disk_format_payload(head.key.n_tokens);
    return 0;
}

static void read_job(struct kv_disk *disk, struct disk_job *job) {
    struct error err = {0};
    const int code = read_file(disk, job, &err);
    job->failed = code != 0;
    if (code == ERR_INVALID) disk_folder_remove(&disk->folder, &job->id);
    pthread_mutex_lock(&disk->lock);
    if (code == ERR_INVALID) disk->stats.n_refused++;
    else if (code && code != ERR_NOT_FOUND) note_failure(disk, &err);
    if (code && code != ERR_NOMEM) disk_index_remove(disk->index, &job->id);
    disk->stats.n_read += !code;
    disk->stats.read_bytes += code ? 0 : job->size;
    append(&disk->done, job);
    pthread_mutex_unlock(&disk->lock);
    if (disk->config.wake) disk->config.wake(disk->config.wake_ctx);
}

/* Reads what there is from an earlier time; the first thing that a pool thread does. */
static void scan(struct kv_disk *disk) {
    struct error err = {0};
    const int code = disk_folder_scan(&disk->folder, disk->index, &err);
    if (!code) make_space(disk, 0);
    pthread_mutex_lock(&disk->lock);
    if (code) disk->scan_failure = err;
    disk->scanned = true;
    pthread_cond_broadcast(&disk->room);
    pthread_mutex_unlock(&disk->lock);
}

/* Returns the next job, or NULL once the threads are to stop. */
static struct disk_job *await_job(struct kv_disk *disk) {
    struct disk_job *job = NULL;
    pthread_mutex_lock(&disk->lock);
    while (!disk->stops && !disk->reads.first && !disk->writes.first)
        pthread_cond_wait(&disk->work, &disk->lock);
    if (!disk->stops) job = take_first(disk->reads.first ? &disk->reads : &disk->writes);
    pthread_mutex_unlock(&disk->lock);
    return job;
}

static void *run_thread(void *arg) {
    struct kv_disk *disk = arg;
    struct disk_job *job;
    while ((job = await_job(disk)))
        if (job->writes) write_job(disk, job);
        else read_job(disk, job);
    return NULL;
}

static void *run_first_thread(void *arg) {
    scan(arg);
    return run_thread(arg);
}

/* ---- opening and closing ---- */

static int init_lock(struct kv_disk *disk) {
    pthread_condattr_t attributes;
    pthread_mutex_init(&disk->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    const int failed =
        pthread_cond_init(&disk->work, NULL) || pthread_cond_init(&disk->room, &attributes);
    pthread_condattr_destroy(&attributes);
    disk->has_lock = !failed;
    return failed ? ERR_NOMEM : 0;
}

static int start_threads(struct kv_disk *disk) {
    for (; disk->n_threads < N_THREADS; disk->n_threads++) {
        void *(*run)(void *) = disk->n_threads == 0 ? run_first_thread : run_thread;
        if (pthread_create(&disk->threads[disk->n_threads], NULL, run, disk)) return ERR_NOMEM;
    }
    return 0;
}

int kv_disk_open(struct kv_disk **out, const struct kv_disk_config *config, struct error *err) {
    struct kv_disk *disk = calloc(1, sizeof(*disk));
    if (!disk) return error_set(err, ERR_NOMEM, "no memory for the cache on disk");
    disk->config = *config;
    disk->folder = (struct disk_folder){.dir = -1, .lock = -1};
    disk->refused_at_s = -pause_s;
    disk->lengths = malloc(MAX_LENGTHS * sizeof(*disk->lengths));
    int code = disk_folder_open(&disk->folder, config->path, err);
    if (!code && (!disk->lengths || disk_index_create(&disk->index) || init_lock(disk) ||
                  start_threads(disk)))
        code = error_set(err, ERR_NOMEM, "no memory for the cache on disk");
    if (code) kv_disk_close(disk);
    else *out = disk;
    return code;
}

/* Makes the key of names from the folder's secret and the identity. */
static void make_key(struct kv_disk *disk) {
    for (uint64_t half = 0; half < 2; half++) {
        struct digest digest;
        digest_init(&digest, disk->folder.secret);
        digest_absorb(&digest, half);
        digest_absorb(&digest, disk->identity.words[0]);
        digest_absorb(&digest, disk->identity.words[1]);
        const struct digest_value value = digest_end(&digest);
        memcpy(disk->key + 2 * half, value.words, sizeof(value.words));
    }
}

int kv_disk_begin(struct kv_disk *disk, struct digest_value identity, uint64_t page_bytes,
                  const char *writer, struct error *err) {
    disk->identity = identity;
    disk->page_bytes = page_bytes;
    make_key(disk);
    pthread_mutex_lock(&disk->lock);
    while (!disk->scanned) pthread_cond_wait(&disk->room, &disk->lock);
    const struct error failure = disk->scan_failure;
    const bool has_files = disk_index_n_items(disk->index) > 0;
    pthread_mutex_unlock(&disk->lock);
    disk_folder_note_writer(&disk->folder, writer, disk->former_writer);
    if (!has_files || strcmp(disk->former_writer, writer) == 0) disk->former_writer[0] = '\0';
    return failure.code ? error_set(err, failure.code, "%s", failure.text) : 0;
}

const char *kv_disk_former_writer(const struct kv_disk *disk) {
    return disk->former_writer[0] ? disk->former_writer : NULL;
}

void kv_disk_close(struct kv_disk *disk) {
    if (!disk) return;
    if (disk->has_lock) {
        pthread_mutex_lock(&disk->lock);
        disk->stops = true;
        pthread_cond_broadcast(&disk->work);
        pthread_mutex_unlock(&disk->lock);
    }
    while (disk->n_threads > 0) pthread_join(disk->threads[--disk->n_threads], NULL);
    destroy_jobs(&disk->filling);
    destroy_jobs(&disk->reads);
    destroy_jobs(&disk->writes);
    destroy_jobs(&disk->done);
    if (disk->has_lock) {
        pthread_cond_destroy(&disk->work);
        pthread_cond_destroy(&disk->room);
        pthread_mutex_destroy(&disk->lock);
    }
    for (int i = 0; i < N_SPARES; i++) free(disk->spares[i].bytes);
    disk_index_destroy(disk->index);
    disk_folder_close(&disk->folder);
    free(disk->lengths);
    free(disk);
}

struct digest_value kv_disk_secret(const struct kv_disk *disk, uint64_t purpose) {
    struct digest digest;
    digest_init(&digest, disk->folder.secret + DIGEST_KEY_WORDS);
    digest_absorb(&digest, purpose);
    return digest_end(&digest);
}

/* ---- what there is ---- */

struct disk_id kv_disk_id(const struct kv_disk *disk, const struct disk_key *key) {
    return (struct disk_id){.name = disk_key_name(key, disk->key),
                            .kind = key->kind,
                            .n_tokens = key->n_before + key->n_tokens};
}

static const struct disk_entry *find(struct kv_disk *disk, const struct disk_id *id) {
    return disk_index_find(disk->index, id);
}

bool kv_disk_can_read(struct kv_disk *disk, const struct disk_id *id) {
    pthread_mutex_lock(&disk->lock);
    const struct disk_entry *entry = find(disk, id);
    const bool found = entry && entry->bytes > 0;
    pthread_mutex_unlock(&disk->lock);
    return found;
}

bool kv_disk_find_state(struct kv_disk *disk, struct disk_key *key, const uint32_t *tokens,
                        uint32_t n_min, uint32_t n_max) {
    struct digest digest;
    bool found = false;
    pthread_mutex_lock(&disk->lock);
    const uint32_t n = disk_index_lengths(disk->index, n_min, n_max, disk->lengths, MAX_LENGTHS);
    pthread_mutex_unlock(&disk->lock);
    key->tokens = tokens;
    disk_key_begin(&digest, key, disk->key);
    for (uint32_t i = 0, at = 0; i < n; i++) {
        struct disk_id id = {.kind = DISK_STATE, .n_tokens = disk->lengths[i]};
        while (at < id.n_tokens) digest_absorb(&digest, tokens[at++]);
        struct digest whole = digest;
        digest_absorb(&whole, id.n_tokens);
        id.name = digest_end(&whole);
        if (!kv_disk_can_read(disk, &id)) continue;
        key->n_tokens = id.n_tokens;
        found = true;
    }
    return found;
}

uint64_t kv_disk_max_bytes(const struct kv_disk *disk) {
    return disk->config.max_bytes;
}

void kv_disk_touch(struct kv_disk *disk, const struct disk_id *id) {
    pthread_mutex_lock(&disk->lock);
    disk_index_touch(disk->index, id);
    pthread_mutex_unlock(&disk->lock);
}

/* ---- writing ---- */

/* Makes sure that there is room for a job that is written, and claims it; under the lock. */
static bool claim_room(struct kv_disk *disk, uint64_t bytes) {
    if (bytes > disk->config.max_bytes) return false;
    if (clock_seconds() < disk->refused_at_s + pause_s) return false;
    if (disk->write_bytes > 0 && disk->write_bytes + bytes > DISK_WRITE_BYTES) return false;
    disk->write_bytes += bytes;
    return true;
}

static struct disk_job *make_write(const struct disk_head *head, const struct disk_id *id) {
    struct disk_job *job = calloc(1, sizeof(*job));
    if (!job) return NULL;
    *job = (struct disk_job){
        .id = *id, .head = *head, .size = disk_format_bytes(head), .writes = true};
    job->file = malloc(job->size);
    job->tokens = malloc((head->key.n_tokens + 1) * sizeof(*job->tokens));
    if (!job->file || !job->tokens) {
        destroy_job(job);
        return NULL;
    }
    memcpy(job->tokens, head->key.tokens, head->key.n_tokens * sizeof(*job->tokens));
    job->head.key.tokens = job->tokens;
    job->pages = job->file + disk_format_payload(head->key.n_tokens);
    return job;
}

/* Claims a name and room for the item; under the lock. */
static bool claim(struct kv_disk *disk, const struct disk_id *id, uint64_t bytes, bool *is_full) {
    const struct disk_entry entry = {.id = *id};
    if (find(disk, id)) return false;
    *is_full = !claim_room(disk, bytes);
    if (!*is_full && disk_index_add(disk->index, &entry)) {
        disk->write_bytes -= bytes;
        *is_full = true;
    }
    return !*is_full;
}

static void give_up(struct kv_disk *disk, const struct disk_id *id, uint64_t bytes) {
    pthread_mutex_lock(&disk->lock);
    disk_index_remove(disk->index, id);
    disk->write_bytes -= bytes;
    pthread_mutex_unlock(&disk->lock);
}

struct disk_job *kv_disk_begin_write(struct kv_disk *disk, const struct disk_key *key,
                                     const struct disk_id *id, const uint32_t notes[DISK_N_NOTES],
                                     uint32_t n_pages, bool *is_full) {
    struct disk_head head = {.key = *key,
                             .identity = disk->identity,
                             .n_pages = n_pages,
                             .page_bytes = disk->page_bytes};
    memcpy(head.notes, notes, sizeof(head.notes));
    const uint64_t bytes = disk_format_bytes(&head);
    bool full = false;
    pthread_mutex_lock(&disk->lock);
    const bool claimed = claim(disk, id, bytes, &full);
    pthread_mutex_unlock(&disk->lock);
    struct disk_job *job = claimed ? make_write(&head, id) : NULL;
    if (claimed && !job) give_up(disk, id, bytes);
    if (is_full) *is_full = full || (claimed && !job);
    return job;
}

static void hand_over(struct kv_disk *disk, struct disk_job *job) {
    pthread_mutex_lock(&disk->lock);
    append(&disk->writes, job);
    pthread_cond_signal(&disk->work);
    pthread_mutex_unlock(&disk->lock);
}

void kv_disk_end_write(struct kv_disk *disk, struct disk_job *job, bool failed) {
    job->written_at = disk->n_submitted;
    if (!failed) {
        append(&disk->filling, job);
        return;
    }
    give_up(disk, &job->id, job->size);
    destroy_job(job);
}

void kv_disk_count_dropped(struct kv_disk *disk) {
    pthread_mutex_lock(&disk->lock);
    disk->stats.n_dropped++;
    pthread_mutex_unlock(&disk->lock);
}

void kv_disk_flush(struct kv_disk *disk, double until_s) {
    pthread_mutex_lock(&disk->lock);
    while (disk->write_bytes > 0 && wait_until(disk, &disk->room, until_s)) continue;
    pthread_mutex_unlock(&disk->lock);
}

/* ---- steps ---- */

uint64_t kv_disk_n_submitted(const struct kv_disk *disk) {
    return disk->n_submitted;
}

bool kv_disk_has_completed(const struct kv_disk *disk, uint64_t n_submitted) {
    return n_submitted < disk->n_completed;
}

void kv_disk_submitted(struct kv_disk *disk) {
    disk->n_submitted++;
}

void kv_disk_completed(struct kv_disk *disk, uint32_t n_newer, bool all) {
    disk->n_submitted += all;
    disk->n_completed =
        max_u64(disk->n_completed, disk->n_submitted - min_u64(n_newer, disk->n_submitted));
    while (disk->filling.first && kv_disk_has_completed(disk, disk->filling.first->written_at))
        hand_over(disk, take_first(&disk->filling));
}

/* ---- reading ---- */

static struct disk_job *make_read(const struct disk_key *key, const struct disk_id *id,
                                  uint64_t bytes, uint64_t owner) {
    struct disk_job *job = calloc(1, sizeof(*job));
    if (!job) return NULL;
    *job = (struct disk_job){.id = *id, .head.key = *key, .size = bytes, .owner = owner};
    job->tokens = malloc((key->n_tokens + 1) * sizeof(*job->tokens));
    if (!job->tokens) {
        destroy_job(job);
        return NULL;
    }
    memcpy(job->tokens, key->tokens, key->n_tokens * sizeof(*job->tokens));
    job->head.key.tokens = job->tokens;
    return job;
}

struct disk_job *kv_disk_read(struct kv_disk *disk, const struct disk_key *key,
                              const struct disk_id *id, uint64_t owner) {
    struct disk_job *job = NULL;
    pthread_mutex_lock(&disk->lock);
    const struct disk_entry *entry = find(disk, id);
    const uint64_t bytes = entry ? entry->bytes : 0;
    const bool fits = disk->read_bytes == 0 || disk->read_bytes + bytes <= DISK_READ_BYTES;
    if (bytes > 0 && fits) job = make_read(key, id, bytes, owner);
    if (job) {
        disk->read_bytes += bytes;
        append(&disk->reads, job);
        pthread_cond_signal(&disk->work);
    }
    pthread_mutex_unlock(&disk->lock);
    return job;
}

struct disk_job *kv_disk_take_done(struct kv_disk *disk) {
    pthread_mutex_lock(&disk->lock);
    struct disk_job *first = disk->done.first;
    disk->done = (struct job_list){0};
    pthread_mutex_unlock(&disk->lock);
    return first;
}

void kv_disk_free(struct kv_disk *disk, struct disk_job *job) {
    pthread_mutex_lock(&disk->lock);
    disk->read_bytes -= job->size;
    keep_memory(disk, job);
    pthread_mutex_unlock(&disk->lock);
    destroy_job(job);
}

/* ---- any thread ---- */

void kv_disk_stats(struct kv_disk *disk, struct kv_disk_stats *out) {
    pthread_mutex_lock(&disk->lock);
    *out = disk->stats;
    out->n_items = disk_index_n_items(disk->index);
    out->bytes = disk_index_bytes(disk->index);
    out->max_bytes = disk->config.max_bytes;
    pthread_mutex_unlock(&disk->lock);
}

uint64_t kv_disk_failure(struct kv_disk *disk, struct error *out) {
    pthread_mutex_lock(&disk->lock);
    const uint64_t n = disk->stats.n_failed;
    *out = disk->failure;
    pthread_mutex_unlock(&disk->lock);
    return n;
}
