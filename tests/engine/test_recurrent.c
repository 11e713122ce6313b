/* test_recurrent.c - models with recurrent layers in a whole engine.  Requests give in company what
 * they give alone: from checkpoints, with few slots and pages, and on a device that runs ahead. */
#include <stdlib.h>
#include <string.h>

#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"

enum { N = 24, CONTEXT = 500, PLENTY = 64, FEW = 9 };

static bool bounded; /* its requests may keep a budget */

/* An engine whose pool has n_blocks times 64 tokens. */
static struct engine *start(uint32_t n_blocks, uint32_t max_rows, bool caches) {
    return answers_start(&(struct engine_config){
        .model_dir = model_dir,
        .backend = backend,
        .max_model_len = CONTEXT,
        .max_num_seqs = 4,
        .max_batched_tokens = max_rows,
        .max_queued = 100,
        .tokens_only = true,
        .prefix_caching = caches,
        .bounded_caches = bounded,
        .kv_cache_bytes = (uint64_t)n_blocks * (bounded ? page_bytes : plain_page_bytes)});
}

/* A recipe for the small vocabulary of tiny checkpoints, whose answer does not end early. */
static struct recipe tiny_recipe(uint32_t n_prompt, uint32_t max_tokens) {
    struct recipe recipe = recipe_make(n_prompt, max_tokens);
    for (uint32_t i = 0; i < n_prompt; i++) recipe.prompt[i] = 3 + recipe.prompt[i] % 128;
    recipe.params.ignore_eos = true;
    return recipe;
}

/* Requests in threes that begin alike, each with a tail of its own; some are equal. */
static void make_recipes(struct recipe *recipes) {
    srand(72);
    for (uint32_t i = 0; i < N; i++) {
        const struct recipe *first = &recipes[i - i % 3];
        const uint32_t n_shared = 40 + 10 * (i - i % 3);
        recipes[i] = tiny_recipe(n_shared + 1 + (uint32_t)rand() % 60,
                                 i % 5 ? 30 : 150); /* some answers end blocks */
        if (i % 3) memcpy(recipes[i].prompt, first->prompt, n_shared * sizeof(uint32_t));
        if (i % 6 == 5) recipes[i] = *first;
    }
}

static struct engine_stats compare(const struct recipe *recipes, const struct answer *alone,
                                   uint32_t n_blocks, uint32_t max_rows) {
    return answers_compare(start(n_blocks, max_rows, true), recipes, alone, N);
}

