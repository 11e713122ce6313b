/* read_ahead.c - see read_ahead.h.
 *
 * A reading names the text's blocks from the first one on and asks for those that the cache lacks,
 * WINDOW of them at a time.  Blocks are inserted in order, as many as have arrived.  Meanwhile
 * the reading uses the whole chain, and stops using it from its end, as a sequence does:
 * children stay older than their parents (prefix_cache.h).
 *
 * Where a model has recurrent layers, a reading ends with the last block whose checkpoint is on
 * disk, and with that checkpoint. */
#include "engine/kv/read_ahead.h"

#include <assert.h>
#include <stdlib.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/demand.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/offer.h"
#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/sequence_prefix.h"
#include "engine/kv/sequence_state.h"
#include "engine/kv/state_cache.h"

/* Files of one reading that are on their way; how often a sequence begins anew because blocks that
 * it had found were evicted; and how long it waits for the next file. */
enum { WINDOW = 64, MAX_BEGINNINGS = 4 };
static const double patience_s = 5;

/* A checkpoint that a reading ends with. */
struct reading_checkpoint {
    struct disk_key key;
    struct disk_id id; /* kind 0: it ends with none */
    struct disk_job *arrived;
    bool is_asked, is_taken;
};

struct kv_reading {
    struct kv_sequence *kv;
    const uint32_t *tokens;   /* of the sequence */
    uint64_t serial;          /* owner of its jobs: addresses may come again */
    double since_s;           /* when something arrived last */
    struct kv_amount missing; /* what the sequence will need */
    struct disk_job *arrived[WINDOW];
    bool is_over; /* the rest is to be computed, */
    bool is_lost; /* because blocks before it have been evicted */
    /* Of a state: */
    bool is_state;
    struct kv_state_key key;
    struct disk_key file;
    /* Of blocks: */
    uint32_t n_asked, n_taken, n_end; /* blocks; those before n_taken are in the cache (or a state
                                         of as many whole ones) */
    uint32_t window_from;             /* the first whose window pages are needed */
    struct disk_id *ids;              /* [n_end] */
    uint32_t *blocks;                 /* [n_end], while the chain is used: the cache's, */
    uint32_t *needs;                  /* and which of their pages: prefix_cache_use() */
    uint32_t *pages;                  /* [n_layers]: of a new block, in the order of its file */
    struct page_list *lists;          /* [n_layers]: the same, as lists of one page */
    struct reading_checkpoint checkpoint; /* of the last block */
};

/* ---- what the disk has ---- */

static void destroy(struct kv_reading *r) {
    if (!r) return;
    for (int i = 0; i < WINDOW; i++)
        if (r->arrived[i]) kv_disk_free(r->kv->space->disk, r->arrived[i]);
    if (r->checkpoint.arrived) kv_disk_free(r->kv->space->disk, r->checkpoint.arrived);
    free(r->ids);
    free(r->blocks);
    free(r->needs);
    free(r->pages);
    free(r->lists);
    free(r);
}

static struct kv_reading *create(struct kv_sequence *kv, const uint32_t *tokens) {
    struct kv_reading *r = calloc(1, sizeof(*r));
    if (!r) return NULL;
    r->kv = kv;
    r->tokens = tokens;
    return r;
}

/* Tells whether the disk has a state that is longer than the caches'. */
static bool find_state(struct kv_reading *r, uint32_t n_max) {
    const struct kv_sequence *kv = r->kv;
    uint32_t n_most;
    if (!sequence_state_key(kv, n_max, &r->key, &n_most)) return false;
    const struct kv_state *state = sequence_state_find(kv, r->tokens, n_max);
    r->is_state = true;
    r->file = kv_state_disk_key(&r->key, r->tokens, 0);
    return kv_disk_find_state(kv->space->disk, &r->file, r->tokens, state ? state->n_tokens : 0,
                              n_most);
}

static const uint32_t *tokens_of(const struct kv_reading *r, uint32_t block) {
    return r->tokens + (size_t)block * PAGE_TOKENS;
}

static struct disk_key key_of(const struct kv_reading *r, uint32_t block) {
    return kv_block_key(r->kv->salt, block > 0 ? &r->ids[block - 1] : NULL, tokens_of(r, block));
}

