/* test_memory_plan.c - how many pages an engine gets, of a device and of a system. */
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/evict.h"
#include "engine/device/host_pool.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/page_pool.h"
#include "engine/memory_plan.h"
#include "engine/model/decoder.h"
#include "engine/model/model.h"
#include "engine/system_memory.h"
#include "tests/test.h"

/* 2 * 4 KV heads * 64 tokens * 128 elements * 2 bytes, in 8 layers: 1 MiB for 64 tokens. */
enum { N_LAYERS = 8, BLOCK = 1 << 20 };
static const uint64_t GIB = 1 << 30;

static int plan(const struct engine_config *config, uint32_t max_model_len,
                struct device_memory device, uint64_t available, uint32_t *n_blocks,
                struct error *err) {
    const struct model_config model = {.n_kv_heads = 4, .head_dim = 128};
    struct kv_pool pool = memory_plan_pages(config, &model);
    assert_int_equal(pool.page_bytes * N_LAYERS, BLOCK);
    const struct longest_text longest = {.n_layers = N_LAYERS, .n_tokens = max_model_len};
    const int rc = memory_plan_kv(&pool, config, &longest, device, available, err);
    assert_int_equal(pool.n_pages % N_LAYERS, 0);
    *n_blocks = pool.n_pages / N_LAYERS;
    return rc;
}

TEST(a_device_gives_what_is_left_of_its_share) {
    const struct engine_config config = {.kv_format = PAGE_BF16, .device_share = 0.75};
    const struct device_memory device = {.free = 5 * GIB, .total = 8 * GIB};
    struct error err = {0};
    uint32_t n;
    assert_int_equal(plan(&config, 1024, device, 1, &n, &err), 0);
    assert_int_equal(n, 3 * GIB / BLOCK);
}

TEST(too_small_a_share_is_refused_in_numbers) {
    const struct engine_config config = {.kv_format = PAGE_BF16, .device_share = 0.75};
    const struct device_memory device = {.free = 5 * GIB, .total = 8 * GIB};
    static const char *const words[] = {"196608 tokens",
                                        "196609",
                                        "--gpu-memory-utilization 0.75",
                                        "6.00 of the device's 8.00",
                                        "programs use 3.00",
                                        "--max-model-len"};
    struct error err = {0};
    uint32_t n;
    assert_int_equal(plan(&config, 196608, device, 0, &n, &err), 0);
    assert_int_equal(plan(&config, 196609, device, 0, &n, &err), ERR_NOMEM);
    for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++)
        if (!strstr(err.text, words[i])) fail_msg("'%s' lacks '%s'", err.text, words[i]);
    /* More in use than the share: nothing, not a wrapped number. */
    assert_int_equal(plan(&config, 64, (struct device_memory){GIB, 8 * GIB}, 0, &n, &err),
                     ERR_NOMEM);
}

TEST(a_given_size_is_taken_as_it_is) {
    const struct engine_config config = {
        .kv_format = PAGE_BF16, .device_share = 0.1, .kv_cache_bytes = 20 * BLOCK + 5};
    const struct device_memory device = {.free = GIB, .total = 8 * GIB};
    struct error err = {0};
    uint32_t n;
    assert_int_equal(plan(&config, 20 * 64, device, 0, &n, &err), 0);
    assert_int_equal(n, 20);
    assert_int_equal(plan(&config, 20 * 64 + 1, device, 0, &n, &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "--kv-cache-memory to at least 22020096"));
}

