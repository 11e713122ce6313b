/* test_full.c - the full policy and the prefix cache, against a naive oracle.
 *
 * A block of tokens is written as one letter, so a text like "abca" is a prompt of four blocks.
 * Pages carry a tag that says which layer of which text they were computed for: a sequence that
 * adopts a page checks it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "engine/kv/kv_feed.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "tests/test.h"

enum { N_LAYERS = 3, N_BLOCKS = 10, N_PAGES = N_BLOCKS * N_LAYERS + 2, N_SEQS = 5, MAX_TEXT = 6 };

struct oracle_block {
    char text[MAX_TEXT + 1]; /* the whole prefix */
    uint64_t salt;
    int n_users;
    long idle_since;
};

/* What a reader of the feed believes: the text of each block that has been told. */
struct reader {
    struct {
        uint64_t hash;
        char text[MAX_TEXT + 1];
    } blocks[N_BLOCKS + 1];
    int n;
};

struct fixture {
    struct reader reader;
    struct kv_space space;
    char tags[N_PAGES][24];
    struct oracle_block known[N_BLOCKS];
    int n_known;
    long clock;
};

static void setup(struct fixture *f) {
    memset(f, 0, sizeof(*f));
    f->space.n_layers = N_LAYERS;
    assert_int_equal(page_pool_create(&f->space.pool, N_PAGES, NULL), 0);
    assert_int_equal(kv_feed_create(&f->space.feed, NULL), 0);
    assert_int_equal(prefix_cache_create(&f->space.cache, &f->space, NULL), 0);
}

static int reader_find(const struct reader *reader, uint64_t hash) {
    for (int i = 0; i < reader->n; i++)
        if (reader->blocks[i].hash == hash) return i;
    return -1;
}

static void reader_take(struct reader *reader, const struct kv_feed_event *event) {
    const int at = reader_find(reader, event->hash);
    assert_int_equal(event->place, KV_ON_DEVICE);
    if (!event->is_added) {
        assert_true(at >= 0);
        reader->blocks[at] = reader->blocks[--reader->n];
        return;
    }
    const int parent = event->has_parent ? reader_find(reader, event->parent) : -1;
    assert_true(at < 0 && reader->n < N_BLOCKS && (parent >= 0 || !event->has_parent));
    snprintf(reader->blocks[reader->n].text, MAX_TEXT + 1, "%s%c",
             parent < 0 ? "" : reader->blocks[parent].text, (char)(event->tokens[0] / 1000));
    reader->blocks[reader->n++].hash = event->hash;
}

/* Evicts all that is cached. */
static void evict_all(const struct kv_space *space) {
    assert_int_equal(kv_make_free(space, kv_n_available(space)), 0);
}

static void teardown(struct fixture *f) {
    evict_all(&f->space);
    assert_int_equal(prefix_cache_n_blocks(f->space.cache), 0);
    assert_int_equal(page_pool_n_free(f->space.pool), N_PAGES);
    prefix_cache_destroy(f->space.cache);
    kv_feed_destroy(f->space.feed);
    page_pool_destroy(f->space.pool);
}

static void make_tokens(uint32_t *tokens, const char *text) {
    for (size_t i = 0; text[i]; i++)
        for (uint32_t j = 0; j < PAGE_TOKENS; j++)
            tokens[i * PAGE_TOKENS + j] = (uint32_t)text[i] * 1000 + j;
}

struct user {
    bool active;
    struct kv_sequence kv;
    char text[MAX_TEXT + 1];
    uint32_t tokens[MAX_TEXT * PAGE_TOKENS];
};

static void make_tag(char tag[24], const struct user *u, uint32_t layer, uint32_t block) {
    snprintf(tag, 24, "%d/%d/%.*s", (int)u->kv.salt, (int)layer, (int)block + 1, u->text);
}

static void check_pages(struct fixture *f, struct user *u) {
    char tag[24];
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t b = 0; b < u->kv.n_tokens / PAGE_TOKENS; b++) {
            make_tag(tag, u, l, b);
            assert_string_equal(f->tags[u->kv.layers[l].pages[b]], tag);
        }
}

static struct oracle_block *oracle_find(struct fixture *f, const struct user *u, size_t length) {
    for (int i = 0; i < f->n_known; i++) {
        struct oracle_block *b = &f->known[i];
        bool same = strlen(b->text) == length && strncmp(b->text, u->text, length) == 0;
        if (same && b->salt == u->kv.salt) return b;
    }
    return NULL;
}

