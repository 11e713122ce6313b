/* checkpoints.c - see checkpoints.h. */
#include "engine/kv/checkpoints.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/age_list.h"
#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/recurrent.h"
#include "engine/kv/page_pool.h"

struct checkpoints {
    struct page_pool *slots, *places; /* places: of the store; NULL: there is none */
    struct checkpoint_store store;
    uint32_t n_slots;
    struct age_list in_slots, stored;
    struct checkpoint_stats stats;
    uint32_t *blocks;      /* [n_slots + store.n]; CHECKPOINT_NONE: it is no checkpoint */
    struct age_link *ages; /* [n_slots + store.n] */
    uint64_t *written_at;  /* [store.n] */
};

int checkpoints_create(struct checkpoints **out, struct page_pool *slots,
                       const struct checkpoint_store *store, struct error *err) {
    struct checkpoints *list = calloc(1, sizeof(*list));
    if (!list) return error_set(err, ERR_NOMEM, "no memory for the list of checkpoints");
    list->slots = slots;
    list->n_slots = page_pool_n_pages(slots);
    list->store = *store;
    list->in_slots = list->stored = age_list_empty();
    const uint32_t n = list->n_slots + list->store.n;
    list->blocks = calloc(n, sizeof(*list->blocks));
    list->ages = calloc(n, sizeof(*list->ages));
    list->written_at = calloc(list->store.n + 1, sizeof(*list->written_at));
    int code = list->blocks && list->ages && list->written_at
                   ? 0
                   : error_set(err, ERR_NOMEM, "no memory for %u checkpoints", n);
    for (uint32_t i = 0; i < n && !code; i++) list->blocks[i] = CHECKPOINT_NONE;
    if (!code && store->n > 0) code = page_pool_create(&list->places, store->n, err);
    if (code) checkpoints_destroy(list);
    else *out = list;
    return code;
}

void checkpoints_destroy(struct checkpoints *list) {
    if (!list) return;
    page_pool_destroy(list->places);
    free(list->blocks);
    free(list->ages);
    free(list->written_at);
    free(list);
}

bool checkpoints_is_stored(const struct checkpoints *list, uint32_t checkpoint) {
    return checkpoint >= list->n_slots;
}

static struct age_list *list_of(struct checkpoints *list, uint32_t checkpoint) {
    return checkpoints_is_stored(list, checkpoint) ? &list->stored : &list->in_slots;
}

static void take_out(struct checkpoints *list, uint32_t checkpoint) {
    age_list_remove(list_of(list, checkpoint), list->ages, checkpoint);
}

static void append(struct checkpoints *list, uint32_t checkpoint) {
    age_list_append(list_of(list, checkpoint), list->ages, checkpoint);
}

/* Adds a checkpoint as the newest. */
static void insert(struct checkpoints *list, uint32_t checkpoint, uint32_t block) {
    list->blocks[checkpoint] = block;
    append(list, checkpoint);
    list->stats.n++;
    list->stats.n_stored += checkpoints_is_stored(list, checkpoint);
}

void checkpoints_add(struct checkpoints *list, uint32_t slot, uint32_t block) {
    insert(list, slot, block);
    list->stats.n_added++;
}

void checkpoints_touch(struct checkpoints *list, uint32_t checkpoint) {
    take_out(list, checkpoint);
    append(list, checkpoint);
}

void checkpoints_count_use(struct checkpoints *list) {
    list->stats.n_used++;
}

void checkpoints_remove(struct checkpoints *list, uint32_t checkpoint) {
    const bool is_stored = checkpoints_is_stored(list, checkpoint);
    const uint32_t place = checkpoint - (is_stored ? list->n_slots : 0);
    take_out(list, checkpoint);
    list->blocks[checkpoint] = CHECKPOINT_NONE;
    list->stats.n--;
    list->stats.n_stored -= is_stored;
    page_pool_release(is_stored ? list->places : list->slots, &place, 1);
}

uint64_t checkpoints_bytes(const struct checkpoints *list) {
    uint64_t bytes = 0;
    for (const struct checkpoint_store *s = &list->store; s; s = s->next)
        bytes += s->states->slot_bytes;
    return bytes;
}

