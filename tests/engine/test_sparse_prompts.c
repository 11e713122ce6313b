/* test_sparse_prompts.c - the whole engine with a small model on the CPU and sparse prompts:
 * the order in which a prompt is computed changes no bit, nor does what runs beside it, and what
 * was visited is told. */
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/test.h"

enum { WHOLE = 0, IN_CHUNKS = 1 };

static struct attn_pattern dense[MAX_HEADS];

/* max_long_rows: WHOLE or IN_CHUNKS. */
static struct engine *start_sparse(uint32_t max_long_rows, bool caching) {
    struct engine_config config = answers_config();
    config.max_long_rows = max_long_rows;
    config.prefix_caching = caching;
    return answers_start(&config);
}

static struct recipe sparse_recipe(uint32_t n_prompt, uint32_t max_tokens,
                                   const struct attn_pattern *patterns) {
    struct recipe r = {.n_prompt = n_prompt, .params = sampling_defaults()};
    for (uint32_t i = 0; i < n_prompt; i++) r.prompt[i] = (uint32_t)rand() % 8000;
    r.params.max_tokens = max_tokens;
    r.params.sampler.temperature = 0;
    r.params.ignore_eos = true;
    r.params.n_logprobs = 0;
    r.prefill = (struct prefill_choice){
        .mode = PREFILL_SPARSE, .patterns = patterns, .dense_above = 1, .dense_tail = 64};
    return r;
}

TEST(patterns_that_leave_nothing_out_change_no_bit) {
    static const uint32_t lengths[] = {2, 129, 700, 1537};
    static const uint32_t ways[] = {WHOLE, IN_CHUNKS};
    srand(5);
    for (int i = 0; i < 4; i++)
        for (int way = 0; way < 2; way++) {
            struct recipe r = sparse_recipe(lengths[i], 8, dense);
            r.params.n_prompt_logprobs = i % 2 ? 1 : -1;
            struct engine *engine = start_sparse(ways[way], false);
            struct answer sparse = answers_one(engine, &r);
            r.prefill.mode = PREFILL_DENSE;
            struct answer exact = answers_one(engine, &r);
            answers_assert_same(&sparse, &exact);
            assert_int_equal(sparse.last.prefill.mode, PREFILL_SPARSE);
            assert_int_equal(exact.last.prefill.mode, PREFILL_DENSE);
            assert_true(sparse.last.prefill.density == 1);
            assert_int_equal(sparse.n_prompt_infos, i % 2 ? r.n_prompt : 0);
            answer_forget(&sparse);
            answer_forget(&exact);
            engine_destroy(engine);
        }
}