static size_t oracle_use(struct fixture *f, const struct user *u, size_t n_max) {
    size_t n = 0;
    for (struct oracle_block *b; n < n_max && (b = oracle_find(f, u, n + 1)); n++) b->n_users++;
    return n;
}

static void oracle_insert(struct fixture *f, const struct user *u, size_t from, size_t to) {
    for (size_t n = from + 1; n <= to; n++) {
        struct oracle_block *b = oracle_find(f, u, n);
        if (!b) {
            assert_true(f->n_known < N_BLOCKS);
            b = &f->known[f->n_known++];
            *b = (struct oracle_block){.salt = u->kv.salt};
            memcpy(b->text, u->text, n);
        }
        b->n_users++;
    }
}

static void oracle_release(struct fixture *f, const struct user *u, size_t n) {
    for (; n > 0; n--) {
        struct oracle_block *b = oracle_find(f, u, n);
        if (--b->n_users == 0) b->idle_since = ++f->clock;
    }
}

/* Evicts the idle block that has been idle longest; false when there is none. */
static bool oracle_evict(struct fixture *f) {
    int oldest = -1;
    for (int i = 0; i < f->n_known; i++)
        if (f->known[i].n_users == 0 &&
            (oldest < 0 || f->known[i].idle_since < f->known[oldest].idle_since))
            oldest = i;
    if (oldest < 0) return false;
    f->known[oldest] = f->known[--f->n_known];
    return true;
}

static void begin(struct fixture *f, struct user *u, uint32_t n_tokens, uint64_t salt) {
    const struct kv_plan plan = {.kinds = &kv_kinds_full, .n_prompt = n_tokens, .n_most = n_tokens};
    assert_int_equal(kv_sequence_init(&u->kv, &f->space, &plan, salt), 0);
    assert_int_equal(kv_prepare(&u->kv, u->tokens), 0);
}

static void start(struct fixture *f, struct user *u) {
    const char *alphabet = "aab";
    size_t n = 1 + (size_t)rand() % MAX_TEXT;
    memset(u, 0, sizeof(*u));
    for (size_t i = 0; i < n; i++) u->text[i] = alphabet[rand() % 3];
    make_tokens(u->tokens, u->text);
    const uint32_t n_tokens = (uint32_t)n * PAGE_TOKENS;
    begin(f, u, n_tokens, (uint64_t)(rand() % 2));
    uint32_t limit = n_tokens - 1;
    uint32_t matched = kv_match(&u->kv, u->tokens, limit);
    assert_int_equal(matched, oracle_use(f, u, limit / PAGE_TOKENS) * PAGE_TOKENS);
    check_pages(f, u);
    u->active = true;
}

static void stop(struct fixture *f, struct user *u) {
    oracle_release(f, u, u->kv.prefix.n_blocks);
    kv_sequence_fini(&u->kv);
    u->active = false;
}

/* One step: reserve, view, commit, and now and then publish. */
static void advance(struct fixture *f, struct user *u) {
    uint32_t total = (uint32_t)strlen(u->text) * PAGE_TOKENS;
    uint32_t left = total - u->kv.n_tokens, n = 1 + (uint32_t)rand() % 130;
    if (left == 0) {
        stop(f, u);
        return;
    }
    if (n > left) n = left;
    uint32_t first = u->kv.n_tokens / PAGE_TOKENS,
             need = (u->kv.n_tokens + n + PAGE_TOKENS - 1) / PAGE_TOKENS;
    uint32_t more = (need - u->kv.layers[0].n) * N_LAYERS;
    int n_idle = 0;
    for (int i = 0; i < f->n_known; i++) n_idle += f->known[i].n_users == 0;
    bool fits = more <= page_pool_n_free(f->space.pool) + (uint32_t)n_idle * N_LAYERS;
    for (uint32_t free = page_pool_n_free(f->space.pool); fits && free < more; free += N_LAYERS)
        assert_true(oracle_evict(f));
    int code = kv_reserve(&u->kv, u->kv.n_tokens + n);
    assert_int_equal(code, fits ? 0 : ERR_FULL);
    if (code) {
        stop(f, u);
        return;
    }
    struct step_seq seq;
    kv_view(&u->kv, 0, n, &seq);
    assert_ptr_equal(seq.layers, u->kv.views);
    assert_null(seq.budget);
    assert_int_equal(u->kv.views[N_LAYERS - 1].append_slot, u->kv.n_tokens);
    assert_int_equal(u->kv.views[N_LAYERS - 1].n_slots, u->kv.n_tokens + n);
    kv_commit(&u->kv, n);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t b = first; b < u->kv.n_tokens / PAGE_TOKENS; b++)
            make_tag(f->tags[u->kv.layers[l].pages[b]], u, l, b);
    check_pages(f, u);
    if (rand() % 2) return;
    oracle_insert(f, u, u->kv.prefix.n_blocks, u->kv.n_tokens / PAGE_TOKENS);
    kv_insert(&u->kv, u->tokens, u->kv.n_tokens);
}

