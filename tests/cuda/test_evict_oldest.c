/* test_evict_oldest.c - caches without scores, of up to 3,000 tokens: evictions in some of their
 * layers, bit for bit against their definition, and nothing else changes.
 *
 * Pages are random bytes but for the ranks of caches that decode, so a byte from a wrong place
 * shows.  Among the sequences of the step are some of which nothing may be evicted: not yet full,
 * in the middle of a chunk, with scores, without a budget. */
#include "tests/cuda/pool_rig.h"

enum { N_LAYERS = 3, N_KV_HEADS = 2 };

/* A sequence, and whether oldest() must change it. */
struct plan {
    uint32_t capacity, n_sink, n_slots; /* capacity 0: no budget */
    bool decodes, ends_chunk, has_scores, changes;
};

/* Those that decode come first.  A prompt is moved 1,024 tokens at a time, or 2,048 states. */
static const struct plan plans[] = {
    {.capacity = 64, .n_sink = 4, .n_slots = 65, .decodes = true, .changes = true},
    {.capacity = 2048, .n_sink = 4, .n_slots = 2049, .decodes = true, .changes = true},
    {.capacity = 130, .n_slots = 131, .decodes = true, .changes = true},
    {.capacity = 5, .n_sink = 4, .n_slots = 6, .decodes = true, .changes = true},
    {.capacity = 64, .n_sink = 4, .n_slots = 64, .decodes = true},
    {.capacity = 64, .n_sink = 4, .n_slots = 65, .decodes = true, .has_scores = true},
    {.n_slots = 100, .decodes = true},
    {.capacity = 2048, .n_sink = 4, .n_slots = 2248, .ends_chunk = true, .changes = true},
    {.capacity = 63, .n_sink = 1, .n_slots = 64, .ends_chunk = true, .changes = true},
    {.capacity = 1025, .n_slots = 3000, .ends_chunk = true, .changes = true},
    {.capacity = 129, .n_sink = 128, .n_slots = 700, .ends_chunk = true, .changes = true},
    {.capacity = 64, .n_sink = 4, .n_slots = 64, .ends_chunk = true},
    {.capacity = 64, .n_sink = 4, .n_slots = 200},
    {.capacity = 64, .n_sink = 4, .n_slots = 200, .ends_chunk = true, .has_scores = true},
    {.n_slots = 200},
};
enum { N_SEQS = sizeof(plans) / sizeof(plans[0]) };

struct rig {
    struct pool_rig pool;
    struct kv_view views[N_SEQS][N_LAYERS];
    struct kv_budget budgets[N_SEQS];
    struct step_seq seqs[N_SEQS];
    struct step step;
};

/* ---- a KV head of a sequence's layer ---- */

struct head {
    struct pool_head at;
    const struct plan *plan;
};

static struct head head_of(const struct rig *r, uint32_t seq, uint32_t layer, uint32_t kv_head) {
    return (struct head){{&r->pool.kv, r->views[seq][layer].pages, kv_head}, &plans[seq]};
}

/* Gives the slots of a cache ranks in a random order. */
static void shuffle_ranks(const struct head *h, char *pool) {
    uint32_t *rank[4096];
    assert_true(h->plan->n_slots <= 4096);
    for (uint32_t slot = 0; slot < h->plan->n_slots; slot++) {
        const uint32_t other = random_below(slot + 1);
        rank[slot] = head_rank(&h->at, pool, slot);
        *rank[slot] = *rank[other];
        *rank[other] = slot;
    }
}

/* ---- the definition ---- */

/* The token of rank n_sink is evicted, and those behind it move up. */
static void free_oldest(const struct head *h, char *to, char *from) {
    for (uint32_t slot = 0; slot < h->plan->n_slots; slot++) {
        const uint32_t rank = *head_rank(&h->at, from, slot);
        if (rank == h->plan->n_sink) head_state(&h->at, to, 0)->free_slot = slot;
        if (rank > h->plan->n_sink) *head_rank(&h->at, to, slot) = rank - 1;
    }
}

/* The sinks and the newest tokens are kept, in order. */
static void keep_newest(const struct head *h, char *to, char *from) {
    uint32_t n = 0;
    for (uint32_t slot = 0; slot < h->plan->n_slots; slot++) {
        const uint32_t n_newer = h->plan->n_slots - slot - 1;
        if (slot >= h->plan->n_sink && n_newer >= h->plan->capacity - h->plan->n_sink) continue;
        head_copy(&h->at, to, n, from, slot);
        *head_rank(&h->at, to, n) = n;
        n++;
    }
    assert_int_equal(n, h->plan->capacity);
    head_state(&h->at, to, 0)->free_slot = n;
}

