/* test_read_ahead.c - texts of models with recurrent layers that are read from disk, where fewer
 * states are free than are wanted.
 *
 * The device is the system's memory.  Each text is as long as three blocks and leaves its
 * checkpoint behind the third. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/recurrent.h"
#include "engine/device/step.h"
#include "engine/kv/checkpoints.h"
#include "engine/kv/disk/disk.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_cache.h"
#include "engine/kv/read_ahead.h"
#include "engine/kv/reclaim.h"
#include "tests/test.h"

enum { N_LAYERS = 2, N_PAGES = 64, N_SLOTS = 4, PAGE_BYTES = 512, STATE_BYTES = 700 };
enum { N_BLOCKS = 3, N_STORED = N_BLOCKS * PAGE_TOKENS, N_PROMPT = N_STORED + 9 };
static const double plenty_s = 30;

struct fixture {
    struct backend be;
    struct kv_pool memory;
    struct state_pool states;
    struct checkpoint_store store;
    struct kv_readings readings;
    struct kv_space space;
    char folder[32], pages[N_PAGES][PAGE_BYTES], slots[N_SLOTS][STATE_BYTES];
};

struct user {
    struct kv_sequence kv;
    uint32_t tokens[N_PROMPT];
};

static int copy_up(struct backend *be, void *to, const void *host, size_t bytes,
                   struct error *err) {
    memcpy(to, host, bytes);
    return 0;
}

static int copy_down(struct backend *be, void *host, const void *from, size_t bytes,
                     struct error *err) {
    memcpy(host, from, bytes);
    return 0;
}

static const struct backend_ops copies = {.upload = copy_up, .download = copy_down};

static void make_caches(struct fixture *f) {
    assert_int_equal(page_pool_create(&f->space.pool, N_PAGES, NULL), 0);
    assert_int_equal(page_pool_create(&f->space.state_slots, N_SLOTS, NULL), 0);
    assert_int_equal(
        checkpoints_create(&f->space.checkpoints, f->space.state_slots, &f->store, NULL), 0);
    assert_int_equal(prefix_cache_create(&f->space.cache, &f->space, NULL), 0);
}

/* Every slot is free, or a checkpoint that no sequence holds. */
static void drop_caches(struct fixture *f) {
    assert_int_equal(kv_n_available_states(&f->space), N_SLOTS);
    assert_int_equal(kv_n_available(&f->space), N_PAGES);
    prefix_cache_destroy(f->space.cache);
    checkpoints_destroy(f->space.checkpoints);
    page_pool_destroy(f->space.state_slots);
    page_pool_destroy(f->space.pool);
}

