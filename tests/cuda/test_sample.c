/* test_sample.c - sampling of the CUDA backend against the CPU's, over small and large vocabularies
 * with ties.
 *
 * With --small, vocabularies that a racecheck of every shared bin can be waited for, and few
 * rows: each filter still finds its way by bins (8,192 tokens) and without (300 and fewer).  What
 * is compared bit by bit has its many rows, of fewer tokens. */
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sample.h"
#include "engine/device/step.h"
#include "tests/cuda/cuda_test.h"

enum { MAX_LIST = 300, SMALL_VOCAB = 8192, SMALL_ROWS = 6 };

struct lists {
    struct token_count counts[MAX_LIST];
    struct logit_bias bias[MAX_LIST];
    uint32_t banned[MAX_LIST];
    uint32_t allowed[SMALL_VOCAB / 32];
};

/* Where selection may go wrong: one token, all but one, all, and either side of a full list. */
static uint32_t random_top_k(uint32_t n_vocab) {
    const uint32_t edges[] = {1, n_vocab - 1, n_vocab, 1024, 1025};
    return random_below(3) ? 1 + random_below(random_below(2) ? 60 : n_vocab + 50)
                           : edges[random_below(5)];
}

static float random_top_p(void) {
    static const float edges[] = {1e-6f, 0.9999f};
    return random_below(4) ? 0.05f + 0.9f * fabsf(random_float()) : edges[random_below(2)];
}

static struct sample_row random_row(struct lists *lists, uint32_t n_vocab) {
    static const float temperatures[] = {0, 0.1f, 0.7f, 1, 2};
    struct sample_row row = {.sampler = {.temperature = temperatures[random_below(5)],
                                         .top_p = 1,
                                         .repetition_penalty = 1},
                             .counts = lists->counts,
                             .bias = lists->bias,
                             .banned = lists->banned,
                             .uniform = fabsf(random_float()),
                             .n_top = random_below(SAMPLE_MAX_TOP + 1)};
    if (random_below(2)) row.sampler.top_p = random_top_p();
    if (random_below(2)) row.sampler.top_k = random_top_k(n_vocab);
    if (random_below(3) == 0) row.sampler.min_p = 0.3f * fabsf(random_float());
    if (random_below(4) == 0) row.kind = SAMPLE_SCORE, row.target = random_below(n_vocab);
    if (random_below(2)) {
        row.sampler.repetition_penalty = 1.3f;
        row.sampler.presence_penalty = random_float();
        row.sampler.frequency_penalty = random_float();
        row.n_counts = n_vocab < MAX_LIST ? n_vocab : MAX_LIST;
        for (uint32_t i = 0; i < row.n_counts; i++)
            lists->counts[i] =
                (struct token_count){n_vocab / row.n_counts * i, random_below(4), random_below(2)};
    }
    if (random_below(2)) {
        for (row.n_bias = 0; row.n_bias < 5; row.n_bias++)
            lists->bias[row.n_bias] =
                (struct logit_bias){random_below(n_vocab), 5 * random_float()};
        for (row.n_banned = 0; row.n_banned < 7; row.n_banned++)
            lists->banned[row.n_banned] = random_below(n_vocab);
    }
    if (n_vocab <= SMALL_VOCAB && random_below(3) == 0) {
        for (uint32_t i = 0; i < SMALL_VOCAB / 32; i++)
            lists->allowed[i] = random_below(3)   ? (uint32_t)rand() * 3
                                : random_below(2) ? 0
                                                  : UINT32_MAX;
        if (n_vocab >= 32) lists->allowed[0] = UINT32_MAX; /* more tokens than can be banned */
        else memset(lists->allowed, 0xff, sizeof(lists->allowed));
        row.allowed = lists->allowed;
    }
    return row;
}

static void sample_on(struct backend *be, const void *logits, uint32_t n_vocab,
                      const struct sample_row *rows, uint32_t n, struct sample_result *results) {
    struct error err = {0};
    memset(results, 0xee, n * sizeof(*results));
    must(be->ops->sample(be, &(struct sample_args){logits, n_vocab, n, rows, results}, &err), &err);
    must(be->ops->sync(be, &err), &err);
}

/* A draw may land on the neighbour when `uniform` lies on the border between two tokens, up to
 * rounding. */
