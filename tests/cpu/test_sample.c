/* test_sample.c - sampling against a slow version that sorts, and against the distribution it
 * should have. */
#include "engine/device/backend.h"
#include "engine/device/sample.h"
#include "tests/cpu/cpu_test.h"

enum { VOCAB = 300, N_CASES = 400 };

struct sorted {
    uint32_t token;
    double value, p;
};

static int compare(const void *a, const void *b) {
    const struct sorted *x = a, *y = b;
    if (x->value != y->value) return x->value > y->value ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* The definition: the tokens that may be drawn, best first, with their probabilities; returns how
 * many. */
static uint32_t oracle(const float *logits, const struct sample_row *row, struct sorted *s) {
    const struct sampler *with = &row->sampler;
    double x[VOCAB];
    for (uint32_t i = 0; i < VOCAB; i++) x[i] = logits[i];
    for (uint32_t i = 0; i < row->n_bias; i++) x[row->bias[i].token] += row->bias[i].bias;
    for (uint32_t i = 0; i < row->n_banned; i++) x[row->banned[i]] = -INFINITY;
    for (uint32_t i = 0; i < VOCAB && row->allowed; i++)
        if (!(row->allowed[i / 32] >> i % 32 & 1)) x[i] = -INFINITY;
    for (uint32_t i = 0; i < row->n_counts; i++) {
        double *l = &x[row->counts[i].token];
        *l = *l > 0 ? *l / with->repetition_penalty : *l * with->repetition_penalty;
        if (row->counts[i].n_output)
            *l -= row->counts[i].n_output * with->frequency_penalty + with->presence_penalty;
    }
    double t = with->temperature > 0 ? with->temperature : 1, total = 0;
    for (uint32_t i = 0; i < VOCAB; i++) s[i] = (struct sorted){i, x[i], 0};
    qsort(s, VOCAB, sizeof(*s), compare);
    if (with->temperature <= 0) {
        s[0].p = 1;
        return 1;
    }
    uint32_t n = with->top_k && with->top_k < VOCAB ? with->top_k : VOCAB, kept = 0;
    for (uint32_t i = 0; i < n; i++) s[i].p = exp((s[i].value - s[0].value) / t);
    while (kept < n && s[kept].p >= with->min_p && s[kept].p > 0) total += s[kept++].p;
    double mass = 0;
    n = kept;
    if (with->top_p < 1) {
        for (n = 0; n < kept && (n == 0 || mass < with->top_p * total); n++) mass += s[n].p;
        total = mass;
    }
    for (uint32_t i = 0; i < n; i++) s[i].p /= total;
    return n;
}

static struct sample_row random_row(struct token_count *counts, struct logit_bias *bias,
                                    uint32_t *banned) {
    static const float temperatures[] = {0, 0.1f, 0.7f, 1, 2};
    struct sample_row row = {.sampler = {.temperature = temperatures[random_below(5)],
                                         .top_p = 1,
                                         .repetition_penalty = 1},
                             .counts = counts,
                             .bias = bias,
                             .banned = banned,
                             .n_top = random_below(6)};
    if (random_below(2)) row.sampler.top_p = 0.05f + 0.9f * fabsf(random_float());
    if (random_below(2)) row.sampler.top_k = 1 + random_below(VOCAB + 50);
    if (random_below(3) == 0) row.sampler.min_p = fabsf(random_float());
    if (random_below(2)) {
        row.sampler.repetition_penalty = 1.3f;
        row.sampler.presence_penalty = random_float();
        row.sampler.frequency_penalty = random_float();
        for (row.n_counts = 0; row.n_counts < 20; row.n_counts++) {
            counts[row.n_counts] =
                (struct token_count){row.n_counts * 7, random_below(4), random_below(2)};
        }
    }
    if (random_below(2)) {
        for (row.n_bias = 0; row.n_bias < 5; row.n_bias++)
            bias[row.n_bias] = (struct logit_bias){random_below(VOCAB), 5 * random_float()};
        for (row.n_banned = 0; row.n_banned < 5; row.n_banned++)
            banned[row.n_banned] = random_below(VOCAB);
    }
    if (random_below(3) == 0) {
        static uint32_t allowed[(VOCAB + 31) / 32];
        for (uint32_t i = 0; i < (VOCAB + 31) / 32; i++)
            allowed[i] = random_below(3) ? (uint32_t)rand() * 3 : random_below(2) ? 0 : UINT32_MAX;
        allowed[0] |= 0xff; /* more tokens than can be banned */
        row.allowed = allowed;
    }
    return row;
}

static struct sample_result sample_one(struct backend *be, const float *logits, uint32_t n_vocab,
                                       const struct sample_row *row) {
    struct sample_result result;
    memset(&result, 0xee, sizeof(result));
    assert_int_equal(
        be->ops->sample(be, &(struct sample_args){logits, n_vocab, 1, row, &result}, NULL), 0);
    return result;
}

static void only_allowed_tokens_are_drawn_on(struct backend *be) {
    struct token_count counts[20];
    struct logit_bias bias[5];
    uint32_t banned[5];
    struct sorted s[VOCAB];
    for (int i = 0; i < N_CASES; i++) {
        float *logits = random_floats(VOCAB);
        for (int j = 0; j < VOCAB; j++)
            logits[j] = i % 4 == 0 ? roundf(logits[j] * 2) : logits[j] * 8; /* ties */
        struct sample_row row = random_row(counts, bias, banned);
        uint32_t n = oracle(logits, &row, s);
        bool at_the_edge = false; /* float against double: the last kept token may differ by one */
        for (int draw = 0; draw < 30; draw++) {
            row.uniform = draw == 0 ? 0 : draw == 1 ? 0.99999999999 : fabsf(random_float());
            struct sample_result result = sample_one(be, logits, VOCAB, &row);
            assert_false(result.invalid);
            uint32_t at = 0;
            while (at < VOCAB && s[at].token != result.token) at++;
            at_the_edge |= at >= n;
            assert_true(at < n + 1);
        }
        assert_true(!at_the_edge || row.sampler.top_p < 1 || row.sampler.min_p > 0);
        free(logits);
    }
}

TEST(only_allowed_tokens_are_drawn) {
    for_each_backend(only_allowed_tokens_are_drawn_on);
}

/* Drawing at evenly spaced points of [0, 1) reproduces each probability to within one point. */
TEST(draws_follow_the_distribution) {
    enum { N = 4000 };
    struct backend *be = NULL;
    assert_int_equal(cpu_backend_create(&be, &(struct cpu_config){.n_threads = 1}, NULL), 0);
    struct sorted s[VOCAB];
    float *logits = random_floats(VOCAB);
    for (int j = 0; j < VOCAB; j++) logits[j] *= 5;
    static const struct sample_row rows[] = {
        {.sampler = {.temperature = 1, .top_p = 1, .repetition_penalty = 1}},
        {.sampler = {.temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1}},
        {.sampler = {.temperature = 1.5f, .top_p = 1, .top_k = 17, .repetition_penalty = 1}},
        {.sampler = {.temperature = 1,
                     .top_p = 0.7f,
                     .top_k = 40,
                     .min_p = 0.05f,
                     .repetition_penalty = 1}}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sample_row row = rows[i];
        uint32_t n = oracle(logits, &row, s), hits[VOCAB] = {0};
        for (int draw = 0; draw < N; draw++) {
            row.uniform = (draw + 0.5) / N;
            hits[sample_one(be, logits, VOCAB, &row).token]++;
        }
        for (uint32_t j = 0; j < n; j++)
            assert_true(fabs(hits[s[j].token] - s[j].p * N) <= 1.01 + 1e-4 * N);
    }
    free(logits);
    be->ops->destroy(be);
}

static void log_probabilities_are_of_the_raw_logits_on(struct backend *be) {
    struct token_count counts[20];
    struct logit_bias bias[5];
    uint32_t banned[5];
    for (int i = 0; i < 50; i++) {
        float *logits = random_floats(VOCAB);
        double sum = 0;
        for (int j = 0; j < VOCAB; j++) sum += exp(logits[j] *= 10);
        struct sample_row row = random_row(counts, bias, banned);
        row.kind = i % 2 ? SAMPLE_SCORE : SAMPLE_DRAW;
        row.target = random_below(VOCAB);
        struct sample_result result = sample_one(be, logits, VOCAB, &row);
        if (row.kind == SAMPLE_SCORE) assert_int_equal(result.token, row.target);
        assert_float_equal(result.logprob, logits[result.token] - log(sum), 1e-5);
        uint32_t rank = 1;
        for (int j = 0; j < VOCAB; j++) rank += logits[j] > logits[result.token];
        assert_int_equal(result.rank, rank);
        assert_int_equal(result.n_top, row.n_top);
        struct sorted s[VOCAB];
        for (uint32_t j = 0; j < VOCAB; j++) s[j] = (struct sorted){j, logits[j], 0};
        qsort(s, VOCAB, sizeof(*s), compare);
        for (uint32_t j = 0; j < row.n_top; j++) {
            assert_int_equal(result.top[j].token, s[j].token);
            assert_float_equal(result.top[j].logprob, s[j].value - log(sum), 1e-5);
        }
        free(logits);
    }
}

TEST(log_probabilities_are_of_the_raw_logits) {
    for_each_backend(log_probabilities_are_of_the_raw_logits_on);
}

/* As exact as f32 can say, however many terms the sum has. */
static void large_vocabularies_lose_no_digits_on(struct backend *be) {
    enum { LARGE = 262144 };
    const float scales[] = {0.01f, 1, 8};
    for (int i = 0; i < 3; i++) {
        float *logits = random_floats(LARGE);
        double sum = 0;
        float max = -INFINITY; /* fmax() of double would crash GCC 12 for ARM */
        for (uint32_t k = 0; k < LARGE; k++) logits[k] *= scales[i];
        for (uint32_t k = 0; k < LARGE; k++) max = logits[k] > max ? logits[k] : max;
        for (uint32_t k = 0; k < LARGE; k++) sum += exp((double)logits[k] - (double)max);
        const struct sample_row row = {.sampler = {.top_p = 1, .repetition_penalty = 1}};
        assert_true(fabs((double)sample_one(be, logits, LARGE, &row).logprob + log(sum)) < 3e-6);
        free(logits);
    }
}

TEST(large_vocabularies_lose_no_digits) {
    for_each_backend(large_vocabularies_lose_no_digits_on);
}

static void broken_rows_fail_alone_on(struct backend *be) {
    enum { N = 4, V = 20 };
    float logits[N * V];
    struct sample_row rows[N];
    struct sample_result results[N];
    for (int i = 0; i < N * V; i++) logits[i] = random_float();
    logits[0 * V + 3] = NAN;
    logits[1 * V + 19] = INFINITY;
    for (int i = 0; i < V; i++) logits[2 * V + i] = -INFINITY;
    logits[3 * V + 4] = -INFINITY; /* legal */
    for (uint32_t i = 0; i < N; i++)
        rows[i] =
            (struct sample_row){.logit_row = i, .sampler = {.top_p = 1, .repetition_penalty = 1}};
    assert_int_equal(be->ops->sample(be, &(struct sample_args){logits, V, N, rows, results}, NULL),
                     0);
    for (int i = 0; i < N; i++) assert_int_equal(results[i].invalid, i < 3);
    uint32_t all[V];
    for (uint32_t i = 0; i < V; i++) all[i] = i;
    rows[3].banned = all;
    rows[3].n_banned = V;
    assert_true(sample_one(be, logits, V, &rows[3]).invalid);
}

TEST(broken_rows_fail_alone) {
    for_each_backend(broken_rows_fail_alone_on);
}
