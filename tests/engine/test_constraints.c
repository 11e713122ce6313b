/* test_constraints.c - the whole engine with grammars, with a small model on the CPU.
 *
 * An answer must be one that the grammar allows, and the same one whatever else runs, whether the
 * device runs ahead, and wherever the sequence was suspended.  What grammars allow is tested
 * elsewhere (tests/grammar/), against another validator. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/engine.h"
#include "engine/grammar/grammar_cache.h"
#include "engine/model/model.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/test.h"

enum { N_RECIPES = 12, MAX_TOKENS = 72 };

static const char *const schema =
    "{\"type\":\"object\",\"properties\":{\"first_name\":{\"type\":\"string\",\"pattern\":\"^[a-z]{"
    "1,8}$\"},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99},\"is_member\":{\"type\":"
    "\"boolean\"}},"
    "\"required\":[\"first_name\",\"age\",\"is_member\"],\"additionalProperties\":false}";
static const char *const forced =
    "All of this text is forced by the grammar, from here to its end!";

static struct engine *start(uint32_t n_blocks) {
    return answers_start(
        &(struct engine_config){.model_dir = model_dir,
                                .backend = backend,
                                .max_num_seqs = 16,
                                .max_model_len = n_blocks * PAGE_TOKENS,
                                .max_batched_tokens = 64,
                                .max_queued = 1024,
                                .kv_format = PAGE_F32,
                                .kv_cache_bytes = n_blocks * n_layers * plain_page_bytes});
}

static struct grammar *compile(struct engine *engine, enum grammar_kind kind, const char *text) {
    struct grammar *grammar = NULL;
    struct error err = {0};
    if (grammar_cache_get(engine_info(engine)->grammars, &grammar, kind, text, strlen(text), NULL,
                          &err))
        fail_msg("%s", err.text);
    return grammar;
}

/* Makes requests with a schema, with a forced text, and without a grammar. */
static void make_recipes(struct engine *engine, struct recipe *recipes, int32_t n_logprobs) {
    srand(7);
    for (uint32_t i = 0; i < N_RECIPES; i++) {
        struct recipe *r = &recipes[i];
        *r = (struct recipe){.n_prompt = 1 + (uint32_t)rand() % 60, .params = sampling_defaults()};
        for (uint32_t k = 0; k < r->n_prompt; k++) r->prompt[k] = (uint32_t)rand() % 8000;
        r->params.max_tokens = MAX_TOKENS;
        r->params.has_seed = true;
        r->params.seed = i;
        r->params.n_logprobs = n_logprobs;
        r->params.sampler.presence_penalty = i % 4 == 1 ? 0.5f : 0;
        if (i % 3 == 0) r->params.grammar = compile(engine, GRAMMAR_JSON_SCHEMA, schema);
        if (i % 3 == 1) r->params.grammar = compile(engine, GRAMMAR_REGEX, forced);
    }
}

static void forget_recipes(struct recipe *recipes) {
    for (uint32_t i = 0; i < N_RECIPES; i++) grammar_unref(recipes[i].params.grammar);
}

static void check_form(const struct answer *answer, uint32_t i) {
    if (i % 3 == 2) return;
    assert_int_equal(answer->last.reason, FINISH_STOP);
    if (i % 3 == 1) {
        assert_string_equal(answer->text, forced);
        return;
    }
    json_t *value = json_loads(answer->text, 0, NULL);
    assert_non_null(value);
    assert_int_equal(json_object_size(value), 3);
    assert_true(json_integer_value(json_object_get(value, "age")) <= 99);
    assert_true(json_is_boolean(json_object_get(value, "is_member")));
    json_decref(value);
}

/* Answers all at once, and returns how many tokens were generated and in how many steps. */
static struct engine_stats answer_all(uint32_t n_blocks, int32_t n_logprobs,
                                      struct answer *answers) {
    struct engine *engine = start(n_blocks);
    struct recipe *recipes = calloc(N_RECIPES, sizeof(*recipes));
    struct engine_stats stats;
    make_recipes(engine, recipes, n_logprobs);
    for (uint32_t i = 0; i < N_RECIPES; i++) recipe_submit(engine, &recipes[i], &answers[i]);
    answers_wait(engine, answers, N_RECIPES);
    engine_stats(engine, &stats);
    for (uint32_t i = 0; i < N_RECIPES; i++) check_form(&answers[i], i);
    forget_recipes(recipes);
    free(recipes);
    engine_destroy(engine);
    return stats;
}

