/* test_parts.c - the whole engine with a small model on the CPU, where some layers keep a
 * budget and the others everything, or a selection.
 *
 * A part of all layers is a bounded request, and one whose budget is never full changes nothing.
 * Company, running ahead and preemption change no bit.  What the layers keep is tested against a
 * definition: tests/e2e/test_parts.py. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/engine.h"
#include "tests/engine/answers.h"
#include "tests/kv_types.h"
#include "tests/test.h"

enum { N_CHOICES = 5 };

static const struct layer_group groups[2] = {{2, 4, 6}, {6, 8, 12}};

static struct engine_config plain_config(void) {
    struct engine_config config = answers_config();
    config.bounded_caches = true;
    config.groups = groups;
    config.n_groups = 2;
    config.max_selected = 128;
    return config;
}

static const struct kv_choice full = {.mechanism = KV_WHOLE, .type = TYPE_FULL},
                              selected = {.mechanism = KV_SELECTING,
                                          .type = TYPE_OFFLOAD,
                                          .n_sink = 4,
                                          .n_selected = 128,
                                          .n_tail = 64,
                                          .on_device = true};

/* Budgets of about n tokens: by age, and by each score, in chunks or whole. */
static struct kv_choice budget(uint32_t i, uint32_t n) {
    static const enum kv_score scores[N_CHOICES] = {KV_SCORE_NONE, KV_SCORE_SUM, KV_SCORE_MEAN,
                                                    KV_SCORE_DECAY, KV_SCORE_WINDOW};
    struct kv_choice choice = {
        .mechanism = KV_BOUNDED, .type = TYPE_STREAMING, .n_sink = 4, .n_recent = n, .chunk = 100};
    if (scores[i] == KV_SCORE_NONE) return choice;
    choice.type = TYPE_HEAVY_HITTER;
    choice.score = scores[i];
    choice.n_heavy = n / 2;
    choice.decay = 0.99f;
    if (scores[i] != KV_SCORE_WINDOW) return choice;
    choice.whole = true;
    choice.window = 32;
    choice.pooling = KV_POOLING_MAX;
    choice.kernel = 7;
    return choice;
}

static struct kv_override part(struct kv_choice choice, uint32_t first, uint32_t last) {
    struct kv_override part = {.choice = choice};
    for (uint32_t l = first; l <= last; l++) layer_set_add(&part.layers, l);
    return part;
}

static struct recipe make_recipe(uint32_t n_prompt, uint32_t max_tokens, struct kv_choice kv) {
    struct recipe r = recipe_make(n_prompt, max_tokens);
    r.kv = kv;
    r.prefill.mode = PREFILL_DENSE;
    return r;
}

static void assert_same_answers(const struct recipe *a, const struct recipe *b) {
    const struct engine_config config = plain_config();
    struct engine *engine = answers_start(&config);
    struct answer of_a = answers_one(engine, a), of_b = answers_one(engine, b);
    answers_assert_same(&of_a, &of_b);
    answer_forget(&of_a);
    answer_forget(&of_b);
    engine_destroy(engine);
}

TEST(a_part_of_all_layers_is_a_bounded_request) {
    srand(1);
    for (uint32_t i = 0; i < N_CHOICES; i++) {
        const struct kv_choice choice = budget(i, 90);
        const struct recipe bounded = make_recipe(450 + i, 40, choice);
        struct recipe divided = bounded;
        divided.kv = full;
        divided.kv_override = part(choice, 0, n_layers - 1);
        assert_same_answers(&bounded, &divided);
    }
}

TEST(a_budget_that_is_never_full_changes_no_bit) {
    srand(2);
    for (uint32_t i = 0; i < N_CHOICES; i++) {
        const struct recipe r = make_recipe(300 + i, 30, full);
        struct recipe divided = r;
        divided.kv_override = part(budget(i, 900), i, i + 3);
        assert_same_answers(&r, &divided);
    }
    for (uint32_t i = 0; i < N_CHOICES; i++) { /* layers that neither choose nor follow */
        const struct recipe r = make_recipe(500 + i, 30, selected);
        struct recipe divided = r;
        divided.kv_override = part(budget(i, 900), 0, 1);
        assert_same_answers(&r, &divided);
    }
}

/* A budget that evicts must show, wherever its layers are, or the tests above tell nothing. */
TEST(a_part_that_evicts_shows) {
    const struct engine_config config = plain_config();
    struct engine *engine = answers_start(&config);
    srand(3);
    for (uint32_t l = 0; l < n_layers; l++) {
        struct recipe r = make_recipe(300, 5, full);
        struct answer all = answers_one(engine, &r);
        r.kv_override = part(budget(l % N_CHOICES, 40), l, l);
        struct answer divided = answers_one(engine, &r);
        assert_true(memcmp(&all.tokens[1].logprob, &divided.tokens[1].logprob, sizeof(float)) != 0);
        answer_forget(&all);
        answer_forget(&divided);
    }
    engine_destroy(engine);
}

enum { N_AT_ONCE = 6 };

