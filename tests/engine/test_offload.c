/* test_offload.c - the whole engine with sequences that select, with a small model on the CPU.
 *
 * Where the tokens lie that are not selected must change nothing, nor whatever else is running; a
 * selection of everything must give what the full cache gives.  That what is selected is the right
 * thing is tested elsewhere, against the definition. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/model/model.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/test.h"

enum { N_HOST_LAYERS = 6, MAX_SELECTED = 256 };

static struct backend_ops ops; /* the backend's, but for one: */
static int (*real_run_graph)(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                             struct error *err);
static const void *graphs[4]; /* the first that came since n_graphs was 0 */
static uint32_t n_graphs;
static const struct layer_group groups[2] = {{2, 4, 6}, {6, 8, 12}};

enum kind { PLAIN, INVARIANT, WITHOUT_GROUPS, WITHOUT_PREFIXES };

/* Remembers the bodies that a device would have recorded. */
static int remembering_run_graph(struct backend *be, uint32_t n_rows, graph_body body, void *ctx,
                                 struct error *err) {
    uint32_t i = 0;
    while (i < n_graphs && graphs[i] != ctx) i++;
    if (i == n_graphs && i < 4) graphs[n_graphs++] = ctx;
    return real_run_graph(be, n_rows, body, ctx, err);
}

/* Sizes in blocks of PAGE_TOKENS tokens; n_store 0: there is no store. */
struct room {
    uint32_t n_blocks, n_store, max_rows;
    enum kind kind;
};

/* Half of the layers keep what they select of a text that the pool cannot hold. */
static struct engine *start(struct room room) {
    const uint32_t n_longest = room.n_blocks < 24 ? room.n_blocks * 3 / 2 : 24;
    struct engine_config config = {.model_dir = model_dir,
                                   .backend = backend,
                                   .max_num_seqs = 16,
                                   .max_model_len = n_longest * PAGE_TOKENS,
                                   .max_batched_tokens = room.max_rows,
                                   .max_queued = 1024,
                                   .kv_format = PAGE_F32,
                                   .kv_cache_bytes = room.n_blocks * n_layers * page_bytes,
                                   .prefix_caching = room.kind != WITHOUT_PREFIXES,
                                   .bounded_caches = true,
                                   .groups = groups,
                                   .n_groups = room.kind == WITHOUT_GROUPS ? 0 : 2,
                                   .max_selected = MAX_SELECTED,
                                   .batch_invariant = room.kind == INVARIANT};
    struct error err = {0};
    struct model_config model;
    assert_int_equal(model_config_load(&model, model_dir, 0, &err), 0);
    const struct host_pool store = {.format = PAGE_F32,
                                    .n_host_layers = N_HOST_LAYERS,
                                    .n_kv_heads = model.n_kv_heads,
                                    .head_dim = model.head_dim};
    config.host_pool_bytes = room.n_store * host_pool_block_bytes(&store);
    model_config_fini(&model);
    struct engine *engine = answers_start(&config);
    assert_int_equal(engine_info(engine)->selections, room.kind != WITHOUT_GROUPS);
    assert_int_equal(engine_info(engine)->host_pool_tokens, room.n_store * PAGE_TOKENS);
    return engine;
}

static struct kv_choice selecting(uint32_t n_selected, uint32_t n_tail, bool on_device) {
    return (struct kv_choice){.mechanism = KV_SELECTING,
                              .n_sink = 4,
                              .n_selected = n_selected,
                              .n_tail = n_tail,
                              .on_device = on_device};
}

static void finish(struct engine *engine) {
    struct engine_stats stats;
    answers_leave_no_page(engine);
    engine_stats(engine, &stats);
    assert_int_equal(stats.host_pool_used_bytes, 0);
    engine_destroy(engine);
}

TEST(a_selection_of_everything_changes_nothing) {
    struct engine *engine = start((struct room){40, 40, 256, PLAIN});
    struct answer expected = {0}, a = {0};
    srand(5);
    struct recipe r = recipe_make(250, 60);
    expected = answers_one(engine, &r);
    for (int on_device = 0; on_device < 2; on_device++) {
        r.kv = selecting(200, 64, on_device);
        a = answers_one(engine, &r);
        answers_assert_same(&expected, &a);
        assert_int_equal(a.last.kv.values[KV_SELECTED_TOKENS], 0);
        answer_forget(&a);
    }
    answer_forget(&expected);
    finish(engine);
}

