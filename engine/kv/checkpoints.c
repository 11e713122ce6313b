/* checkpoints.c - see checkpoints.h. */
#include "engine/kv/checkpoints.h"

#include <stdbool.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/kv/page_pool.h"

struct entry {
    uint32_t block;        /* CHECKPOINT_NONE: the slot is no checkpoint */
    uint32_t older, newer; /* slots */
};

struct checkpoints {
    struct page_pool *slots;
    uint32_t oldest, newest;
    struct checkpoint_stats stats;
    struct entry *entries; /* [slots] */
};

int checkpoints_create(struct checkpoints **out, struct page_pool *slots, struct error *err) {
    const uint32_t n_slots = page_pool_n_pages(slots);
    struct checkpoints *list = calloc(1, sizeof(*list));
    struct entry *entries = calloc(n_slots, sizeof(*entries));
    if (!list || !entries) {
        free(list);
        free(entries);
        return error_set(err, ERR_NOMEM, "no memory for the list of checkpoints");
    }
    for (uint32_t i = 0; i < n_slots; i++) entries[i].block = CHECKPOINT_NONE;
    *list = (struct checkpoints){
        .slots = slots, .oldest = CHECKPOINT_NONE, .newest = CHECKPOINT_NONE, .entries = entries};
    *out = list;
    return 0;
}

void checkpoints_destroy(struct checkpoints *list) {
    if (!list) return;
    free(list->entries);
    free(list);
}

static void take_out(struct checkpoints *list, uint32_t slot) {
    const struct entry *e = &list->entries[slot];
    if (e->older != CHECKPOINT_NONE) list->entries[e->older].newer = e->newer;
    else list->oldest = e->newer;
    if (e->newer != CHECKPOINT_NONE) list->entries[e->newer].older = e->older;
    else list->newest = e->older;
}

static void append(struct checkpoints *list, uint32_t slot) {
    struct entry *e = &list->entries[slot];
    e->older = list->newest;
    e->newer = CHECKPOINT_NONE;
    if (list->newest != CHECKPOINT_NONE) list->entries[list->newest].newer = slot;
    else list->oldest = slot;
    list->newest = slot;
}

void checkpoints_add(struct checkpoints *list, uint32_t slot, uint32_t block) {
    list->entries[slot].block = block;
    append(list, slot);
    list->stats.n++;
    list->stats.n_added++;
}

void checkpoints_use(struct checkpoints *list, uint32_t slot) {
    take_out(list, slot);
    append(list, slot);
    list->stats.n_used++;
}

void checkpoints_remove(struct checkpoints *list, uint32_t slot) {
    take_out(list, slot);
    list->entries[slot].block = CHECKPOINT_NONE;
    list->stats.n--;
    page_pool_release(list->slots, &slot, 1);
}

uint32_t checkpoints_block(const struct checkpoints *list, uint32_t slot) {
    return list->entries[slot].block;
}

static bool is_idle(const struct checkpoints *list, uint32_t slot) {
    return page_pool_n_holders(list->slots, slot) == 1;
}

uint32_t checkpoints_oldest(const struct checkpoints *list) {
    uint32_t slot = list->oldest;
    while (slot != CHECKPOINT_NONE && !is_idle(list, slot)) slot = list->entries[slot].newer;
    return slot == CHECKPOINT_NONE ? CHECKPOINT_NONE : list->entries[slot].block;
}

struct checkpoint_stats checkpoints_stats(const struct checkpoints *list) {
    return list->stats;
}

uint32_t checkpoints_n_idle(const struct checkpoints *list) {
    uint32_t n = 0;
    for (uint32_t s = list->oldest; s != CHECKPOINT_NONE; s = list->entries[s].newer)
        n += is_idle(list, s);
    return n;
}
