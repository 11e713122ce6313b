/* bpe.c - byte pair encoding: the pair of lowest rank merges first, leftmost on a tie.
 *
 * Few symbols (nearly always) are scanned for the lowest rank.  The candidates of many symbols are
 * in a heap, over a linked list of symbols.  So merging n symbols at once costs n log n:
 *
 *   nodes       [id|prev|next] [id|prev|next] ...      next of the last: NONE
 *   candidates  every adjacent pair that merges, by its left node; stale ones are dropped on top
 *   batches     candidates of one rank from left to right, as they mostly come; the heap's elements
 *
 * So a run of one letter, whose candidates have few ranks, has a heap of few batches.
 *
 * Thread: any; what changes is in the caller's scratch.  Memory: the merge table, the scratch. */
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

enum { SIEVE_BITS = 8 }; /* for each slot: a sieve of one megabyte for a table of sixteen */

static const uint64_t EMPTY_PAIR = UINT64_MAX;
static const uint32_t NONE = UINT32_MAX, TAKEN = UINT32_MAX - 1;

static uint64_t pair_of(uint32_t left, uint32_t right) {
    return (uint64_t)left << 32 | right;
}

static uint64_t pair_hash(uint64_t pair) {
    const uint64_t hash = pair * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 32;
}

/* Returns a pair's bit of the sieve, from higher bits of its hash than those of its slot. */
static size_t sieve_bit(const struct bpe *bpe, uint64_t hash) {
    return (size_t)(hash >> 28) & (SIEVE_BITS * (bpe->mask + 1) - 1);
}

int bpe_init(struct bpe *bpe, size_t n_merges) {
    size_t size = 16;
    while (size < 2 * n_merges) size *= 2; /* at most half full: a probe always ends */
    bpe->merges = malloc(size * sizeof(*bpe->merges));
    if (!bpe->merges) return ERR_NOMEM;
    bpe->mask = size - 1;
    for (size_t i = 0; i < size; i++) bpe->merges[i].pair = EMPTY_PAIR;
    bpe->sieve = calloc(SIEVE_BITS * size / 8, 1);
    return bpe->sieve ? 0 : ERR_NOMEM;
}

void bpe_fini(struct bpe *bpe) {
    free(bpe->merges);
    free(bpe->sieve);
    *bpe = (struct bpe){0};
}

void bpe_add_merge(struct bpe *bpe, uint32_t left, uint32_t right, uint32_t rank, uint32_t id) {
    const uint64_t pair = pair_of(left, right);
    const uint64_t hash = pair_hash(pair);
    const size_t bit = sieve_bit(bpe, hash);
    bpe->sieve[bit / 8] |= (uint8_t)(1u << bit % 8);
    size_t i = (size_t)hash & bpe->mask;
    while (bpe->merges[i].pair != EMPTY_PAIR && bpe->merges[i].pair != pair)
        i = (i + 1) & bpe->mask;
    bpe->merges[i] = (struct merge){.pair = pair, .rank = rank, .id = id};
}

static const struct merge *find_merge(const struct bpe *bpe, uint32_t left, uint32_t right) {
    const uint64_t pair = pair_of(left, right);
    const uint64_t hash = pair_hash(pair);
    const size_t bit = sieve_bit(bpe, hash);
    if (!(bpe->sieve[bit / 8] >> bit % 8 & 1)) return NULL;
    for (size_t i = (size_t)hash & bpe->mask; bpe->merges[i].pair != EMPTY_PAIR;
         i = (i + 1) & bpe->mask) {
        if (bpe->merges[i].pair == pair) return &bpe->merges[i];
    }
    return NULL;
}

enum { N_BLOCK = 16, N_BLOCKS = BPE_FEW / N_BLOCK, NO_KEY = INT32_MAX };

/* A few symbols, each in the place it began with; a merged symbol takes the place of its left half.
 * The lowest key of each block is stored, as a merge changes keys in one block, seldom in more. */
struct few {
    int32_t keys[BPE_FEW]; /* rank * BPE_FEW + place of a pair that merges: leftmost on a tie */
    int32_t lowest[N_BLOCKS];
    uint32_t merged[BPE_FEW];             /* what each pair merges to */
    uint8_t prev[BPE_FEW], next[BPE_FEW]; /* places; of the first: 0, of the last: their number */
};

static void key_pair(const struct bpe *bpe, const uint32_t *ids, size_t left, size_t right,
                     struct few *few) {
    const struct merge *merge = find_merge(bpe, ids[left], ids[right]);
    few->keys[left] = merge ? (int32_t)(merge->rank * BPE_FEW + left) : NO_KEY;
    few->merged[left] = merge ? merge->id : NO_TOKEN;
}

