/* known_blocks.c - see known_blocks.h.
 *
 *   buckets   [ • ][   ][ • ]      lists of blocks by the lowest bits of their names
 *   blocks    oldest ◄──► … ◄──► newest */
#include "server/replicas/known_blocks.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/error.h"

#define NONE UINT32_MAX

struct block {
    uint64_t name;
    uint32_t next; /* in its bucket */
    uint32_t older, newer;
};

struct known_blocks {
    uint32_t n, n_most, oldest, newest;
    uint32_t mask;        /* buckets less one: a power of two */
    uint32_t *buckets;    /* [mask + 1]: the first block of each, or NONE */
    struct block *blocks; /* [n_most], of which n are used */
};

int known_blocks_create(struct known_blocks **out, uint32_t n_blocks, struct error *err) {
    struct known_blocks *known = calloc(1, sizeof(*known));
    uint32_t n_buckets = 1;
    while (n_buckets < n_blocks && n_buckets < 1u << 31) n_buckets *= 2;
    if (known) {
        *known = (struct known_blocks){
            .n_most = n_blocks, .oldest = NONE, .newest = NONE, .mask = n_buckets - 1};
        known->buckets = malloc(n_buckets * sizeof(*known->buckets));
        known->blocks = malloc(n_blocks * sizeof(*known->blocks));
    }
    if (!known || !known->buckets || !known->blocks) {
        known_blocks_destroy(known);
        return error_set(err, ERR_NOMEM, "no memory to note %" PRIu32 " blocks of a replica",
                         n_blocks);
    }
    for (uint32_t i = 0; i < n_buckets; i++) known->buckets[i] = NONE;
    *out = known;
    return 0;
}

void known_blocks_destroy(struct known_blocks *known) {
    if (!known) return;
    free(known->buckets);
    free(known->blocks);
    free(known);
}

static uint32_t *bucket_of(const struct known_blocks *known, uint64_t name) {
    return &known->buckets[name & known->mask];
}

static uint32_t find(const struct known_blocks *known, uint64_t name) {
    uint32_t at = *bucket_of(known, name);
    while (at != NONE && known->blocks[at].name != name) at = known->blocks[at].next;
    return at;
}

bool known_blocks_has(const struct known_blocks *known, uint64_t name) {
    return find(known, name) != NONE;
}

/* Takes a block out of the order of age. */
static void take_out(struct known_blocks *known, uint32_t at) {
    const struct block *b = &known->blocks[at];
    if (b->older == NONE) known->oldest = b->newer;
    else known->blocks[b->older].newer = b->newer;
    if (b->newer == NONE) known->newest = b->older;
    else known->blocks[b->newer].older = b->older;
}

static void append(struct known_blocks *known, uint32_t at) {
    struct block *b = &known->blocks[at];
    b->older = known->newest;
    b->newer = NONE;
    if (known->newest == NONE) known->oldest = at;
    else known->blocks[known->newest].newer = at;
    known->newest = at;
}

/* Forgets the oldest block, and returns its place. */
static uint32_t forget(struct known_blocks *known) {
    const uint32_t at = known->oldest;
    uint32_t *link = bucket_of(known, known->blocks[at].name);
    while (*link != at) link = &known->blocks[*link].next;
    *link = known->blocks[at].next;
    take_out(known, at);
    return at;
}

void known_blocks_use(struct known_blocks *known, uint64_t name) {
    uint32_t at = find(known, name);
    if (at != NONE) {
        take_out(known, at);
    } else {
        at = known->n < known->n_most ? known->n++ : forget(known);
        uint32_t *bucket = bucket_of(known, name);
        known->blocks[at].name = name;
        known->blocks[at].next = *bucket;
        *bucket = at;
    }
    append(known, at);
}
