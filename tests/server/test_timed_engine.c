/* test_timed_engine.c - prompts that are timed are computed as they were asked for, every time. */

#include "engine/base/error.h"
#include "engine/base/rng.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/model/model.h"
#include "server/bench/timed_engine.h"
#include "tests/test.h"

enum { N_TOKENS = 600, N_SEQUENCES = 3, N_HEADS_IN_ALL = 12 * 8, N_VOCAB = 8000 };

struct rig {
    struct backend *be;
    struct timed_engine timed;
    struct attn_pattern patterns[N_HEADS_IN_ALL];
    uint32_t tokens[N_SEQUENCES * N_TOKENS];
};

static void open_rig(struct rig *rig) {
    struct error err = {0};
    const struct cpu_config cpu = {.n_threads = 2};
    assert_int_equal(cpu_backend_create(&rig->be, &cpu, &err), 0);
    for (uint32_t i = 0; i < N_HEADS_IN_ALL; i++)
        rig->patterns[i] = (struct attn_pattern){PATTERN_A_SHAPE, 64, 128};
    for (uint32_t i = 0; i < N_SEQUENCES * N_TOKENS; i++)
        rig->tokens[i] = (uint32_t)(rng_uniform(5, i) * N_VOCAB);
    const struct engine_config config = {.model_dir = MODEL_DIR,
                                         .backend = rig->be,
                                         .max_model_len = N_TOKENS + 8,
                                         .max_num_seqs = 4,
                                         .max_batched_tokens = 256,
                                         .kv_format = PAGE_F32,
                                         .prefix_caching = true,
                                         .sparse_prefill = true,
                                         .patterns = rig->patterns};
    if (timed_engine_open(&rig->timed, config, &err)) fail_msg("%s", err.text);
}

static void close_rig(struct rig *rig) {
    timed_engine_close(&rig->timed);
    rig->be->ops->destroy(rig->be);
}

static struct timing time_batch(struct rig *rig, const struct timed_batch *batch) {
    struct timing timing;
    struct error err = {0};
    if (timed_engine_run(&rig->timed, batch, &timing, &err)) fail_msg("%s", err.text);
    assert_true(timing.total_seconds > 0);
    return timing;
}

TEST(a_prompt_is_computed_as_asked_for) {
    struct rig rig;
    struct engine_stats stats;
    open_rig(&rig);
    struct timed_batch batch = {
        .tokens = rig.tokens, .n_prompt = N_TOKENS, .n_sequences = 1, .n_generate = 1};
    for (int i = 0; i < 2; i++) {
        batch.prefill.mode = PREFILL_DENSE;
        assert_int_equal(time_batch(&rig, &batch).prefill.mode, PREFILL_DENSE);
        batch.prefill.mode = PREFILL_SPARSE;
        const struct timing sparse = time_batch(&rig, &batch);
        assert_int_equal(sparse.prefill.mode, PREFILL_SPARSE);
        assert_true(sparse.prefill.density < 1);
    }
    engine_stats(rig.timed.engine, &stats);
    assert_int_equal(stats.prompt_tokens, 4 * N_TOKENS);
    assert_int_equal(stats.cached_tokens, 0); /* though the settings ask for a cache */
    close_rig(&rig);
}

TEST(what_decodes_together_is_timed_by_itself) {
    struct rig rig;
    open_rig(&rig);
    const struct timed_batch batch = {
        .tokens = rig.tokens, .n_prompt = 40, .n_sequences = N_SEQUENCES, .n_generate = 8};
    const struct timing timing = time_batch(&rig, &batch);
    assert_true(timing.decode_seconds > 0 && timing.decode_seconds < timing.total_seconds);
    assert_true(timing.decode_tokens > 0 && timing.decode_tokens <= 8 * N_SEQUENCES);
    assert_true(timing.context_tokens > 40 * N_SEQUENCES &&
                timing.context_tokens < 48 * N_SEQUENCES);
    close_rig(&rig);
}

TEST(what_is_generated_is_told) {
    enum { N_GENERATED = 8 };
    struct rig rig;
    uint32_t first[N_GENERATED + 1] = {0}, second[N_GENERATED + 1] = {0}, other[N_GENERATED + 1];
    open_rig(&rig);
    struct timed_batch batch = {.tokens = rig.tokens,
                                .n_prompt = 40,
                                .n_sequences = 1,
                                .n_generate = N_GENERATED,
                                .generated = first};
    assert_int_equal(time_batch(&rig, &batch).n_generated, N_GENERATED);
    batch.generated = second;
    assert_int_equal(time_batch(&rig, &batch).n_generated, N_GENERATED);
    batch.tokens += 40;
    batch.generated = other;
    assert_int_equal(time_batch(&rig, &batch).n_generated, N_GENERATED);
    assert_memory_equal(first, second, sizeof(first));
    assert_memory_not_equal(first, other, N_GENERATED * sizeof(*other));
    close_rig(&rig);
}

TEST(what_cannot_run_is_told) {
    struct rig rig;
    struct timing timing;
    struct error err = {0};
    open_rig(&rig);
    const struct timed_batch batch = {
        .tokens = rig.tokens, .n_prompt = N_TOKENS, .n_sequences = 2, .n_generate = 9};
    assert_int_equal(timed_engine_run(&rig.timed, &batch, &timing, &err), ERR_TOO_LONG);
    assert_true(err.text[0] != 0);
    close_rig(&rig);
}