static int32_t find_lowest(const int32_t *keys, size_t n) {
    int32_t lowest = NO_KEY;
    for (size_t i = 0; i < n; i++) lowest = keys[i] < lowest ? keys[i] : lowest;
    return lowest;
}

static void update_block(struct few *few, size_t block) {
    few->lowest[block] = find_lowest(few->keys + block * N_BLOCK, N_BLOCK);
}

static void few_init(struct few *few, const struct bpe *bpe, const uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) {
        few->prev[i] = (uint8_t)(i > 0 ? i - 1 : 0);
        few->next[i] = (uint8_t)(i + 1);
    }
    const size_t n_blocks = (n + N_BLOCK - 1) / N_BLOCK;
    for (size_t i = n > 0 ? n - 1 : 0; i < n_blocks * N_BLOCK; i++) few->keys[i] = NO_KEY;
    for (size_t i = 0; i + 1 < n; i++) key_pair(bpe, ids, i, i + 1, few);
    for (size_t b = 0; b < N_BLOCKS; b++) few->lowest[b] = NO_KEY;
    for (size_t b = 0; b < n_blocks; b++) update_block(few, b);
}

static void merge_place(struct few *few, const struct bpe *bpe, uint32_t *ids, size_t n,
                        size_t left) {
    const size_t prev = few->prev[left], right = few->next[left], next = few->next[right];
    ids[left] = few->merged[left];
    few->next[left] = (uint8_t)next;
    few->keys[left] = few->keys[right] = NO_KEY;
    if (next < n) few->prev[next] = (uint8_t)left;
    if (next < n) key_pair(bpe, ids, left, next, few);
    if (prev < left) key_pair(bpe, ids, prev, left, few);
    update_block(few, left / N_BLOCK);
    if (right / N_BLOCK != left / N_BLOCK) update_block(few, right / N_BLOCK);
    if (prev / N_BLOCK != left / N_BLOCK) update_block(few, prev / N_BLOCK);
}

static size_t merge_few(const struct bpe *bpe, uint32_t *ids, uint32_t *begins, size_t n) {
    struct few few;
    size_t n_left = 0;
    few_init(&few, bpe, ids, n);
    for (int32_t key; (key = find_lowest(few.lowest, N_BLOCKS)) != NO_KEY;)
        merge_place(&few, bpe, ids, n, (size_t)key % BPE_FEW);
    for (size_t i = 0; i < n; i = few.next[i]) {
        begins[n_left] = (uint32_t)i;
        ids[n_left++] = ids[i];
    }
    return n_left;
}

struct node {
    uint32_t id, prev, next;
};

struct merge_candidate {
    uint32_t node, next; /* next of a batch's last: NONE; TAKEN: it has surfaced */
};

struct merge_batch {
    uint64_t key; /* rank << 32 | node of the first: the lowest rank first, leftmost on a tie */
    uint32_t first;
};

enum { N_RECENT = 256 };

struct queue {
    struct bpe_scratch *scratch; /* the heap of batches */
    size_t n;
    struct merge_candidate *candidates;
    uint32_t n_candidates;
    uint32_t last[N_RECENT], rank[N_RECENT]; /* of batches that lately grew, by rank */
};

static int heap_push(struct queue *queue, struct merge_batch batch) {
    struct bpe_scratch *scratch = queue->scratch;
    if (queue->n == scratch->n_heap) {
        const size_t capacity = 2 * scratch->n_heap + 64;
        struct merge_batch *heap = realloc(scratch->heap, capacity * sizeof(*heap));
        if (!heap) return ERR_NOMEM;
        scratch->heap = heap;
        scratch->n_heap = capacity;
    }
    size_t i = queue->n++;
    while (i > 0 && batch.key < scratch->heap[(i - 1) / 2].key) {
        scratch->heap[i] = scratch->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    scratch->heap[i] = batch;
    return 0;
}

/* Puts a batch at the top, in place of the one there, and lets it sink. */
static void heap_sink(struct queue *queue, struct merge_batch batch) {
    struct merge_batch *heap = queue->scratch->heap;
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= queue->n) break;
        if (child + 1 < queue->n && heap[child + 1].key < heap[child].key) child++;
        if (heap[child].key >= batch.key) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = batch;
}

static uint64_t key_of(uint32_t rank, uint32_t node) {
    return (uint64_t)rank << 32 | node;
}

