/* test_offload_windows.c - the whole engine with sequences that select, of a model half of whose
 * layers have a window: answers must not depend on how few pages there are, on what else runs, on
 * where tokens wait, or on whether a step is in flight while pages go back.
 *
 * Weights are made up.  That what is selected is the right thing is tested elsewhere, against the
 * definition. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/test.h"

enum {
    CONTEXT = 1024,
    N_VOCAB = 131,
    N_LAYERS = 8,
    N_WINDOWED = 3,
    WINDOW = 100,
    N_HOST_LAYERS = 4,
    N_RECIPES = 18,
    TEXT_PAGES = CONTEXT / PAGE_TOKENS
};

#define W "\"sliding_attention\","
#define F "\"full_attention\","

static const char config_text[] =
    "{\"architectures\":[\"Gemma2ForCausalLM\"],\"model_type\":\"gemma2\",\"vocab_size\":131,"
    "\"hidden_size\":48,\"intermediate_size\":64,\"num_hidden_layers\":8,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":16,"
    "\"max_position_embeddings\":1024,\"query_pre_attn_scalar\":1,\"sliding_window\":100,"
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
    "\"eos_token_id\":2,\"torch_dtype\":\"bfloat16\",\"layer_types\":[" W F W F F W F
    "\"full_attention\"]}";

/* Layer 1 chooses for 3, 4, 6 and 7. */
static const struct layer_group group = {1, 3, N_LAYERS};

static char folder[] = "/tmp/quire-test-XXXXXX";

/* n_pages 0: more than enough. */
struct room {
    uint32_t n_pages, max_rows;
    bool prefix_caching;
};

static struct engine_config config_of(struct room room) {
    const struct kv_pool pool = {.format = PAGE_F32, .n_kv_heads = 2, .head_dim = 16};
    const struct host_pool store = {
        .format = PAGE_F32, .n_host_layers = N_HOST_LAYERS, .n_kv_heads = 2, .head_dim = 16};
    return (struct engine_config){
        .model_dir = model_dir,
        .backend = backend,
        .max_num_seqs = 8,
        .max_batched_tokens = room.max_rows,
        .max_queued = 64,
        .kv_format = PAGE_F32,
        .kv_cache_bytes = (room.n_pages ? room.n_pages : 4000) * kv_page_bytes(&pool),
        .host_pool_bytes = 1000 * host_pool_block_bytes(&store),
        .prefix_caching = room.prefix_caching,
        .groups = &group,
        .n_groups = 1,
        .max_selected = 256,
        .random_weights = true,
        .tokens_only = true};
}

static struct engine *start(struct room room) {
    const struct engine_config config = config_of(room);
    struct engine *engine = answers_start(&config);
    assert_true(engine_info(engine)->selections);
    assert_int_equal(engine_info(engine)->max_model_len, CONTEXT);
    return engine;
}

/* Some begin alike. */
static struct recipe random_recipe(uint32_t n_prompt) {
    struct recipe r = {.params = sampling_defaults(), .n_prompt = n_prompt};
    const uint32_t family = (uint32_t)rand() % 3, n_shared = (uint32_t)rand() % 500;
    for (uint32_t i = 0; i < n_prompt; i++)
        r.prompt[i] = 3 + (i < n_shared ? family * 41 + i * i : (uint32_t)rand()) % (N_VOCAB - 3);
    r.params.ignore_eos = true;
    r.params.has_seed = true;
    r.params.seed = (uint64_t)rand();
    r.params.n_logprobs = 0;
    r.params.max_tokens = CONTEXT - n_prompt < 250 ? CONTEXT - n_prompt : 250;
    return r;
}

static struct kv_choice selecting(bool on_device) {
    return (struct kv_choice){.mechanism = KV_SELECTING,
                              .n_sink = 4,
                              .n_selected = 64,
                              .n_tail = 64,
                              .on_device = on_device};
}

static void answer_alone(struct room room, const struct recipe *recipes, struct answer *alone,
                         uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct engine *engine = start(room);
        recipe_submit(engine, &recipes[i], &alone[i]);
        answers_wait(engine, &alone[i], 1);
        assert_int_not_equal(alone[i].last.reason, FINISH_ERROR);
        assert_true(recipes[i].kv.mechanism == KV_WHOLE ||
                    alone[i].last.kv.values[KV_SELECTED_TOKENS] > 0);
        answers_leave_no_page(engine);
        engine_destroy(engine);
    }
}

