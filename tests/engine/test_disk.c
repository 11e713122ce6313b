/* test_disk.c - the whole engine with a tier on disk.  Layers have windows, a recurrent state, or
 * neither.
 *
 * Answers must be those of engines that cache nothing, to the bit.  It must not matter what was
 * evicted to the disk, by an earlier engine, or has happened to the files meanwhile. */
#define _XOPEN_SOURCE 700 /* nftw() */
#define _DEFAULT_SOURCE
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sparse.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "tests/engine/answers.h"
#include "tests/engine/late_backend.h"
#include "tests/kv_types.h"
#include "tests/test.h"

enum { CONTEXT = 512, ROWS = 128, N_VOCAB = 131, N_RECIPES = 16, TEXT_BLOCKS = CONTEXT / 64 };

static struct attn_pattern patterns[64]; /* of all heads */
static char folder[32];

/* What an engine has: pages for so many texts, host blocks for as many pages, a disk. */
struct settings {
    uint32_t n_texts, n_store;
    enum page_format format;
    bool on_disk, invariant, no_caching;
};

static struct engine *start(struct settings s) {
    struct error err = {0};
    struct model_config model;
    assert_int_equal(model_config_load(&model, model_dir, 0, &err), 0);
    struct kv_pool pool = {.format = s.format,
                           .n_kv_heads = model.n_kv_heads,
                           .head_dim = model.head_dim,
                           .tracked = true};
    const uint64_t page_bytes = kv_page_bytes(&pool),
                   n_pages = (uint64_t)s.n_texts * model.n_layers * TEXT_BLOCKS;
    const struct engine_config config = {.model_dir = model_dir,
                                         .backend = backend,
                                         .max_num_seqs = 8,
                                         .max_batched_tokens = ROWS,
                                         .max_queued = 64,
                                         .kv_format = s.format,
                                         .kv_cache_bytes = n_pages * page_bytes,
                                         .host_pool_bytes = s.n_store * page_bytes,
                                         .prefix_caching = !s.no_caching,
                                         .bounded_caches = true,
                                         .batch_invariant = s.invariant,
                                         .sparse_prefill = model_has_full_attention(&model),
                                         .patterns = patterns,
                                         .min_sparse_tokens = UINT32_MAX,
                                         .disk_path = s.on_disk ? folder : NULL,
                                         .disk_bytes = UINT64_C(1) << 30,
                                         .tokens_only = true};
    model_config_fini(&model);
    return answers_start(&config);
}

static struct settings plain(void) {
    return (struct settings){.n_texts = 20, .format = PAGE_F32, .no_caching = true};
}