static bool at_a_border(const float *logits, uint32_t n_vocab, struct sample_row row,
                        uint32_t token) {
    static const double nudges[] = {-1e-5, -1e-6, 1e-6, 1e-5};
    for (int i = 0; i < 4; i++) {
        struct sample_row nudged = row;
        struct sample_result result;
        nudged.uniform = fmin(fmax(row.uniform + nudges[i], 0), 1 - 1e-9);
        nudged.sampler.top_p = row.sampler.top_p < 1 ? row.sampler.top_p + (float)nudges[i] : 1;
        sample_on(cpu, logits, n_vocab, &nudged, 1, &result);
        if (result.token == token) return true;
    }
    return false;
}

/* -inf where the logit is; and f32 keeps 2^-24 of a logit of -1e4. */
static bool near(float got, float expected) {
    return got == expected || fabsf(got - expected) <= 2e-5f + 2e-7f * fabsf(expected);
}

static void compare_tops(const struct sample_result *got, const struct sample_result *expected) {
    assert_int_equal(got->n_top, expected->n_top);
    for (uint32_t i = 0; i < expected->n_top; i++) {
        assert_int_equal(got->top[i].token, expected->top[i].token);
        assert_true(near(got->top[i].logprob, expected->top[i].logprob));
    }
}

enum { TIES, SPREAD, FLAT, EQUAL, HOLES, FAR, N_KINDS };

static float shaped(float x, int kind) {
    switch (kind) {
    case TIES: return roundf(x * 3);
    case SPREAD: return x * 8;
    case FLAT: return x * 0.01f;
    case EQUAL: return 1;
    case HOLES: return random_below(3) ? x * 8 : -INFINITY;
    default: return random_below(9) ? x * 2 : -1e4f; /* as for tokens that no model was taught */
    }
}

static void check_case(uint32_t n_vocab, uint32_t n, int kind, uint32_t *n_borders) {
    float *logits = random_floats((size_t)n * n_vocab);
    struct lists *lists = calloc(n, sizeof(*lists));
    struct sample_row *rows = calloc(n, sizeof(*rows));
    struct sample_result *got = calloc(n, sizeof(*got)), *expected = calloc(n, sizeof(*expected));
    for (size_t i = 0; i < (size_t)n * n_vocab; i++) logits[i] = shaped(logits[i], kind);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = random_row(&lists[i], n_vocab);
        rows[i].logit_row = n - 1 - i;
    }
    void *device = gpu_array(logits, (size_t)n * n_vocab, ELEMENT_F32);
    sample_on(cpu, logits, n_vocab, rows, n, expected);
    sample_on(gpu, device, n_vocab, rows, n, got);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(got[i].invalid, expected[i].invalid);
        if (expected[i].invalid) continue;
        compare_tops(&got[i], &expected[i]);
        if (got[i].token != expected[i].token) {
            if (!at_a_border(logits, n_vocab, rows[i], got[i].token))
                fail_msg("vocabulary %u, row %u of %u: token %u, not %u", n_vocab, i, n,
                         got[i].token, expected[i].token);
            ++*n_borders;
            continue;
        }
        assert_int_equal(got[i].rank, expected[i].rank);
        assert_true(near(got[i].logprob, expected[i].logprob));
    }
    gpu_free(device);
    free(logits), free(lists), free(rows), free(got), free(expected);
}

static void results_equal_the_cpu(void **state) {
    static const uint32_t vocabs[] = {1, 2, 31, 300, 8192, 32000, 128256, 262144};
    uint32_t n_borders = 0, n_rows = 0;
    for (size_t v = 0; v < sizeof(vocabs) / sizeof(vocabs[0]); v++) {
        if (small && vocabs[v] > SMALL_VOCAB) break;
        const uint32_t most = small ? SMALL_ROWS : vocabs[v] < 100000 ? 64 : 22;
        for (int kind = 0; kind < N_KINDS; kind++)
            for (uint32_t n = small ? SMALL_ROWS : 1; n <= most; n += 21) {
                check_case(vocabs[v], n, kind, &n_borders);
                n_rows += n;
            }
    }
    /* So many rows that two blocks take one, and one block does. */
    for (int kind = 0; kind < N_KINDS && !small; kind++)
        for (uint32_t n = 100; n <= 300; n += 200) {
            check_case(SMALL_VOCAB, n, kind, &n_borders);
            n_rows += n;
        }
    printf("%u of %u draws were at a border\n", n_borders, n_rows);
    assert_true(n_borders * 50 < n_rows);
}