TEST(no_whole_text_needs_to_fit_where_all_are_bounded) {
    const struct device_memory none = {0}, device = {.free = 5 * GIB, .total = 8 * GIB};
    struct engine_config config = {
        .kv_format = PAGE_BF16, .device_share = 0.375, .kv_cache_bytes = 3 * BLOCK};
    struct error err = {0};
    uint32_t n;
    assert_int_equal(plan(&config, 1024, none, 0, &n, &err), ERR_NOMEM);
    config.only_bounded = true;
    assert_int_equal(plan(&config, 1024, none, 0, &n, &err), 0);
    assert_int_equal(n, 3);
    config.kv_cache_bytes = BLOCK - 1;
    assert_int_equal(plan(&config, 1024, none, 0, &n, &err), ERR_NOMEM);
    assert_non_null(strstr(err.text, "--kv-cache-memory"));
    config.kv_cache_bytes = 0;
    assert_int_equal(plan(&config, 1024, device, 0, &n, &err), ERR_NOMEM); /* others have it all */
    assert_non_null(strstr(err.text, "--gpu-memory-utilization"));
}

TEST(a_system_gives_a_quarter_or_what_is_of_use) {
    const struct engine_config config = {.kv_format = PAGE_BF16, .device_share = 0.9};
    const struct device_memory none = {0};
    struct error err = {0};
    uint32_t n;
    assert_int_equal(plan(&config, 1024, none, 400 * BLOCK, &n, &err), 0);
    assert_int_equal(n, 100);
    assert_int_equal(plan(&config, 1024, none, 64 * GIB, &n, &err), 0);
    assert_int_equal(n, MEMORY_PLAN_TOKENS / PAGE_TOKENS);
    assert_int_equal(plan(&config, 100000, none, 0, &n, &err), 0);
    assert_int_equal(n, 4 * 100000 / 64);
    assert_int_equal(plan(&config, 1024, none, 60 * BLOCK, &n, &err), ERR_NOMEM);
}

TEST(weights_that_are_mapped_are_needed) {
    assert_int_equal(memory_plan_beside(16 * GIB, 0), 16 * GIB);
    assert_int_equal(memory_plan_beside(16 * GIB, 4 * GIB),
                     16 * GIB); /* a quarter is beside them */
    assert_int_equal(memory_plan_beside(16 * GIB, 13 * GIB), 12 * GIB);
    assert_int_equal(memory_plan_beside(16 * GIB, 15 * GIB), 8 * GIB);
    assert_int_equal(memory_plan_beside(16 * GIB, 40 * GIB), 8 * GIB);
    assert_int_equal(memory_plan_beside(1, 40 * GIB), 0);
}

TEST(the_context_is_what_a_system_holds) {
    const struct engine_config config = {.kv_format = PAGE_BF16};
    const struct model_config model = {.n_kv_heads = 4, .head_dim = 128};
    const struct kv_pool pool = memory_plan_pages(&config, &model);
    struct longest_text longest = {.n_layers = N_LAYERS, .n_tokens = 32768};
    assert_int_equal(memory_plan_context(&pool, &longest, 0), 32768); /* unknown */
    assert_int_equal(memory_plan_context(&pool, &longest, 64 * GIB), 32768);
    assert_int_equal(memory_plan_context(&pool, &longest, 4 * 512 * (uint64_t)BLOCK), 32768);
    assert_int_equal(memory_plan_context(&pool, &longest, 4 * 100 * (uint64_t)BLOCK), 6400);
    assert_int_equal(memory_plan_context(&pool, &longest, BLOCK), 32768); /* to be refused */
    /* Layers with a window need few pages, however long the text is. */
    longest.n_windowed = N_LAYERS - 1;
    longest.window = 128;
    longest.step_rows = 64;
    assert_int_equal(memory_plan_context(&pool, &longest, 4 * 100 * (uint64_t)BLOCK), 32768);
}