/* Tells whether the disk has the checkpoint of a block; the reading would end with it. */
static bool find_checkpoint(struct kv_reading *r, uint32_t block) {
    struct disk_key key = key_of(r, block);
    key.kind = DISK_CHECKPOINT;
    const struct disk_id id = kv_disk_id(r->kv->space->disk, &key);
    if (!kv_disk_can_read(r->kv->space->disk, &id)) return false;
    r->checkpoint.key = key;
    r->checkpoint.id = id;
    return true;
}

/* Tells whether the disk has blocks that follow the cache's, or a checkpoint behind the cache's
 * last one. */
static bool find_blocks(struct kv_reading *r, uint32_t n_max) {
    const struct kv_sequence *kv = r->kv;
    struct kv_disk *disk = kv->space->disk;
    const uint32_t n = min_u32(n_max / PAGE_TOKENS, sequence_prefix_n_hashes(kv));
    if (n == 0) return false;
    const struct prefix_match match = sequence_prefix_find(kv, r->tokens, n_max);
    const bool is_recurrent = kv->space->state_slots != NULL;
    const uint32_t n_found = match.n_tokens / PAGE_TOKENS,
                   n_cached = is_recurrent ? match.n_cached / PAGE_TOKENS : n_found;
    uint32_t n_readable = 0;
    r->ids = calloc(n, sizeof(*r->ids));
    for (; r->ids && n_readable < n; n_readable++) {
        const struct disk_key key = key_of(r, n_readable);
        r->ids[n_readable] = kv_disk_id(disk, &key);
        if (n_readable >= n_cached && !kv_disk_can_read(disk, &r->ids[n_readable])) break;
        if (is_recurrent && n_readable >= n_found && find_checkpoint(r, n_readable))
            r->n_end = n_readable + 1;
    }
    if (!is_recurrent) r->n_end = n_readable;
    r->n_asked = r->n_taken = min_u32(n_cached, r->n_end);
    r->window_from = kv_window_n_behind(kv->space, r->n_end * PAGE_TOKENS);
    return r->n_end > n_found;
}

static int make_lists(struct kv_reading *r) {
    const uint32_t n_layers = r->kv->space->n_layers;
    r->blocks = calloc(r->n_end, sizeof(*r->blocks));
    r->needs = calloc(r->n_end, sizeof(*r->needs));
    r->pages = calloc(n_layers, sizeof(*r->pages));
    r->lists = calloc(n_layers, sizeof(*r->lists));
    return r->blocks && r->needs && r->pages && r->lists ? 0 : ERR_NOMEM;
}

/* Finds out what the disk has; the sequence then wants it, or is done. */
static void ask(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    struct kv_reading *r = create(kv, tokens);
    kv->reading.progress = KV_READ_DONE;
    kv->reading.n_cached = kv_n_matchable(kv, tokens, n_max);
    if (!r) return;
    if (find_state(r, n_max) || (!r->is_state && find_blocks(r, n_max) && make_lists(r) == 0)) {
        kv->reading.progress = KV_READ_WANTED;
        kv->reading.at = r;
    } else destroy(r);
}

/* ---- reading ---- */

/* Tells whether all that is to be read has been taken into the caches. */
static bool is_complete(const struct kv_reading *r) {
    return r->n_taken == r->n_end && (r->checkpoint.id.kind == 0 || r->checkpoint.is_taken);
}

/* Asks for the checkpoint once all blocks have been asked for. */
static void ask_for_checkpoint(struct kv_reading *r) {
    struct reading_checkpoint *state = &r->checkpoint;
    struct kv_disk *disk = r->kv->space->disk;
    if (state->id.kind == 0 || state->is_asked || r->n_asked < r->n_end) return;
    state->is_asked = kv_disk_read(disk, &state->key, &state->id, r->serial) != NULL;
    if (!state->is_asked && !kv_disk_can_read(disk, &state->id)) r->is_over = true;
}