static void setup(struct fixture *f) {
    struct error err = {0};
    memset(f, 0, sizeof(*f));
    strcpy(f->folder, "/tmp/quire-disk-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    f->be.ops = &copies;
    f->memory = (struct kv_pool){.base = f->pages, .page_bytes = PAGE_BYTES, .n_kv_heads = 1};
    f->states = (struct state_pool){.base = f->slots, .slot_bytes = STATE_BYTES};
    f->store = (struct checkpoint_store){.be = &f->be, .states = &f->states};
    f->space = (struct kv_space){.n_layers = N_LAYERS,
                                 .checkpoint_tokens = CHECKPOINT_TOKENS,
                                 .io = {.be = &f->be, .memory = &f->memory},
                                 .readings = &f->readings};
    const struct kv_disk_config config = {.path = f->folder, .max_bytes = 1 << 24};
    if (kv_disk_open(&f->space.disk, &config, &err)) fail_msg("%s", err.text);
    assert_int_equal(
        kv_disk_begin(f->space.disk, (struct digest_value){{1, 2}}, PAGE_BYTES, "a test", &err), 0);
    make_caches(f);
}

static void teardown(struct fixture *f) {
    char command[64];
    drop_caches(f);
    kv_disk_close(f->space.disk);
    snprintf(command, sizeof(command), "rm -r %s", f->folder);
    assert_int_equal(system(command), 0);
}

/* Makes the text of a sequence that waits; seed: texts of the same one are equal. */
static void prepare(struct fixture *f, struct user *u, uint32_t seed) {
    const struct kv_plan plan = {
        .kinds = &kv_kinds_full, .n_prompt = N_PROMPT, .n_most = N_PROMPT + 1};
    *u = (struct user){0};
    for (uint32_t i = 0; i < N_PROMPT; i++) u->tokens[i] = seed * 1000 + i;
    assert_int_equal(kv_sequence_init(&u->kv, &f->space, &plan, 0), 0);
    assert_int_equal(kv_prepare(&u->kv, u->tokens), 0);
}

static struct kv_wish wish_of(const struct user *u) {
    return (struct kv_wish){.n_tokens = N_PROMPT, .tokens = u->tokens, .n_max = N_PROMPT - 1};
}

static bool waits(struct user *u) {
    const struct kv_wish wish = wish_of(u);
    return kv_ask(&u->kv, &wish).waits_for_disk;
}

static int start(struct user *u) {
    const struct kv_wish wish = wish_of(u);
    return kv_start(&u->kv, &wish, NULL);
}

/* Computes the rest of the prompt; the state behind it is the text's seed. */
static void run(struct fixture *f, struct user *u) {
    while (u->kv.n_tokens < N_PROMPT) {
        struct step_seq seq;
        const uint32_t left = N_PROMPT - u->kv.n_tokens,
                       can = kv_ask(&u->kv, &(struct kv_wish){0}).n_rows,
                       n = left < can ? left : can;
        assert_int_equal(kv_reserve(&u->kv, u->kv.n_tokens + n), 0);
        kv_view(&u->kv, 0, n, &seq);
        if (seq.state.from != STATE_ZERO)
            assert_int_equal(f->slots[seq.state.from][STATE_BYTES - 1], u->tokens[0] / 1000);
        memset(f->slots[seq.state.to], (int)(u->tokens[0] / 1000), STATE_BYTES);
        kv_commit(&u->kv, n);
    }
}

static void finish(struct user *u) {
    kv_insert(&u->kv, u->tokens, u->kv.n_tokens);
    kv_sequence_fini(&u->kv);
}

/* Leaves the texts 1 to n on disk, and nothing in the caches. */
static void save_texts(struct fixture *f, uint32_t n) {
    static struct user u;
    for (uint32_t i = 1; i <= n; i++) {
        prepare(f, &u, i);
        assert_int_equal(start(&u), 0);
        run(f, &u);
        finish(&u);
    }
    while (kv_save_cached(&f->space, 1)) kv_disk_completed(f->space.disk, 0, true);
    kv_disk_completed(f->space.disk, 0, true);
    kv_disk_flush(f->space.disk, clock_seconds() + plenty_s);
    drop_caches(f);
    make_caches(f);
}

static uint64_t n_read(struct fixture *f) {
    struct kv_disk_stats stats;
    kv_disk_stats(f->space.disk, &stats);
    return stats.n_read;
}

/* Takes what arrives for the sequence until it may start. */
static void await(struct fixture *f, struct user *u) {
    const double end_s = clock_seconds() + plenty_s;
    while (waits(u)) {
        assert_true(clock_seconds() < end_s);
        usleep(1000);
        assert_int_equal(kv_readings_advance(&f->space, NULL), 0);
    }
}

/* Awaits what is read of a text, starts with all of it, and runs the text to its end. */
static void read_whole(struct fixture *f, struct user *u) {
    await(f, u);
    assert_int_equal(start(u), 0);
    assert_int_equal(u->kv.n_found, N_STORED);
    run(f, u);
    finish(u);
}

/* Other sequences take all states while the text's files are read. */
TEST(a_text_that_was_read_waits_for_a_state) {
    static struct fixture f;
    static struct user u;
    uint32_t slots[N_SLOTS];
    setup(&f);
    save_texts(&f, 1);
    prepare(&f, &u, 1);
    assert_true(waits(&u));
    page_pool_take_sure(f.space.state_slots, slots, N_SLOTS);
    for (int i = 0; i < 50 || n_read(&f) <= N_BLOCKS; i++) {
        usleep(1000);
        assert_int_equal(kv_readings_advance(&f.space, NULL), 0);
        assert_true(waits(&u));
    }
    page_pool_release(f.space.state_slots, slots, N_SLOTS);
    read_whole(&f, &u);
    teardown(&f);
}

/* With two states left, one text is read after the other: their checkpoints would take each other's
 * place. */
TEST(texts_are_read_only_as_states_are_left) {
    static struct fixture f;
    static struct user users[3];
    uint32_t slots[N_SLOTS - 2];
    setup(&f);
    save_texts(&f, COUNT(users));
    page_pool_take_sure(f.space.state_slots, slots, N_SLOTS - 2);
    for (uint32_t i = 0; i < COUNT(users); i++) prepare(&f, &users[i], i + 1);
    for (uint32_t i = 0; i < COUNT(users); i++) {
        for (uint32_t k = i; k < COUNT(users); k++) assert_true(waits(&users[k]));
        assert_int_equal(f.readings.n, 1);
        read_whole(&f, &users[i]);
    }
    assert_int_equal(n_read(&f), COUNT(users) * (N_BLOCKS + 1));
    page_pool_release(f.space.state_slots, slots, N_SLOTS - 2);
    teardown(&f);
}

/* A text that found no state asks the disk once there is one, though no more pages are free. */
TEST(a_free_state_lets_a_text_ask_again) {
    static struct fixture f;
    static struct user u;
    uint32_t slots[N_SLOTS];
    setup(&f);
    save_texts(&f, 1);
    page_pool_take_sure(f.space.state_slots, slots, N_SLOTS);
    prepare(&f, &u, 1);
    assert_false(waits(&u));
    assert_int_equal(start(&u), ERR_FULL);
    page_pool_release(f.space.state_slots, slots, N_SLOTS);
    assert_true(waits(&u));
    read_whole(&f, &u);
    teardown(&f);
}
