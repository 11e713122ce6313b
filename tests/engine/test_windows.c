/* test_windows.c - the whole engine with checkpoints whose layers have windows: answers must not
 * depend on how few pages there are, on what was computed before, or on whether a step is in flight
 * while pages go back. */
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

enum { CONTEXT = 512, ROWS = 128, N_VOCAB = 131, N_RECIPES = 16, TEXT_BLOCKS = CONTEXT / 64 };

static struct attn_pattern patterns[64]; /* of all heads */

/* n_pages 0: more than enough.  n_store: as many pages leave. */
static struct engine *start_with(uint32_t n_pages, bool prefix_caching, uint32_t n_store) {
    struct error err = {0};
    struct model_config model;
    assert_int_equal(model_config_load(&model, model_dir, 0, &err), 0);
    const struct engine_config config = {
        .model_dir = model_dir,
        .backend = backend,
        .max_num_seqs = 8,
        .max_batched_tokens = ROWS,
        .max_queued = 64,
        .kv_format = PAGE_F32,
        .kv_cache_bytes = (n_pages ? n_pages : 1000) * plain_page_bytes,
        .host_pool_bytes = n_store * plain_page_bytes,
        .prefix_caching = prefix_caching,
        .sparse_prefill = model_has_full_attention(&model),
        .patterns = patterns,
        .min_sparse_tokens = UINT32_MAX,
        .tokens_only = true};
    assert_true(model.n_layers * model.n_heads <= sizeof(patterns) / sizeof(*patterns));
    model_config_fini(&model);
    return answers_start(&config);
}

static struct engine *start(uint32_t n_pages, bool prefix_caching) {
    return start_with(n_pages, prefix_caching, 0);
}

/* So many that a text fits because pages go back, and two do not. */
static uint32_t pages_of_a_text(void) {
    struct engine *engine = start(0, false);
    const struct engine_info *info = engine_info(engine);
    const uint32_t n_layers = info->model->n_layers,
                   n = (uint32_t)(info->text_pages + n_layers - 1) / n_layers * n_layers;
    assert_true(n < n_layers * TEXT_BLOCKS);
    engine_destroy(engine);
    return n;
}

/* Some begin alike. */
static struct recipe random_recipe(void) {
    struct recipe r = {.params = sampling_defaults()};
    const uint32_t family = (uint32_t)rand() % 3, n_shared = (uint32_t)rand() % 300;
    r.n_prompt = 1 + (uint32_t)rand() % (rand() % 2 ? 40 : 400);
    for (uint32_t i = 0; i < r.n_prompt; i++)
        r.prompt[i] = 3 + (i < n_shared ? family * 41 + i * i : (uint32_t)rand()) % (N_VOCAB - 3);
    r.params.ignore_eos = true;
    r.params.max_tokens = 1 + (uint32_t)rand() % (CONTEXT - r.n_prompt);
    r.params.has_seed = true;
    r.params.seed = (uint64_t)rand();
    r.params.n_logprobs = 0;
    r.params.n_prompt_logprobs = rand() % 4 ? -1 : 1;
    return r;
}

static void answer_alone(const struct recipe *recipes, struct answer *alone) {
    for (int i = 0; i < N_RECIPES; i++) {
        struct engine *engine = start(0, false);
        recipe_submit(engine, &recipes[i], &alone[i]);
        answers_wait(engine, &alone[i], 1);
        assert_int_not_equal(alone[i].last.reason, FINISH_ERROR);
        answers_leave_no_page(engine);
        engine_destroy(engine);
    }
}

static void compare(const struct recipe *recipes, const struct answer *alone, uint32_t n_pages) {
    for (int late = 0; late < 2; late++) {
        if (late) late_backend_begin(backend);
        for (int caching = 0; caching < 2; caching++) {
            const struct engine_stats stats =
                answers_compare(start(n_pages, caching), recipes, alone, N_RECIPES);
            if (n_pages == 0) assert_true((stats.cached_tokens > 0) == caching);
        }
        if (late) assert_true(late_backend_end() > 0);
    }
}

TEST(answers_do_not_depend_on_how_few_pages_there_are) {
    static struct recipe recipes[N_RECIPES];
    static struct answer alone[N_RECIPES];
    const uint32_t n_pages = pages_of_a_text();
    srand(23);
    for (int i = 0; i < N_RECIPES; i++) recipes[i] = random_recipe();
    answer_alone(recipes, alone);
    compare(recipes, alone, n_pages);
    compare(recipes, alone, 2 * n_pages);
    compare(recipes, alone, 0);
    for (int i = 0; i < N_RECIPES; i++) answer_forget(&alone[i]);
}

/* With one text's pages or two; and a store with room for all that lose their places, or for few
 * pages. */
TEST(pages_that_wait_come_back) {
    static struct recipe recipes[N_RECIPES];
    static struct answer alone[N_RECIPES];
    const uint32_t n_pages = pages_of_a_text();
    uint64_t n_swapped_in = 0;
    srand(31);
    for (int i = 0; i < N_RECIPES; i++) recipes[i] = random_recipe();
    answer_alone(recipes, alone);
    for (uint32_t i = 0; i < 8; i++) {
        if (i == 4) late_backend_begin(backend);
        struct engine *engine =
            start_with((1 + i % 2) * n_pages, i / 2 % 2, i % 3 ? 1000 : n_pages / 2);
        const struct engine_stats stats = answers_compare(engine, recipes, alone, N_RECIPES);
        assert_int_equal(stats.host_pool_used_bytes, 0);
        assert_true(stats.n_swapped_in <= stats.n_swapped_out);
        n_swapped_in += stats.n_swapped_in;
    }
    assert_true(late_backend_end() > 0);
    assert_true(n_swapped_in > 0);
    for (int i = 0; i < N_RECIPES; i++) answer_forget(&alone[i]);
}

/* A sparse prompt goes layer by layer, and has all of its pages until it is computed. */
TEST(sparse_prompts_keep_what_they_need) {
    static struct recipe recipes[N_RECIPES];
    static struct answer alone[N_RECIPES];
    struct engine *engine = start(0, false);
    const uint32_t n_layers = engine_info(engine)->model->n_layers;
    const bool is_able = engine_info(engine)->sparse_prefill;
    engine_destroy(engine);
    if (!is_able) return; /* every layer has a window */
    srand(29);
    for (int i = 0; i < N_RECIPES; i++) {
        recipes[i] = random_recipe();
        recipes[i].params.n_prompt_logprobs = -1;
        if (i % 2) recipes[i].prefill.mode = PREFILL_SPARSE;
    }
    answer_alone(recipes, alone);
    bool was_sparse = false;
    for (int i = 0; i < N_RECIPES; i++) was_sparse |= alone[i].last.prefill.density < 1;
    assert_true(was_sparse);
    for (int late = 0; late < 2; late++) {
        if (late) late_backend_begin(backend);
        answers_compare(start(n_layers * TEXT_BLOCKS, false), recipes, alone, N_RECIPES);
        answers_compare(start(0, false), recipes, alone, N_RECIPES);
        if (late) assert_true(late_backend_end() > 0);
    }
    for (int i = 0; i < N_RECIPES; i++) answer_forget(&alone[i]);
}

static int make_patterns(void **state) {
    for (size_t i = 0; i < COUNT(patterns); i++)
        patterns[i] = (struct attn_pattern){PATTERN_A_SHAPE, 16, 32};
    return 0;
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, make_patterns);
}