static void ask_for_blocks(struct kv_reading *r) {
    struct kv_disk *disk = r->kv->space->disk;
    for (; r->n_asked < min_u32(r->n_end, r->n_taken + WINDOW); r->n_asked++) {
        const struct disk_key key = key_of(r, r->n_asked);
        if (kv_disk_read(disk, &key, &r->ids[r->n_asked], r->serial)) continue;
        /* There is no room now, or the file has been evicted: nothing of it would arrive. */
        if (r->n_asked == r->n_taken && !kv_disk_can_read(disk, &r->ids[r->n_asked]))
            r->is_over = true;
        return;
    }
}

static void ask_for_state(struct kv_reading *r) {
    struct kv_disk *disk = r->kv->space->disk;
    const struct disk_id id = kv_disk_id(disk, &r->file);
    if (r->n_asked == 0 && kv_disk_read(disk, &r->file, &id, r->serial)) r->n_asked = 1;
}

static void ask_further(struct kv_reading *r) {
    if (r->is_state) ask_for_state(r);
    else {
        ask_for_blocks(r);
        ask_for_checkpoint(r);
    }
}

/* Tells whether what is missing is to be had beside what the other readings are for: they would
 * evict each other's blocks and checkpoints. */
static bool fits_beside(const struct kv_readings *readings, const struct kv_space *space,
                        struct kv_amount missing) {
    for (uint32_t i = 0; i < readings->n; i++) {
        missing.pages += readings->all[i]->missing.pages;
        missing.states += readings->all[i]->missing.states;
    }
    return kv_is_available(space, missing, (struct kv_amount){0});
}

static bool begin(struct kv_sequence *kv, struct kv_amount missing) {
    struct kv_readings *readings = kv->space->readings;
    if (!kv_is_available(kv->space, missing, (struct kv_amount){0}))
        return false; /* it would have to wait in any case */
    /* Its first step reads the checkpoint and writes its state to another slot. */
    if (kv->reading.at->checkpoint.id.kind != 0) missing.states++;
    if (readings->n == READINGS_MAX ||
        (readings->n > 0 && !fits_beside(readings, kv->space, missing)))
        return true;
    kv->reading.at->missing = missing;
    kv->reading.progress = KV_READ_RUNNING;
    kv->reading.n_beginnings++;
    kv->reading.at->serial = ++readings->serial;
    kv->reading.at->since_s = clock_seconds();
    readings->all[readings->n++] = kv->reading.at;
    ask_further(kv->reading.at);
    return true;
}

/* Tells whether what the sequence found when it asked may be gone from the caches by now. */
static bool is_outdated(const struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    if (kv->reading.progress == KV_READ_WANTED) return kv->space->readings->n < READINGS_MAX;
    return kv->reading.progress == KV_READ_DONE && kv->reading.n_beginnings < MAX_BEGINNINGS &&
           kv_n_matchable(kv, tokens, n_max) < kv->reading.n_cached;
}

bool kv_read_ahead(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max,
                   struct kv_amount missing) {
    if (!kv->space->disk || kv->saved || kv_swap_n_tokens(kv) > 0 || n_max == 0) return false;
    if (is_outdated(kv, tokens, n_max)) kv_forget_reading(kv);
    if (kv->reading.progress == KV_READ_UNASKED) ask(kv, tokens, n_max);
    if (kv->reading.progress == KV_READ_WANTED) return begin(kv, missing);
    return kv->reading.progress == KV_READ_RUNNING;
}

void kv_forget_reading(struct kv_sequence *kv) {
    struct kv_readings *readings = kv->space->readings;
    for (uint32_t i = 0; kv->reading.at && i < readings->n; i++)
        if (readings->all[i] == kv->reading.at) readings->all[i] = readings->all[--readings->n];
    destroy(kv->reading.at);
    kv->reading.at = NULL;
    kv->reading.progress = KV_READ_UNASKED;
}

void kv_reading_started(struct kv_sequence *kv) {
    kv->reading.n_beginnings = 0;
}

/* ---- blocks that have arrived ---- */

static uint32_t needs_of(bool with_sparse, bool with_window) {
    return (with_sparse ? PREFIX_SPARSE : 0) | (with_window ? PREFIX_WINDOW : 0);
}

/* Uses a block of the chain with the pages that it has, but for window pages before those that are
 * needed. */