static void broken_rows_fail_alone(void **state) {
    enum { N = 5, V = 1000 };
    static float logits[N * V];
    static uint32_t all[V];
    struct sample_row rows[N];
    struct sample_result results[N];
    for (int i = 0; i < N * V; i++) logits[i] = random_float();
    for (uint32_t i = 0; i < V; i++) all[i] = i, logits[2 * V + i] = -INFINITY;
    logits[0 * V + 3] = NAN;
    logits[1 * V + 999] = INFINITY;
    logits[3 * V + 4] = -INFINITY; /* legal */
    for (uint32_t i = 0; i < N; i++)
        rows[i] = (struct sample_row){
            .logit_row = i, .sampler = {.top_p = 1, .repetition_penalty = 1}, .n_top = 3};
    rows[4].banned = all;
    rows[4].n_banned = V;
    void *device = gpu_array(logits, N * V, ELEMENT_F32);
    sample_on(gpu, device, V, rows, N, results);
    for (int i = 0; i < N; i++) {
        assert_int_equal(results[i].invalid, i != 3);
        assert_int_equal(results[i].n_top, i == 3 ? 3 : 0);
    }
    gpu_free(device);
}

/* The lists of all rows together have no room in what is reserved: they go one part after the
 * other, and no memory is taken for them. */
static void long_lists_go_in_parts(void **state) {
    enum { N = 24, V = 50000, LIST = 40000 };
    const struct step_limits limits = {.max_rows = N,
                                       .max_seqs = N,
                                       .max_seq_pages = 1,
                                       .max_slots = N * PAGE_TOKENS,
                                       .kv_format = PAGE_BF16,
                                       .max_logit_rows = N,
                                       .n_layers = 1,
                                       .n_heads = 1,
                                       .n_kv_heads = 1,
                                       .head_dim = 64,
                                       .n_freqs = 32,
                                       .n_vocab = V};
    struct error err = {0};
    struct sample_row rows[N];
    struct sample_result results[N];
    struct token_count *counts = calloc(LIST, sizeof(*counts));
    float *logits = random_bf16((size_t)N * V, 4);
    void *device = gpu_array(logits, (size_t)N * V, ELEMENT_F32);
    for (uint32_t i = 0; i < LIST; i++) counts[i] = (struct token_count){i, 1, true};
    for (uint32_t i = 0; i < N; i++)
        rows[i] = (struct sample_row){.logit_row = i,
                                      .sampler = {.top_p = 1,
                                                  .repetition_penalty = 1.5f,
                                                  .presence_penalty = 0.1f * (float)i},
                                      .counts = counts,
                                      .n_counts = LIST};
    must(gpu->ops->reserve(gpu, &limits, &err), &err);
    const uint64_t free_before = gpu->ops->memory(gpu).free;
    sample_on(gpu, device, V, rows, N, results);
    assert_int_equal(gpu->ops->memory(gpu).free, free_before);
    for (uint32_t i = 0; i < N; i++) {
        struct sample_result expected;
        sample_on(cpu, logits, V, &rows[i], 1, &expected);
        assert_int_equal(results[i].token, expected.token);
    }
    gpu_free(device);
    free(logits);
    free(counts);
}

static void log_probabilities_have_the_same_bits_in_any_company(void **state) {
    enum { N = 300, N_ALONE = 20 };
    const uint32_t V = small ? 2000 : 32000;
    static struct sample_row rows[N];
    static struct sample_result together[N];
    float *logits = random_floats((size_t)N * V);
    /* The best logit is 0, so that the last bits of the sum are not lost beside it. */
    for (size_t i = 0; i < (size_t)N * V; i++)
        logits[i] = i % V == 0 ? 0 : -8 - 4 * fabsf(logits[i]);
    void *device = gpu_array(logits, (size_t)N * V, ELEMENT_F32);
    for (uint32_t i = 0; i < N; i++)
        rows[i] =
            (struct sample_row){.logit_row = i, .sampler = {.top_p = 1, .repetition_penalty = 1}};
    sample_on(gpu, device, V, rows, N, together);
    for (uint32_t i = 0; i < N_ALONE; i++) {
        struct sample_result alone;
        sample_on(gpu, device, V, &rows[i], 1, &alone);
        assert_int_equal(alone.token, together[i].token);
        assert_memory_equal(&alone.logprob, &together[i].logprob, sizeof(alone.logprob));
    }
    gpu_free(device);
    free(logits);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_equal_the_cpu),
        cmocka_unit_test(broken_rows_fail_alone),
        cmocka_unit_test(long_lists_go_in_parts),
    };
    const struct CMUnitTest invariant_tests[] = {
        cmocka_unit_test(log_probabilities_have_the_same_bits_in_any_company),
    };
    const int status = begin(argc, argv, 0);
    if (status) return status;
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    reopen_batch_invariant();
    n_failed += cmocka_run_group_tests(invariant_tests, NULL, NULL);
    close_backends();
    return n_failed;
}
