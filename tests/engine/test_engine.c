/* test_engine.c - the whole engine with a small model on the CPU: what comes out must not depend on
 * what else is running, on how little cache there is, on what was computed before, or on whether
 * steps are submitted before the results of the last one are there. */
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/test.h"

static struct engine *start(uint32_t n_blocks, bool prefix_caching) {
    return answers_start(&(struct engine_config){
        .model_dir = model_dir,
        .backend = backend,
        .max_num_seqs = 64,
        .max_model_len = n_blocks * PAGE_TOKENS < 4096 ? n_blocks * PAGE_TOKENS : 4096,
        .max_batched_tokens = 256,
        .max_queued = 1024,
        .kv_format = PAGE_F32,
        .kv_cache_bytes = n_blocks * n_layers * plain_page_bytes,
        .prefix_caching = prefix_caching});
}

static struct recipe random_recipe(void) {
    struct recipe r = {.params = sampling_defaults()};
    uint32_t family = (uint32_t)rand() % 4;
    r.n_prompt = 1 + (uint32_t)rand() % (rand() % 3 ? 60 : 300);
    uint32_t shared = rand() % 2 ? 200 : (uint32_t)rand() % (r.n_prompt + 1);
    for (uint32_t i = 0; i < r.n_prompt; i++)
        r.prompt[i] = i < shared ? (family * 977 + i * 31) % 8000 : (uint32_t)rand() % 8000;
    r.params.ignore_eos = rand() % 4 == 0;
    r.params.max_tokens = 1 + (uint32_t)rand() % (r.params.ignore_eos ? 40 : 12);
    r.params.sampler.temperature = rand() % 3 ? 1.0f : 0;
    r.params.sampler.top_p = rand() % 2 ? 1 : 0.9f;
    r.params.sampler.top_k = rand() % 2 ? 0 : 40;
    r.params.sampler.repetition_penalty = rand() % 3 ? 1 : 1.2f;
    r.params.sampler.presence_penalty = rand() % 3 ? 0 : 0.5f;
    r.params.min_tokens = rand() % 3 ? 0 : 5;
    r.params.has_seed = true;
    r.params.seed = (uint64_t)rand();
    r.params.n_logprobs = rand() % 3 - 1;
    r.params.n_prompt_logprobs = rand() % 8 ? -1 : 1;
    return r;
}