TEST(answers_do_not_depend_on_checkpoints) {
    static struct recipe recipes[N];
    static struct answer alone[N];
    make_recipes(recipes);
    struct engine *engine = start(PLENTY, 256, false);
    for (uint32_t i = 0; i < N; i++) alone[i] = answers_one(engine, &recipes[i]);
    engine_destroy(engine);
    const struct engine_stats stats = compare(recipes, alone, PLENTY, 300);
    assert_true(stats.checkpoints.n_added > 0 && stats.cached_tokens > 0);
    compare(recipes, alone, PLENTY, 17);
    assert_true(compare(recipes, alone, FEW, 64).n_preempted > 0);
    late_backend_begin(backend);
    assert_true(compare(recipes, alone, PLENTY, 100).checkpoints.n_added > 0);
    assert_true(compare(recipes, alone, FEW, 64).n_preempted > 0);
    assert_true(late_backend_end() > 0);
    for (uint32_t i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* Budgets of the layers that attend, beside texts that are kept whole: with few pages some are
 * suspended, and go on with their states. */
TEST(budgets_keep_their_states) {
    static struct recipe recipes[N];
    static struct answer alone[N];
    static const struct kv_choice budgets[] = {
        {.type = 1, .mechanism = KV_BOUNDED, .n_sink = 4, .n_recent = 60, .chunk = 64},
        {.type = 2,
         .mechanism = KV_BOUNDED,
         .n_recent = 30,
         .n_heavy = 30,
         .score = KV_SCORE_SUM,
         .chunk = 64}};
    bounded = true;
    make_recipes(recipes);
    for (uint32_t i = 0; i < N; i++)
        if (i % 2) recipes[i].kv = budgets[i / 2 % 2];
    struct engine *engine = start(PLENTY, 256, false);
    for (uint32_t i = 0; i < N; i++) alone[i] = answers_one(engine, &recipes[i]);
    engine_destroy(engine);
    for (uint32_t i = 1; i < N; i += 2) assert_true(alone[i].last.kv.values[KV_EVICTED_TOKENS] > 0);
    compare(recipes, alone, PLENTY, 100);
    assert_true(compare(recipes, alone, FEW, 64).n_preempted +
                    compare(recipes, alone, FEW - 1, 64).n_preempted >
                0);
    late_backend_begin(backend);
    compare(recipes, alone, FEW, 64);
    late_backend_end();
    for (uint32_t i = 0; i < N; i++) answer_forget(&alone[i]);
    bounded = false;
}

/* The same with one request at a time: beside others a backend that runs ahead guesses little. */
static struct engine_stats compare_one_by_one(const struct recipe *recipes,
                                              const struct answer *alone) {
    struct engine *engine = start(PLENTY, 256, true);
    struct engine_stats stats;
    for (uint32_t i = 0; i < N; i++) {
        struct answer answer = answers_one(engine, &recipes[i]);
        answers_assert_same(&alone[i], &answer);
        answer_forget(&answer);
    }
    engine_stats(engine, &stats);
    engine_destroy(engine);
    return stats;
}

/* Texts that repeat themselves, so that some guesses are right; with few slots there is none for
 * most of them. */
TEST(wrong_guesses_are_undone) {
    static struct recipe recipes[N];
    static struct answer alone[N];
    make_recipes(recipes);
    for (uint32_t i = 0; i < N; i++) {
        recipes[i].params.max_tokens = 150;
        for (uint32_t k = 31; k < recipes[i].n_prompt; k++)
            recipes[i].prompt[k] = recipes[i].prompt[k % 31];
    }
    struct engine *engine = start(PLENTY, 256, false);
    for (uint32_t i = 0; i < N; i++) alone[i] = answers_one(engine, &recipes[i]);
    engine_destroy(engine);
    for (uint32_t i = 0; i < N; i++) recipes[i].speculation.mode = SPECULATION_SUFFIX;
    assert_true(compare(recipes, alone, PLENTY, 300).speculation.n_accepted > 0);
    assert_true(compare(recipes, alone, FEW, 64).n_preempted > 0);
    late_backend_begin(backend);
    assert_true(compare_one_by_one(recipes, alone).speculation.n_accepted > 0);
    assert_true(late_backend_end() > 0);
    for (uint32_t i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* Equal prompts of an idle engine: a turn that goes on begins where the last one ended. */
TEST(a_turn_begins_behind_the_answer) {
    srand(73);
    struct recipe recipe = tiny_recipe(100, 60);
    struct engine *engine = start(PLENTY, 256, true);
    struct answer answer = answers_one(engine, &recipe);
    for (uint32_t i = 0; i < answer.n_tokens; i++)
        recipe.prompt[recipe.n_prompt++] = answer.tokens[i].token;
    recipe.params.max_tokens = 1;
    struct answer next = answers_one(engine, &recipe);
    assert_int_equal(next.last.n_cached, 128); /* of 159 whose rows were computed */
    answer_forget(&answer);
    answer_forget(&next);
    engine_destroy(engine);
}

/* With few pages most requests find their checkpoint several times before they start. */
TEST(only_starts_count_as_uses) {
    enum { N_WAITING = 12 };
    static struct answer answers[N_WAITING];
    struct recipe recipe = tiny_recipe(130, 1);
    struct engine *engine = start(FEW, 256, true);
    struct engine_stats stats;
    uint32_t n_started = 0;
    struct answer first = answers_one(engine, &recipe);
    answer_forget(&first);
    recipe.n_prompt = 150;
    for (uint32_t i = 0; i < N_WAITING; i++) {
        recipe.prompt[140] = 3 + i;
        recipe.params.max_tokens = 20 + 7 * i;
        recipe_submit(engine, &recipe, &answers[i]);
    }
    answers_wait(engine, answers, N_WAITING);
    for (uint32_t i = 0; i < N_WAITING; i++) {
        n_started += answers[i].last.n_cached > 0;
        answer_forget(&answers[i]);
    }
    engine_stats(engine, &stats);
    assert_true(n_started > 0);
    assert_true(stats.checkpoints.n_used >= n_started);
    assert_true(stats.checkpoints.n_used <= n_started + stats.n_preempted);
    engine_destroy(engine);
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, NULL);
}
