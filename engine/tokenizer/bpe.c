/* bpe.c - byte pair encoding of one piece: the pair of lowest rank merges first, leftmost on a tie.
 *
 * Short pieces (nearly all) scan an array for the lowest rank.  Long ones keep the candidates in a
 * heap over a linked list of symbols, so that a megabyte of one letter costs n log n:
 *
 *   nodes   [id|prev|next] [id|prev|next] ...      next of the last: NONE
 *   heap    (rank, node) of every adjacent pair that merges; stale entries go when they surface
 *
 * Thread: any; what changes is in the caller's scratch.  Memory: the merge table, the scratch. */
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/tokenizer/internal.h"

enum { SHORT_PIECE = 64 };

static const uint64_t EMPTY_PAIR = UINT64_MAX;
static const uint32_t NONE = UINT32_MAX;

static uint64_t pair_of(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

static size_t pair_slot(const struct bpe *bpe, uint64_t pair) {
    const uint64_t hash = pair * UINT64_C(0x9E3779B97F4A7C15);
    return (size_t)(hash ^ hash >> 32) & bpe->mask;
}

int bpe_init(struct bpe *bpe, size_t n_merges) {
    size_t size = 16;
    while (size < 2 * n_merges) size *= 2; /* at most half full: a probe always ends */
    bpe->merges = malloc(size * sizeof(*bpe->merges));
    if (!bpe->merges) return ERR_NOMEM;
    bpe->mask = size - 1;
    for (size_t i = 0; i < size; i++) bpe->merges[i].pair = EMPTY_PAIR;
    return 0;
}

void bpe_fini(struct bpe *bpe) {
    free(bpe->merges);
    bpe->merges = NULL;
}

void bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id) {
    const uint64_t pair = pair_of(left, right);
    size_t i = pair_slot(bpe, pair);
    while (bpe->merges[i].pair != EMPTY_PAIR && bpe->merges[i].pair != pair)
        i = (i + 1) & bpe->mask;
    bpe->merges[i] = (struct merge){.pair = pair, .rank = rank, .id = id};
}

static const struct merge *find_merge(const struct bpe *bpe, uint32_t left, uint32_t right) {
    const uint64_t pair = pair_of(left, right);
    for (size_t i = pair_slot(bpe, pair); bpe->merges[i].pair != EMPTY_PAIR;
         i = (i + 1) & bpe->mask) {
        if (bpe->merges[i].pair == pair) return &bpe->merges[i];
    }
    return NULL;
}

static void rank_pair(const struct bpe *bpe, const uint32_t *ids, size_t i, uint32_t *ranks,
                      uint32_t *merged) {
    const struct merge *merge = find_merge(bpe, ids[i], ids[i + 1]);
    ranks[i] = merge ? merge->rank : NONE;
    merged[i] = merge ? merge->id : NO_TOKEN;
}

static void remove_at(uint32_t *values, size_t i, size_t n) {
    memmove(values + i, values + i + 1, (n - i - 1) * sizeof(*values));
}

/* ids holds n symbols and is merged in place. */
static size_t merge_short(const struct bpe *bpe, uint32_t *ids, size_t n) {
    uint32_t ranks[SHORT_PIECE], merged[SHORT_PIECE]; /* of the pairs (i, i + 1) */
    for (size_t i = 0; i + 1 < n; i++) rank_pair(bpe, ids, i, ranks, merged);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (ranks[i] < ranks[best]) best = i;
        }
        if (ranks[best] == NONE) break;
        ids[best] = merged[best];
        remove_at(ids, best + 1, n);
        remove_at(ranks, best, n - 1);
        remove_at(merged, best, n - 1);
        n--;
        if (best + 1 < n) rank_pair(bpe, ids, best, ranks, merged);
        if (best > 0) rank_pair(bpe, ids, best - 1, ranks, merged);
    }
    return n;
}

struct node {
    uint32_t id, prev, next;
};

/* Four children of eight bytes, so that a level of a large heap costs one line of cache. */
enum { CHILDREN = 4 };

struct heap {
    uint64_t *entries; /* rank << 32 | left node: the lowest rank first, leftmost on a tie */
    size_t n;
};