/* Makes the requests one by one in an engine without a cache and a step at a time. */
static void answer_alone(const struct recipe *recipes, struct answer *alone, uint32_t n) {
    struct engine *engine = start(8, false);
    for (uint32_t i = 0; i < n; i++) {
        recipe_submit(engine, &recipes[i], &alone[i]);
        answers_wait(engine, &alone[i], 1);
        assert_int_not_equal(alone[i].last.reason, FINISH_ERROR);
    }
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

/* Makes the requests all at once in an engine of n_blocks blocks. */
static struct engine_stats compare_with_alone(const struct recipe *recipes,
                                              const struct answer *alone, uint32_t n,
                                              uint32_t n_blocks, bool caching) {
    return answers_compare(start(n_blocks, caching), recipes, alone, n);
}

TEST(answers_do_not_depend_on_company_or_cache) {
    enum { N = 64 };
    static struct recipe recipes[N];
    static struct answer alone[N];
    srand(17);
    for (int i = 0; i < N; i++) recipes[i] = random_recipe();
    answer_alone(recipes, alone, N);
    assert_true(compare_with_alone(recipes, alone, N, 400, true).cached_tokens > 0);
    assert_int_equal(compare_with_alone(recipes, alone, N, 16, false).cached_tokens, 0);
    late_backend_begin(backend);
    compare_with_alone(recipes, alone, N, 400, true);
    compare_with_alone(recipes, alone, N, 16, false);
    assert_true(late_backend_end() > 0);
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* Eight blocks: four requests start with one each and one in reserve, and every one of them grows
 * to a third. */
TEST(answers_do_not_depend_on_preemption) {
    enum { N = 8 };
    static struct recipe recipes[N];
    static struct answer alone[N];
    srand(19);
    for (int i = 0; i < N; i++) {
        recipes[i] = random_recipe();
        recipes[i].n_prompt = 45 + (uint32_t)i;
        for (uint32_t j = 0; j < recipes[i].n_prompt; j++)
            recipes[i].prompt[j] = (uint32_t)rand() % 8000;
        recipes[i].params.ignore_eos = true;
        recipes[i].params.max_tokens = 95;
        recipes[i].params.n_prompt_logprobs = i % 2 - 1;
    }
    answer_alone(recipes, alone, N);
    assert_true(compare_with_alone(recipes, alone, N, 8, true).n_preempted > 0);
    assert_true(compare_with_alone(recipes, alone, N, 8, false).n_preempted > 0);
    for (int i = 0; i < N; i++) recipes[i].params.sampler.presence_penalty = 0;
    for (int i = 0; i < N; i++) recipes[i].params.sampler.repetition_penalty = 1;
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
    answer_alone(recipes, alone, N);
    late_backend_begin(backend);
    assert_true(compare_with_alone(recipes, alone, N, 8, true).n_preempted > 0);
    assert_true(compare_with_alone(recipes, alone, N, 8, false).n_preempted > 0);
    assert_true(late_backend_end() > 0);
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

static struct recipe plain_recipe(uint32_t n_prompt, uint32_t max_tokens) {
    struct recipe r = {.n_prompt = n_prompt, .params = sampling_defaults()};
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = (i * 37 + 11) % 8000;
    r.params.max_tokens = max_tokens;
    r.params.sampler.temperature = 0;
    return r;
}

TEST(a_cached_prefix_gives_the_same_answer) {
    struct engine *engine = start(64, true);
    struct recipe r = plain_recipe(300, 20);
    struct answer first = {0}, second = {0};
    r.params.n_logprobs = 0;
    recipe_submit(engine, &r, &first);
    answers_wait(engine, &first, 1);
    recipe_submit(engine, &r, &second);
    answers_wait(engine, &second, 1);
    assert_int_equal(first.last.n_cached, 0);
    assert_int_equal(second.last.n_cached, 256);
    answers_assert_same(&first, &second);
    answer_forget(&first);
    answer_forget(&second);
    engine_destroy(engine);
}

/* Prompt log-probabilities of prompt + answer say the same about the answer as decoding it did. */
TEST(scoring_agrees_with_generating) {
    struct engine *engine = start(64, true);
    struct recipe r = plain_recipe(70, 30);
    struct answer generated = {0}, scored = {0};
    r.params.n_logprobs = 0;
    r.params.ignore_eos = true;
    recipe_submit(engine, &r, &generated);
    answers_wait(engine, &generated, 1);
    for (uint32_t i = 0; i < generated.n_tokens; i++)
        r.prompt[r.n_prompt++] = generated.tokens[i].token;
    r.params.max_tokens = 0;
    r.params.n_prompt_logprobs = 5;
    recipe_submit(engine, &r, &scored);
    answers_wait(engine, &scored, 1);
    assert_int_equal(scored.last.reason, FINISH_LENGTH);
    assert_int_equal(scored.last.n_generated, 0);
    assert_int_equal(scored.n_prompt_infos, 100);
    assert_true(isnan(scored.prompt[0].logprob));
    for (uint32_t i = 0; i < 30; i++) {
        assert_int_equal(scored.prompt[70 + i].token, generated.tokens[i].token);
        assert_memory_equal(&scored.prompt[70 + i].logprob, &generated.tokens[i].logprob,
                            sizeof(float));
    }
    answer_forget(&generated);
    answer_forget(&scored);
    engine_destroy(engine);
}

TEST(seeds_are_reproducible_and_differ) {
    struct engine *engine = start(64, true);
    struct answer answers[4] = {0};
    for (uint32_t i = 0; i < 4; i++) {
        struct recipe r = plain_recipe(20, 30);
        r.params.sampler.temperature = 1;
        r.params.ignore_eos = true;
        r.params.has_seed = i < 3;
        r.params.seed = i / 2;
        recipe_submit(engine, &r, &answers[i]);
    }
    answers_wait(engine, answers, 4);
    assert_string_equal(answers[0].text, answers[1].text);
    assert_string_not_equal(answers[0].text, answers[2].text);
    assert_string_not_equal(answers[0].text, answers[3].text);
    for (int i = 0; i < 4; i++) answer_forget(&answers[i]);
    engine_destroy(engine);
}

TEST(cancelling_frees_pages_in_every_phase) {
    struct engine *engine = start(16, false);
    struct answer a = {0};
    struct recipe r = plain_recipe(500, 500);
    r.params.ignore_eos = true;
    for (int phase = 0; phase < 20; phase++) { /* from still queued to generating */
        uint64_t id = recipe_submit(engine, &r, &a);
        poll(NULL, 0, phase);
        engine_cancel(engine, id);
        engine_cancel(engine, id);
        answers_wait(engine, &a, 1);
        assert_int_equal(a.last.reason, FINISH_CANCELLED);
        answers_leave_no_page(engine);
        answer_forget(&a);
    }
    uint64_t id = recipe_submit(engine, &r, &a);
    while (a.n_tokens < 2) answers_drain(engine);
    engine_cancel(engine, id);
    answers_wait(engine, &a, 1);
    assert_int_equal(a.last.reason, FINISH_CANCELLED);
    answers_leave_no_page(engine);
    answer_forget(&a);
    engine_cancel(engine, 123456); /* never heard of */
    engine_destroy(engine);
}

/* The first tokens of an answer, up to where its request was cancelled. */
static void assert_begins_like(const struct answer *a, const struct answer *whole) {
    assert_true(a->n_tokens <= whole->n_tokens);
    for (uint32_t i = 0; i < a->n_tokens; i++)
        assert_int_equal(a->tokens[i].token, whole->tokens[i].token);
    assert_memory_equal(a->text, whole->text, strlen(a->text));
}

/* Requests that end by an end token, a stop string, a length or a cancel, each while the step after
 * is under way with a row of theirs. */
TEST(answers_do_not_depend_on_running_ahead) {
    enum { N = 48 };
    static struct recipe recipes[N];
    static struct answer alone[N], ahead[N];
    static uint64_t ids[N];
    srand(23);
    for (int i = 0; i < N; i++) {
        recipes[i] = random_recipe();
        recipes[i].params.sampler.repetition_penalty = 1;
        recipes[i].params.sampler.presence_penalty = i % 16 == 15 ? 0.5f : 0;
        recipes[i].stop = i % 3 == 0 ? "e" : NULL;
        if (i % 8 >= 4) continue; /* the others share a prompt, as n = 4 has it */
        const struct recipe *first = &recipes[i / 8 * 8];
        recipes[i].n_prompt = first->n_prompt;
        memcpy(recipes[i].prompt, first->prompt, sizeof(first->prompt));
    }
    answer_alone(recipes, alone, N);
    late_backend_begin(backend);
    for (uint32_t round = 0; round < 2; round++) {
        struct engine *engine = start(round ? 14 : 100, round == 0);
        for (int i = 0; i < N; i++) ids[i] = recipe_submit(engine, &recipes[i], &ahead[i]);
        for (int i = 5; i < N; i += 7) {
            poll(NULL, 0, 5);
            engine_cancel(engine, ids[i]);
        }
        answers_wait(engine, ahead, N);
        for (int i = 0; i < N; i++) {
            if (ahead[i].last.reason == FINISH_CANCELLED) assert_begins_like(&ahead[i], &alone[i]);
            else answers_assert_same(&alone[i], &ahead[i]);
            answer_forget(&ahead[i]);
        }
        answers_leave_no_page(engine);
        engine_destroy(engine);
    }
    assert_true(late_backend_end() > 0);
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* Every row of a penalised request begins with a token that the step before samples. */
TEST(penalties_count_tokens_of_the_step_in_flight) {
    enum { N = 8, N_TOKENS = 40 };
    static struct recipe recipes[N];
    static struct answer alone[N], ahead[N];
    srand(29);
    for (int i = 0; i < N; i++) {
        recipes[i] = random_recipe();
        recipes[i].params.sampler.frequency_penalty = 0.1f * (float)(i + 1);
        recipes[i].params.ignore_eos = true;
        recipes[i].params.max_tokens = N_TOKENS;
    }
    answer_alone(recipes, alone, N);
    late_backend_begin(backend);
    struct engine *engine = start(100, true);
    for (int i = 0; i < N; i++) recipe_submit(engine, &recipes[i], &ahead[i]);
    answers_wait(engine, ahead, N);
    answers_leave_no_page(engine);
    engine_destroy(engine);
    assert_int_equal(late_backend_end(), N * (N_TOKENS - 1));
    for (int i = 0; i < N; i++) {
        answers_assert_same(&alone[i], &ahead[i]);
        answer_forget(&alone[i]);
        answer_forget(&ahead[i]);
    }
}

/* With steps in flight, too. */
TEST(stopping_ends_everything_once) {
    struct answer answers[20] = {0};
    struct recipe r = plain_recipe(100, 500);
    r.params.ignore_eos = true;
    late_backend_begin(backend);
    struct engine *engine = start(64, true);
    for (int i = 0; i < 20; i++) recipe_submit(engine, &r, &answers[i]);
    while (answers[0].n_tokens < 3) answers_drain(engine);
    engine_stop(engine);
    answers_drain(engine);
    for (int i = 0; i < 20; i++) {
        assert_true(answers[i].finished);
        answer_forget(&answers[i]);
    }
    struct engine_request late = {.prompt = r.prompt, .n_prompt = 1, .params = sampling_defaults()};
    struct error err = {0};
    uint64_t id;
    assert_int_equal(engine_submit(engine, &late, 1, &id, &err), ERR_DEVICE);
    engine_destroy(engine);
    engine_destroy(NULL);
    assert_true(late_backend_end() > 0);
}

TEST(a_full_queue_refuses_all_or_none) {
    struct error err = {0};
    struct engine *engine;
    struct engine_config config = {.model_dir = model_dir,
                                   .backend = backend,
                                   .max_model_len = 1024,
                                   .max_num_seqs = 1,
                                   .max_batched_tokens = 64,
                                   .max_queued = 1,
                                   .kv_format = PAGE_F32};
    struct answer a = {0};
    struct recipe r = plain_recipe(50, 900);
    r.params.ignore_eos = true;
    assert_int_equal(engine_create(&engine, &config, &err), 0);
    uint64_t id = recipe_submit(engine, &r, &a), ids[2];
    struct engine_request two[2] = {
        {.prompt = r.prompt, .n_prompt = 5, .params = sampling_defaults()}};
    two[1] = two[0];
    assert_int_equal(engine_submit(engine, two, 2, ids, &err), ERR_FULL);
    engine_cancel(engine, id);
    answers_wait(engine, &a, 1);
    answer_forget(&a);
    engine_destroy(engine);
}

/* A backend that fails on demand: the CPU's table with one entry replaced.  It waits for the last
 * request, which the engine sees behind the failure. */
static atomic_bool broken, all_submitted;
static int (*real_collect)(struct backend *be, uint32_t n_newer, struct error *err);

static int failing_collect(struct backend *be, uint32_t n_newer, struct error *err) {
    if (!atomic_load(&broken)) return real_collect(be, n_newer, err);
    while (!atomic_load(&all_submitted)) sched_yield();
    return error_set(err, ERR_DEVICE, "pulled the plug");
}

static void fail_while_running(bool ahead) {
    const struct backend_ops *real = backend->ops;
    struct backend_ops ops = *real;
    real_collect = ops.collect;
    ops.collect = failing_collect;
    backend->ops = &ops;
    backend->runs_ahead = ahead;
    struct engine *engine = start(64, true);
    struct answer answers[6] = {0};
    struct recipe r = plain_recipe(200, 700);
    r.params.ignore_eos = true;
    for (int i = 0; i < 5; i++) recipe_submit(engine, &r, &answers[i]);
    while (answers[0].n_tokens < 3) answers_drain(engine);
    assert_true(engine_healthy(engine));
    atomic_store(&broken, true);
    recipe_submit(engine, &r, &answers[5]);
    atomic_store(&all_submitted, true);
    answers_wait(engine, answers, 6);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(answers[i].last.reason, FINISH_ERROR);
        assert_string_equal(answers[i].last.error_text, "pulled the plug");
        answer_forget(&answers[i]);
    }
    assert_false(engine_healthy(engine));
    struct engine_request late = {.prompt = r.prompt, .n_prompt = 1, .params = sampling_defaults()};
    struct error err = {0};
    uint64_t id;
    assert_int_equal(engine_submit(engine, &late, 1, &id, &err), ERR_DEVICE);
    engine_destroy(engine);
    atomic_store(&broken, false);
    atomic_store(&all_submitted, false);
    backend->ops = real;
    backend->runs_ahead = false;
}

TEST(a_backend_failure_ends_every_request_and_is_sticky) {
    fail_while_running(false);
    fail_while_running(true); /* with two steps in flight */
}

/* Several threads submit, cancel and read statistics while another takes the events. */
enum { CLIENT_THREADS = 4, PER_THREAD = 25 };

struct client_thread {
    struct engine *engine;
    struct answer answers[PER_THREAD];
    unsigned seed;
};

static void *run_client(void *arg) {
    struct client_thread *c = arg;
    for (int i = 0; i < PER_THREAD; i++) {
        struct recipe r =
            plain_recipe(1 + (uint32_t)rand_r(&c->seed) % 100, 1 + (uint32_t)rand_r(&c->seed) % 10);
        struct engine_stats stats;
        uint64_t id = recipe_submit(c->engine, &r, &c->answers[i]);
        engine_stats(c->engine, &stats);
        if (rand_r(&c->seed) % 3 == 0) engine_cancel(c->engine, id);
    }
    return NULL;
}

TEST(many_threads_may_use_one_engine) {
    static struct client_thread clients[CLIENT_THREADS];
    struct engine *engine = start(24, true);
    pthread_t threads[CLIENT_THREADS];
    for (int t = 0; t < CLIENT_THREADS; t++) {
        clients[t] = (struct client_thread){.engine = engine, .seed = (unsigned)t + 1};
        assert_int_equal(pthread_create(&threads[t], NULL, run_client, &clients[t]), 0);
    }
    for (int t = 0; t < CLIENT_THREADS; t++) pthread_join(threads[t], NULL);
    for (int t = 0; t < CLIENT_THREADS; t++) {
        answers_wait(engine, clients[t].answers, PER_THREAD);
        for (int i = 0; i < PER_THREAD; i++) answer_forget(&clients[t].answers[i]);
    }
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, NULL);
}