static struct settings on_disk(uint32_t n_texts) {
    return (struct settings){.n_texts = n_texts, .format = PAGE_F32, .on_disk = true};
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static int begin_folder(void **state) {
    strcpy(folder, "/tmp/quire-disk-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int end_folder(void **state) {
    return nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Some begin alike. */
static struct recipe random_recipe(void) {
    struct recipe r = {.params = sampling_defaults()};
    const uint32_t family = (uint32_t)rand() % 3, n_shared = (uint32_t)rand() % 300;
    r.n_prompt = 100 + (uint32_t)rand() % 300;
    for (uint32_t i = 0; i < r.n_prompt; i++)
        r.prompt[i] = 3 + (i < n_shared ? family * 41 + i * i : (uint32_t)rand()) % (N_VOCAB - 3);
    r.params.ignore_eos = true;
    r.params.max_tokens = 1 + (uint32_t)rand() % 40;
    r.params.has_seed = true;
    r.params.seed = (uint64_t)rand();
    r.params.n_logprobs = 0;
    r.params.n_prompt_logprobs = rand() % 8 ? -1 : 1;
    return r;
}

static void answer_all(struct settings settings, const struct recipe *recipes,
                       struct answer *answers, uint32_t n) {
    struct engine *engine = start(settings);
    for (uint32_t i = 0; i < n; i++) {
        answers[i] = answers_one(engine, &recipes[i]);
        assert_int_not_equal(answers[i].last.reason, FINISH_ERROR);
    }
    answers_leave_no_page(engine);
    engine_destroy(engine);
}

static void forget_all(struct answer *answers, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) answer_forget(&answers[i]);
}

/* With pages for one text or several, host blocks or none, and a device that runs ahead; each
 * engine finds what those before it have left. */
TEST_WITH(answers_do_not_depend_on_the_disk, begin_folder, end_folder) {
    static struct recipe recipes[N_RECIPES];
    static struct answer alone[N_RECIPES];
    uint64_t n_read = 0, n_written = 0;
    srand(41);
    for (int i = 0; i < N_RECIPES; i++) recipes[i] = random_recipe();
    answer_all(plain(), recipes, alone, N_RECIPES);
    for (uint32_t i = 0; i < 8; i++) {
        struct settings settings = on_disk(1 + i % 2);
        settings.n_store = i / 2 % 2 ? 40 : 0;
        if (i == 4) late_backend_begin(backend);
        const struct engine_stats stats =
            answers_compare(start(settings), recipes, alone, N_RECIPES);
        n_read += stats.disk.n_read;
        n_written += stats.disk.n_written;
        assert_int_equal(stats.disk.n_refused + stats.disk.n_failed, 0);
        if (i > 0) assert_true(stats.cached_tokens > 0);
    }
    assert_true(late_backend_end() > 0);
    assert_true(n_written > 0 && n_read > 50);
    forget_all(alone, N_RECIPES);
}

static void spoil_one(const char *path) {
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const long size = ftell(file), at = rand() % size;
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    const int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    fputc(byte ^ (1 << rand() % 8), file);
    assert_int_equal(fclose(file), 0);
    if (rand() % 3 == 0) assert_int_equal(truncate(path, at), 0);
}

static int spoil_some(const char *path, const struct stat *info, int kind, struct FTW *at) {
    const char *name = path + at->base;
    if (kind == FTW_F && info->st_size > 0 && strchr(name, '.') && rand() % 2) spoil_one(path);
    return 0;
}

TEST_WITH(spoilt_files_change_no_answer, begin_folder, end_folder) {
    static struct recipe recipes[N_RECIPES];
    static struct answer alone[N_RECIPES];
    uint64_t n_refused = 0, n_read = 0;
    srand(42);
    for (int i = 0; i < N_RECIPES; i++) recipes[i] = random_recipe();
    answer_all(plain(), recipes, alone, N_RECIPES);
    for (int again = 0; again < 6; again++) {
        const struct engine_stats stats =
            answers_compare(start(on_disk(2)), recipes, alone, N_RECIPES);
        n_refused += stats.disk.n_refused;
        n_read += stats.disk.n_read;
        assert_int_equal(nftw(folder, spoil_some, 16, FTW_PHYS), 0);
    }
    assert_true(n_refused > 10 && n_read > 10);
    forget_all(alone, N_RECIPES);
}

/* Pages of another element type, another mode or another build are others. */
TEST_WITH(only_the_same_engine_finds_it, begin_folder, end_folder) {
    struct recipe r;
    srand(43);
    do r = random_recipe();
    while (r.params.n_prompt_logprobs >= 0 || r.n_prompt < 200);
    const uint32_t n_most = (r.n_prompt - 1) / PAGE_TOKENS * PAGE_TOKENS;
    struct settings others[3] = {on_disk(4), on_disk(4), on_disk(4)};
    others[1].format = PAGE_FP8;
    others[2].invariant = true;
    for (int again = 0; again < 2; again++)
        for (int i = 0; i < 3; i++) {
            struct answer answer;
            answer_all(others[i], &r, &answer, 1);
            assert_int_equal(answer.last.n_cached, again ? n_most : 0);
            answer_forget(&answer);
        }
    char arithmetic[sizeof(backend->arithmetic)];
    struct answer answer;
    memcpy(arithmetic, backend->arithmetic, sizeof(arithmetic));
    strcpy(backend->arithmetic, "another processor");
    answer_all(others[0], &r, &answer, 1);
    memcpy(backend->arithmetic, arithmetic, sizeof(arithmetic));
    assert_int_equal(answer.last.n_cached, 0);
    answer_forget(&answer);
}

/* Sparse blocks are for prompts that are computed like these; under batch invariance for none. */
TEST_WITH(sparse_and_dense_prompts_stay_apart, begin_folder, end_folder) {
    struct engine *engine = start(plain());
    const bool is_able = engine_info(engine)->sparse_prefill;
    engine_destroy(engine);
    if (!is_able) return; /* every layer has a window */
    srand(44);
    for (int invariant = 0; invariant < 2; invariant++) {
        struct settings settings = on_disk(4);
        struct answer exact, found;
        settings.invariant = invariant;
        struct recipe sparse = random_recipe();
        sparse.n_prompt = 300;
        sparse.params.n_prompt_logprobs = -1;
        struct recipe dense = sparse;
        sparse.prefill.mode = PREFILL_SPARSE;
        struct settings reference = plain();
        reference.invariant = invariant;
        answer_all(reference, &dense, &exact, 1);
        for (int i = 0; i < 4; i++) { /* sparse, dense, sparse, dense */
            answer_all(settings, i % 2 ? &dense : &sparse, &found, 1);
            const uint32_t n_cached = i < 2 || (invariant && i == 2) ? 0 : 256;
            assert_int_equal(found.last.n_cached, n_cached);
            if (i % 2) answers_assert_same(&exact, &found);
            answer_forget(&found);
        }
        answer_forget(&exact);
    }
}

static struct kv_choice heavy_hitter(void) {
    return (struct kv_choice){.mechanism = KV_BOUNDED,
                              .type = TYPE_HEAVY_HITTER,
                              .n_sink = 4,
                              .n_recent = 20,
                              .n_heavy = 8,
                              .score = KV_SCORE_SUM,
                              .chunk = 16};
}

/* Appends the answer and some tokens more to its prompt: the next turn. */
static void append(struct recipe *r, const struct answer *answer) {
    for (uint32_t i = 0; i < answer->n_tokens; i++)
        r->prompt[r->n_prompt++] = answer->tokens[i].token;
    for (uint32_t i = 0; i < 20; i++) r->prompt[r->n_prompt++] = 3 + (uint32_t)rand() % 100;
}

static bool has_recurrent_layers(void) {
    struct model_config model;
    struct error err = {0};
    assert_int_equal(model_config_load(&model, model_dir, 0, &err), 0);
    const bool has = model.recurrent.n_layers > 0;
    model_config_fini(&model);
    return has;
}

/* Four turns by one engine, and the same by an engine each.  They keep a budget, or else begin from
 * checkpoints of recurrent layers. */
TEST_WITH(conversations_go_on_after_a_restart, begin_folder, end_folder) {
    enum { N_TURNS = 4 };
    static struct recipe turns[N_TURNS];
    static struct answer lived[N_TURNS];
    struct settings caching = plain();
    caching.no_caching = false;
    srand(45);
    struct recipe next = random_recipe();
    next.n_prompt = 150;
    if (!has_recurrent_layers()) next.kv = heavy_hitter();
    next.params.n_prompt_logprobs = -1;
    next.params.max_tokens = 20;
    struct engine *engine = start(caching);
    for (int i = 0; i < N_TURNS; i++) {
        turns[i] = next;
        lived[i] = answers_one(engine, &turns[i]);
        assert_int_equal(lived[i].last.reason, FINISH_LENGTH);
        append(&next, &lived[i]);
    }
    engine_destroy(engine);
    for (int i = 0; i < N_TURNS; i++) {
        struct answer answer;
        answer_all(on_disk(4), &turns[i], &answer, 1);
        answers_assert_same(&lived[i], &answer);
        assert_int_equal(answer.last.n_cached, lived[i].last.n_cached);
        assert_int_equal(answer.last.n_cached > 0, i > 0);
        answer_forget(&answer);
    }
    forget_all(lived, N_TURNS);
}

/* A request that is cancelled while its files are read leaves nothing behind. */
TEST_WITH(cancelled_readers_leave_nothing, begin_folder, end_folder) {
    static struct recipe recipes[N_RECIPES];
    static struct answer answers[N_RECIPES], alone[N_RECIPES];
    srand(46);
    for (int i = 0; i < N_RECIPES; i++) recipes[i] = random_recipe();
    answer_all(plain(), recipes, alone, N_RECIPES);
    answer_all(on_disk(20), recipes, answers, N_RECIPES);
    forget_all(answers, N_RECIPES);
    for (int again = 0; again < 5; again++) {
        struct engine *engine = start(on_disk(2));
        memset(answers, 0, sizeof(answers));
        for (int i = 0; i < N_RECIPES; i++) {
            const uint64_t id = recipe_submit(engine, &recipes[i], &answers[i]);
            if (rand() % 2) usleep((useconds_t)rand() % 2000);
            if (i % 2) engine_cancel(engine, id);
        }
        answers_wait(engine, answers, N_RECIPES);
        for (int i = 0; i < N_RECIPES; i++)
            if (answers[i].last.reason != FINISH_CANCELLED)
                answers_assert_same(&alone[i], &answers[i]);
        forget_all(answers, N_RECIPES);
        answers_leave_no_page(engine);
        engine_destroy(engine);
    }
    forget_all(alone, N_RECIPES);
}

static int make_patterns(void **state) {
    for (size_t i = 0; i < COUNT(patterns); i++)
        patterns[i] = (struct attn_pattern){PATTERN_A_SHAPE, 16, 32};
    return 0;
}

int main(int argc, char **argv) {
    return answers_main(argc, argv, make_patterns);
}
