/* test_evict_order.c - the order of bounded caches of up to 20,000 tokens, bit for bit against its
 * definition: every token is moved to the slot of its rank, and nothing else changes.
 *
 * Pages are random bytes but for ranks and free slots, so a byte from a wrong place shows.  Two
 * sequences are not ordered, and must stay as they are.  The KV heads of a sequence's layers have
 * ranks of different kinds. */
#include "tests/cuda/cuda_test.h"

#include "engine/base/sizes.h"
#include "engine/device/dtype.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"

enum kind { IN_ORDER, GAP, ROTATED, PAIRED, SHUFFLED, ONE_CYCLE, N_KINDS };
/* The layers have as many KV heads as there are kinds, so every capacity has each kind. */
enum { N_LAYERS = 2, N_KV_HEADS = N_KINDS / N_LAYERS };

/* The kernel lists 1,024 slots at a time and keeps up to 9,216 ranks in shared memory. */
static const uint32_t capacities[] = {130, 1025, /* these two stay */
                                      1,   63,   64, 1023, 1024, 1025, 2048, 9215, 9216, 20000};
enum { N_LEFT_ALONE = 2, N_SEQS = sizeof(capacities) / sizeof(capacities[0]) };
enum { FIRST_ORDERED = N_LEFT_ALONE * N_KINDS, N_HEADS = N_SEQS * N_KINDS };

static bool small;

struct rig {
    struct kv_pool kv;
    char *host, *expected; /* the pool's bytes: before and after, and as they should be after */
    uint32_t *pages;       /* [kv.n_pages] */
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
    const struct kv_pool *kv;
    const uint32_t *pages;
    uint32_t kv_head, capacity;
};

static struct head head_of(const struct rig *r, uint32_t i) {
    const uint32_t seq = i / N_KINDS, layer = i % N_KINDS / N_KV_HEADS;
    return (struct head){&r->kv, r->views[seq][layer].pages, i % N_KV_HEADS, capacities[seq]};
}

static char *page_of(const struct head *h, char *pool, uint32_t slot) {
    return pool + h->pages[slot / PAGE_TOKENS] * h->kv->page_bytes;
}

static struct kv_page_state *state_of(const struct head *h, char *pool, uint32_t slot) {
    return (void *)(page_of(h, pool, slot) + kv_state_offset(h->kv, h->kv_head));
}

/* Copies all that a page holds of a slot: rows and their scales, then entries of the state. */
static void copy_token(const struct head *h, char *to_pool, uint32_t to, char *from_pool,
                       uint32_t from) {
    const size_t row = h->kv->head_dim * dtype_size(h->kv->dtype),
                 scale = h->kv->dtype == DTYPE_FP8 ? 1 : 0, scales = kv_elements_bytes(h->kv),
                 keys = (size_t)h->kv_head * PAGE_TOKENS,
                 values = keys + (size_t)h->kv->n_kv_heads * PAGE_TOKENS,
                 state = kv_state_offset(h->kv, h->kv_head);
    const struct {
        size_t offset, size;
    } arrays[] = {{keys * row, row},
                  {values * row, row},
                  {scales + keys, scale},
                  {scales + values, scale},
                  {state + offsetof(struct kv_page_state, position), sizeof(uint32_t)},
                  {state + offsetof(struct kv_page_state, rank), sizeof(uint32_t)},
                  {state + offsetof(struct kv_page_state, score), sizeof(float)}};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        memcpy(page_of(h, to_pool, to) + arrays[i].offset + to % PAGE_TOKENS * arrays[i].size,
               page_of(h, from_pool, from) + arrays[i].offset + from % PAGE_TOKENS * arrays[i].size,
               arrays[i].size);
}

/* Gives a rank to every slot but the free one, whose rank means nothing and stays random. */
static void set_ranks(const struct head *h, char *pool, enum kind kind) {
    uint32_t *ranks = make_ranks(kind, h->capacity + 1);
    for (uint32_t slot = 0; slot <= h->capacity; slot++)
        if (ranks[slot] == h->capacity) state_of(h, pool, 0)->free_slot = slot;
        else state_of(h, pool, slot)->rank[slot % PAGE_TOKENS] = ranks[slot];
    free(ranks);
}

/* Copies each token to the slot of its rank.  The rank is copied, too, and is right there. */
static void order_head(const struct head *h, char *to, char *from) {
    const uint32_t free_slot = state_of(h, from, 0)->free_slot;
    for (uint32_t slot = 0; slot <= h->capacity; slot++)
        if (slot != free_slot)
            copy_token(h, to, state_of(h, from, slot)->rank[slot % PAGE_TOKENS], from, slot);
    state_of(h, to, 0)->free_slot = h->capacity;
}

/* ---- sequences ---- */

static size_t pool_bytes(const struct rig *r) {
    return r->kv.n_pages * r->kv.page_bytes;
}

