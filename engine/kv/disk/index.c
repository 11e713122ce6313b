/* index.c - entries in one growing array, a chained hash table over them, and a list by age.  Names
 * are hashes already, so their first word chooses the bucket.
 *
 * Thread: one at a time.  Memory: see index.h. */
#include "engine/kv/disk/index.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/age_list.h"
#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/disk/format.h"

#define NONE UINT32_MAX

enum { FIRST_CAPACITY = 256 };

struct item {
    struct disk_entry entry;
    uint32_t next; /* in its bucket, or in the list of vacant items */
};

struct length {
    uint32_t n_tokens, n_states;
};

struct disk_index {
    struct item *items;    /* [capacity] */
    struct age_link *ages; /* [capacity] */
    struct age_list by_age;
    uint32_t *buckets; /* [capacity], a power of two */
    uint32_t capacity, n_items, vacant;
    uint64_t bytes;
    struct length *lengths; /* [n_lengths], ascending */
    uint32_t n_lengths, length_capacity;
};

static uint32_t *bucket_of(const struct disk_index *index, const struct disk_id *id) {
    return &index->buckets[id->name.words[0] & (index->capacity - 1)];
}

static bool same_id(const struct disk_id *a, const struct disk_id *b) {
    return digest_same(a->name, b->name) && a->kind == b->kind && a->n_tokens == b->n_tokens;
}

static uint32_t find(const struct disk_index *index, const struct disk_id *id) {
    uint32_t i = *bucket_of(index, id);
    while (i != NONE && !same_id(&index->items[i].entry.id, id)) i = index->items[i].next;
    return i;
}

static void link_to_bucket(struct disk_index *index, uint32_t i) {
    uint32_t *bucket = bucket_of(index, &index->items[i].entry.id);
    index->items[i].next = *bucket;
    *bucket = i;
}

/* Makes capacity for twice as many items; there is no vacant one. */
static int grow(struct disk_index *index, uint32_t capacity) {
    struct item *items = realloc(index->items, capacity * sizeof(*items));
    if (!items) return ERR_NOMEM;
    index->items = items;
    struct age_link *ages = realloc(index->ages, capacity * sizeof(*ages));
    if (!ages) return ERR_NOMEM;
    index->ages = ages;
    uint32_t *buckets = malloc(capacity * sizeof(*buckets));
    if (!buckets) return ERR_NOMEM;
    free(index->buckets);
    index->buckets = buckets;
    memset(buckets, 0xff, capacity * sizeof(*buckets));
    const uint32_t n = index->capacity;
    index->capacity = capacity;
    for (uint32_t i = 0; i < n; i++) link_to_bucket(index, i);
    for (uint32_t i = capacity; i-- > n;) {
        items[i].next = index->vacant;
        index->vacant = i;
    }
    return 0;
}

int disk_index_create(struct disk_index **out) {
    struct disk_index *index = calloc(1, sizeof(*index));
    if (!index) return ERR_NOMEM;
    index->vacant = NONE;
    index->by_age = age_list_empty();
    if (grow(index, FIRST_CAPACITY)) {
        disk_index_destroy(index);
        return ERR_NOMEM;
    }
    *out = index;
    return 0;
}

void disk_index_destroy(struct disk_index *index) {
    if (!index) return;
    free(index->items);
    free(index->ages);
    free(index->buckets);
    free(index->lengths);
    free(index);
}

/* ---- ages ---- */

static void append(struct disk_index *index, uint32_t i) {
    age_list_append(&index->by_age, index->ages, i);
}

static void take_out(struct disk_index *index, uint32_t i) {
    age_list_remove(&index->by_age, index->ages, i);
}

/* What sorting compares. */
struct age {
    uint64_t used_s;
    uint32_t n_tokens, item;
};

static int compare_ages(const void *left, const void *right) {
    const struct age *a = left, *b = right;
    if (a->used_s != b->used_s) return a->used_s < b->used_s ? -1 : 1;
    return a->n_tokens != b->n_tokens ? (a->n_tokens > b->n_tokens ? -1 : 1) : 0;
}

void disk_index_sort(struct disk_index *index) {
    struct age *ages = malloc((index->n_items + 1) * sizeof(*ages));
    uint32_t n = 0;
    if (!ages) return; /* the order that they were found in will do */
    for (uint32_t i = index->by_age.oldest; i != AGE_NONE; i = index->ages[i].newer)
        ages[n++] =
            (struct age){index->items[i].entry.used_s, index->items[i].entry.id.n_tokens, i};
    qsort(ages, n, sizeof(*ages), compare_ages);
    index->by_age = age_list_empty();
    for (uint32_t i = 0; i < n; i++) append(index, ages[i].item);
    free(ages);
}

/* ---- lengths of states ---- */

