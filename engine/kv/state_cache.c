/* state_cache.c - states in two lists by age: those with pages, and those in the host pool.  There
 * are few of them, and each stands for many pages, so a name is looked up by looking at all.
 *
 * Thread: engine.  Memory: see state_cache.h. */
#include "engine/kv/state_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/base/error.h"
#include "engine/base/populate.h"
#include "engine/base/siphash.h"
#include "engine/base/sizes.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/offer.h"
#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/plan.h"
#include "engine/kv/prefix_cache.h"

/* Pages that one operation copies: as many as a kernel's parameters can name on a GPU. */
enum { COPIED_TOGETHER = 500 };

/* States by age. */
struct state_list {
    struct kv_state *oldest, *newest;
    uint32_t n_pages; /* that they have, or had */
};

struct state_cache {
    const struct kv_space *space;
    uint64_t key[2];
    struct state_list idle, offloaded;
    uint32_t n_states, n_offloaded_blocks;
    uint64_t n_tokens; /* of all names */
    uint32_t *offered; /* [offered_capacity]: a state's pages in the order of its file */
    uint32_t offered_capacity;
};

/* ---- names ---- */

struct kv_state_key kv_state_key(const struct kv_plan *plan, uint64_t salt) {
    return (struct kv_state_key){
        .salt = salt, .budget = plan->budget, .chunk = plan->is_whole ? 0 : plan->chunk};
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* A key as numbers, so that padding does not matter. */
struct key_words {
    uint64_t words[7];
};

_Static_assert(sizeof(struct key_words) <= sizeof(((struct disk_key *)0)->words),
               "a file has space for the key");

static struct key_words words_of(const struct kv_state_key *key) {
    const struct kv_budget *b = &key->budget;
    return (struct key_words){
        {key->salt, b->capacity | (uint64_t)key->chunk << 32,
         b->n_sink | (uint64_t)b->n_recent << 32, b->score | (uint64_t)bits_of(b->decay) << 32,
         b->window | (uint64_t)b->kernel << 32, b->pooling, b->cache_positions}};
}

static bool same_key(const struct kv_state_key *a, const struct kv_state_key *b) {
    const struct key_words left = words_of(a), right = words_of(b);
    return memcmp(&left, &right, sizeof(left)) == 0;
}

struct disk_key kv_state_disk_key(const struct kv_state_key *key, const uint32_t *tokens,
                                  uint32_t n_tokens) {
    const struct key_words words = words_of(key);
    struct disk_key out = {.kind = DISK_STATE, .n_tokens = n_tokens, .tokens = tokens};
    memcpy(out.words, words.words, sizeof(words.words));
    return out;
}

/* Compares the end first: states of one conversation, or of one long context, differ there. */
static bool begins_with(const uint32_t *tokens, const struct kv_state *state) {
    const uint32_t n_first = state->n_tokens - min_u32(state->n_tokens, 32);
    return memcmp(tokens + n_first, state->tokens + n_first,
                  (state->n_tokens - n_first) * sizeof(*tokens)) == 0 &&
           memcmp(tokens, state->tokens, n_first * sizeof(*tokens)) == 0;
}

uint64_t state_cache_hash(const struct state_cache *cache, const struct kv_state_key *key,
                          const uint32_t *tokens, uint32_t n_tokens) {
    const struct key_words words = words_of(key);
    struct siphash hash;
    siphash_init(&hash, cache->key);
    for (size_t i = 0; i < sizeof(words.words) / sizeof(*words.words); i++)
        siphash_absorb(&hash, words.words[i]);
    siphash_absorb(&hash, n_tokens);
    siphash_absorb_tokens(&hash, tokens, n_tokens);
    return siphash_end(&hash) | 1;
}

/* ---- a state ---- */

static int make_lists(struct kv_state *state, uint32_t n_layers, uint64_t n_pages) {
    int code = 0;
    state->layers = calloc(n_layers, sizeof(*state->layers));
    if (!state->layers) return ERR_NOMEM;
    for (uint32_t l = 0; l < n_layers && !code; l++)
        code = kv_list_grow(&state->layers[l], (uint32_t)n_pages);
    return code;
}

static int make_state(const struct kv_space *space, struct kv_state *state, const uint32_t *tokens,
                      uint32_t n_tokens, uint64_t n_pages, bool with_lists) {
    int code = with_lists ? make_lists(state, space->n_layers, n_pages) : 0;
    if (!code && space->swaps)
        code = kv_list_grow(&state->blocks,
                            (uint32_t)page_io_n_blocks(&space->io, n_pages * space->n_layers));
    if (code || n_tokens == 0) return code;
    state->tokens = malloc(n_tokens * sizeof(*tokens));
    if (!state->tokens) return ERR_NOMEM;
    state->n_tokens = n_tokens;
    if (tokens) kv_state_name(state, tokens);
    return 0;
}

void kv_state_name(struct kv_state *state, const uint32_t *tokens) {
    const size_t n_bytes = state->n_tokens * sizeof(*tokens);
    populate(state->tokens, n_bytes);
    memcpy(state->tokens, tokens, n_bytes);
}

struct kv_state *kv_state_create(const struct kv_space *space, const struct kv_state_key *key,
                                 const uint32_t *tokens, uint32_t n_tokens, uint64_t n_pages,
                                 bool with_lists) {
    struct kv_state *state = calloc(1, sizeof(*state));
    if (!state) return NULL;
    state->key = *key;
    if (make_state(space, state, tokens, n_tokens, n_pages, with_lists) == 0) return state;
    kv_state_destroy(space, state);
    return NULL;
}

static uint32_t n_windowed(const struct kv_space *space) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < space->n_layers; l++) n += kv_has_window(space, l);
    return n;
}