static void make_pool(struct rig *r, enum dtype dtype, uint32_t head_dim) {
    r->kv = (struct kv_pool){
        .dtype = dtype, .n_kv_heads = N_KV_HEADS, .head_dim = head_dim, .tracked = true};
    for (uint32_t i = 0; i < N_SEQS; i++)
        r->kv.n_pages += N_LAYERS * (uint32_t)kv_n_pages(capacities[i] + 1);
    r->kv.page_bytes = kv_page_bytes(&r->kv);
    r->kv.base = gpu_alloc(pool_bytes(r));
    r->host = malloc(pool_bytes(r)), r->expected = malloc(pool_bytes(r));
    r->pages = malloc(r->kv.n_pages * sizeof(*r->pages));
    assert_true(r->host && r->expected && r->pages);
    for (size_t i = 0; i < pool_bytes(r); i++) r->host[i] = (char)random_u32();
    for (uint32_t i = 0; i < r->kv.n_pages; i++) r->pages[i] = i;
    shuffle(r->pages, r->kv.n_pages, false);
}

static void make_views(struct rig *r) {
    const uint32_t *pages = r->pages;
    for (uint32_t i = 0; i < N_SEQS; i++)
        for (uint32_t l = 0; l < N_LAYERS; l++, pages += kv_n_pages(capacities[i] + 1))
            r->views[i][l] = (struct kv_view){pages, capacities[i] + 1, capacities[i]};
}

static void make_ranks_and_expectation(struct rig *r) {
    for (uint32_t i = 0; i < N_HEADS; i++) {
        const struct head h = head_of(r, i);
        set_ranks(&h, r->host, i % N_KINDS);
    }
    memcpy(r->expected, r->host, pool_bytes(r));
    for (uint32_t i = FIRST_ORDERED; i < N_HEADS; i++) {
        const struct head h = head_of(r, i);
        order_head(&h, r->expected, r->host);
    }
}

static void run_order(struct rig *r) {
    struct error err = {0};
    must(gpu->ops->upload(gpu, r->kv.base, r->host, pool_bytes(r), &err), &err);
    for (uint32_t i = N_LEFT_ALONE; i < N_SEQS; i++)
        must(gpu->ops->evict->order(gpu, &r->kv, r->views[i], N_LAYERS, &err), &err);
    must(gpu->ops->download(gpu, r->host, r->kv.base, pool_bytes(r), &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
}

/* Expects whatever the device has left in the free slots, which is undefined. */
static void accept_free_slots(struct rig *r) {
    for (uint32_t i = FIRST_ORDERED; i < N_HEADS; i++) {
        const struct head h = head_of(r, i);
        copy_token(&h, r->expected, h.capacity, r->host, h.capacity);
    }
}

static void compare_pages(const struct rig *r, uint32_t seq, uint32_t layer) {
    for (uint32_t i = 0; i < kv_n_pages(capacities[seq] + 1); i++) {
        const size_t at = r->views[seq][layer].pages[i] * r->kv.page_bytes;
        for (size_t k = 0; k < r->kv.page_bytes; k++)
            if (r->host[at + k] != r->expected[at + k])
                fail_msg("dtype %d, dim %u, capacity %u, layer %u, page %u of the list: byte %zu",
                         (int)r->kv.dtype, r->kv.head_dim, capacities[seq], layer, i, k);
    }
}

static void check_shape(enum dtype dtype, uint32_t head_dim) {
    struct rig r = {0};
    make_pool(&r, dtype, head_dim);
    make_views(&r);
    make_ranks_and_expectation(&r);
    run_order(&r);
    accept_free_slots(&r);
    for (uint32_t seq = 0; seq < N_SEQS; seq++)
        for (uint32_t l = 0; l < N_LAYERS; l++) compare_pages(&r, seq, l);
    free(r.host), free(r.expected), free(r.pages);
    gpu_free(r.kv.base);
}

/* Takes rows of whole 16 bytes, which are moved 16 at a time, and others, which are moved byte by
 * byte.  --small takes the first two shapes, one of each kind. */
static void tokens_are_moved_to_the_slots_of_their_ranks(void **state) {
    (void)state;
    static const struct {
        enum dtype dtype;
        uint32_t head_dim;
    } shapes[] = {{DTYPE_FP8, 20},  {DTYPE_F32, 20},   {DTYPE_F32, 64}, {DTYPE_F16, 64},
                  {DTYPE_BF16, 10}, {DTYPE_BF16, 128}, {DTYPE_FP8, 128}};
    const size_t n = small ? 2 : sizeof(shapes) / sizeof(shapes[0]);
    for (size_t i = 0; i < n; i++) check_shape(shapes[i].dtype, shapes[i].head_dim);
}

int main(int argc, char **argv) {
    if (!read_arguments(argc, argv, 0, &small)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_moved_to_the_slots_of_their_ranks),
    };
    const int status = open_backends();
    if (status) return status;
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    close_backends();
    return n_failed;
}