/* Returns where a rank's part of a stored checkpoint is. */
static char *place_of(const struct checkpoints *list, const struct checkpoint_store *store,
                      uint32_t checkpoint) {
    return store->base + (checkpoint - list->n_slots) * store->states->slot_bytes;
}

/* Copies a rank's part of a slot to the host's memory, or back. */
static int copy_slot(const struct checkpoint_store *s, uint32_t slot, char *host, bool back,
                     struct error *err) {
    char *at = state_at(s->states, slot, 0);
    const size_t bytes = s->states->slot_bytes;
    return back ? s->be->ops->upload(s->be, at, host, bytes, err)
                : s->be->ops->download(s->be, host, at, bytes, err);
}

/* Copies a slot to the stored checkpoint, or back, on each rank. */
static int copy_stored(const struct checkpoints *list, uint32_t slot, uint32_t checkpoint,
                       bool back, struct error *err) {
    int code = 0;
    for (const struct checkpoint_store *s = &list->store; s && !code; s = s->next)
        code = copy_slot(s, slot, place_of(list, s, checkpoint), back, err);
    return code;
}

int checkpoints_copy_out(const struct checkpoints *list, uint32_t checkpoint, char *host,
                         struct error *err) {
    const bool is_stored = checkpoints_is_stored(list, checkpoint);
    int code = 0;
    for (const struct checkpoint_store *s = &list->store; s && !code; s = s->next) {
        if (is_stored) memcpy(host, place_of(list, s, checkpoint), s->states->slot_bytes);
        else code = copy_slot(s, checkpoint, host, false, err);
        host += s->states->slot_bytes;
    }
    return code;
}

int checkpoints_fill(const struct checkpoints *list, uint32_t slot, const char *host,
                     struct error *err) {
    int code = 0;
    for (const struct checkpoint_store *s = &list->store; s && !code; s = s->next) {
        code = copy_slot(s, slot, (char *)host, true, err);
        host += s->states->slot_bytes;
    }
    return code;
}

/* Ignores a failed copy: a device that fails does not read the checkpoint again. */
uint32_t checkpoints_store(struct checkpoints *list, uint32_t slot) {
    const uint32_t block = list->blocks[slot];
    uint32_t place;
    page_pool_take_sure(list->places, &place, 1);
    const uint32_t stored = list->n_slots + place;
    (void)copy_stored(list, slot, stored, false, NULL);
    checkpoints_remove(list, slot);
    insert(list, stored, block);
    return stored;
}

void checkpoints_set_written_at(struct checkpoints *list, uint32_t checkpoint, uint64_t at) {
    list->written_at[checkpoint - list->n_slots] = at;
}

uint64_t checkpoints_written_at(const struct checkpoints *list, uint32_t checkpoint) {
    return list->written_at[checkpoint - list->n_slots];
}

int checkpoints_read(const struct checkpoints *list, uint32_t checkpoint, uint32_t slot,
                     struct error *err) {
    assert(checkpoints_is_stored(list, checkpoint));
    return copy_stored(list, slot, checkpoint, true, err);
}

uint32_t checkpoints_block(const struct checkpoints *list, uint32_t slot) {
    return list->blocks[slot];
}

static bool is_idle(const struct checkpoints *list, uint32_t slot) {
    return page_pool_n_holders(list->slots, slot) == 1;
}

uint32_t checkpoints_oldest(const struct checkpoints *list) {
    uint32_t slot = list->in_slots.oldest;
    while (slot != CHECKPOINT_NONE && !is_idle(list, slot)) slot = list->ages[slot].newer;
    return slot == CHECKPOINT_NONE ? CHECKPOINT_NONE : list->blocks[slot];
}

uint32_t checkpoints_n_idle(const struct checkpoints *list) {
    uint32_t n = 0;
    for (uint32_t s = list->in_slots.oldest; s != CHECKPOINT_NONE; s = list->ages[s].newer)
        n += is_idle(list, s);
    return n;
}

bool checkpoints_has_store(const struct checkpoints *list) {
    return list->places != NULL;
}

bool checkpoints_store_is_full(const struct checkpoints *list) {
    return page_pool_n_free(list->places) == 0;
}

uint32_t checkpoints_oldest_stored(const struct checkpoints *list) {
    return list->blocks[list->stored.oldest];
}

struct checkpoint_stats checkpoints_stats(const struct checkpoints *list) {
    return list->stats;
}
