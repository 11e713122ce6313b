/* test_sparse_budgets.c - the whole engine with a small model on the CPU, and prompts that are
 * read whole into a bounded KV cache: sparsely, or layer by layer because they do not fit.
 *
 * The order in which a prompt is computed changes no bit, nor does what runs beside it, and the
 * pages are those of the plan.  What patterns and budgets keep is tested against definitions:
 * tests/e2e/test_sparse_budgets.py. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/engine.h"
#include "tests/engine/answers.h"
#include "tests/kv_types.h"
#include "tests/test.h"

enum { BY_LAYERS = 0, IN_CHUNKS = 1 };

static struct attn_pattern dense[MAX_HEADS];

static struct engine_config plain_config(void) {
    struct engine_config config = answers_config();
    config.bounded_caches = true;
    config.only_bounded = true;
    return config;
}

static struct kv_choice streaming(uint32_t n_recent) {
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_STREAMING,
                              .n_sink = 4,
                              .n_recent = n_recent,
                              .whole = true};
}

static struct kv_choice window(uint32_t n_window, enum kv_pooling pooling) {
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_HEAVY_HITTER,
                              .n_sink = 4,
                              .n_recent = 100,
                              .n_heavy = 90,
                              .score = KV_SCORE_WINDOW,
                              .window = n_window,
                              .pooling = pooling,
                              .kernel = pooling == KV_POOLING_NONE ? 0 : 7,
                              .whole = true};
}

static struct kv_choice scored(enum kv_score score) {
    struct kv_choice choice = window(0, KV_POOLING_NONE);
    choice.score = score;
    choice.decay = 0.99f;
    return choice;
}

static struct recipe make_recipe(uint32_t n_prompt, uint32_t max_tokens, struct kv_choice kv,
                                 const struct attn_pattern *patterns) {
    struct recipe r = recipe_make(n_prompt, max_tokens);
    r.kv = kv;
    r.prefill = (struct prefill_choice){
        .mode = PREFILL_SPARSE, .patterns = patterns, .dense_above = 1, .dense_tail = 10};
    return r;
}

static struct answer answer_alone(const struct engine_config *config, const struct recipe *recipe) {
    struct engine *engine = answers_start(config);
    const struct answer answer = answers_one(engine, recipe);
    engine_destroy(engine);
    return answer;
}

/* Layer by layer, each layer is cut down to its budget before the next one is computed; in chunks
 * all are at the end.  Dense prompts are, too. */
TEST(patterns_that_leave_nothing_out_change_no_bit) {
    const struct kv_choice choices[] = {streaming(60), streaming(700), window(40, KV_POOLING_MAX),
                                        window(700, KV_POOLING_NONE)};
    static const uint32_t lengths[] = {2, 203, 760};
    srand(5);
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 4; k++)
            for (uint32_t way = BY_LAYERS; way <= IN_CHUNKS; way++) {
                struct engine_config config = plain_config();
                config.max_long_rows = way;
                struct recipe r = make_recipe(lengths[i], 20, choices[k], dense);
                r.params.n_prompt_logprobs = (i + k) % 2 ? -1 : 1;
                struct engine *engine = answers_start(&config);
                struct answer sparse = answers_one(engine, &r);
                r.prefill.mode = PREFILL_DENSE;
                struct answer exact = answers_one(engine, &r);
                answers_assert_same(&sparse, &exact);
                assert_int_equal(sparse.last.prefill.mode, PREFILL_SPARSE);
                assert_int_equal(exact.last.prefill.mode, PREFILL_DENSE);
                answer_forget(&sparse);
                answer_forget(&exact);
                engine_destroy(engine);
            }
}

