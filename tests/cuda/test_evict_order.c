/* test_evict_order.c - the order of bounded caches of up to 20,000 tokens, bit for bit against its
 * definition: every token is moved to the slot of its rank, and nothing else changes.
 *
 * Pages are random bytes but for ranks and free slots, so a byte from a wrong place shows.  Two
 * sequences are not ordered, and must stay as they are.  The KV heads of a sequence's layers have
 * ranks of different kinds. */
#include "engine/base/sizes.h"
#include "tests/cuda/pool_rig.h"

enum kind { IN_ORDER, GAP, ROTATED, PAIRED, SHUFFLED, ONE_CYCLE, N_KINDS };
/* The layers have as many KV heads as there are kinds, so every capacity has each kind. */
enum { N_LAYERS = 2, N_KV_HEADS = N_KINDS / N_LAYERS };

/* The kernel lists 1,024 slots at a time and keeps up to 9,216 ranks in shared memory. */
static const uint32_t capacities[] = {130, 1025, /* these two stay */
                                      1,   63,   64, 1023, 1024, 1025, 2048, 9215, 9216, 20000};
enum { N_LEFT_ALONE = 2, N_SEQS = sizeof(capacities) / sizeof(capacities[0]) };
enum { FIRST_ORDERED = N_LEFT_ALONE * N_KINDS, N_HEADS = N_SEQS * N_KINDS };

struct rig {
    struct pool_rig pool;
    struct kv_view views[N_SEQS][N_LAYERS];
};

/* ---- ranks ---- */

/* Swaps each element with one before it or itself.  If it is never itself, numbers in order become
 * a permutation that is one cycle (Sattolo). */
static void shuffle(uint32_t *x, uint32_t n, bool one_cycle) {
    for (uint32_t i = n - 1; i > 0; i--) {
        const uint32_t j = random_below(one_cycle ? i : i + 1), other = x[j];
        x[j] = x[i];
        x[i] = other;
    }
}

static uint32_t rank_of(enum kind kind, uint32_t slot, uint32_t n, uint32_t at) {
    switch (kind) {
    case GAP: return slot < at ? slot : slot == at ? n - 1 : slot - 1;
    case ROTATED: return (slot + at) % n; /* as in a ring buffer */
    case PAIRED: return min_u32(slot ^ 1, n - 1);
    default: return slot;
    }
}

/* Returns the ranks of n slots.  The slot with the last rank is the free one. */
static uint32_t *make_ranks(enum kind kind, uint32_t n) {
    uint32_t *ranks = malloc(n * sizeof(*ranks));
    assert_non_null(ranks);
    const uint32_t at = random_below(n);
    for (uint32_t slot = 0; slot < n; slot++) ranks[slot] = rank_of(kind, slot, n, at);
    if (kind == SHUFFLED || kind == ONE_CYCLE) shuffle(ranks, n, kind == ONE_CYCLE);
    return ranks;
}

/* ---- a KV head of a sequence's layer ---- */

struct head {
    struct pool_head at;
    uint32_t capacity;
};

static struct head head_of(const struct rig *r, uint32_t i) {
    const uint32_t seq = i / N_KINDS, layer = i % N_KINDS / N_KV_HEADS;
    return (struct head){{&r->pool.kv, r->views[seq][layer].pages, i % N_KV_HEADS},
                         capacities[seq]};
}

/* Gives a rank to every slot but the free one, whose rank means nothing and stays random. */
static void set_ranks(const struct head *h, char *pool, enum kind kind) {
    uint32_t *ranks = make_ranks(kind, h->capacity + 1);
    for (uint32_t slot = 0; slot <= h->capacity; slot++)
        if (ranks[slot] == h->capacity) head_state(&h->at, pool, 0)->free_slot = slot;
        else *head_rank(&h->at, pool, slot) = ranks[slot];
    free(ranks);
}

/* Copies each token to the slot of its rank.  The rank is copied, too, and is right there. */
static void order_head(const struct head *h, char *to, char *from) {
    const uint32_t free_slot = head_state(&h->at, from, 0)->free_slot;
    for (uint32_t slot = 0; slot <= h->capacity; slot++)
        if (slot != free_slot) head_copy(&h->at, to, *head_rank(&h->at, from, slot), from, slot);
    head_state(&h->at, to, 0)->free_slot = h->capacity;
}

/* ---- sequences ---- */

static uint32_t count_pages(void) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_SEQS; i++) n += N_LAYERS * (uint32_t)kv_n_pages(capacities[i] + 1);
    return n;
}

static void make_views(struct rig *r) {
    const uint32_t *pages = r->pool.pages;
    for (uint32_t i = 0; i < N_SEQS; i++)
        for (uint32_t l = 0; l < N_LAYERS; l++, pages += kv_n_pages(capacities[i] + 1))
            r->views[i][l] = (struct kv_view){pages, capacities[i] + 1, capacities[i]};
}

static void make_ranks_and_expectation(struct rig *r) {
    for (uint32_t i = 0; i < N_HEADS; i++) {
        const struct head h = head_of(r, i);
        set_ranks(&h, r->pool.host, i % N_KINDS);
    }
    memcpy(r->pool.expected, r->pool.host, rig_bytes(&r->pool));
    for (uint32_t i = FIRST_ORDERED; i < N_HEADS; i++) {
        const struct head h = head_of(r, i);
        order_head(&h, r->pool.expected, r->pool.host);
    }
}

static void run_order(struct rig *r) {
    struct error err = {0};
    rig_upload(&r->pool);
    for (uint32_t i = N_LEFT_ALONE; i < N_SEQS; i++)
        must(gpu->ops->evict->order(gpu, &r->pool.kv, r->views[i], N_LAYERS, &err), &err);
    rig_download(&r->pool);
}

/* Expects whatever the device has left in the free slots, which is undefined. */
static void accept_free_slots(struct rig *r) {
    for (uint32_t i = FIRST_ORDERED; i < N_HEADS; i++) {
        const struct head h = head_of(r, i);
        head_copy(&h.at, r->pool.expected, h.capacity, r->pool.host, h.capacity);
    }
}

static void check_shape(enum page_format format, uint32_t head_dim) {
    struct rig r = {0};
    rig_make(&r.pool, format, head_dim, N_KV_HEADS, count_pages());
    make_views(&r);
    make_ranks_and_expectation(&r);
    run_order(&r);
    accept_free_slots(&r);
    for (uint32_t seq = 0; seq < N_SEQS; seq++)
        for (uint32_t l = 0; l < N_LAYERS; l++) rig_compare(&r.pool, &r.views[seq][l], seq, l);
    rig_free(&r.pool);
}

/* Takes rows of whole 16 bytes, which are moved 16 at a time, and others, which are moved byte by
 * byte.  --small takes the first two shapes, one of each kind. */
static void tokens_are_moved_to_the_slots_of_their_ranks(void **state) {
    static const struct {
        enum page_format format;
        uint32_t head_dim;
    } shapes[] = {{PAGE_FP8, 20},  {PAGE_F32, 20},   {PAGE_F32, 64}, {PAGE_F16, 64},
                  {PAGE_BF16, 10}, {PAGE_BF16, 128}, {PAGE_FP8, 128}};
    const size_t n = small ? 2 : sizeof(shapes) / sizeof(shapes[0]);
    for (size_t i = 0; i < n; i++) check_shape(shapes[i].format, shapes[i].head_dim);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_moved_to_the_slots_of_their_ranks),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