TEST(more_than_there_is_is_refused_by_name) {
    struct system_memory memory = {.total = 8 * GIB, .available = GIB};
    struct error err = {0};
    assert_int_equal(system_memory_check(&memory, "--kv-cache-memory", 7 * GIB, GIB, &err), 0);
    assert_int_equal(system_memory_check(&memory, "--kv-cache-memory", 7 * GIB, 2 * GIB, &err),
                     ERR_NOMEM);
    assert_non_null(strstr(err.text, "--kv-cache-memory"));
    assert_non_null(strstr(err.text, "the machine has 8.00 GiB"));
    assert_int_equal(system_memory_check(&memory, "x", UINT64_MAX, UINT64_MAX, &err), ERR_NOMEM);
    snprintf(memory.limit, sizeof(memory.limit), "/sys/fs/cgroup/memory.max");
    assert_int_equal(system_memory_check(&memory, "--kv-offload-size", 9 * GIB, 0, &err),
                     ERR_NOMEM);
    assert_non_null(strstr(err.text, "/sys/fs/cgroup/memory.max allows 8.00 GiB"));
    memory.total = 0;
    assert_int_equal(system_memory_check(&memory, "x", UINT64_MAX, 1, &err), 0);
    system_memory_read(&memory);
    assert_true(memory.total > 0 && memory.available > 0 && memory.available <= memory.total);
}

/* A row of the room for long prompts is 4096 + 2048 elements of 2 bytes. */
static uint32_t long_rows(const struct engine_config *config, uint32_t max_model_len,
                          struct device_memory device, uint64_t available) {
    const struct model_config model = {.dim = 4096, .n_heads = 8, .n_kv_heads = 4, .head_dim = 128};
    return memory_plan_long_rows(config, &model, max_model_len, device, available);
}

/* The plan asks only whether a group is there. */
static const struct host_pool_ops fake_host_pool;
static const struct evict_ops fake_evict;
static const struct sparse_ops fake_sparse;
static const struct select_ops fake_select;

TEST(long_prompts_get_a_tenth_of_the_share) {
    const uint64_t row_bytes = 2 * (4096 + 2048);
    struct backend_ops ops = {.sparse = &fake_sparse, .host_pool = &fake_host_pool};
    struct backend be = {.ops = &ops, .act_dtype = DTYPE_BF16};
    struct engine_config config = {.backend = &be,
                                   .sparse_prefill = true,
                                   .device_share = 0.5,
                                   .max_batched_tokens = SPARSE_TILE};
    const struct device_memory device = {.free = GIB, .total = row_bytes * 20 * 1280}, none = {0};
    assert_int_equal(long_rows(&config, 1000000, device, 0), 1280);
    assert_int_equal(long_rows(&config, 1000, device, 0), 1024); /* all that is of use */
    assert_int_equal(long_rows(&config, 1000000, none, row_bytes * 10 * 400), 384);
    assert_int_equal(long_rows(&config, 1000000, none, 0), 0);
    config.max_long_rows = 100000;
    assert_int_equal(long_rows(&config, 1000000, device, 0), 100096); /* whole tiles */
    config.max_long_rows = 127;
    assert_int_equal(long_rows(&config, 1000000, device, 0), 0);
    config.max_long_rows = 1280;
    config.sparse_prefill = false;
    assert_int_equal(long_rows(&config, 1000000, device, 0), 0);
    const struct layer_group group = {0, 1, 2};
    config.groups = &group;
    config.n_groups = 1;
    config.host_pool_bytes = 1; /* dense ones that leave for it go layer by layer, too */
    assert_int_equal(long_rows(&config, 1000000, device, 0), 0);
    ops.select = &fake_select;
    assert_int_equal(long_rows(&config, 1000000, device, 0), 1280);
    ops.host_pool = NULL; /* nowhere to go */
    assert_int_equal(long_rows(&config, 1000000, device, 0), 0);
    ops.select = NULL;
    config.sparse_prefill = true;
    config.max_batched_tokens = SPARSE_TILE - 1; /* no step can take a tile */
    assert_int_equal(long_rows(&config, 1000000, device, 0), 0);
    config.max_batched_tokens = SPARSE_TILE;
    ops.sparse = NULL;
    assert_int_equal(long_rows(&config, 1000000, device, 0), 0);
}