static void use(struct kv_reading *r, uint32_t i, uint32_t block) {
    struct prefix_cache *cache = r->kv->space->cache;
    const bool has_window = !prefix_cache_window_dropped(cache, block);
    r->blocks[i] = block;
    r->needs[i] =
        needs_of(!prefix_cache_sparse_dropped(cache, block), i >= r->window_from && has_window);
    prefix_cache_use(cache, block, r->needs[i]);
}

static void unuse(struct kv_reading *r, uint32_t n) {
    while (n-- > 0) prefix_cache_unuse(r->kv->space->cache, r->blocks[n], r->needs[n]);
}

/* Takes pages for a block, in the order of its file and as lists; ERR_FULL. */
static int take_pages(struct kv_reading *r, uint32_t needs, uint32_t *n_taken) {
    const struct kv_space *space = r->kv->space;
    const uint32_t has = needs | 1u << KV_PLAIN;
    uint32_t n = 0;
    for (uint32_t l = 0; l < space->n_layers; l++) n += has >> kv_usual_role_of(space, l) & 1;
    if (kv_make_free(space, n)) return ERR_FULL;
    page_pool_take_sure(space->pool, r->pages, n);
    *n_taken = n;
    n = 0;
    for (unsigned i = 0; i < KV_N_PLACED; i++)
        for (uint32_t l = 0; l < space->n_layers; l++)
            if (has >> kv_place_order[i] & 1 && kv_usual_role_of(space, l) == kv_place_order[i])
                r->lists[l] = (struct page_list){.pages = &r->pages[n++], .n = 1, .capacity = 1};
    return 0;
}

/* Uses the blocks before n_taken.  Those in the host pool come back, because a block with pages
 * must have a parent with pages.  ERR_NOT_FOUND: one has been evicted; ERR_FULL, ERR_DEVICE. */
static int use_chain(struct kv_reading *r, uint32_t *n_used, struct error *err) {
    const struct kv_sequence *kv = r->kv;
    struct prefix_cache *cache = kv->space->cache;
    uint32_t block = PREFIX_NONE, n;
    int code = 0;
    for (uint32_t i = 0; i < r->n_taken && !code; i++) {
        block =
            prefix_cache_find(cache, block, kv->salt, sequence_prefix_hash(kv, i), tokens_of(r, i));
        if (block == PREFIX_NONE) return ERR_NOT_FOUND;
        use(r, i, block);
        *n_used = i + 1;
        if (!prefix_cache_is_offloaded(cache, block)) continue;
        if (take_pages(r, r->needs[i], &n)) return ERR_FULL;
        code = prefix_cache_reload(cache, block, r->lists, 0, r->needs[i], err);
        page_pool_release(kv->space->pool, r->pages, n);
    }
    return code;
}

/* Inserts the next block, whose file has arrived whole; it is used from then on.  ERR_FULL,
 * ERR_DEVICE. */
static int insert(struct kv_reading *r, struct disk_job *job, struct error *err) {
    const struct kv_sequence *kv = r->kv;
    const struct kv_space *space = kv->space;
    const uint32_t i = r->n_taken, parent = i > 0 ? r->blocks[i - 1] : PREFIX_NONE;
    const bool with_window = i >= r->window_from && job->head.n_pages == space->n_layers;
    const uint32_t needs = needs_of(true, with_window);
    uint32_t n;
    int code = take_pages(r, needs, &n);
    if (code) return code;
    if (n > job->head.n_pages) code = ERR_FULL; /* no block has so few */
    else code = page_io_write(&space->io, r->pages, n, job->pages, err);
    if (!code) {
        const uint32_t block =
            prefix_cache_insert(space->cache, parent, kv->salt, sequence_prefix_hash(kv, i),
                                tokens_of(r, i), r->lists, 0, needs, KV_NO_PAGE);
        if (block == PREFIX_NONE) code = ERR_FULL;
        r->blocks[i] = block;
        r->needs[i] = needs;
    }
    page_pool_release(space->pool, r->pages, n);
    return code;
}

static struct disk_job *take_arrived(struct kv_reading *r, uint32_t block) {
    struct disk_job *job = r->arrived[block % WINDOW];
    r->arrived[block % WINDOW] = NULL;
    return job;
}