static void expect_layer(struct rig *r, uint32_t seq, uint32_t layer) {
    for (uint32_t kv_head = 0; kv_head < N_KV_HEADS; kv_head++) {
        const struct head h = head_of(r, seq, layer, kv_head);
        if (plans[seq].decodes) free_oldest(&h, r->pool.expected, r->pool.host);
        else keep_newest(&h, r->pool.expected, r->pool.host);
        head_state(&h.at, r->pool.expected, 0)->n_evictions++;
    }
}

/* ---- sequences ---- */

static uint32_t count_pages(void) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < N_SEQS; i++) n += N_LAYERS * (uint32_t)kv_n_pages(plans[i].n_slots);
    return n;
}

/* Every sequence has one row in the step, its newest token. */
static void describe(struct rig *r, uint32_t i, const uint32_t *pages) {
    const struct plan *plan = &plans[i];
    const uint32_t n_slots = plan->n_slots, n_pages = (uint32_t)kv_n_pages(n_slots);
    const bool is_full = plan->decodes && n_slots > plan->capacity;
    r->budgets[i] = (struct kv_budget){.capacity = plan->capacity,
                                       .n_sink = plan->n_sink,
                                       .n_recent = plan->capacity - plan->n_sink,
                                       .score = plan->has_scores ? KV_SCORE_SUM : KV_SCORE_NONE};
    for (uint32_t l = 0; l < N_LAYERS; l++)
        r->views[i][l] =
            (struct kv_view){pages + l * n_pages, n_slots, is_full ? KV_FREE_SLOT : n_slots - 1};
    r->seqs[i] = (struct step_seq){.first_row = i,
                                   .n_rows = 1,
                                   .layers = r->views[i],
                                   .budget = plan->capacity > 0 ? &r->budgets[i] : NULL,
                                   .n_before = n_slots - 1,
                                   .compress = plan->ends_chunk};
    for (uint32_t k = 0; plan->decodes && k < N_LAYERS * N_KV_HEADS; k++) {
        const struct head h = head_of(r, i, k / N_KV_HEADS, k % N_KV_HEADS);
        shuffle_ranks(&h, r->pool.host);
    }
}

static void make_step(struct rig *r) {
    const uint32_t *pages = r->pool.pages;
    r->step =
        (struct step){.n_rows = N_SEQS, .n_seqs = N_SEQS, .n_layers = N_LAYERS, .seqs = r->seqs};
    for (uint32_t i = 0; i < N_SEQS; i++) {
        describe(r, i, pages);
        pages += N_LAYERS * kv_n_pages(plans[i].n_slots);
        r->step.n_decode += plans[i].decodes;
    }
}

static void evict(struct rig *r, uint32_t first_layer, uint32_t n_layers) {
    struct error err = {0};
    memcpy(r->pool.expected, r->pool.host, rig_bytes(&r->pool));
    for (uint32_t i = 0; i < N_SEQS; i++)
        for (uint32_t l = 0; plans[i].changes && l < n_layers; l++)
            expect_layer(r, i, first_layer + l);
    rig_upload(&r->pool);
    must(gpu->ops->step_begin(gpu, &r->step, &err), &err);
    must(gpu->ops->evict->oldest(gpu, &r->pool.kv, first_layer, n_layers, &err), &err);
    rig_download(&r->pool);
}

static void check_shape(enum page_format format, uint32_t head_dim, uint32_t first_layer,
                        uint32_t n_layers) {
    struct rig r = {0};
    rig_make(&r.pool, format, head_dim, N_KV_HEADS, count_pages());
    make_step(&r);
    evict(&r, first_layer, n_layers);
    for (uint32_t seq = 0; seq < N_SEQS; seq++)
        for (uint32_t l = 0; l < N_LAYERS; l++) rig_compare(&r.pool, &r.views[seq][l], seq, l);
    rig_free(&r.pool);
}

/* Takes rows of whole 16 bytes, which are moved 16 at a time, and others, which are moved two at a
 * time.  --small takes the first two shapes, one of each kind. */
static void only_the_oldest_of_these_layers_are_evicted(void **state) {
    static const struct {
        enum page_format format;
        uint32_t head_dim;
    } shapes[] = {{PAGE_FP8, 16},   {PAGE_BF16, 10}, {PAGE_FP8, 20}, {PAGE_F32, 64},
                  {PAGE_BF16, 128}, {PAGE_F16, 40},  {PAGE_FP8, 128}};
    const size_t n = small ? 2 : sizeof(shapes) / sizeof(shapes[0]);
    for (size_t i = 0; i < n; i++) {
        check_shape(shapes[i].format, shapes[i].head_dim, 0, N_LAYERS);
        check_shape(shapes[i].format, shapes[i].head_dim, i % N_LAYERS, 1);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_oldest_of_these_layers_are_evicted),
    };
    return run_on_backends(argc, argv, 0, tests, COUNT(tests));
}