bool kv_state_is_possible(const struct kv_space *space, uint32_t n_tokens, uint32_t n_pages) {
    const uint32_t n_layers = n_windowed(space);
    const uint64_t n = (uint64_t)n_layers * kv_window_range(space, n_tokens).n;
    return n_layers < space->n_layers && n_pages > n &&
           (n_pages - n) % (space->n_layers - n_layers) == 0;
}

struct kv_range kv_state_range(const struct kv_space *space, uint32_t n_tokens, uint32_t n_pages,
                               uint32_t layer) {
    const struct kv_range windowed = kv_window_range(space, n_tokens);
    const uint32_t n = n_windowed(space);
    if (kv_has_window(space, layer)) return windowed;
    return (struct kv_range){0, (n_pages - n * windowed.n) / (space->n_layers - n)};
}

/* Copies pages of many layers in one operation, because each takes a GPU some microseconds beside
 * the bytes. */
int kv_state_copy(const struct kv_space *space, const struct kv_state *state,
                  const struct page_list *lists, bool back, struct error *err) {
    uint32_t mine[COPIED_TOGETHER], its[COPIED_TOGETHER], n = 0, n_left = state->n_pages;
    int code = 0;
    for (uint32_t l = 0; l < space->n_layers && !code; l++) {
        const struct kv_range range = kv_state_range(space, state->n_tokens, state->n_pages, l);
        assert(range.n == state->layers[l].n && range.first + range.n <= lists[l].n);
        for (uint32_t i = 0; i < range.n && !code; i++) {
            mine[n] = lists[l].pages[range.first + i];
            its[n++] = state->layers[l].pages[i];
            n_left--;
            if (n < COPIED_TOGETHER && n_left > 0) continue;
            code = page_io_copy(&space->io, back ? its : mine, back ? mine : its, n, err);
            n = 0;
        }
    }
    return code;
}

/* Sets what the owner has to NULL. */
static void leave_owner(struct kv_state *state) {
    if (state->owner) *state->owner = NULL;
    state->owner = NULL;
}

int kv_state_return(const struct kv_space *space, struct kv_state *state, struct error *err) {
    const struct page_list *from = state->pending_copy_from;
    if (!from) return 0;
    state->pending_copy_from = NULL;
    leave_owner(state);
    return kv_state_copy(space, state, from, false, err);
}

static void release_pages(const struct kv_space *space, struct kv_state *state) {
    for (uint32_t l = 0; l < space->n_layers; l++) kv_list_trim(&state->layers[l], space->pool, 0);
}

void kv_state_destroy(const struct kv_space *space, struct kv_state *state) {
    if (!state) return;
    assert(!state->is_cached);
    leave_owner(state);
    if (state->layers) release_pages(space, state);
    if (state->is_offloaded) page_pool_release(space->blocks, state->blocks.pages, state->blocks.n);
    for (uint32_t l = 0; state->layers && l < space->n_layers; l++) free(state->layers[l].pages);
    free(state->layers);
    free(state->blocks.pages);
    free(state->tokens);
    free(state);
}

/* ---- the cache ---- */

int state_cache_create(struct state_cache **out, const struct kv_space *space, struct error *err) {
    struct state_cache *cache = calloc(1, sizeof(*cache));
    const size_t key_bytes = cache ? sizeof(cache->key) : 0;
    if (cache && getrandom(cache->key, key_bytes, 0) == (ssize_t)key_bytes) {
        cache->space = space;
        *out = cache;
        return 0;
    }
    free(cache);
    return error_set(err, ERR_NOMEM, "no memory for the cache of KV states");
}

static struct state_list *list_of(struct state_cache *cache, const struct kv_state *state) {
    return state->is_offloaded ? &cache->offloaded : &cache->idle;
}