/* 5 sparse layers * 64 tokens * 2 * 4 KV heads * 128 elements * 2 bytes. */
TEST(the_store_has_whole_blocks) {
    const uint64_t block = 5 * 64 * 2 * 4 * 128 * 2;
    const struct layer_group groups[] = {{0, 2, 4}, {4, 5, 8}};
    struct backend_ops can = {.select = &fake_select, .host_pool = &fake_host_pool};
    struct backend backend = {.ops = &can};
    struct engine_config config = {.kv_format = PAGE_BF16,
                                   .backend = &backend,
                                   .groups = groups,
                                   .n_groups = 2,
                                   .host_pool_bytes = 3 * block - 1};
    const struct model_config model = {
        .n_layers = 9, .n_attention = 9, .n_kv_heads = 4, .head_dim = 128};
    struct host_pool store;
    struct error err = {0};
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), 0);
    assert_int_equal(host_pool_block_bytes(&store), block);
    assert_int_equal(store.n_blocks, 2);
    config.host_pool_fp8 = true; /* and a byte for each head's keys and values */
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), 0);
    assert_int_equal(host_pool_block_bytes(&store), 5 * 64 * (2 * 4 * 128 + 16));
    assert_int_equal(store.n_blocks, 5);
    config.host_pool_fp8 = false;
    config.kv_format = PAGE_FP8; /* what pages have is what is stored */
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), 0);
    assert_true(store.fp8);
    assert_int_equal(host_pool_block_bytes(&store), 5 * 64 * (2 * 4 * 128 + 16));
    config.kv_format = PAGE_BF16;
    uint32_t windows[9] = {[6] = 512}; /* what sees its window only, leaves nothing */
    struct model_config windowed = model;
    windowed.windows = windows;
    assert_int_equal(memory_plan_host_pool(&store, &config, &windowed, &err), 0);
    assert_int_equal(host_pool_block_bytes(&store), block / 5 * 4);
    assert_int_equal(store.n_blocks, 3);
    config.host_pool_bytes = block - 1;
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), ERR_INVALID);
    can.host_pool = NULL;
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), 0);
    assert_int_equal(store.n_blocks, 0);
    can.host_pool = &fake_host_pool;
    config.host_pool_bytes = 0;
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), 0);
    assert_int_equal(store.n_blocks, 0);
}

/* What does not fit is offloaded, and what the slots for it take. */
TEST(experts_are_offloaded_that_the_device_has_no_memory_for) {
    const struct device_memory device = {.free = 80 * GIB, .total = 80 * GIB};
    struct offload_needs needs = {
        .weight_bytes = 60 * GIB, .layer_bytes = GIB, .kv_bytes = 8 * GIB, .workspace_bytes = GIB};
    assert_int_equal(memory_plan_offload(&needs, device, 0.9), 0);
    needs.weight_bytes = 64 * GIB; /* 1 GiB too much, beside a margin */
    const uint64_t bytes = memory_plan_offload(&needs, device, 0.9);
    assert_in_range(bytes, 3 * GIB, 4 * GIB);
    needs.kv_bytes += GIB;
    assert_int_equal(memory_plan_offload(&needs, device, 0.9), bytes + GIB);
    needs.weight_bytes = 400 * GIB;
    assert_true(memory_plan_offload(&needs, device, 0.9) > bytes + 330 * GIB);
    /* Another process has most of the device. */
    needs.weight_bytes = 10 * GIB;
    assert_true(memory_plan_offload(&needs, (struct device_memory){4 * GIB, 80 * GIB}, 0.9) >
                10 * GIB);
}