static void heap_push(struct heap *heap, uint64_t entry) {
    size_t i = heap->n++;
    while (i > 0 && entry < heap->entries[(i - 1) / CHILDREN]) {
        heap->entries[i] = heap->entries[(i - 1) / CHILDREN];
        i = (i - 1) / CHILDREN;
    }
    heap->entries[i] = entry;
}

static size_t least_child(const struct heap *heap, size_t i) {
    const size_t first = CHILDREN * i + 1;
    size_t least = first;
    for (size_t child = first + 1; child < first + CHILDREN && child < heap->n; child++)
        if (heap->entries[child] < heap->entries[least]) least = child;
    return least;
}

static uint64_t heap_pop(struct heap *heap) {
    const uint64_t top = heap->entries[0];
    const uint64_t last = heap->entries[--heap->n];
    size_t i = 0;
    while (CHILDREN * i + 1 < heap->n) {
        const size_t child = least_child(heap, i);
        if (heap->entries[child] >= last) break;
        heap->entries[i] = heap->entries[child];
        i = child;
    }
    heap->entries[i] = last;
    return top;
}

/* The merge of a node and the one after it, or NULL.  A merged node's right half has left the list:
 * its id says so. */
static const struct merge *merge_at(const struct bpe *bpe, const struct node *nodes,
                                    uint32_t left) {
    if (left == NONE || nodes[left].id == NO_TOKEN || nodes[left].next == NONE) return NULL;
    return find_merge(bpe, nodes[left].id, nodes[nodes[left].next].id);
}

static void push_pair(const struct bpe *bpe, struct heap *heap, const struct node *nodes,
                      uint32_t left) {
    const struct merge *merge = merge_at(bpe, nodes, left);
    if (merge) heap_push(heap, (uint64_t)merge->rank << 32 | left);
}

static void merge_node(struct node *nodes, uint32_t left, uint32_t id) {
    struct node *node = &nodes[left];
    struct node *right = &nodes[node->next];
    node->id = id;
    node->next = right->next;
    if (right->next != NONE) nodes[right->next].prev = left;
    right->id = NO_TOKEN;
}

/* Room for 2n candidates and n nodes: n - 1 pairs at first, each merge takes one and adds two. */
static int reserve(struct bpe_scratch *scratch, size_t n) {
    const size_t size = n * (sizeof(struct node) + 2 * sizeof(uint64_t));
    if (size <= scratch->size) return 0;
    void *memory = realloc(scratch->memory, size);
    if (!memory) return ERR_NOMEM;
    scratch->memory = memory;
    scratch->size = size;
    return 0;
}

static int merge_long(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids,
                      size_t *n_ids) {
    const size_t n = *n_ids;
    if (reserve(scratch, n)) return ERR_NOMEM;
    struct heap heap = {.entries = scratch->memory};
    struct node *nodes = (struct node *)(void *)(heap.entries + 2 * n);
    for (uint32_t i = 0; i < n; i++) {
        nodes[i] = (struct node){
            .id = ids[i], .prev = i > 0 ? i - 1 : NONE, .next = i + 1 < n ? i + 1 : NONE};
    }
    for (uint32_t i = 0; i < n; i++) push_pair(bpe, &heap, nodes, i);
    while (heap.n > 0) {
        const uint64_t top = heap_pop(&heap);
        const uint32_t left = (uint32_t)top;
        const struct merge *merge = merge_at(bpe, nodes, left);
        /* Another pair has come in the place of a stale entry's. */
        if (!merge || merge->rank != top >> 32) continue;
        merge_node(nodes, left, merge->id);
        push_pair(bpe, &heap, nodes, nodes[left].prev);
        push_pair(bpe, &heap, nodes, left);
    }
    *n_ids = 0;
    for (uint32_t i = 0; i != NONE; i = nodes[i].next) ids[(*n_ids)++] = nodes[i].id;
    return 0;
}

int bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids, size_t *n_ids) {
    if (*n_ids > SHORT_PIECE) return merge_long(bpe, scratch, ids, n_ids);
    *n_ids = merge_short(bpe, ids, *n_ids);
    return 0;
}