static void append(struct state_cache *cache, struct kv_state *state) {
    struct state_list *list = list_of(cache, state);
    state->older = list->newest;
    state->newer = NULL;
    if (list->newest) list->newest->newer = state;
    else list->oldest = state;
    list->newest = state;
    list->n_pages += state->n_pages;
}

static void remove_from_list(struct state_cache *cache, struct kv_state *state) {
    struct state_list *list = list_of(cache, state);
    if (state->older) state->older->newer = state->newer;
    else list->oldest = state->newer;
    if (state->newer) state->newer->older = state->older;
    else list->newest = state->older;
    list->n_pages -= state->n_pages;
}

/* Removes the state, whose copy may be pending, from the cache. */
static void take_out(struct state_cache *cache, struct kv_state *state) {
    assert(state->is_cached);
    remove_from_list(cache, state);
    if (state->is_offloaded) cache->n_offloaded_blocks -= state->blocks.n;
    leave_owner(state);
    state->is_cached = false;
    cache->n_tokens -= state->n_tokens;
    cache->n_states--;
}

/* Performs a pending copy.  A failed copy is no reason to drop the state: a device that fails does
 * not read it again. */
static void complete(struct state_cache *cache, struct kv_state *state) {
    (void)kv_state_return(cache->space, state, NULL);
}

void state_cache_take(struct state_cache *cache, struct kv_state *state) {
    complete(cache, state);
    take_out(cache, state);
}

static void drop(struct state_cache *cache, struct kv_state *state) {
    take_out(cache, state);
    kv_state_destroy(cache->space, state);
}

/* ---- the tier on disk ---- */

/* Puts the pages of all layers one behind the other, as in host blocks; NULL: no memory. */
static const uint32_t *pages_in_order(struct state_cache *cache, const struct kv_state *state) {
    if (state->n_pages > cache->offered_capacity) {
        uint32_t *offered = realloc(cache->offered, state->n_pages * sizeof(*offered));
        if (!offered) return NULL;
        cache->offered = offered;
        cache->offered_capacity = state->n_pages;
    }
    for (uint32_t l = 0, n = 0; l < cache->space->n_layers; n += state->layers[l++].n)
        memcpy(cache->offered + n, state->layers[l].pages,
               state->layers[l].n * sizeof(*cache->offered));
    return cache->offered;
}

/* Describes the state for the tier on disk; the key must live as long.  false: it is not
 * offered. */
static bool describe(struct state_cache *cache, struct kv_state *state, struct disk_key *key,
                     struct kv_offer *out) {
    struct kv_disk *disk = cache->space->disk;
    if (!disk || !state->is_valid) return false;
    complete(cache, state);
    *key = kv_state_disk_key(&state->key, state->tokens, state->n_tokens);
    if (state->id.kind == 0) state->id = kv_disk_id(disk, key);
    *out = (struct kv_offer){
        .key = key,
        .id = &state->id,
        .notes = {[STATE_TURN] = state->turn, [STATE_PHASE] = state->state_phase},
        .n_pages = state->n_pages,
        .pages = state->is_offloaded ? NULL : pages_in_order(cache, state),
        .blocks = state->blocks.pages,
        .written_at = state->written_at,
    };
    return out->pages || state->is_offloaded;
}

static void offer_and_drop(struct state_cache *cache, struct kv_state *state) {
    struct disk_key key;
    struct kv_offer offer;
    if (describe(cache, state, &key, &offer)) {
        offer.is_last = true;
        (void)kv_offer(cache->space, &offer);
    }
    drop(cache, state);
}

enum kv_save_result state_cache_save(struct state_cache *cache, struct kv_saving *saving) {
    struct kv_state *newest[] = {cache->idle.newest, cache->offloaded.newest};
    for (size_t i = 0; i < 2; i++)
        for (struct kv_state *state = newest[i]; state; state = state->older) {
            struct disk_key key;
            struct kv_offer offer;
            if (!describe(cache, state, &key, &offer)) continue;
            const enum kv_save_result saved = kv_save_one(cache->space, &offer, saving);
            if (saved != SAVE_ON) return saved;
        }
    return SAVE_ON;
}

void state_cache_destroy(struct state_cache *cache) {
    if (!cache) return;
    while (cache->idle.oldest) drop(cache, cache->idle.oldest);
    while (cache->offloaded.oldest) drop(cache, cache->offloaded.oldest);
    free(cache->offered);
    free(cache);
}

struct kv_state *state_cache_find(const struct state_cache *cache, const struct kv_state_key *key,
                                  const uint32_t *tokens, uint32_t n_max, state_suits suits,
                                  const void *ctx) {
    const struct state_list *lists[] = {&cache->idle, &cache->offloaded};
    struct kv_state *best = NULL;
    for (size_t i = 0; i < 2; i++)
        for (struct kv_state *state = lists[i]->newest; state; state = state->older) {
            if (!state->is_valid || state->n_tokens > n_max) continue;
            if (best && state->n_tokens <= best->n_tokens) continue;
            if (!same_key(key, &state->key) || !suits(ctx, state)) continue;
            if (begins_with(tokens, state)) best = state;
        }
    return best;
}