/* 699 tokens are stored in the end: the last step's row is behind 698. */
TEST(it_does_not_matter_where_tokens_wait) {
    struct engine *engine = start((struct room){60, 20, 256, PLAIN});
    struct answer full = {0}, device = {0}, moved = {0};
    srand(6);
    struct recipe r = recipe_make(600, 100);
    full = answers_one(engine, &r);
    r.kv = selecting(128, 64, true);
    device = answers_one(engine, &r);
    r.kv.on_device = false;
    moved = answers_one(engine, &r);
    answers_assert_same(&device, &moved);
    assert_true(memcmp(full.tokens, device.tokens, 100 * sizeof(*full.tokens)) != 0);
    assert_int_equal(moved.last.kv.values[KV_SELECTED_TOKENS], 99 * 2 * 128);
    assert_int_equal(device.last.kv.values[KV_SELECTED_TOKENS],
                     moved.last.kv.values[KV_SELECTED_TOKENS]);
    assert_int_equal(device.last.kv.values[KV_FETCHED_TOKENS],
                     moved.last.kv.values[KV_FETCHED_TOKENS]);
    assert_true(moved.last.kv.values[KV_FETCHED_TOKENS] >= 2 * 128);
    assert_true(moved.last.kv.values[KV_FETCHED_TOKENS] < moved.last.kv.values[KV_SELECTED_TOKENS]);
    assert_int_equal(moved.last.kv.values[KV_OFFLOADED_TOKENS], 576 - 128);
    assert_int_equal(device.last.kv.values[KV_OFFLOADED_TOKENS], 0);
    assert_int_equal(moved.last.kv.values[KV_RESIDENT_TOKENS], 699);
    assert_int_equal(device.last.n_cached, 576);
    assert_int_equal(moved.last.n_cached, 576);
    struct engine_stats stats;
    engine_stats(engine, &stats);
    assert_int_equal(engine_stats_kv(&stats, KV_FETCHED_TOKENS),
                     2 * moved.last.kv.values[KV_FETCHED_TOKENS]);
    assert_int_equal(engine_stats_kv(&stats, KV_FETCHED_COPIES),
                     2 * moved.last.kv.values[KV_FETCHED_COPIES]);
    assert_int_equal(engine_stats_kv(&stats, KV_MOVED_COPIES),
                     moved.last.kv.values[KV_FETCHED_COPIES]);
    answer_forget(&full);
    answer_forget(&device);
    answer_forget(&moved);
    finish(engine);
}

static struct recipe random_recipe(int i) {
    struct recipe r = recipe_make(1 + (uint32_t)rand() % (i % 4 ? 500 : 60), 60);
    r.params.sampler.temperature = rand() % 2 ? 1.0f : 0;
    if (i % 4 == 1)
        r.kv = (struct kv_choice){.mechanism = KV_BOUNDED,
                                  .n_sink = 4,
                                  .n_recent = 1 + (uint32_t)rand() % 60,
                                  .chunk = 64};
    if (i % 4 >= 2)
        r.kv = selecting(4 + (uint32_t)rand() % 150, 1 + (uint32_t)rand() % 100, rand() % 2);
    return r;
}

