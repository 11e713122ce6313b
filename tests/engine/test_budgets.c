/* test_budgets.c - the whole engine with bounded KV caches, with a small model on the CPU.
 *
 * A budget that is never exhausted must give what the full cache gives; one that is must give the
 * same whatever else is running, however prompts are cut into steps, and wherever the sequence was
 * suspended.  What the budget keeps is tested elsewhere, against the definition. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/model/model.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/kv_types.h"
#include "tests/test.h"

static struct backend_ops ops; /* the backend's, but for one: */
static int (*real_download)(struct backend *be, void *host, const void *from, size_t bytes,
                            struct error *err);
static unsigned n_downloads;

/* The engine reads pages back for suspended sequences only. */
static int counting_download(struct backend *be, void *host, const void *from, size_t bytes,
                             struct error *err) {
    n_downloads++;
    return real_download(be, host, from, bytes, err);
}

/* max_model_len is what the pool holds, n_blocks * PAGE_TOKENS. */
static struct engine *start(uint32_t n_blocks, uint32_t max_batched_tokens, bool bounded) {
    const struct engine_config config = {
        .model_dir = model_dir,
        .backend = backend,
        .max_num_seqs = 16,
        .max_model_len = n_blocks * PAGE_TOKENS,
        .max_batched_tokens = max_batched_tokens,
        .max_queued = 1024,
        .kv_format = PAGE_F32,
        .kv_cache_bytes = n_blocks * n_layers * (bounded ? page_bytes : plain_page_bytes),
        .prefix_caching = true,
        .bounded_caches = bounded};
    struct engine *engine = answers_start(&config);
    assert_int_equal(engine_info(engine)->bounded_caches, bounded);
    return engine;
}

static struct kv_choice streaming(uint32_t n_sink, uint32_t n_recent, uint32_t chunk) {
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_STREAMING,
                              .n_sink = n_sink,
                              .n_recent = n_recent,
                              .chunk = chunk};
}

static struct kv_choice heavy_hitter(uint32_t n_recent, uint32_t n_heavy, enum kv_score score,
                                     uint32_t chunk) {
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_HEAVY_HITTER,
                              .n_sink = 4,
                              .n_recent = n_recent,
                              .n_heavy = n_heavy,
                              .score = score,
                              .decay = 0.99f,
                              .chunk = chunk};
}

static void check_close(const struct answer *a, const struct answer *b, uint32_t n, float within) {
    assert_true(a->n_tokens >= n && b->n_tokens >= n);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(a->tokens[i].token, b->tokens[i].token);
        const float difference = a->tokens[i].logprob - b->tokens[i].logprob;
        assert_true(difference == difference && fabsf(difference) <= within);
    }
}