static bool is_same_phase(const void *ctx, const struct kv_state *state) {
    const struct kv_state *other = ctx;
    return state->n_tokens == other->n_tokens && state->turn == other->turn &&
           state->state_phase == other->state_phase;
}

/* Makes space for one more state: drops the oldest of all. */
static void make_space(struct state_cache *cache, uint32_t n_tokens) {
    while (cache->n_states > 0 &&
           (cache->n_states >= STATE_MAX_STATES || cache->n_tokens + n_tokens > STATE_MAX_TOKENS)) {
        struct kv_state *idle = cache->idle.oldest, *offloaded = cache->offloaded.oldest;
        offer_and_drop(cache,
                       !offloaded || (idle && idle->since < offloaded->since) ? idle : offloaded);
    }
}

void state_cache_insert(struct state_cache *cache, struct kv_state *state) {
    struct kv_state *same = state->is_valid
                                ? state_cache_find(cache, &state->key, state->tokens,
                                                   state->n_tokens, is_same_phase, state)
                                : NULL;
    if (same && !same->is_offloaded) { /* it is used again, as it were */
        kv_state_destroy(cache->space, state);
        state = same;
        state_cache_take(cache, state);
    } else if (same) drop(cache, same);
    if (state->n_tokens > STATE_MAX_TOKENS) {
        kv_state_destroy(cache->space, state);
        return;
    }
    make_space(cache, state->n_tokens);
    state->since = prefix_cache_tick(cache->space->cache);
    state->is_cached = true;
    if (state->is_offloaded) cache->n_offloaded_blocks += state->blocks.n;
    cache->n_tokens += state->n_tokens;
    cache->n_states++;
    append(cache, state);
}

/* ---- pages and host blocks ---- */

uint64_t state_cache_oldest(const struct state_cache *cache) {
    return cache->idle.oldest ? cache->idle.oldest->since : UINT64_MAX;
}

uint64_t state_cache_oldest_offloaded(const struct state_cache *cache) {
    return cache->offloaded.oldest ? cache->offloaded.oldest->since : UINT64_MAX;
}

struct kv_demotion state_cache_demotion(const struct state_cache *cache) {
    const struct kv_space *space = cache->space;
    const struct kv_state *state = cache->idle.oldest;
    if (!space->swaps || !state->is_valid) return (struct kv_demotion){0};
    const uint32_t n = (uint32_t)page_io_n_blocks(&space->io, state->n_pages);
    if (n == 0 || n > state->blocks.capacity) return (struct kv_demotion){0};
    return (struct kv_demotion){.to_host = true, .n_blocks = n};
}

/* Copies the state's pages to its host blocks.  For failed copies see complete(). */
static void copy_out(struct state_cache *cache, struct kv_state *state) {
    const struct kv_space *space = cache->space;
    size_t place = 0;
    complete(cache, state);
    for (uint32_t l = 0; l < space->n_layers; l++) {
        (void)page_io_write_blocks(&space->io, state->layers[l].pages, state->layers[l].n,
                                   state->blocks.pages, place, NULL);
        place += state->layers[l].n;
    }
    space->swaps->n_out += state->n_pages;
    state->written_at = space->disk ? kv_disk_n_submitted(space->disk) : 0;
}

static void offload(struct state_cache *cache, struct kv_state *state) {
    copy_out(cache, state);
    remove_from_list(cache, state);
    release_pages(cache->space, state);
    state->is_offloaded = true;
    cache->n_offloaded_blocks += state->blocks.n;
    append(cache, state);
}

void state_cache_evict_oldest(struct state_cache *cache, struct kv_demotion demotion) {
    struct kv_state *state = cache->idle.oldest;
    const uint32_t n = demotion.n_blocks;
    if (!demotion.to_host || page_pool_take(cache->space->blocks, state->blocks.pages, n)) {
        offer_and_drop(cache, state);
        return;
    }
    state->blocks.n = n;
    offload(cache, state);
}

void state_cache_drop_oldest_offloaded(struct state_cache *cache) {
    offer_and_drop(cache, cache->offloaded.oldest);
}

uint32_t state_cache_n_idle_pages(const struct state_cache *cache) {
    return cache->idle.n_pages;
}

uint32_t state_cache_n_offloaded_pages(const struct state_cache *cache) {
    return cache->offloaded.n_pages;
}

uint32_t state_cache_n_offloaded_blocks(const struct state_cache *cache) {
    return cache->n_offloaded_blocks;
}