/* Returns the place of the first length that is not below n_tokens. */
static uint32_t length_at(const struct disk_index *index, uint32_t n_tokens) {
    uint32_t from = 0, end = index->n_lengths;
    while (from < end) {
        const uint32_t middle = from + (end - from) / 2;
        if (index->lengths[middle].n_tokens < n_tokens) from = middle + 1;
        else end = middle;
    }
    return from;
}

static bool has_length(const struct disk_index *index, uint32_t at, uint32_t n_tokens) {
    return at < index->n_lengths && index->lengths[at].n_tokens == n_tokens;
}

static int count_length(struct disk_index *index, const struct disk_id *id) {
    if (id->kind != DISK_STATE) return 0;
    const uint32_t at = length_at(index, id->n_tokens);
    if (!has_length(index, at, id->n_tokens)) {
        if (index->n_lengths == index->length_capacity) {
            const uint32_t capacity = max_u32(16, 2 * index->length_capacity);
            struct length *lengths = realloc(index->lengths, capacity * sizeof(*lengths));
            if (!lengths) return ERR_NOMEM;
            index->lengths = lengths;
            index->length_capacity = capacity;
        }
        memmove(index->lengths + at + 1, index->lengths + at,
                (index->n_lengths++ - at) * sizeof(*index->lengths));
        index->lengths[at] = (struct length){.n_tokens = id->n_tokens};
    }
    index->lengths[at].n_states++;
    return 0;
}

static void discount_length(struct disk_index *index, const struct disk_id *id) {
    if (id->kind != DISK_STATE) return;
    const uint32_t at = length_at(index, id->n_tokens);
    if (--index->lengths[at].n_states > 0) return;
    memmove(index->lengths + at, index->lengths + at + 1,
            (--index->n_lengths - at) * sizeof(*index->lengths));
}

uint32_t disk_index_lengths(const struct disk_index *index, uint32_t n_min, uint32_t n_max,
                            uint32_t *lengths, uint32_t most) {
    uint32_t end = length_at(index, n_max), from;
    end += has_length(index, end, n_max);
    from = n_min < n_max ? length_at(index, n_min + 1) : end;
    if (end - from > most) from = end - most;
    for (uint32_t i = from; i < end; i++) lengths[i - from] = index->lengths[i].n_tokens;
    return end - from;
}

/* ---- entries ---- */

int disk_index_add(struct disk_index *index, const struct disk_entry *entry) {
    if (index->n_items >= DISK_MAX_ITEMS || find(index, &entry->id) != NONE) return ERR_FULL;
    if (index->vacant == NONE && grow(index, 2 * index->capacity)) return ERR_NOMEM;
    if (count_length(index, &entry->id)) return ERR_NOMEM;
    const uint32_t i = index->vacant;
    index->vacant = index->items[i].next;
    index->items[i].entry = *entry;
    link_to_bucket(index, i);
    append(index, i);
    index->bytes += entry->bytes;
    index->n_items++;
    return 0;
}

const struct disk_entry *disk_index_find(const struct disk_index *index, const struct disk_id *id) {
    const uint32_t i = find(index, id);
    return i == NONE ? NULL : &index->items[i].entry;
}

void disk_index_touch(struct disk_index *index, const struct disk_id *id) {
    const uint32_t i = find(index, id);
    if (i == NONE) return;
    take_out(index, i);
    append(index, i);
}

void disk_index_set_bytes(struct disk_index *index, const struct disk_id *id, uint64_t bytes) {
    const uint32_t i = find(index, id);
    if (i == NONE) return;
    index->bytes += bytes - index->items[i].entry.bytes;
    index->items[i].entry.bytes = bytes;
    disk_index_touch(index, id);
}

void disk_index_remove(struct disk_index *index, const struct disk_id *id) {
    const uint32_t i = find(index, id);
    if (i == NONE) return;
    const struct disk_id own = index->items[i].entry.id; /* *id may lie in the item */
    uint32_t *link = bucket_of(index, &own);
    while (*link != i) link = &index->items[*link].next;
    *link = index->items[i].next;
    take_out(index, i);
    discount_length(index, &own);
    index->bytes -= index->items[i].entry.bytes;
    index->n_items--;
    index->items[i].next = index->vacant;
    index->vacant = i;
}

const struct disk_entry *disk_index_oldest(const struct disk_index *index) {
    uint32_t i = index->by_age.oldest;
    while (i != AGE_NONE && index->items[i].entry.bytes == 0) i = index->ages[i].newer;
    return i == AGE_NONE ? NULL : &index->items[i].entry;
}

uint32_t disk_index_n_items(const struct disk_index *index) {
    return index->n_items;
}

uint64_t disk_index_bytes(const struct disk_index *index) {
    return index->bytes;
}