/* Prompts that go layer by layer are indexed whole, whatever runs beside them. */
TEST(company_and_running_ahead_change_no_bit) {
    enum { N = 6 };
    static struct recipe recipes[N];
    static struct answer alone[N];
    srand(6);
    for (int i = 0; i < N; i++) {
        recipes[i] = sparse_recipe(200 + 150 * (uint32_t)i, 20, i % 3 ? mixed : dense);
        if (i % 2) recipes[i].prefill.mode = PREFILL_DENSE;
        if (i % 3 == 1) recipes[i].params.n_prompt_logprobs = 0;
        struct engine *engine = start_sparse(WHOLE, false);
        alone[i] = answers_one(engine, &recipes[i]);
        engine_destroy(engine);
    }
    for (int caching = 0; caching < 2; caching++) {
        assert_int_equal(answers_compare(start_sparse(WHOLE, caching), recipes, alone, N).n_sparse,
                         N / 2);
        late_backend_begin(backend);
        answers_compare(start_sparse(WHOLE, caching), recipes, alone, N);
        assert_true(late_backend_end() > 0);
    }
    struct engine_config config = answers_config();
    config.max_itl_ms = 1; /* slices and pieces of the smallest size */
    answers_compare(answers_start(&config), recipes, alone, N);
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

static double sum(const double *by_kind) {
    double total = 0;
    for (int kind = 0; kind < PATTERN_N_KINDS; kind++) total += by_kind[kind];
    return total;
}

TEST(what_was_visited_is_told) {
    static const uint32_t ways[] = {WHOLE, IN_CHUNKS};
    struct engine_stats stats;
    srand(7);
    for (int way = 0; way < 2; way++) {
        struct engine *engine = start_sparse(ways[way], true);
        const struct recipe r = sparse_recipe(1500, 4, NULL);
        struct answer a = answers_one(engine, &r);
        const struct prefill_usage *used = &a.last.prefill;
        engine_stats(engine, &stats);
        assert_int_equal(used->mode, PREFILL_SPARSE);
        assert_true(used->density > 0.05 && used->density < 0.9);
        assert_true(used->index_s > 0 && used->attention_s > 0);
        assert_int_equal(stats.n_sparse, 1);
        assert_true(stats.sparse.visited[PATTERN_A_SHAPE] > 0);
        assert_true(stats.sparse.visited[PATTERN_A_SHAPE] < stats.sparse.causal[PATTERN_A_SHAPE]);
        assert_true(used->density == sum(stats.sparse.visited) / sum(stats.sparse.causal));
        answer_forget(&a);
        a = answers_one(engine, &r); /* nearly all of it is cached by now, under the same choice */
        assert_true(a.last.n_cached > 1400);
        answer_forget(&a);
        engine_destroy(engine);
    }
}

TEST(auto_begins_at_the_break_even) {
    struct engine_config config = answers_config();
    config.min_sparse_tokens = 1000;
    struct engine *engine = answers_start(&config);
    struct engine_info info = *engine_info(engine);
    assert_true(info.sparse_prefill && info.long_rows == 2048 && info.long_bytes > 0);
    for (uint32_t n = 999; n <= 1000; n++) {
        struct recipe r = sparse_recipe(n, 1, NULL);
        r.prefill = (struct prefill_choice){0};
        struct answer a = answers_one(engine, &r);
        assert_int_equal(a.last.prefill.mode, n < 1000 ? PREFILL_DENSE : PREFILL_SPARSE);
        answer_forget(&a);
    }
    engine_destroy(engine);
}

static int refusal(struct engine *engine, const struct engine_request *r) {
    struct error err = {0};
    struct engine_request copy = *r;
    uint64_t id;
    const int code = engine_submit(engine, &copy, 1, &id, &err);
    if (code) assert_true(strlen(err.text) > 20); /* a sentence */
    return code;
}

TEST(a_backend_with_dense_attention_alone_refuses) {
    uint32_t prompt[100] = {1};
    const struct engine_request good = {.prompt = prompt,
                                        .n_prompt = 100,
                                        .params = sampling_defaults(),
                                        .prefill = {.mode = PREFILL_SPARSE}};
    struct engine_config config = answers_config();
    struct engine *engine;
    const struct backend_ops *real = backend->ops;
    struct backend_ops ops = *real;
    ops.sparse = NULL;
    backend->ops = &ops;
    config.min_sparse_tokens = 0;
    engine = answers_start(&config);
    assert_false(engine_info(engine)->sparse_prefill);
    assert_int_equal(refusal(engine, &good), ERR_INVALID);
    struct recipe r = sparse_recipe(700, 1, NULL);
    r.prefill.mode = PREFILL_AUTO;
    struct answer a = answers_one(engine, &r);
    assert_int_equal(a.last.prefill.mode, PREFILL_DENSE);
    answer_forget(&a);
    engine_destroy(engine);
    backend->ops = real;
}

TEST(cancelling_a_sparse_prompt_leaves_no_page) {
    struct engine *engine = start_sparse(WHOLE, true);
    struct answer a = {0};
    srand(8);
    for (int phase = 0; phase < 12; phase++) {
        const struct recipe r = sparse_recipe(1500, 500, NULL);
        const uint64_t id = recipe_submit(engine, &r, &a);
        poll(NULL, 0, phase * 2);
        engine_cancel(engine, id);
        answers_wait(engine, &a, 1);
        assert_int_equal(a.last.reason, FINISH_CANCELLED);
        answers_leave_no_page(engine);
        answer_forget(&a);
    }
    engine_destroy(engine);
}

/* ---- without reuse ---- */

/* Two prompts of one beginning and different ends. */
static void make_pair(struct recipe pair[2], uint32_t n_prompt, uint32_t max_tokens) {
    for (int i = 0; i < 2; i++) pair[i] = sparse_recipe(n_prompt, max_tokens, NULL);
    memcpy(pair[1].prompt, pair[0].prompt, 512 * sizeof(uint32_t));
}

/* The second recipe's answer behind the first one's. */
static struct answer answer_warm(const struct recipe pair[2]) {
    struct engine *engine = start_sparse(WHOLE, true);
    struct answer first = answers_one(engine, &pair[0]), second = answers_one(engine, &pair[1]);
    answer_forget(&first);
    engine_destroy(engine);
    return second;
}

/* Of what others have left the keys were chosen for another end. */
TEST(without_reuse_no_earlier_request_changes_a_bit) {
    struct recipe pair[2];
    srand(9);
    make_pair(pair, 900, 4);
    struct engine *engine = start_sparse(WHOLE, true);
    struct answer cold = answers_one(engine, &pair[1]);
    engine_destroy(engine);
    struct answer reusing = answer_warm(pair);
    assert_int_equal(reusing.last.n_cached, 512);
    assert_int_equal(reusing.last.prefill.n_reused, 512);
    assert_true(reusing.tokens[0].logprob != cold.tokens[0].logprob);
    pair[1].prefill.no_reuse = true;
    struct answer warm = answer_warm(pair);
    answers_assert_same(&warm, &cold);
    assert_int_equal(warm.last.n_cached, 0);
    assert_int_equal(warm.last.prefill.n_reused, 0);
    answer_forget(&cold);
    answer_forget(&reusing);
    answer_forget(&warm);
}

/* Nor does it wait for them. */
TEST(without_reuse_no_company_changes_a_bit) {
    struct recipe pair[2];
    struct answer alone[2];
    srand(10);
    make_pair(pair, 900, 8);
    for (int i = 0; i < 2; i++) {
        struct engine *engine = start_sparse(WHOLE, true);
        pair[i].prefill.no_reuse = true;
        alone[i] = answers_one(engine, &pair[i]);
        engine_destroy(engine);
    }
    answers_compare(start_sparse(WHOLE, true), pair, alone, 2);
    for (int i = 0; i < 2; i++) answer_forget(&alone[i]);
}

/* What it has computed, whole, others may take. */
TEST(without_reuse_blocks_are_given) {
    struct engine *engine = start_sparse(WHOLE, true);
    struct recipe r = sparse_recipe(700, 1, NULL);
    r.prefill.no_reuse = true;
    for (int i = 0; i < 2; i++) {
        struct answer a = answers_one(engine, &r);
        assert_int_equal(a.last.n_cached, 0);
        answer_forget(&a);
    }
    r.prefill.no_reuse = false;
    struct answer a = answers_one(engine, &r);
    assert_int_equal(a.last.prefill.n_reused, 640);
    answer_forget(&a);
    r.prefill.mode = PREFILL_DENSE; /* what it stores is never sparse */
    for (int i = 0; i < 2; i++) {
        a = answers_one(engine, &r);
        assert_int_equal(a.last.n_cached, i ? 640 : 0);
        assert_int_equal(a.last.prefill.n_reused, 0);
        answer_forget(&a);
    }
    engine_destroy(engine);
}

/* Own blocks end with a whole page, and behind them keys would be chosen for the rest alone. */
TEST(without_reuse_preemption_changes_no_bit) {
    enum { N = 2 };
    struct recipe recipes[N];
    struct answer alone[N];
    struct engine_config config = answers_config();
    config.prefix_caching = true;
    config.max_model_len = 1100;
    config.kv_cache_bytes = 21 * n_layers * plain_page_bytes;
    srand(11);
    for (int i = 0; i < N; i++) {
        recipes[i] = sparse_recipe(610, 160, NULL);
        recipes[i].prefill.no_reuse = true;
        struct engine *engine = answers_start(&config);
        alone[i] = answers_one(engine, &recipes[i]);
        engine_destroy(engine);
    }
    assert_true(answers_compare(answers_start(&config), recipes, alone, N).n_preempted > 0);
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* Where chunks end depends on company. */
TEST(without_reuse_nothing_goes_in_chunks) {
    struct engine_config config = answers_config();
    struct engine_request sparse = {.params = sampling_defaults(),
                                    .prefill = {.mode = PREFILL_SPARSE, .no_reuse = true}};
    uint32_t prompt[700] = {1};
    config.max_long_rows = 640;
    config.min_sparse_tokens = 600;
    struct engine *engine = answers_start(&config);
    sparse.prompt = prompt;
    sparse.n_prompt = 642;
    assert_int_equal(refusal(engine, &sparse), ERR_TOO_LONG);
    struct recipe r = sparse_recipe(641, 2, NULL);
    r.prefill.no_reuse = true;
    struct answer fits = answers_one(engine, &r);
    assert_int_equal(fits.last.prefill.mode, PREFILL_SPARSE);
    r = sparse_recipe(642, 2, NULL);
    r.prefill.mode = PREFILL_AUTO;
    struct answer chunks = answers_one(engine, &r);
    assert_int_equal(chunks.last.prefill.mode, PREFILL_SPARSE);
    r.prefill.no_reuse = true;
    struct answer whole = answers_one(engine, &r);
    assert_int_equal(whole.last.prefill.mode, PREFILL_DENSE);
    r.prefill.mode = PREFILL_DENSE;
    struct answer exact = answers_one(engine, &r);
    answers_assert_same(&whole, &exact);
    answer_forget(&fits);
    answer_forget(&chunks);
    answer_forget(&whole);
    answer_forget(&exact);
    engine_destroy(engine);
}

static atomic_int n_indexed;

static int failing_index(struct backend *be, const struct sparse_index_args *args,
                         struct error *err) {
    (void)be, (void)args;
    if (atomic_fetch_add(&n_indexed, 1) < 3) return 0;
    return error_set(err, ERR_DEVICE, "pulled the plug");
}

/* In the middle of a long prompt, with another that generates and one that waits for its turn. */
TEST(a_failure_ends_every_request) {
    const struct backend_ops *real = backend->ops;
    struct backend_ops ops = *real;
    struct sparse_ops sparse = *real->sparse;
    sparse.index = failing_index;
    ops.sparse = &sparse;
    struct answer answers[3] = {0};
    srand(9);
    backend->ops = &ops;
    struct engine *engine = start_sparse(WHOLE, true);
    struct recipe r = sparse_recipe(20, 1500, NULL);
    r.prefill.mode = PREFILL_DENSE;
    recipe_submit(engine, &r, &answers[0]);
    while (answers[0].n_tokens < 2) answers_drain(engine);
    for (int i = 1; i < 3; i++) {
        r = sparse_recipe(600, 10, dense);
        recipe_submit(engine, &r, &answers[i]);
    }
    answers_wait(engine, answers, 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(answers[i].last.reason, FINISH_ERROR);
        answer_forget(&answers[i]);
    }
    assert_false(engine_healthy(engine));
    engine_destroy(engine);
    backend->ops = real;
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, NULL);
}