/* Inserts the blocks that have arrived, in order.  ERR_DEVICE. */
static int take_blocks(struct kv_reading *r, struct error *err) {
    struct kv_disk *disk = r->kv->space->disk;
    uint32_t n_used = 0;
    if (!r->arrived[r->n_taken % WINDOW]) return 0;
    int code = use_chain(r, &n_used, err);
    r->is_lost = code == ERR_NOT_FOUND;
    while (!code && r->n_taken < r->n_end && r->arrived[r->n_taken % WINDOW]) {
        struct disk_job *job = take_arrived(r, r->n_taken);
        code = job->failed ? ERR_NOT_FOUND : insert(r, job, err);
        kv_disk_free(disk, job);
        if (!code) n_used = ++r->n_taken;
    }
    unuse(r, n_used);
    r->since_s = clock_seconds();
    r->is_over |= code != 0 || is_complete(r);
    return code == ERR_DEVICE ? code : 0;
}

/* ---- the checkpoint behind them ---- */

/* Returns the block before token n_taken of the text, which may have been evicted. */
static uint32_t find_last(const struct kv_reading *r) {
    const struct kv_sequence *kv = r->kv;
    uint32_t block = PREFIX_NONE;
    for (uint32_t i = 0; i < r->n_taken; i++) {
        block = prefix_cache_find(kv->space->cache, block, kv->salt, sequence_prefix_hash(kv, i),
                                  tokens_of(r, i));
        if (block == PREFIX_NONE) break;
    }
    return block;
}

/* Gives the checkpoint to its block, unless that has one by now.  ERR_DEVICE. */
static int insert_checkpoint(const struct kv_reading *r, uint32_t block, const struct disk_job *job,
                             struct error *err) {
    const struct kv_space *space = r->kv->space;
    uint32_t slot;
    if (prefix_cache_checkpoint(space->cache, block) != CHECKPOINT_NONE) return 0;
    if (job->head.n_pages * page_io_page_bytes(&space->io) < checkpoints_bytes(space->checkpoints))
        return ERR_NOT_FOUND;
    if (kv_make_states_free(space, 1)) return ERR_FULL;
    page_pool_take_sure(space->state_slots, &slot, 1);
    const int code = checkpoints_fill(space->checkpoints, slot, job->pages, err);
    if (code) page_pool_release(space->state_slots, &slot, 1);
    else prefix_cache_set_checkpoint(space->cache, block, slot);
    return code;
}

/* Tells whether the checkpoint has arrived and no slot is to be had: its sequence cannot start
 * either.  It takes the first slot that becomes free, before any sequence that waits. */
static bool waits_for_slot(const struct kv_reading *r) {
    const struct disk_job *job = r->checkpoint.arrived;
    return job && !job->failed && r->n_taken == r->n_end &&
           kv_n_available_states(r->kv->space) == 0;
}

/* Takes the checkpoint once it has arrived, its block is in the cache and a slot is to be had.
 * ERR_DEVICE. */
static int take_checkpoint(struct kv_reading *r, struct error *err) {
    struct disk_job *job = r->checkpoint.arrived;
    if (!job || r->n_taken < r->n_end || waits_for_slot(r)) return 0;
    const uint32_t block = find_last(r);
    int code = job->failed ? ERR_NOT_FOUND : 0;
    r->is_lost = block == PREFIX_NONE;
    if (!code && !r->is_lost) code = insert_checkpoint(r, block, job, err);
    r->checkpoint.is_taken = !code && !r->is_lost;
    r->checkpoint.arrived = NULL;
    kv_disk_free(r->kv->space->disk, job);
    r->is_over = true;
    return code == ERR_DEVICE ? code : 0;
}

/* ---- a state that has arrived ---- */

/* Fills an empty state with the file's pages.  ERR_FULL, ERR_DEVICE. */
static int fill_state(const struct kv_space *space, struct kv_state *state,
                      const struct disk_job *job, struct error *err) {
    size_t place = 0;
    int code = kv_make_free(space, job->head.n_pages);
    for (uint32_t l = 0; l < space->n_layers && !code; l++) {
        const uint32_t n = kv_state_range(space, state->n_tokens, job->head.n_pages, l).n;
        page_pool_take_sure(space->pool, state->layers[l].pages, n);
        state->layers[l].n = n;
        code = page_io_write(&space->io, state->layers[l].pages, n,
                             job->pages + place * page_io_page_bytes(&space->io), err);
        place += n;
    }
    state->n_pages = job->head.n_pages;
    state->turn = job->head.notes[STATE_TURN];
    state->state_phase = job->head.notes[STATE_PHASE];
    state->id = job->id;
    state->is_valid = true;
    return code;
}