/* No page is lost: a page is free, or in a sequence, or in a known block. */
static void check_no_leak(struct fixture *f, struct user *users) {
    uint32_t n_used = 0;
    bool used[N_PAGES] = {false};
    for (int s = 0; s < N_SEQS; s++)
        for (uint32_t l = 0; users[s].active && l < N_LAYERS; l++)
            for (uint32_t i = 0; i < users[s].kv.layers[l].n; i++)
                used[users[s].kv.layers[l].pages[i]] = true;
    for (uint32_t i = 0; i < N_PAGES; i++) {
        bool held = page_pool_n_holders(f->space.pool, i) > 0;
        assert_true(held || !used[i]);
        n_used += held;
    }
    assert_int_equal(n_used, N_PAGES - page_pool_n_free(f->space.pool));
    assert_int_equal(prefix_cache_n_blocks(f->space.cache), f->n_known);
}

/* The reader knows blocks without a salt that are there, and all of them if nothing was lost. */
static void check_reader(struct fixture *f, bool is_whole) {
    struct kv_feed_event event;
    while (kv_feed_take(f->space.feed, &event)) reader_take(&f->reader, &event);
    int n_known = 0;
    for (int i = 0; i < f->n_known; i++) {
        int n_told = 0;
        for (int k = 0; k < f->reader.n; k++)
            n_told += strcmp(f->reader.blocks[k].text, f->known[i].text) == 0;
        assert_true(f->known[i].salt != 0 || n_told <= 1);
        n_known += f->known[i].salt == 0;
        if (f->known[i].salt == 0 && is_whole) assert_int_equal(n_told, 1);
    }
    for (int k = 0; k < f->reader.n; k++) {
        struct user u = {0};
        memcpy(u.text, f->reader.blocks[k].text, sizeof(u.text));
        assert_non_null(oracle_find(f, &u, strlen(u.text)));
    }
    assert_true(is_whole ? f->reader.n == n_known : f->reader.n <= n_known);
}

static void random_step(struct fixture *f, struct user *users) {
    struct user *u = &users[rand() % N_SEQS];
    if (!u->active) start(f, u);
    else if (rand() % 16 == 0) stop(f, u);
    else advance(f, u);
    check_no_leak(f, users);
}

/* Fills the ring as a reader does that is too slow, and has it read again. */
static void lose_events(struct fixture *f, struct user *users) {
    const struct kv_feed_event noise = {0};
    struct kv_feed_event event;
    while (kv_feed_put(f->space.feed, &noise)) continue;
    for (int op = 0; op < 20; op++) random_step(f, users);
    while (kv_feed_take(f->space.feed, &event)) continue;
    assert_true(kv_feed_mend(f->space.feed));
    f->reader.n = 0;
}

/* What is lost costs hits, never the truth: what the reader believes is there. */
TEST(a_reader_that_lost_events_believes_nothing_wrong) {
    struct fixture f;
    struct user *users = calloc(N_SEQS, sizeof(*users));
    int n_full = 0;
    setup(&f);
    srand(12);
    for (int round = 0; round < 30; round++) {
        lose_events(&f, users);
        for (int op = 0; op < 300; op++) {
            random_step(&f, users);
            check_reader(&f, false);
        }
        n_full += f.reader.n > 1;
    }
    assert_true(n_full > 20); /* blocks that are used again have been told again */
    for (int i = 0; i < N_SEQS; i++)
        if (users[i].active) stop(&f, &users[i]);
    free(users);
    teardown(&f);
}