/* A page of each of 9 layers, with what KV heads know of it or without. */
TEST(without_selections_a_block_is_for_all_layers) {
    const struct layer_group groups[] = {{0, 2, 9}};
    const struct backend_ops ops = {.evict = &fake_evict, .host_pool = &fake_host_pool};
    struct backend backend = {.ops = &ops};
    const struct model_config model = {
        .n_layers = 9, .n_attention = 9, .n_kv_heads = 4, .head_dim = 128};
    const uint64_t plain = 9 * 64 * 2 * 4 * 128 * 2;
    struct engine_config config = {.kv_format = PAGE_BF16,
                                   .backend = &backend,
                                   .groups = groups,
                                   .n_groups = 1,
                                   .host_pool_bytes = 4 * plain,
                                   .host_pool_fp8 = true};
    struct host_pool store;
    struct error err = {0};
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), 0);
    assert_int_equal(host_pool_block_bytes(&store), plain);
    assert_int_equal(store.n_blocks, 4);
    config.bounded_caches = true;
    assert_int_equal(memory_plan_host_pool(&store, &config, &model, &err), 0);
    const uint64_t pages = 9 * memory_plan_pages(&config, &model).page_bytes;
    assert_true(pages > plain && host_pool_block_bytes(&store) >= pages);
    assert_true(host_pool_block_bytes(&store) < pages + plain / 9);
}

enum { TOKENS = 1000000, GENERATED = 100, N_DENSE = 8 };

/* A server on 80 GB for one such text: the shape of Llama-3-8B with its filters, and a store. */
struct million {
    struct backend_ops ops;
    struct backend be;
    struct model_config model;
    struct engine_config config;
    struct host_pool store;
    struct kv_pool pool;
    uint32_t n_long;
};

static const struct layer_group million_groups[] = {{2, 4, 8}, {8, 10, 18}, {18, 20, 32}};

/* What is left when weights, activations and the index have theirs: of 85 GB 14, 2 and 1.5, and the
 * driver's 0.6. */
static int plan_million(struct million *m, uint64_t host_pool_bytes, struct error *err) {
    *m = (struct million){
        .ops = {.sparse = &fake_sparse, .select = &fake_select, .host_pool = &fake_host_pool},
        .model = {.n_layers = 32,
                  .n_attention = 32,
                  .dim = 4096,
                  .n_heads = 32,
                  .n_kv_heads = 8,
                  .head_dim = 128},
        .config = {.kv_format = PAGE_BF16,
                   .device_share = 0.97,
                   .sparse_prefill = true,
                   .groups = million_groups,
                   .n_groups = 3,
                   .host_pool_bytes = host_pool_bytes,
                   .max_batched_tokens = 2048,
                   .max_long_rows = TOKENS}};
    const uint64_t giga = 1000000000, total = 85 * giga, used = (uint64_t)(18.1 * 1e9);
    m->be = (struct backend){.ops = &m->ops, .act_dtype = DTYPE_BF16};
    m->config.backend = &m->be;
    struct device_memory device = {.total = total, .free = total - used};
    m->n_long = memory_plan_long_rows(&m->config, &m->model, TOKENS + GENERATED, device, 0);
    device.free -= decoder_long_bytes(&m->model, m->n_long, DTYPE_BF16);
    m->pool = memory_plan_pages(&m->config, &m->model);
    const int rc = memory_plan_host_pool(&m->store, &m->config, &m->model, err);
    const struct longest_text longest = {
        .n_layers = 32, .n_tokens = TOKENS + GENERATED, .long_rows = m->n_long, .store = &m->store};
    return rc ? rc : memory_plan_kv(&m->pool, &m->config, &longest, device, 0, err);
}