/* Returns the most pages that a state has in one layer. */
static uint32_t most_pages(const struct kv_space *space, uint32_t n_tokens, uint32_t n_pages) {
    uint32_t most = 0;
    for (uint32_t l = 0; l < space->n_layers; l++)
        most = max_u32(most, kv_state_range(space, n_tokens, n_pages, l).n);
    return most;
}

static int insert_state(struct kv_reading *r, const struct disk_job *job, struct error *err) {
    const struct kv_space *space = r->kv->space;
    const uint32_t n_pages = job->head.n_pages, n_tokens = job->head.key.n_tokens;
    if (!kv_state_is_possible(space, n_tokens, n_pages) || n_pages > kv_n_available(space))
        return 0;
    struct kv_state *state = kv_state_create(space, &r->key, r->tokens, n_tokens,
                                             most_pages(space, n_tokens, n_pages), true);
    if (!state) return 0;
    const int code = fill_state(space, state, job, err);
    if (code) kv_state_destroy(space, state);
    else state_cache_insert(space->states, state);
    return code;
}

static int take_state(struct kv_reading *r, struct error *err) {
    struct disk_job *job = take_arrived(r, 0);
    if (!job) return 0;
    const int code = job->failed ? 0 : insert_state(r, job, err);
    if (!job->failed) r->n_taken = job->head.key.n_tokens / PAGE_TOKENS;
    kv_disk_free(r->kv->space->disk, job);
    r->is_over = true;
    return code == ERR_DEVICE ? code : 0;
}

/* ---- all readings ---- */

static void sort_in(const struct kv_space *space, struct disk_job *job) {
    const struct kv_readings *readings = space->readings;
    for (uint32_t i = 0; i < readings->n; i++) {
        struct kv_reading *r = readings->all[i];
        if (r->serial != job->owner) continue;
        if (job->head.key.kind == DISK_CHECKPOINT) {
            r->checkpoint.arrived = job;
            return;
        }
        const uint32_t block = r->is_state ? 0 : job->head.key.n_before / PAGE_TOKENS;
        assert(!r->arrived[block % WINDOW]);
        r->arrived[block % WINDOW] = job;
        return;
    }
    kv_disk_free(space->disk, job); /* its reading has been forgotten */
}

/* Ends a reading: what is in the cache will be found there.  On disk, parents become newer than
 * their children, and than a checkpoint. */
static void end(struct kv_reading *r) {
    struct kv_sequence *kv = r->kv;
    const bool again = r->is_lost && kv->reading.n_beginnings < MAX_BEGINNINGS,
               begins_there = r->is_state || is_complete(r) || !kv->space->state_slots;
    kv->reading.n_cached = begins_there ? r->n_taken * PAGE_TOKENS : 0;
    if (r->checkpoint.is_taken) kv_disk_touch(kv->space->disk, &r->checkpoint.id);
    for (uint32_t i = r->n_taken; !r->is_state && i-- > 0;)
        kv_disk_touch(kv->space->disk, &r->ids[i]);
    kv_forget_reading(kv);
    if (!again) kv->reading.progress = KV_READ_DONE;
}

int kv_readings_advance(const struct kv_space *space, struct error *err) {
    struct kv_readings *readings = space->readings;
    if (!space->disk || readings->n == 0) return 0;
    for (struct disk_job *job = kv_disk_take_done(space->disk), *next; job; job = next) {
        next = job->next;
        sort_in(space, job);
    }
    int code = 0;
    for (uint32_t i = readings->n; i-- > 0 && !code;) {
        struct kv_reading *r = readings->all[i];
        code = r->is_state ? take_state(r, err) : take_blocks(r, err);
        if (!code) code = take_checkpoint(r, err);
        if (!r->is_over) ask_further(r);
        const bool is_late = clock_seconds() > r->since_s + patience_s;
        if (r->is_over || (is_late && !waits_for_slot(r))) end(r);
    }
    return code;
}
