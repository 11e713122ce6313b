/* test_windows.c - what sequences keep where layers have windows: their pages are counted, and tags
 * in them say what they were computed for.
 *
 * Layer 1 has no window, the others have the same.  A text is letters, each of them a block of
 * tokens. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "engine/kv/demand.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/swap.h"
#include "tests/test.h"

enum {
    N_LAYERS = 3,
    WIDE = 1,
    N_WINDOWED = 2,
    WINDOW = 150,
    STEP_ROWS = 100,
    N_PAGES = 90,
    N_SEQS = 4,
    MAX_TEXT = 24,     /* blocks */
    TAG_BYTES = 64,    /* a layer, a block, and a text */
    STORE_BLOCKS = 20, /* that a block of the cache takes one of, or a few pages */
    BLOCK_BYTES = 4 * TAG_BYTES
};

static const uint32_t windows[N_LAYERS] = {WINDOW, 0, WINDOW};
static const uint32_t everywhere[N_LAYERS] = {WINDOW, WINDOW, WINDOW};

struct fixture {
    struct kv_space space;
    uint32_t n_pages;
    char tags[N_PAGES][TAG_BYTES]; /* the pages' memory */
    struct kv_pool memory;
    struct host_pool store;
    struct kv_swaps swaps;
    char stored[STORE_BLOCKS][BLOCK_BYTES];
};

struct user {
    bool active, waits;
    struct kv_sequence kv;
    uint32_t on_done;
    char text[MAX_TEXT + 1];
    uint32_t tokens[MAX_TEXT * PAGE_TOKENS];
};

static int upload(struct backend *be, void *to, const void *host, size_t bytes, struct error *err) {
    (void)be, (void)err;
    memcpy(to, host, bytes);
    return 0;
}

static int download(struct backend *be, void *host, const void *from, size_t bytes,
                    struct error *err) {
    return upload(be, host, from, bytes, err);
}

static const struct backend_ops ops = {.upload = upload, .download = download};
static struct backend backend = {.ops = &ops};

static void setup(struct fixture *f, const uint32_t *of_layers, uint32_t n_pages, bool cache) {
    memset(f, 0, sizeof(*f));
    f->n_pages = n_pages;
    f->space.n_layers = N_LAYERS;
    f->space.windows = of_layers;
    f->space.window = WINDOW;
    assert_int_equal(page_pool_create(&f->space.pool, n_pages, NULL), 0);
    if (!cache) return;
    assert_int_equal(prefix_cache_create(&f->space.cache, &f->space, NULL), 0);
}

/* Of a space with a cache, and nothing in it. */
static void add_store(struct fixture *f) {
    f->memory = (struct kv_pool){.base = f->tags, .page_bytes = TAG_BYTES};
    f->store = (struct host_pool){.base = f->stored,
                                  .format = PAGE_F16,
                                  .n_blocks = STORE_BLOCKS,
                                  .n_host_layers = 1,
                                  .n_kv_heads = 1,
                                  .head_dim = 1};
    assert_int_equal(host_pool_block_bytes(&f->store), BLOCK_BYTES);
    f->space.io = (struct page_io){.be = &backend, .memory = &f->memory, .host = &f->store};
    f->space.swaps = &f->swaps;
    assert_int_equal(page_pool_create(&f->space.blocks, STORE_BLOCKS, NULL), 0);
    prefix_cache_destroy(f->space.cache);
    assert_int_equal(prefix_cache_create(&f->space.cache, &f->space, NULL), 0);
}

/* Evicts all that is cached. */
static void evict_all(const struct kv_space *space) {
    assert_int_equal(kv_make_free(space, kv_n_available(space)), 0);
}

/* Whatever the sequences did, every page comes back, and every block. */
static void teardown(struct fixture *f) {
    if (f->space.blocks) {
        assert_int_equal(kv_n_available_blocks(&f->space), STORE_BLOCKS);
        assert_int_equal(page_pool_n_offered(f->space.blocks, PAGE_WAITING),
                         page_pool_n_offered(f->space.blocks, PAGE_CACHED));
        kv_drop_offloaded(&f->space, STORE_BLOCKS);
        prefix_cache_drop_token_blocks(f->space.cache, STORE_BLOCKS);
        assert_int_equal(page_pool_n_free(f->space.blocks), STORE_BLOCKS);
    }
    if (f->space.cache) {
        assert_int_equal(kv_n_available(&f->space), f->n_pages);
        evict_all(&f->space);
    }
    assert_int_equal(page_pool_n_free(f->space.pool), f->n_pages);
    prefix_cache_destroy(f->space.cache);
    page_pool_destroy(f->space.pool);
    page_pool_destroy(f->space.blocks);
}