/* The same keys and values in the same slots, and the same kernels: equal to the bit. */
TEST(a_budget_that_is_never_exhausted_changes_nothing) {
    enum { N = 5 };
    const struct kv_choice choices[N] = {
        streaming(4, 600, 0), streaming(0, 500, 64), heavy_hitter(300, 200, KV_SCORE_SUM, 512),
        heavy_hitter(100, 400, KV_SCORE_MEAN, 100), heavy_hitter(1, 499, KV_SCORE_WINDOW, 65)};
    struct engine *engine = start(40, 256, true);
    srand(5);
    const struct recipe full = recipe_make(430, 70);
    struct answer expected = {0};
    expected = answers_one(engine, &full);
    assert_int_equal(expected.last.kv.values[KV_RESIDENT_TOKENS], 499);
    for (int i = 0; i < N; i++) {
        struct recipe r = full;
        struct answer a = {0};
        r.kv = choices[i];
        a = answers_one(engine, &r);
        assert_int_equal(a.last.n_cached, 0);
        assert_true(isnan(a.last.kv.values[KV_RETAINED_ATTENTION]));
        assert_int_equal(a.last.kv.values[KV_EVICTED_TOKENS], 0);
        answers_assert_same(&expected, &a);
        answer_forget(&a);
    }
    answer_forget(&expected);
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

/* Keys are rotated by another kernel and at another time, which costs the last bits. */
TEST(positions_in_the_cache_are_those_of_the_text_at_first) {
    enum { N_COMPARED = 40 };
    struct engine *engine = start(40, 256, true);
    srand(6);
    struct recipe r = recipe_make(430, N_COMPARED);
    struct answer expected = {0}, a = {0};
    expected = answers_one(engine, &r);
    r.params.max_tokens = 1000000;
    r.kv = heavy_hitter(300, 200, KV_SCORE_SUM, 512);
    r.kv.cache_positions = true;
    const uint64_t id = recipe_submit(engine, &r, &a);
    while (a.n_tokens < N_COMPARED) answers_drain(engine);
    engine_cancel(engine, id);
    answers_wait(engine, &a, 1);
    check_close(&expected, &a, N_COMPARED, 1e-4f);
    answer_forget(&a);
    answer_forget(&expected);
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

/* Full ones first: they are those that need more pages later. */
static struct recipe random_recipe(int i) {
    struct recipe r = recipe_make(1 + (uint32_t)rand() % (rand() % 2 ? 60 : 300), 60);
    const uint32_t chunk = 32 + (uint32_t)rand() % 100, recent = 1 + (uint32_t)rand() % 60;
    r.params.sampler.temperature = rand() % 2 ? 1.0f : 0;
    r.params.n_prompt_logprobs = rand() % 6 ? -1 : 1;
    if (i % 2 == 0) {
        r.n_prompt = 50 + (uint32_t)rand() % 14;
        r.params.max_tokens = 100;
    } else if (rand() % 3 == 0) {
        r.kv = streaming((uint32_t)rand() % 5, recent, chunk);
    } else {
        const enum kv_score score = KV_SCORE_SUM + (enum kv_score)(rand() % 4);
        r.kv = heavy_hitter(recent, 1 + (uint32_t)rand() % 100, score, chunk);
    }
    r.kv.cache_positions = i % 2 && rand() % 2;
    if (r.kv.cache_positions && i % 8 == 7) r.params.max_tokens = 33000; /* beyond the context */
    return r;
}

/* max_tokens that no test waits for ends by a token of the answer that was given alone. */
static void answer_alone(struct recipe *recipes, struct answer *alone, uint32_t n) {
    static uint32_t stop[64];
    struct engine *engine = start(24, 256, true);
    for (uint32_t i = 0; i < n; i++) {
        if (recipes[i].params.max_tokens > 1000) {
            struct answer a = {0};
            const uint64_t id = recipe_submit(engine, &recipes[i], &a);
            while (a.n_tokens < 60) answers_drain(engine);
            engine_cancel(engine, id);
            answers_wait(engine, &a, 1);
            stop[i] = a.tokens[59].token;
            answer_forget(&a);
            recipes[i].stop_token = &stop[i];
        }
        alone[i] = answers_one(engine, &recipes[i]);
    }
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

static struct engine_stats compare_with_alone(const struct recipe *recipes,
                                              const struct answer *alone, uint32_t n,
                                              uint32_t n_blocks, uint32_t max_batched_tokens) {
    return answers_compare(start(n_blocks, max_batched_tokens, true), recipes, alone, n);
}

TEST(answers_depend_on_the_budget_alone) {
    enum { N = 24 };
    static struct recipe recipes[N];
    static struct answer alone[N];
    srand(7);
    for (int i = 0; i < N; i++) recipes[i] = random_recipe(i);
    answer_alone(recipes, alone, N);
    for (int i = 1; i < N; i += 2)
        if (alone[i].last.kv.values[KV_EVICTED_TOKENS] > 0)
            assert_true(isnan(alone[i].last.kv.values[KV_RETAINED_ATTENTION]) ==
                        (recipes[i].kv.score == KV_SCORE_NONE));
    const struct engine_stats stats = compare_with_alone(recipes, alone, N, 200, 300);
    assert_true(stats.kv[KV_EVICTED_TOKENS][TYPE_STREAMING] > 0 &&
                stats.kv[KV_EVICTED_TOKENS][TYPE_HEAVY_HITTER] > 0);
    assert_int_equal(stats.kv[KV_EVICTED_TOKENS][TYPE_FULL], 0);
    compare_with_alone(recipes, alone, N, 200, 17);
    compare_with_alone(recipes, alone, N, 10, 64);
    late_backend_begin(backend);
    compare_with_alone(recipes, alone, N, 200, 100);
    compare_with_alone(recipes, alone, N, 10, 64);
    assert_true(late_backend_end() > 0);
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* Seven blocks: the full request grows to six, so the bounded one's two are needed. */
TEST(a_suspended_sequence_answers_as_if_it_had_not_been) {
    enum { N = 2 };
    struct recipe recipes[2];
    const struct kv_choice choices[N] = {heavy_hitter(40, 56, KV_SCORE_MEAN, 64),
                                         heavy_hitter(40, 56, KV_SCORE_DECAY, 64)};
    srand(8);
    recipes[0] = recipe_make(10, 360);
    recipes[1] = recipe_make(150, 400);
    for (int i = 0; i < N; i++) {
        struct answer alone[2] = {0};
        recipes[1].kv = choices[i];
        answer_alone(recipes, alone, 2);
        assert_int_equal(alone[1].last.kv.values[KV_EVICTED_TOKENS], 150 + 399 - 100);
        if (i % 2) late_backend_begin(backend);
        n_downloads = 0;
        assert_int_equal(compare_with_alone(recipes, alone, 2, 7, 64).n_preempted, 1);
        assert_true(n_downloads > 0);
        if (i % 2) late_backend_end();
        for (int j = 0; j < 2; j++) answer_forget(&alone[j]);
    }
}

/* A prompt of a hundred blocks in a pool of eight; the context of full requests ends at it. */
TEST(a_long_text_needs_only_the_room_of_its_budget) {
    struct engine *engine = start(8, 256, true);
    struct answer a = {0};
    struct engine_request r = {.n_prompt = 6400, .params = sampling_defaults(), .user = &a};
    struct error err = {0};
    uint64_t id;
    r.prompt = calloc(r.n_prompt, sizeof(*r.prompt));
    for (uint32_t i = 0; i < r.n_prompt; i++) r.prompt[i] = i * 37 % 8000;
    r.params.max_tokens = 20;
    r.params.ignore_eos = true;
    assert_int_equal(engine_submit(engine, &r, 1, &id, &err), ERR_TOO_LONG);
    r.kv = heavy_hitter(100, 152, KV_SCORE_MEAN, 257);
    assert_int_equal(engine_submit(engine, &r, 1, &id, &err), ERR_TOO_LONG); /* a slot too many */
    r.kv.chunk = 256;
    assert_int_equal(engine_submit(engine, &r, 1, &id, &err), 0);
    answers_wait(engine, &a, 1);
    assert_int_equal(a.last.reason, FINISH_LENGTH);
    assert_int_equal(a.last.kv.values[KV_RESIDENT_TOKENS], 256);
    assert_int_equal(a.last.kv.values[KV_EVICTED_TOKENS], 6400 + 19 - 256);
    assert_true(a.last.kv.values[KV_RETAINED_ATTENTION] > 0 &&
                a.last.kv.values[KV_RETAINED_ATTENTION] < 1);
    answer_forget(&a);
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

TEST(budgets_that_cannot_be_honoured_are_refused) {
    uint32_t prompt[5] = {0};
    struct engine_request r = {.prompt = prompt, .n_prompt = 5, .params = sampling_defaults()};
    struct error err = {0};
    uint64_t id;
    struct engine *engine = start(8, 256, false);
    r.kv = streaming(4, 60, 0);
    assert_int_equal(engine_submit(engine, &r, 1, &id, &err), ERR_INVALID);
    engine_destroy(engine);
    engine = start(8, 256, true);
    r.kv = streaming(4, 0, 0);
    assert_int_equal(engine_submit(engine, &r, 1, &id, &err), ERR_INVALID);
    r.kv = streaming(4, 32768 - 512 - 4, 0);
    r.kv.cache_positions = true;
    assert_int_equal(engine_submit(engine, &r, 1, &id, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "trained context"));
    r.kv.n_recent--; /* now it could, but for the pool, if the text becomes so long */
    r.params.max_tokens = 40000;
    assert_int_equal(engine_submit(engine, &r, 1, &id, &err), ERR_TOO_LONG);
    assert_null(engine_take_events(engine));
    engine_destroy(engine);
}

static int count_downloads(void **state) {
    ops = *backend->ops;
    real_download = ops.download;
    ops.download = counting_download;
    backend->ops = &ops;
    return 0;
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, count_downloads);
}