TEST(answers_depend_on_the_selection_alone) {
    enum { N = 24 };
    static struct recipe recipes[N];
    static struct answer alone[N];
    struct engine_stats stats;
    srand(7);
    for (int i = 0; i < N; i++) recipes[i] = random_recipe(i);
    struct engine *engine = start((struct room){24, 24, 256, PLAIN});
    for (int i = 0; i < N; i++) alone[i] = answers_one(engine, &recipes[i]);
    finish(engine);
    const struct room rooms[] = {
        {300, 300, 300, PLAIN}, {300, 300, 17, PLAIN}, {40, 20, 64, INVARIANT}};
    for (int i = 0; i < 5; i++) {
        if (i == 3) late_backend_begin(backend);
        stats = answers_compare(start(rooms[i % 3]), recipes, alone, N);
        assert_int_equal(stats.n_preempted, 0);
        assert_true(engine_stats_kv(&stats, KV_FETCHED_TOKENS) > 0 &&
                    engine_stats_kv(&stats, KV_SELECTED_TOKENS) >
                        engine_stats_kv(&stats, KV_FETCHED_TOKENS));
        assert_int_equal(stats.host_pool_used_bytes, 0);
    }
    assert_true(late_backend_end() > 0);
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* What is chosen is not worked out by a prompt's rows, so computing again would show. */
TEST(swapping_changes_no_bit) {
    enum { N = 18 };
    static struct recipe recipes[N];
    static struct answer alone[N];
    srand(8);
    struct engine *engine = start((struct room){60, 20, 256, PLAIN});
    for (int i = 0; i < N; i++) {
        recipes[i] = recipe_make(100 + (uint32_t)rand() % 400, 150);
        if (i % 3) recipes[i].kv = selecting(64, 64, i % 3 == 1);
        alone[i] = answers_one(engine, &recipes[i]);
    }
    finish(engine);
    for (int i = 0; i < 2; i++) {
        if (i == 1) late_backend_begin(backend);
        const struct engine_stats stats =
            answers_compare(start((struct room){30, 300, 64, PLAIN}), recipes, alone, N);
        assert_true(stats.n_preempted > 0 && stats.n_swapped_in > 0);
        assert_true(stats.n_swapped_in <= stats.n_swapped_out);
        assert_int_equal(stats.host_pool_used_bytes, 0);
    }
    late_backend_end();
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* A context, and a question of its own for each request. */
static struct recipe question_of(const struct recipe *context, struct kv_choice kv) {
    struct recipe r = recipe_make(context->n_prompt + 5 + (uint32_t)rand() % 40, 40);
    memcpy(r.prompt, context->prompt, context->n_prompt * sizeof(*r.prompt));
    r.kv = kv;
    return r;
}

/* Asks one after the other, so that each finds what those before it have left; returns the least
 * that a later one found. */
static uint32_t answer_in_turn(struct room room, const struct recipe *recipes,
                               const struct answer *alone, uint32_t n) {
    struct engine *engine = start(room);
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) {
        struct answer a = {0};
        a = answers_one(engine, &recipes[i]);
        answers_assert_same(&alone[i], &a);
        if (i > 0 && a.last.n_cached < least) least = a.last.n_cached;
        answer_forget(&a);
    }
    finish(engine);
    return least;
}

/* Whether requests find its context in the pool, in the host pool or not at all, whichever request
 * computed it, and whichever others ask at the same time. */
TEST(a_context_may_be_asked_often) {
    enum { N = 6, N_CONTEXT = 330 };
    static struct recipe recipes[N];
    static struct answer alone[N];
    srand(10);
    const struct recipe context = recipe_make(N_CONTEXT, 1);
    const struct kv_choice kinds[] = {
        selecting(64, 64, false), selecting(64, 64, true), {0}, selecting(128, 64, false)};
    struct engine *engine = start((struct room){60, 20, 256, WITHOUT_PREFIXES});
    for (int i = 0; i < N; i++) {
        recipes[i] = question_of(&context, kinds[i % 4]);
        alone[i] = answers_one(engine, &recipes[i]);
        assert_int_equal(alone[i].last.n_cached, 0);
    }
    finish(engine);
    const uint32_t n_blocks = N_CONTEXT / PAGE_TOKENS * PAGE_TOKENS;
    assert_int_equal(answer_in_turn((struct room){60, 20, 256, PLAIN}, recipes, alone, N),
                     n_blocks);
    assert_int_equal(answer_in_turn((struct room){8, 40, 256, PLAIN}, recipes, alone, N), n_blocks);
    for (int late = 0; late < 2; late++) {
        if (late) late_backend_begin(backend);
        answers_compare(start((struct room){120, 60, 256, PLAIN}), recipes, alone, N);
        /* There is space for a few of them, as they share the context. */
        const struct engine_stats stats =
            answers_compare(start((struct room){8, 200, 256, PLAIN}), recipes, alone, N);
        assert_true(stats.cached_tokens >= (N - 1) * n_blocks);
    }
    late_backend_end();
    for (int i = 0; i < N; i++) answer_forget(&alone[i]);
}

/* The same for prompts that do not fit the pool.  What such a prompt leaves is what any other one
 * would have computed. */
TEST(a_long_context_may_be_asked_often) {
    enum { N = 3, N_CONTEXT = 600 };
    static struct recipe recipes[N + 1];
    static struct answer alone[N + 1];
    const struct room small = {9, 40, 256, PLAIN};
    srand(11);
    const struct recipe context = recipe_make(N_CONTEXT, 1);
    for (int i = 0; i < N; i++) recipes[i] = question_of(&context, selecting(64, 64, false));
    /* The last one fits, and keeps everything. */
    recipes[N] = recipe_make(530, 20);
    memcpy(recipes[N].prompt, context.prompt, 520 * sizeof(*context.prompt));
    struct room room = small;
    room.kind = WITHOUT_PREFIXES;
    struct engine *engine = start(room);
    for (int i = 0; i <= N; i++) alone[i] = answers_one(engine, &recipes[i]);
    /* For the prompt's last token, too. */
    assert_int_equal(alone[0].last.kv.values[KV_SELECTED_TOKENS], 40 * 2 * 64);
    finish(engine);
    assert_int_equal(answer_in_turn(small, recipes, alone, N), 576);
    assert_int_equal(answer_in_turn(small, recipes, alone, N + 1), 512);
    for (int late = 0; late < 2; late++) {
        if (late) late_backend_begin(backend);
        answers_compare(start(small), recipes, alone, N + 1);
    }
    late_backend_end();
    for (int i = 0; i <= N; i++) answer_forget(&alone[i]);
}

/* Steps with budgets, with selections, with both and with neither have other operations. */
TEST(each_kind_of_step_has_its_own_graph) {
    struct engine *engine = start((struct room){60, 20, 512, PLAIN});
    struct answer answers[2] = {0};
    srand(9);
    struct recipe r = recipe_make(300, 200);
    n_graphs = 0;
    answers[0] = answers_one(engine, &r);
    assert_int_equal(n_graphs, 1);
    answer_forget(&answers[0]);
    const struct kv_choice selects = selecting(64, 64, false);
    const struct kv_choice bounded = {.mechanism = KV_BOUNDED, .n_recent = 50, .chunk = 64};
    r.kv = selects;
    answers[0] = answers_one(engine, &r);
    assert_int_equal(n_graphs, 2);
    answer_forget(&answers[0]);
    r.kv = bounded;
    answers[0] = answers_one(engine, &r);
    assert_int_equal(n_graphs, 3);
    answer_forget(&answers[0]);
    recipe_submit(engine, &r, &answers[0]);
    r.kv = selects;
    recipe_submit(engine, &r, &answers[1]);
    answers_wait(engine, answers, 2);
    assert_int_equal(n_graphs, 4);
    for (int i = 0; i < 2; i++) answer_forget(&answers[i]);
    finish(engine);
}

static int submit(struct engine *engine, struct kv_choice kv, uint32_t max_tokens,
                  struct error *err) {
    uint32_t prompt[5] = {0};
    uint64_t id;
    struct engine_request r = {
        .prompt = prompt, .n_prompt = 5, .params = sampling_defaults(), .kv = kv};
    r.params.max_tokens = max_tokens;
    return engine_submit(engine, &r, 1, &id, err);
}

TEST(selections_that_cannot_be_had_are_refused) {
    struct error err = {0};
    struct engine *engine = start((struct room){40, 0, 256, WITHOUT_GROUPS});
    assert_int_equal(submit(engine, selecting(64, 64, true), 5, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "filter layers"));
    engine_destroy(engine);
    engine = start((struct room){40, 0, 256, PLAIN});
    assert_int_equal(submit(engine, selecting(64, 64, false), 5, &err), ERR_INVALID);
    assert_int_equal(submit(engine, selecting(MAX_SELECTED + 1, 64, true), 5, &err), ERR_INVALID);
    engine_destroy(engine);
    engine = start((struct room){40, 10, 256, PLAIN});
    assert_int_equal(submit(engine, selecting(64, 64, false), 11 * PAGE_TOKENS, &err),
                     ERR_TOO_LONG);
    assert_non_null(strstr(err.text, "holds 640"));
    finish(engine);
}

TEST(groups_must_be_layers_of_the_model) {
    static const struct layer_group wrong[][2] = {{{2, 4, 13}, {0, 0, 0}},
                                                  {{2, 2, 5}, {0, 0, 0}},
                                                  {{2, 4, 4}, {0, 0, 0}},
                                                  {{2, 4, 7}, {6, 8, 12}}};
    for (int i = 0; i < 4; i++) {
        struct engine *engine;
        struct error err = {0};
        const struct engine_config config = {.model_dir = model_dir,
                                             .backend = backend,
                                             .max_num_seqs = 1,
                                             .max_batched_tokens = 64,
                                             .kv_format = PAGE_F32,
                                             .max_model_len = 64,
                                             .groups = wrong[i],
                                             .n_groups = i == 3 ? 2 : 1,
                                             .max_selected = 64};
        assert_int_equal(engine_create(&engine, &config, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "filter layer"));
    }
}

static int remember_graphs(void **state) {
    ops = *backend->ops;
    real_run_graph = ops.run_graph;
    ops.run_graph = remembering_run_graph;
    backend->ops = &ops;
    return 0;
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, remember_graphs);
}