static uint32_t n_tokens_of(const struct user *u) {
    return (uint32_t)strlen(u->text) * PAGE_TOKENS;
}

/* The first n_blocks of the text are a prompt. */
static void begin_as(struct fixture *f, struct user *u, const char *text, uint32_t n_blocks,
                     const struct kv_kinds *kinds) {
    memset(u, 0, sizeof(*u));
    snprintf(u->text, sizeof(u->text), "%s", text);
    const uint32_t n_tokens = n_tokens_of(u);
    const struct kv_plan plan = {.kinds = kinds,
                                 .n_prompt = n_blocks * PAGE_TOKENS,
                                 .n_most = n_tokens,
                                 .n_tail = 2 * n_tokens, /* there is nothing to select */
                                 .step_rows = STEP_ROWS};
    for (uint32_t i = 0; i < n_tokens; i++)
        u->tokens[i] = (uint32_t)text[i / PAGE_TOKENS] * 1000 + i % PAGE_TOKENS;
    assert_int_equal(kv_sequence_init(&u->kv, &f->space, &plan, 0), 0);
    assert_int_equal(kv_prepare(&u->kv, u->tokens), 0);
    u->active = true;
}

static void begin(struct fixture *f, struct user *u, const char *text) {
    begin_as(f, u, text, (uint32_t)strlen(text), &kv_kinds_full);
}

/* The page that the first slot is in which a row behind n tokens sees. */
static uint32_t first_seen(const struct fixture *f, uint32_t n) {
    const uint32_t window = f->space.window;
    return n + 1 > window ? (n + 1 - window) / PAGE_TOKENS : 0;
}

static void tag(char out[TAG_BYTES], const struct user *u, uint32_t layer, uint32_t block) {
    snprintf(out, TAG_BYTES, "%d/%.*s", (int)layer, (int)block + 1, u->text);
}

/* All that the next row sees is there, and what is read beside that is the sequence's own, too. */
static void check_pages(struct fixture *f, const struct user *u) {
    char expected[TAG_BYTES];
    const uint32_t passed = u->kv.n_expired;
    assert_true(passed <= first_seen(f, u->on_done));
    assert_true(passed == 0 || (passed + 1) * PAGE_TOKENS <= u->on_done); /* it is whole */
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        const bool has_window = kv_has_window(&f->space, l);
        const uint32_t *pages = u->kv.layers[l].pages;
        for (uint32_t b = has_window ? passed : 0; b < u->kv.n_tokens / PAGE_TOKENS; b++) {
            tag(expected, u, l, b);
            assert_string_equal(f->tags[pages[b]], expected);
        }
        if (has_window && passed > 0) assert_int_equal(pages[passed - 1], pages[passed]);
    }
}

/* One step of n rows, in the air when this returns.  ERR_FULL. */
static int launch(struct fixture *f, struct user *u, uint32_t n) {
    struct step_seq seq;
    const int code = kv_reserve(&u->kv, u->kv.n_tokens + n);
    if (code) return code;
    kv_view(&u->kv, 0, n, &seq);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        assert_int_equal(seq.layers[l].n_slots, u->kv.n_tokens + n);
        assert_int_equal(seq.layers[l].append_slot, u->kv.n_tokens);
    }
    for (uint32_t l = 0; l < N_LAYERS; l++)
        for (uint32_t b = u->kv.n_tokens / PAGE_TOKENS; b < (u->kv.n_tokens + n) / PAGE_TOKENS; b++)
            tag(f->tags[u->kv.layers[l].pages[b]], u, l, b);
    kv_commit(&u->kv, n);
    return 0;
}

static void complete(struct fixture *f, struct user *u, uint32_t n_tokens, bool is_valid) {
    if (is_valid) kv_insert(&u->kv, u->tokens, n_tokens);
    u->on_done = n_tokens;
    kv_done(&u->kv, n_tokens);
    check_pages(f, u);
}

static void compute(struct fixture *f, struct user *u, const char *text) {
    begin(f, u, text);
    const uint32_t end = n_tokens_of(u);
    kv_match(&u->kv, u->tokens, end - 1);
    assert_int_equal(kv_resume(&u->kv, NULL), 0);
    for (u->on_done = u->kv.n_tokens; u->kv.n_tokens < end;) {
        assert_int_equal(launch(f, u, min_u32(STEP_ROWS, end - u->kv.n_tokens)), 0);
        complete(f, u, u->kv.n_tokens, u->kv.n_tokens == end);
    }
}