static void compare(const struct answer *a, struct answer *b) {
    for (uint32_t i = 0; i < N_RECIPES; i++) {
        assert_string_equal(a[i].text, b[i].text);
        assert_int_equal(a[i].last.n_generated, b[i].last.n_generated);
        if (a[i].n_tokens > 0) answers_assert_same(&a[i], &b[i]);
        answer_forget(&b[i]);
    }
}

static void forget(struct answer *answers) {
    for (uint32_t i = 0; i < N_RECIPES; i++) answer_forget(&answers[i]);
}

TEST(answers_do_not_depend_on_what_runs_or_runs_ahead) {
    struct answer plain[N_RECIPES] = {0}, late[N_RECIPES] = {0};
    uint64_t n_suspended = 0;
    answer_all(64, 0, plain);
    for (uint32_t n_blocks = 3; n_blocks < 8; n_blocks++) {
        struct answer tight[N_RECIPES] = {0};
        n_suspended += answer_all(n_blocks, 0, tight).n_preempted;
        compare(plain, tight);
    }
    assert_true(n_suspended > 0);
    late_backend_begin(backend);
    answer_all(64, 0, late);
    assert_true(late_backend_end() > 0);
    compare(plain, late);
    forget(plain);
}

/* Answers one request with forced text; returns its steps. */
static uint64_t count_steps(int32_t n_logprobs, uint32_t *n_generated) {
    struct engine *engine = start(64);
    struct recipe *recipes = calloc(N_RECIPES, sizeof(*recipes));
    struct engine_stats stats;
    make_recipes(engine, recipes, n_logprobs);
    struct answer answer = answers_one(engine, &recipes[1]);
    engine_stats(engine, &stats);
    check_form(&answer, 1);
    *n_generated = answer.last.n_generated;
    answer_forget(&answer);
    forget_recipes(recipes);
    free(recipes);
    engine_destroy(engine);
    return stats.n_steps;
}

TEST(forced_text_is_computed_together) {
    uint32_t n_scored, n_forced, n_late;
    const uint64_t recomputes_by_row = count_steps(0, &n_scored),
                   together = count_steps(-1, &n_forced);
    assert_true(recomputes_by_row >= n_scored && 2 * together < n_forced);
    late_backend_begin(backend);
    assert_true(2 * count_steps(-1, &n_late) < n_forced);
    late_backend_end();
    assert_int_equal(n_late, n_forced);
}

TEST(forced_text_does_not_depend_on_what_runs) {
    struct answer plain[N_RECIPES] = {0}, late[N_RECIPES] = {0}, tight[N_RECIPES] = {0};
    answer_all(64, -1, plain);
    answer_all(6, -1, tight);
    compare(plain, tight);
    late_backend_begin(backend);
    answer_all(64, -1, late);
    late_backend_end();
    compare(plain, late);
    forget(plain);
}

/* Answers the same request n_seqs times at once; returns the steps for each token of an answer. */
static double steps_per_token(const char *regex, uint32_t n_seqs, struct answer *answers) {
    struct engine *engine = start(64);
    struct recipe recipe = {.prompt = {1, 2, 3}, .n_prompt = 3, .params = sampling_defaults()};
    struct engine_stats stats;
    recipe.params.max_tokens = 256;
    recipe.params.has_seed = true;
    recipe.params.grammar = compile(engine, GRAMMAR_REGEX, regex);
    for (uint32_t i = 0; i < n_seqs; i++) recipe_submit(engine, &recipe, &answers[i]);
    answers_wait(engine, answers, n_seqs);
    engine_stats(engine, &stats);
    grammar_unref(recipe.params.grammar);
    engine_destroy(engine);
    return (double)stats.n_steps / answers[0].last.n_generated;
}

/* Rows of several tokens make a step longer for each sequence in it. */
TEST(many_sequences_compute_only_long_forced_text_together) {
    enum { N_MANY = 16 };
    static const char *const pieces = "([ab] is one of two letters;){6}";
    struct answer one = {0}, many[N_MANY] = {0}, of_long[N_MANY] = {0};
    late_backend_begin(backend);
    const double alone = steps_per_token(pieces, 1, &one),
                 among_many = steps_per_token(pieces, N_MANY, many),
                 long_text = steps_per_token(forced, N_MANY, of_long);
    late_backend_end();
    assert_true(alone < 0.75 && among_many >= 1 && long_text < 0.75);
    for (uint32_t i = 0; i < N_MANY; i++) {
        assert_string_equal(many[i].text, one.text);
        assert_string_equal(of_long[i].text, forced);
        answer_forget(&many[i]);
        answer_forget(&of_long[i]);
    }
    answer_forget(&one);
}

int main(int argc, char **argv) {
    if (!grammar_is_available()) return 77; /* Meson's number for a test that was skipped */
    return answers_main(argc, argv, NULL);
}