TEST(a_million_tokens_fit_where_most_of_them_leave) {
    static struct million m;
    struct error err = {0};
    const struct kv_choice choice = {
        .mechanism = KV_SELECTING, .n_sink = 4, .n_selected = 2048, .n_tail = 512};
    struct kv_space space = {.n_layers = 32, .groups = million_groups, .n_groups = 3};
    assert_int_equal(plan_million(&m, 100 * GIB, &err), 0);
    assert_true(m.n_long >= TOKENS - 1);
    space.io.memory = &m.pool;
    assert_int_equal(page_pool_create(&space.pool, m.pool.n_pages, &err), 0);
    struct kv_plan plan = kv_plan_make(&choice, TOKENS, GENERATED);
    kv_plan_by_layers(&plan, &space, m.n_long, false);
    assert_true(plan.layer_major);
    const struct kv_amount most = kv_most(&space, &plan);
    assert_true(most.pages <= m.pool.n_pages && most.blocks <= m.store.n_blocks);
    /* Beside it there are 16,384 tokens for others, of every layer. */
    assert_true(m.pool.n_pages - most.pages >= 16384 / PAGE_TOKENS * 32);
    page_pool_destroy(space.pool);
    /* As many pages are too few where nothing selects. */
    m.config.kv_cache_bytes = (uint64_t)m.pool.n_pages * m.pool.page_bytes;
    struct longest_text text = {
        .n_layers = 32, .n_tokens = TOKENS + GENERATED, .long_rows = m.n_long, .store = &m.store};
    const struct device_memory any = {0};
    assert_int_equal(memory_plan_kv(&m.pool, &m.config, &text, any, 0, &err), 0);
    text.store = NULL;
    assert_int_equal(memory_plan_kv(&m.pool, &m.config, &text, any, 0, &err), ERR_NOMEM);
    /* Neither the whole text nor a store that is too small. */
    assert_true((uint64_t)TOKENS / PAGE_TOKENS * 32 > m.pool.n_pages);
    assert_int_equal(plan_million(&m, 80 * GIB, &err), ERR_NOMEM);
}

/* Half of ten layers have a window of 1,024 tokens, and of the others all but one are sparse: those
 * take turns with two lists of a long prompt's pages, and so do those with a window. */
TEST(what_leaves_and_what_windows_pass_need_no_room) {
    enum { TEXT = 65536, STEP = 2048, WINDOW = 1024, PAGES = TEXT / PAGE_TOKENS, N_LAYERS = 10 };
    const uint32_t windows[N_LAYERS] = {
        [0] = WINDOW, [2] = WINDOW, [4] = WINDOW, [6] = WINDOW, [8] = WINDOW};
    const struct layer_group group = {1, 3, N_LAYERS};
    const struct kv_choice choice = {.mechanism = KV_SELECTING, .n_selected = 64, .n_tail = 64};
    const struct host_pool store = {.n_host_layers = 4, .n_blocks = PAGES};
    struct longest_text text = {.n_layers = N_LAYERS,
                                .n_tokens = TEXT,
                                .n_windowed = 5,
                                .window = WINDOW,
                                .step_rows = STEP,
                                .long_rows = TEXT,
                                .store = &store};
    struct kv_pool pool = {.page_bytes = 4096};
    struct kv_space space = {.n_layers = N_LAYERS,
                             .groups = &group,
                             .n_groups = 1,
                             .windows = windows,
                             .window = WINDOW,
                             .io.memory = &pool};
    struct engine_config config = {0};
    const struct device_memory any = {0};
    struct error err = {0};
    const uint64_t n_in_window = kv_n_pages(WINDOW - 1 + STEP) + 1,
                   need = PAGES + 5 * n_in_window + 2 * PAGES;
    config.kv_cache_bytes = need * pool.page_bytes - 1;
    assert_int_equal(memory_plan_kv(&pool, &config, &text, any, 0, &err), ERR_NOMEM);
    config.kv_cache_bytes = round_up(need, N_LAYERS) * pool.page_bytes;
    assert_int_equal(memory_plan_kv(&pool, &config, &text, any, 0, &err), 0);
    assert_true(pool.n_pages < memory_plan_text_pages(&text));
    assert_int_equal(page_pool_create(&space.pool, pool.n_pages, &err), 0);
    struct kv_plan plan = kv_plan_make(&choice, TEXT - 100, 100);
    plan.step_rows = STEP;
    kv_plan_by_layers(&plan, &space, TEXT, false);
    assert_true(plan.layer_major);
    assert_true(kv_most(&space, &plan).pages <= pool.n_pages);
    page_pool_destroy(space.pool);
}