static void make_recipes(struct recipe *recipes, struct answer *alone, uint32_t max_tokens) {
    for (uint32_t i = 0; i < N_AT_ONCE; i++) {
        const struct engine_config config = plain_config();
        struct recipe *r = &recipes[i];
        *r = make_recipe(400 + 90 * i, max_tokens, i % 2 ? selected : full);
        r->kv_override = part(budget(i % N_CHOICES, 70), i % 2 ? 3 : i % 3, i % 2 ? 5 : 4);
        if (i % 4 == 3) r->kv.selector = KV_SELECTOR_ACCUMULATED;
        if (i == 2) r->kv_override = (struct kv_override){0};
        if (i == 4) { /* layer by layer */
            r->kv_override.choice = budget(4, 70);
            r->prefill = (struct prefill_choice){
                .mode = PREFILL_SPARSE, .patterns = mixed, .dense_above = 1, .dense_tail = 10};
        }
        if (i % 3 == 1) r->params.n_prompt_logprobs = 0;
        struct engine *engine = answers_start(&config);
        alone[i] = answers_one(engine, r);
        engine_destroy(engine);
    }
}

TEST(company_and_running_ahead_change_no_bit) {
    static struct recipe recipes[N_AT_ONCE];
    static struct answer alone[N_AT_ONCE];
    srand(4);
    make_recipes(recipes, alone, 30);
    const struct engine_config config = plain_config();
    answers_compare_in_company(&config, recipes, alone, N_AT_ONCE);
    for (int i = 0; i < N_AT_ONCE; i++) answer_forget(&alone[i]);
}

/* Lists of different lengths and the selection's own pages are saved and come back. */
TEST(preemption_changes_no_bit) {
    static struct recipe recipes[N_AT_ONCE];
    static struct answer alone[N_AT_ONCE];
    srand(5);
    make_recipes(recipes, alone, 250);
    struct engine_config config = plain_config();
    config.max_model_len = 1400;
    config.max_batched_tokens = 128;
    config.kv_cache_bytes = 28 * n_layers * page_bytes;
    assert_true(answers_compare(answers_start(&config), recipes, alone, N_AT_ONCE).n_preempted > 0);
    for (int i = 0; i < N_AT_ONCE; i++) answer_forget(&alone[i]);
}

TEST(cancelling_leaves_no_page) {
    const struct engine_config config = plain_config();
    struct engine *engine = answers_start(&config);
    srand(6);
    for (int pause = 0; pause < 8; pause++) {
        struct recipe r = make_recipe(1500, 100, pause % 2 ? selected : full);
        r.kv_override = part(budget((uint32_t)pause % N_CHOICES, 70), 3, 5);
        struct answer a = {0};
        const uint64_t id = recipe_submit(engine, &r, &a);
        poll(NULL, 0, (2 << pause) - 2);
        engine_cancel(engine, id);
        answers_wait(engine, &a, 1);
        answers_leave_no_page(engine);
        answer_forget(&a);
    }
    engine_destroy(engine);
}

static uint64_t pages(uint64_t n_tokens) {
    return (n_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

/* The layers of a part need pages for their budget and a chunk, the others for the text. */
TEST(the_pages_are_those_of_the_plan) {
    struct engine_config config = plain_config();
    srand(7);
    for (uint32_t n = 1; n < n_layers; n += 4) {
        struct recipe r = make_recipe(1000, 200, full);
        struct error err = {0};
        r.kv_override = part(budget(1, 100), 0, n - 1);
        const uint64_t n_pages = n * pages(154 + 100) + (n_layers - n) * pages(1200),
                       n_blocks = (n_pages + n_layers - 1) / n_layers;
        config.max_model_len = 1200;
        config.only_bounded = true; /* so that the pool need not hold a text of that length */
        config.kv_cache_bytes = n_blocks * n_layers * page_bytes;
        struct engine *engine = answers_start(&config);
        struct answer a = answers_one(engine, &r);
        assert_int_equal(a.n_tokens, 200);
        answer_forget(&a);
        engine_destroy(engine);
        config.kv_cache_bytes -= n_layers * page_bytes;
        engine = answers_start(&config);
        assert_int_equal(recipe_try(engine, &r, &err), ERR_TOO_LONG);
        engine_destroy(engine);
    }
}

static void assert_refused(struct engine *engine, const struct recipe *r, const char *words) {
    struct error err = {0};
    assert_int_equal(recipe_try(engine, r, &err), ERR_INVALID);
    assert_string_equal(err.param, "kv_policy");
    if (!strstr(err.text, words)) fail_msg("'%s' is not in '%s'", words, err.text);
}

TEST(what_does_not_go_together_is_refused_by_name) {
    const struct engine_config config = plain_config();
    struct engine *engine = answers_start(&config);
    struct recipe r = make_recipe(300, 10, full);
    r.kv_override = part(budget(0, 50), 3, n_layers);
    assert_refused(engine, &r, "layers are numbered 0 to");
    r.kv_override = part(full, 3, 4);
    assert_refused(engine, &r, "a policy that keeps a budget");
    r.kv_override = part(budget(0, 50), 3, 4);
    r.kv_override.choice.cache_positions = true;
    assert_refused(engine, &r, "positions must be text");
    r.kv_override = part(budget(0, 50), 3, 4);
    r.kv_override.choice.n_recent = 0;
    assert_refused(engine, &r, "at least 1 recent token");
    r.kv_override.choice.n_recent = 50;
    r.kv = budget(1, 60);
    assert_refused(engine, &r, "the other layers must keep everything, or select");
    r.kv = selected;
    r.kv_override = part(budget(0, 50), 5, 6);
    assert_refused(engine, &r, "layer 6 is a filter");
    engine_destroy(engine);
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, NULL);
}