static int queue_push(struct queue *queue, uint32_t rank, uint32_t node) {
    const uint32_t candidate = queue->n_candidates++;
    queue->candidates[candidate] = (struct merge_candidate){.node = node, .next = NONE};
    const size_t slot = rank % N_RECENT;
    const uint32_t last = queue->last[slot];
    queue->last[slot] = candidate;
    if (last != NONE && queue->rank[slot] == rank && queue->candidates[last].next == NONE &&
        queue->candidates[last].node < node) {
        queue->candidates[last].next = candidate;
        return 0;
    }
    queue->rank[slot] = rank;
    return heap_push(queue, (struct merge_batch){.key = key_of(rank, node), .first = candidate});
}

static uint64_t queue_pop(struct queue *queue) {
    const struct merge_batch top = queue->scratch->heap[0];
    struct merge_candidate *taken = &queue->candidates[top.first];
    const uint32_t next = taken->next;
    taken->next = TAKEN;
    if (next != NONE) {
        const uint32_t rank = (uint32_t)(top.key >> 32);
        heap_sink(queue, (struct merge_batch){.key = key_of(rank, queue->candidates[next].node),
                                              .first = next});
    } else if (--queue->n > 0) {
        heap_sink(queue, queue->scratch->heap[queue->n]);
    }
    return top.key;
}

/* Returns the merge of a node and the one after it, or NULL.  The right half of a merged node has
 * left the list; its id is NO_TOKEN. */
static const struct merge *merge_at(const struct bpe *bpe, const struct node *nodes,
                                    uint32_t left) {
    if (left == NONE || nodes[left].id == NO_TOKEN || nodes[left].next == NONE) return NULL;
    return find_merge(bpe, nodes[left].id, nodes[nodes[left].next].id);
}

static int push_pair(const struct bpe *bpe, struct queue *queue, const struct node *nodes,
                     uint32_t left) {
    const struct merge *merge = merge_at(bpe, nodes, left);
    return merge ? queue_push(queue, merge->rank, left) : 0;
}

static void merge_node(struct node *nodes, uint32_t left, uint32_t id) {
    struct node *node = &nodes[left];
    struct node *right = &nodes[node->next];
    node->id = id;
    node->next = right->next;
    if (right->next != NONE) nodes[right->next].prev = left;
    right->id = NO_TOKEN;
}

/* Reserves n nodes and 3n candidates: n - 1 pairs at first, and two for each merge. */
static int reserve(struct bpe_scratch *scratch, size_t n) {
    const size_t size = n * (sizeof(struct node) + 3 * sizeof(struct merge_candidate));
    if (size <= scratch->size) return 0;
    void *memory = realloc(scratch->memory, size);
    if (!memory) return ERR_NOMEM;
    scratch->memory = memory;
    scratch->size = size;
    return 0;
}

static int merge_all(const struct bpe *bpe, struct queue *queue, struct node *nodes) {
    while (queue->n > 0) {
        const uint64_t top = queue_pop(queue);
        const uint32_t left = (uint32_t)top;
        const struct merge *merge = merge_at(bpe, nodes, left);
        /* A stale candidate: its node now has another pair, or none. */
        if (!merge || merge->rank != top >> 32) continue;
        merge_node(nodes, left, merge->id);
        if (push_pair(bpe, queue, nodes, nodes[left].prev)) return ERR_NOMEM;
        if (push_pair(bpe, queue, nodes, left)) return ERR_NOMEM;
    }
    return 0;
}

static int merge_many(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids,
                      uint32_t *begins, size_t *n_ids) {
    const size_t n = *n_ids;
    if (reserve(scratch, n)) return ERR_NOMEM;
    struct node *nodes = scratch->memory;
    struct queue queue = {.scratch = scratch,
                          .candidates = (struct merge_candidate *)(void *)(nodes + n)};
    for (size_t i = 0; i < N_RECENT; i++) queue.last[i] = NONE;
    for (uint32_t i = 0; i < n; i++) {
        nodes[i] = (struct node){
            .id = ids[i], .prev = i > 0 ? i - 1 : NONE, .next = i + 1 < n ? i + 1 : NONE};
    }
    for (uint32_t i = 0; i < n; i++)
        if (push_pair(bpe, &queue, nodes, i)) return ERR_NOMEM;
    if (merge_all(bpe, &queue, nodes)) return ERR_NOMEM;
    *n_ids = 0;
    for (uint32_t i = 0; i != NONE; i = nodes[i].next) {
        begins[*n_ids] = i;
        ids[(*n_ids)++] = nodes[i].id;
    }
    return 0;
}

int bpe_merge_at_once(const struct bpe *bpe, struct bpe_scratch *scratch, uint32_t *ids,
                      uint32_t *begins, size_t *n_ids) {
    if (*n_ids > BPE_FEW) return merge_many(bpe, scratch, ids, begins, n_ids);
    *n_ids = merge_few(bpe, ids, begins, *n_ids);
    return 0;
}