TEST(random_sequences_agree_with_the_oracle) {
    struct fixture f;
    struct user *users = calloc(N_SEQS, sizeof(*users));
    setup(&f);
    srand(11);
    for (int op = 0; op < 30000; op++) {
        random_step(&f, users);
        check_reader(&f, true);
    }
    for (int i = 0; i < N_SEQS; i++)
        if (users[i].active) stop(&f, &users[i]);
    free(users);
    teardown(&f);
}

/* Computes all of text and publishes it; the caller ends the sequence. */
static void compute(struct fixture *f, struct user *u, const char *text, uint64_t salt) {
    memset(u, 0, sizeof(*u));
    snprintf(u->text, sizeof(u->text), "%s", text);
    make_tokens(u->tokens, text);
    uint32_t n = (uint32_t)strlen(text) * PAGE_TOKENS;
    begin(f, u, n, salt);
    uint32_t cached = kv_match(&u->kv, u->tokens, n);
    assert_int_equal(kv_reserve(&u->kv, n), 0);
    kv_commit(&u->kv, n - cached);
    kv_insert(&u->kv, u->tokens, u->kv.n_tokens);
}

static uint32_t cached_tokens(struct fixture *f, const char *text, uint64_t salt) {
    struct user u = {0};
    make_tokens(u.tokens, text);
    uint32_t n = (uint32_t)strlen(text) * PAGE_TOKENS;
    begin(f, &u, n, salt);
    uint32_t cached = kv_match(&u.kv, u.tokens, n);
    kv_sequence_fini(&u.kv);
    return cached;
}

TEST(prefixes_are_shared_within_one_salt_only) {
    struct fixture f;
    struct user u;
    setup(&f);
    compute(&f, &u, "abc", 1);
    assert_int_equal(cached_tokens(&f, "abd", 1), 2 * PAGE_TOKENS);
    assert_int_equal(cached_tokens(&f, "abc", 1), 3 * PAGE_TOKENS);
    assert_int_equal(cached_tokens(&f, "bc", 1), 0); /* same tokens, other parent */
    assert_int_equal(cached_tokens(&f, "abc", 2), 0);
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

TEST(the_least_recently_used_leaf_goes_first) {
    struct fixture f;
    struct user u;
    setup(&f);
    compute(&f, &u, "abc", 0);
    kv_sequence_fini(&u.kv);
    compute(&f, &u, "ax", 0);
    kv_sequence_fini(&u.kv);
    assert_int_equal(kv_make_free(&f.space, page_pool_n_free(f.space.pool) + 1), 0);
    assert_int_equal(cached_tokens(&f, "abc", 0), 2 * PAGE_TOKENS);
    /* "ab" was just touched: "ax" goes. */
    assert_int_equal(kv_make_free(&f.space, page_pool_n_free(f.space.pool) + 1), 0);
    assert_int_equal(cached_tokens(&f, "ax", 0), PAGE_TOKENS);
    teardown(&f);
}

/* The engine looks keys up by hash; the oracle of safety is that equal hashes alone are not
 * believed. */
TEST(equal_hashes_do_not_make_equal_blocks) {
    struct fixture f;
    struct user u;
    uint32_t other[PAGE_TOKENS];
    setup(&f);
    compute(&f, &u, "a", 0);
    make_tokens(other, "b");
    uint64_t hash = prefix_cache_hash(f.space.cache, 0, u.tokens);
    assert_int_not_equal(prefix_cache_find(f.space.cache, PREFIX_NONE, 0, hash, u.tokens),
                         PREFIX_NONE);
    assert_int_equal(prefix_cache_find(f.space.cache, PREFIX_NONE, 0, hash, other), PREFIX_NONE);
    assert_int_equal(prefix_cache_find(f.space.cache, PREFIX_NONE, 1, hash, u.tokens), PREFIX_NONE);
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

TEST(without_a_cache_nothing_is_shared) {
    struct fixture f = {.space.n_layers = N_LAYERS};
    struct user a, b;
    assert_int_equal(page_pool_create(&f.space.pool, N_PAGES, NULL), 0);
    compute(&f, &a, "ab", 0);
    compute(&f, &b, "ab", 0);
    assert_int_equal(page_pool_n_free(f.space.pool), N_PAGES - 4 * N_LAYERS);
    kv_sequence_fini(&a.kv);
    kv_sequence_fini(&b.kv);
    assert_int_equal(page_pool_n_free(f.space.pool), N_PAGES);
    page_pool_destroy(f.space.pool);
}