/* Pages of one text that is kept whole, while it goes on. */
static uint32_t pages_of_a_text(uint32_t max_rows) {
    struct engine *engine = start((struct room){0, max_rows, false});
    const uint32_t n = (uint32_t)engine_info(engine)->text_pages;
    assert_true(n < N_LAYERS * TEXT_PAGES);
    engine_destroy(engine);
    return n;
}

/* What is chosen is not worked out by a prompt's rows, so computing again would show. */
TEST(answers_do_not_depend_on_pages_or_places) {
    static struct recipe recipes[N_RECIPES];
    static struct answer alone[N_RECIPES];
    const uint32_t rows = 128, n_pages = pages_of_a_text(rows) * 3 / 2;
    uint64_t n_swapped_in = 0;
    srand(41);
    for (int i = 0; i < N_RECIPES; i++) {
        recipes[i] = i % 3 == 2 ? recipes[i - 1] : random_recipe(130 + (uint32_t)rand() % 500);
        if (i % 3) recipes[i].kv = selecting(i % 3 == 1);
    }
    answer_alone((struct room){0, 256, false}, recipes, alone, N_RECIPES);
    for (int i = 2; i < N_RECIPES; i += 3) answers_assert_same(&alone[i - 1], &alone[i]);
    for (uint32_t i = 0; i < 8; i++) {
        if (i == 4) late_backend_begin(backend);
        const struct room room = {i % 2 ? 0 : n_pages, rows, i / 2 % 2};
        const struct engine_stats stats = answers_compare(start(room), recipes, alone, N_RECIPES);
        assert_int_equal(stats.host_pool_used_bytes, 0);
        assert_true((stats.n_preempted > 0) == (room.n_pages > 0));
        n_swapped_in += stats.n_swapped_in;
    }
    assert_true(late_backend_end() > 0);
    assert_true(n_swapped_in > 0);
    for (int i = 0; i < N_RECIPES; i++) answer_forget(&alone[i]);
}

/* Where a text's pages do not fit, its prompt takes turns with two lists of them.  The size of
 * slices does not matter. */
TEST(long_prompts_go_layer_by_layer) {
    enum { N = 6, ROWS = 256, N_PAGES = 72 };
    static struct recipe recipes[N];
    static struct answer alone[N], whole[N];
    assert_true(pages_of_a_text(ROWS) > N_PAGES);
    srand(43);
    for (int i = 0; i < N; i++) {
        recipes[i] = random_recipe(CONTEXT - 1 - (uint32_t)rand() % 40);
        recipes[i].kv = selecting(false);
    }
    answer_alone((struct room){N_PAGES, ROWS, false}, recipes, alone, N);
    for (int late = 0; late < 2; late++) {
        if (late) late_backend_begin(backend);
        answers_compare(start((struct room){N_PAGES, ROWS, true}), recipes, alone, N);
        answers_compare(start((struct room){N_PAGES, SPARSE_TILE, false}), recipes, alone, N);
        if (late) assert_true(late_backend_end() > 0);
    }
    /* The prompt's last token has selected, too. */
    answer_alone((struct room){0, ROWS, false}, recipes, whole, N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(alone[i].last.kv.values[KV_SELECTED_TOKENS],
                         whole[i].last.kv.values[KV_SELECTED_TOKENS] + 64);
        answer_forget(&alone[i]);
        answer_forget(&whole[i]);
    }
}

TEST(layers_that_choose_or_follow_have_no_window) {
    static const struct layer_group wrong[] = {{0, 1, 2}, {1, 2, 5}, {1, 3, 6}};
    for (int i = 0; i < 3; i++) {
        struct engine *engine;
        struct error err = {0};
        struct engine_config config = config_of((struct room){0, 128, false});
        config.groups = &wrong[i];
        assert_int_equal(engine_create(&engine, &config, &err), ERR_INVALID);
        assert_non_null(strstr(err.text, "must have no window"));
    }
}

static int write_config(void) {
    char path[64];
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof(path), "%s/config.json", folder);
    FILE *file = fopen(path, "w");
    if (!file) return -1;
    const int failed = fputs(config_text, file) < 0;
    return fclose(file) || failed ? -1 : 0;
}

static void remove_config(void) {
    char path[64];
    snprintf(path, sizeof(path), "%s/config.json", folder);
    unlink(path);
    rmdir(folder);
}

int main(void) {
    if (write_config()) return 1;
    const int status = answers_main(2, (char *[]){NULL, folder}, NULL);
    remove_config();
    return status;
}