static uint32_t cached_tokens(struct fixture *f, const char *text) {
    struct user u;
    begin(f, &u, text);
    const uint32_t n = kv_match(&u.kv, u.tokens, n_tokens_of(&u));
    assert_int_equal(kv_reserve(&u.kv, n), 0); /* what is in the store */
    assert_int_equal(kv_resume(&u.kv, NULL), 0);
    u.on_done = n;
    check_pages(f, &u);
    kv_sequence_fini(&u.kv);
    return n;
}

static uint32_t n_used(const struct fixture *f) {
    return f->n_pages - page_pool_n_free(f->space.pool);
}

static const char *const long_text = "abcdefghijklmnopqrstuvwx";

/* A page in the wide layer for every 64 tokens, and in the others for those that the next row
 * sees; while it goes on never more than it was said to. */
TEST(pages_in_use_are_those_of_the_window) {
    struct fixture f;
    struct user u;
    setup(&f, windows, N_PAGES, false);
    begin(&f, &u, long_text);
    const uint32_t end = n_tokens_of(&u);
    const struct kv_amount most = kv_most(&f.space, &u.kv.plan);
    assert_int_equal(most.pages, MAX_TEXT + N_WINDOWED * ((WINDOW + STEP_ROWS + 63) / 64 + 1));
    for (uint32_t n; u.kv.n_tokens < end; complete(&f, &u, u.kv.n_tokens, true)) {
        n = min_u32(1 + (uint32_t)rand() % STEP_ROWS, end - u.kv.n_tokens);
        const uint64_t missing = kv_missing(&u.kv, u.kv.n_tokens + n).pages;
        const uint32_t before = n_used(&f);
        assert_int_equal(launch(&f, &u, n), 0);
        assert_int_equal(n_used(&f), before + missing);
        assert_true(n_used(&f) <= most.pages);
        const uint32_t n_pages = (uint32_t)kv_n_pages(u.kv.n_tokens);
        kv_done(&u.kv, u.on_done = u.kv.n_tokens);
        assert_int_equal(n_used(&f),
                         n_pages + N_WINDOWED * (n_pages - first_seen(&f, u.kv.n_tokens)));
    }
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

/* When it starts it takes what it will have while its prompt goes on, not all of the prompt. */
TEST(a_long_prompt_starts_with_a_window_and_a_step) {
    struct fixture f;
    struct user u;
    setup(&f, windows, N_PAGES, false);
    begin(&f, &u, long_text);
    assert_int_equal(kv_reserve(&u.kv, n_tokens_of(&u)), 0);
    assert_int_equal(n_used(&f), MAX_TEXT + N_WINDOWED * ((WINDOW + STEP_ROWS + 63) / 64));
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

/* Rows in flight were planned when fewer tokens had landed: what they see stays. */
TEST(a_step_in_flight_keeps_what_it_sees) {
    struct fixture f;
    struct user u;
    setup(&f, windows, N_PAGES, false);
    begin(&f, &u, long_text);
    for (uint32_t on_done = 0; u.kv.n_tokens < n_tokens_of(&u); on_done = u.kv.n_tokens - 64) {
        assert_int_equal(launch(&f, &u, 64), 0);
        complete(&f, &u, on_done, false);
        assert_int_equal(u.kv.n_expired, first_seen(&f, on_done));
    }
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

/* What is generated of a selection is not published: pages wait for that no longer than they are
 * needed, however many there are. */
TEST(what_is_never_published_is_given_back) {
    const struct kv_kinds *const policies[] = {&kv_kinds_selected, &kv_kinds_moved};
    const uint32_t n_blocks = 12, n_prompt = 6;
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        struct user u;
        setup(&f, windows, N_PAGES, true);
        add_store(&f);
        begin_as(&f, &u, "abcdefghijkl", n_prompt, policies[i]);
        while (u.kv.n_tokens < n_blocks * PAGE_TOKENS) {
            assert_int_equal(launch(&f, &u, 32), 0);
            assert_int_equal(kv_submitted(&u.kv, NULL, NULL, NULL), 0);
            complete(&f, &u, u.kv.n_tokens, true);
            /* Those of the prompt are the cache's, which keeps them. */
            const uint32_t n_given = first_seen(&f, u.on_done), n_kept = min_u32(n_given, n_prompt),
                           n_pages = (uint32_t)kv_n_pages(u.kv.n_tokens);
            assert_int_equal(u.kv.n_expired, n_given);
            assert_int_equal(n_used(&f), n_pages + N_WINDOWED * (n_pages - n_given + n_kept));
        }
        kv_sequence_fini(&u.kv);
        teardown(&f);
    }
}

/* A pool of what one sequence has at most is enough for it, again and again, whatever the cache
 * holds. */
TEST(a_text_longer_than_the_pool_has_room) {
    struct fixture f;
    struct user u;
    setup(&f, windows, MAX_TEXT + N_WINDOWED * 5, true);
    assert_true(f.n_pages < MAX_TEXT * N_LAYERS);
    compute(&f, &u, long_text);
    kv_sequence_fini(&u.kv);
    assert_int_equal(cached_tokens(&f, long_text), n_tokens_of(&u));
    compute(&f, &u, "ABCDEFGHIJKLMNOPQRSTUVWX");
    assert_int_equal(cached_tokens(&f, "ABCDEFGHIJKLMNOPQRSTUVWX"), MAX_TEXT * PAGE_TOKENS);
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

/* While there are pages, all of the prompt is shared from any of its blocks on.  When they run
 * short, those are dropped that no sequence is near, and then only the text's end is found. */
TEST(short_pools_keep_the_end_of_a_text) {
    struct fixture f;
    struct user u;
    setup(&f, windows, N_PAGES, true);
    compute(&f, &u, "abcdefghijkl");
    assert_int_equal(cached_tokens(&f, "abcdefXY"), 6 * PAGE_TOKENS);
    assert_int_equal(prefix_cache_n_idle_pages(f.space.cache),
                     N_WINDOWED * first_seen(&f, 12 * PAGE_TOKENS));
    evict_all(&f.space);
    assert_int_equal(n_used(&f), 12 + N_WINDOWED * (12 - first_seen(&f, 12 * PAGE_TOKENS)));
    assert_int_equal(cached_tokens(&f, "abcdefXY"), 0);
    assert_int_equal(cached_tokens(&f, "abcdefghijklXY"), 12 * PAGE_TOKENS);
    assert_int_equal(cached_tokens(&f, "abcdefghijkXY"), 0); /* block 8 would be seen */
    kv_sequence_fini(&u.kv);
    assert_int_equal(cached_tokens(&f, "abcdefghijklXY"), 12 * PAGE_TOKENS);
    teardown(&f);
}

/* A sequence that computes a slim block again fills it. */
TEST(a_slim_block_is_filled_again) {
    struct fixture f;
    struct user u, again;
    setup(&f, windows, N_PAGES, true);
    compute(&f, &u, "abcdefghijkl");
    evict_all(&f.space);
    assert_int_equal(cached_tokens(&f, "abX"), 0);
    compute(&f, &again, "abX");
    assert_int_equal(cached_tokens(&f, "abY"), 2 * PAGE_TOKENS);
    assert_int_equal(prefix_cache_n_blocks(f.space.cache), 13);
    kv_sequence_fini(&again.kv);
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

/* Where every layer has a window blocks may have no pages at all, and there are not names for all:
 * sequences go on without. */
TEST(names_may_run_out) {
    struct fixture f;
    struct user users[N_SEQS];
    const char *const texts[N_SEQS] = {long_text, "ABCDEFGHIJKLMNOPQRSTUVWX",
                                       "xABCDEFGHIJKLMNOPQRSTUVW", "xabcdefghijklmnopqrstuvw"};
    setup(&f, everywhere, 44, true);
    for (int i = 0; i < N_SEQS; i++) compute(&f, &users[i], texts[i]);
    assert_int_equal(prefix_cache_n_blocks(f.space.cache), 44);
    assert_true(users[1].kv.prefix.n_blocks < MAX_TEXT);
    for (int i = 0; i < N_SEQS; i++) kv_sequence_fini(&users[i].kv);
    assert_int_equal(cached_tokens(&f, long_text), MAX_TEXT * PAGE_TOKENS);
    teardown(&f);
}

/* ---- what waits in the store ---- */

static void lose_place(struct fixture *f, struct user *u) {
    assert_int_equal(kv_suspend(&u->kv, NULL), 0);
    assert_int_equal(kv_n_available_blocks(&f->space), f->space.blocks ? STORE_BLOCKS : 0);
    u->waits = true;
}

/* It has what is missing, and no more; or nothing of it is lost by having tried. */
static bool go_on(struct fixture *f, struct user *u) {
    const uint32_t n_tokens = kv_match(&u->kv, u->tokens, n_tokens_of(u) - 1),
                   n_most = min_u32(n_tokens_of(u), n_tokens + STEP_ROWS);
    const uint64_t available = kv_n_available(&f->space),
                   missing = kv_missing(&u->kv, n_most).pages;
    const int code = kv_reserve(&u->kv, n_most);
    assert_int_equal(code, missing <= available ? 0 : ERR_FULL);
    if (code) {
        lose_place(f, u);
        return false;
    }
    assert_int_equal(available - kv_n_available(&f->space), missing);
    assert_int_equal(kv_resume(&u->kv, NULL), 0);
    assert_int_equal(u->kv.swap.n_tokens, 0);
    u->waits = false;
    u->on_done = n_tokens;
    check_pages(f, u);
    return true;
}

static uint32_t blocks_for(uint32_t n_pages) {
    return (n_pages * TAG_BYTES + BLOCK_BYTES - 1) / BLOCK_BYTES;
}

/* Of 12 pages of the wide layer, and of the others those of the window. */
TEST(a_window_waits_in_the_store) {
    struct fixture f;
    struct user u;
    setup(&f, windows, N_PAGES, true);
    add_store(&f);
    compute(&f, &u, "abcdefghijkl");
    const uint32_t n_expired = u.kv.n_expired, n_pages = 12 + N_WINDOWED * (12 - n_expired);
    assert_int_equal(n_expired, first_seen(&f, 12 * PAGE_TOKENS));
    lose_place(&f, &u);
    assert_int_equal(f.swaps.n_out, n_pages);
    assert_int_equal(page_pool_n_offered(f.space.blocks, PAGE_WAITING), blocks_for(n_pages));
    evict_all(&f.space);
    kv_drop_offloaded(&f.space, STORE_BLOCKS);
    memset(f.tags, 'x', sizeof(f.tags));
    snprintf(u.text + strlen(u.text), 2, "m");
    assert_true(go_on(&f, &u));
    assert_int_equal(u.kv.n_tokens, 12 * PAGE_TOKENS);
    assert_int_equal(u.kv.n_expired, n_expired);
    assert_int_equal(f.swaps.n_in, n_pages);
    kv_sequence_fini(&u.kv);
    teardown(&f);
}

/* What others use of the wide layer stays; of the window all waits, for they let go of it. */
TEST(slim_blocks_are_enough_beside_a_window) {
    struct fixture f;
    struct user u, other, last;
    setup(&f, windows, N_PAGES, true);
    add_store(&f);
    compute(&f, &other, "abcdefghijkl");
    compute(&f, &u, "abcdefghijX");
    const uint32_t n_pages = 1 + N_WINDOWED * (11 - u.kv.n_expired);
    lose_place(&f, &u);
    assert_int_equal(f.swaps.n_out, n_pages);
    evict_all(&f.space);
    assert_int_equal(cached_tokens(&f, "abcdefghijX"), 0); /* of the seventh block on */
    assert_true(go_on(&f, &u));
    assert_int_equal(u.kv.n_tokens, 11 * PAGE_TOKENS);
    assert_int_equal(u.kv.prefix.n_blocks, 10);
    assert_int_equal(f.swaps.n_in, n_pages);
    kv_sequence_fini(&u.kv);
    compute(&f, &last, "abcdefghijY");
    lose_place(&f, &last);
    kv_sequence_fini(&other.kv);
    evict_all(&f.space);
    kv_drop_offloaded(&f.space, STORE_BLOCKS);
    assert_true(go_on(&f, &last)); /* its first blocks are gone */
    assert_int_equal(last.kv.n_tokens, 0);
    kv_sequence_fini(&last.kv);
    teardown(&f);
}

/* What is found depends on what was there when the block went: all of it, or what is not passed. */
TEST(evicted_windows_are_found_again) {
    struct fixture f;
    struct user u;
    const uint32_t n_in_window = 12 - (12 * PAGE_TOKENS + 1 - WINDOW) / PAGE_TOKENS;
    for (int is_short = 0; is_short < 2; is_short++) {
        setup(&f, windows, N_PAGES, true);
        add_store(&f);
        compute(&f, &u, "abcdefghijkl");
        if (is_short) evict_all(&f.space);
        kv_sequence_fini(&u.kv);
        evict_all(&f.space);
        assert_int_equal(page_pool_n_free(f.space.pool), N_PAGES);
        const uint32_t n_pages = 12 + N_WINDOWED * (is_short ? n_in_window : 12);
        assert_int_equal(prefix_cache_n_offloaded_pages(f.space.cache), n_pages);
        assert_int_equal(f.swaps.n_out, n_pages);
        memset(f.tags, 'x', sizeof(f.tags));
        assert_int_equal(cached_tokens(&f, "abcdefXY"), is_short ? 0 : 6 * PAGE_TOKENS);
        assert_int_equal(cached_tokens(&f, "abcdefghijklXY"), 12 * PAGE_TOKENS);
        assert_int_equal(cached_tokens(&f, "abcdefghijklXY"), 12 * PAGE_TOKENS);
        teardown(&f);
    }
}

/* ---- at random ---- */

static void start(struct fixture *f, struct user *u) {
    char text[MAX_TEXT + 1] = {0};
    const size_t n = 1 + (size_t)rand() % MAX_TEXT;
    for (size_t i = 0; i < n; i++) text[i] = "aaaaab"[rand() % 6];
    begin(f, u, text);
    u->waits = true;
    if (go_on(f, u)) assert_int_equal(u->on_done % PAGE_TOKENS, 0);
}

static void leave(struct user *u) {
    kv_sequence_fini(&u->kv);
    u->active = false;
}

static void advance(struct fixture *f, struct user *u) {
    if (u->waits) {
        if (!go_on(f, u) && rand() % 8 == 0) leave(u);
        return;
    }
    const uint32_t left = n_tokens_of(u) - u->kv.n_tokens, on_done = u->kv.n_tokens;
    const uint32_t n = min_u32(1 + (uint32_t)rand() % STEP_ROWS, left);
    const uint64_t missing = kv_missing(&u->kv, u->kv.n_tokens + n).pages,
                   available = kv_n_available(&f->space);
    const int code = n ? launch(f, u, n) : 0;
    assert_int_equal(code, missing <= available ? 0 : ERR_FULL);
    if (left == 0) leave(u);
    else if (code || rand() % 32 == 0) {
        complete(f, u, u->kv.n_tokens, rand() % 2);
        lose_place(f, u);
    } else complete(f, u, rand() % 2 ? on_done : u->kv.n_tokens, rand() % 2);
}

/* A page is free, a sequence's or the cache's, and what the cache says it can give, it gives. */
static void check_counts(struct fixture *f, const struct user *users) {
    bool used[N_PAGES] = {false};
    for (int s = 0; s < N_SEQS; s++)
        for (uint32_t l = 0; users[s].active && l < N_LAYERS; l++) {
            const struct page_list *list = &users[s].kv.layers[l];
            const uint32_t n_expired = kv_has_window(&f->space, l) ? users[s].kv.n_expired : 0;
            for (uint32_t i = n_expired; i < list->n; i++) used[list->pages[i]] = true;
        }
    for (uint32_t i = 0; i < N_PAGES; i++)
        assert_true(page_pool_n_holders(f->space.pool, i) > 0 || !used[i]);
    if (rand() % 64) return;
    const uint64_t available = kv_n_available(&f->space);
    evict_all(&f->space);
    assert_int_equal(page_pool_n_free(f->space.pool), available);
    assert_int_equal(prefix_cache_n_idle_pages(f->space.cache), 0);
}

static void live_at_random(const uint32_t *of_layers, uint32_t window, bool store) {
    struct fixture f;
    struct user *users = calloc(N_SEQS, sizeof(*users));
    setup(&f, of_layers, N_PAGES, true);
    if (store) add_store(&f);
    f.space.window = window;
    srand(5);
    for (int op = 0; op < 30000; op++) {
        struct user *u = &users[rand() % N_SEQS];
        if (!u->active) start(&f, u);
        else advance(&f, u);
        for (int i = 0; i < N_SEQS; i++)
            if (users[i].active && !users[i].waits) check_pages(&f, &users[i]);
        check_counts(&f, users);
    }
    for (int i = 0; i < N_SEQS; i++)
        if (users[i].active) kv_sequence_fini(&users[i].kv);
    free(users);
    if (store) assert_true(f.swaps.n_in > 1000);
    teardown(&f);
}

TEST(random_sequences_keep_what_they_see) {
    for (int store = 0; store < 2; store++) {
        live_at_random(windows, WINDOW, store);
        live_at_random(windows, PAGE_TOKENS, store);
        live_at_random(windows, 1, store);
        live_at_random(everywhere, WINDOW, store);
    }
}