static uint64_t pages(uint64_t n_tokens) {
    return (n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* Returns a pool that holds the budgets of all layers and two buffers of a prompt, and no page
 * more. */
static uint64_t least_bytes(const struct recipe *r) {
    const uint64_t capacity = r->kv.n_sink + r->kv.n_recent + r->kv.n_heavy,
                   n_most = r->n_prompt + r->params.max_tokens,
                   own = pages(n_most < capacity + 1 ? n_most : capacity + 1),
                   prompt = pages(r->n_prompt), beyond = prompt > own ? prompt - own : 0;
    return (n_layers * own + 2 * beyond) * page_bytes;
}

/* The budgets of all layers and the text of two are enough, whether the prompt is sparse or is
 * dense and does not fit. */
TEST(a_whole_prompt_needs_the_text_of_two_layers) {
    const struct kv_choice rotated = {.mechanism = KV_BOUNDED,
                                      .type = TYPE_STREAMING,
                                      .n_sink = 4,
                                      .n_recent = 60,
                                      .whole = true,
                                      .cache_positions = true};
    const struct kv_choice choices[] = {
        streaming(60),        window(64, KV_POOLING_AVERAGE), rotated,
        scored(KV_SCORE_SUM), scored(KV_SCORE_MEAN),          scored(KV_SCORE_DECAY)};
    srand(6);
    for (int i = 0; i < 6; i++)
        for (int is_sparse = 0; is_sparse <= (i < 2); is_sparse++) {
            struct recipe r = make_recipe(900 + (uint32_t)i, 40, choices[i], mixed);
            struct engine_config config = plain_config();
            struct error err = {0};
            r.prefill.mode = is_sparse ? PREFILL_SPARSE : PREFILL_DENSE;
            struct answer large = answer_alone(&config, &r);
            config.kv_cache_bytes = least_bytes(&r);
            /* The pool has whole blocks of a page for each layer. */
            config.kv_cache_bytes += n_layers * page_bytes - 1;
            config.kv_cache_bytes -= config.kv_cache_bytes % (n_layers * page_bytes);
            struct answer small = answer_alone(&config, &r);
            answers_assert_same(&small, &large);
            config.kv_cache_bytes -= n_layers * page_bytes;
            struct engine *engine = answers_start(&config);
            assert_int_equal(recipe_try(engine, &r, &err), ERR_TOO_LONG);
            assert_string_equal(err.param, "kv_policy");
            engine_destroy(engine);
            answer_forget(&large);
            answer_forget(&small);
        }
}

enum { N_AT_ONCE = 6 };

static void make_recipes(struct recipe *recipes, struct answer *alone, uint32_t max_tokens) {
    const struct kv_choice choices[] = {
        {.mechanism = KV_WHOLE}, streaming(150), window(64, KV_POOLING_MAX), scored(KV_SCORE_SUM)};
    const struct engine_config config = plain_config();
    for (uint32_t i = 0; i < N_AT_ONCE; i++) {
        recipes[i] = make_recipe(500 + 110 * i, max_tokens, choices[i % 4], mixed);
        if (i % 4 == 3) recipes[i].prefill.mode = PREFILL_DENSE;
        if (i % 3 == 1) recipes[i].params.n_prompt_logprobs = 0;
        alone[i] = answer_alone(&config, &recipes[i]);
    }
}

TEST(company_and_running_ahead_change_no_bit) {
    static struct recipe recipes[N_AT_ONCE];
    static struct answer alone[N_AT_ONCE];
    srand(7);
    make_recipes(recipes, alone, 30);
    const struct engine_config config = plain_config();
    answers_compare_in_company(&config, recipes, alone, N_AT_ONCE);
    for (int i = 0; i < N_AT_ONCE; i++) answer_forget(&alone[i]);
}

/* The first one grows until others must go: some in the middle of their prompt, which they begin
 * anew, some behind it, whose pages are saved. */
TEST(preemption_changes_no_bit) {
    static struct recipe recipes[N_AT_ONCE];
    static struct answer alone[N_AT_ONCE];
    srand(8);
    make_recipes(recipes, alone, 350);
    struct engine_config config = plain_config();
    config.only_bounded = false;
    config.max_model_len = 1400;
    config.max_batched_tokens = 128;
    config.kv_cache_bytes = 22 * n_layers * page_bytes;
    assert_true(answers_compare(answers_start(&config), recipes, alone, N_AT_ONCE).n_preempted > 0);
    for (int i = 0; i < N_AT_ONCE; i++) answer_forget(&alone[i]);
}

TEST(cancelling_leaves_no_page) {
    struct engine_config config = plain_config();
    struct engine *engine = answers_start(&config);
    srand(9);
    for (int pause = 0; pause < 6; pause++) {
        const struct recipe r = make_recipe(1500, 50, window(64, KV_POOLING_NONE), mixed);
        struct answer a = {0};
        const uint64_t id = recipe_submit(engine, &r, &a);
        poll(NULL, 0, (4 << pause) - 4);
        engine_cancel(engine, id);
        answers_wait(engine, &a, 1);
        answers_leave_no_page(engine);
        answer_forget(&a);
    }
    engine_destroy(engine);
}

static void assert_refused(struct engine *engine, struct kv_choice kv, const char *words) {
    struct error err = {0};
    struct recipe r = make_recipe(700, 2, kv, mixed);
    assert_int_equal(recipe_try(engine, &r, &err), ERR_INVALID);
    assert_string_equal(err.param, "prefill");
    if (!strstr(err.text, words)) fail_msg("'%s' is not in '%s'", words, err.text);
    r.prefill.mode = PREFILL_AUTO; /* which the rule makes dense */
    r.prefill.dense_above = 0;
    struct answer a = answers_one(engine, &r);
    assert_int_equal(a.last.prefill.mode, PREFILL_DENSE);
    answer_forget(&a);
}

TEST(what_does_not_go_together_is_refused_by_name) {
    struct engine_config config = plain_config();
    config.min_sparse_tokens = 600;
    config.max_model_len = 1000;
    struct engine *engine = answers_start(&config);
    struct kv_choice chunks = streaming(100), rotated = streaming(100);
    struct error err = {0};
    chunks.whole = false;
    rotated.cache_positions = true;
    assert_refused(engine, chunks, "kv_policy.prompt whole");
    assert_refused(engine, rotated, "kv_policy.positions text");
    assert_refused(engine, scored(KV_SCORE_SUM), "kv_policy.score window");
    assert_refused(engine, scored(KV_SCORE_MEAN), "kv_policy.score window");
    assert_refused(engine, scored(KV_SCORE_DECAY), "kv_policy.score window");
    struct recipe r = make_recipe(1100, 2, streaming(100), mixed); /* more than max_model_len */
    assert_int_equal(recipe_try(engine, &r, &err), ERR_TOO_LONG);
    assert_string_equal(err.param, "prompt");
    r.n_prompt = 700;
    r.prefill.mode = PREFILL_AUTO;
    struct answer a = answers_one(engine, &r);
    assert_int_equal(a.last.prefill.mode, PREFILL_SPARSE);
    answer_forget(&a);
    engine_destroy(engine);
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, NULL);
}
