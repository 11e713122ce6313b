/* test_goldens.c - the model that ships, on the device: the goldens' greedy tokens, chunked and
 * batched.
 *
 * bf16 may decide a near tie otherwise.  So the goldens' tokens are fed, whatever the device takes,
 * and where it takes another one both must say that the golden's is about as good.
 *
 * argv[1]: the model's directory.  With --small, few tokens after the short prompts. */
#include "tests/cuda/cuda_test.h"

#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sample.h"
#include "tests/model/goldens.h"
#include "tests/model/runner.h"

enum { N_PAGES = 12 * 200 + 2, MAX_PROMPTS = 8 };
/* --small: prompts come by length, and the fourth, of 200 tokens, spans pages and takes chunks of
 * 48; of four steps of one size the first runs as it is, the second is recorded, the others are
 * that recording again. */
enum { SMALL_PROMPTS = 4, SMALL_GREEDY = 4 };
static const char *model_dir;

/* How far bf16 moves the best ten logits of a prompt from the goldens, which are float64: the
 * largest of the ten, its mean and standard deviation over 30 readings (16 of the longer prompts)
 * that scripts/fixtures/golden_roundings.py rounds without a device. */
static const struct {
    uint32_t n_tokens;
    double mean, deviation;
} roundings[] = {{5, 0.066, 0.010},    {13, 0.242, 0.046},  {18, 0.089, 0.023},
                 {200, 0.118, 0.022},  {442, 0.147, 0.023}, {739, 0.133, 0.032},
                 {2000, 0.091, 0.036}, {2810, 0.181, 0.039}};
static const double MOST_DEVIATIONS = 5, TIE_BOUND = 0.6;

static double logit_bound(uint32_t n_tokens) {
    for (size_t i = 0; i < sizeof(roundings) / sizeof(roundings[0]); i++)
        if (roundings[i].n_tokens == n_tokens)
            return roundings[i].mean + MOST_DEVIATIONS * roundings[i].deviation;
    fail_msg("no roundings of a prompt of %u tokens", n_tokens);
    return 0;
}

static void expect_top(const struct golden_prompt *p, const float *logits) {
    double worst = 0;
    for (uint32_t i = 0; i < p->n_top; i++)
        worst = fmax(worst, fabs((double)logits[p->top_ids[i]] - p->top_logits[i]));
    const double bound = logit_bound(p->n_tokens);
    printf(
        "prompt of %u tokens: the best ten logits are off by %.4f of at most %.4f (the largest is "
        "%.3f)\n",
        p->n_tokens, worst, bound, p->top_logits[0]);
    assert_true(worst <= bound);
}

/* The device's token must be the golden's, or both must say that the two are a near tie. */
static void expect_token(const struct golden_prompt *p, uint32_t i, uint32_t token,
                         const float *logits, const char *how) {
    const double lacking = logits[token] - logits[p->greedy[i]];
    char found[256];
    if (token == p->greedy[i]) return;
    snprintf(
        found, sizeof(found),
        "%s, prompt of %u tokens: greedy token %u is %u, not %u: by %.4f here, against %.4f in "
        "the golden; up to %.4f is a near tie",
        how, p->n_tokens, i, token, p->greedy[i], lacking, p->margins[i], TIE_BOUND);
    if (!(lacking <= TIE_BOUND && p->margins[i] <= TIE_BOUND)) fail_msg("%s", found);
    printf("%s\n", found);
}

static uint32_t count_greedy(const struct golden_prompt *p) {
    return small ? SMALL_GREEDY : p->n_greedy;
}

/* Returns how many prompts are to be tried. */
static uint32_t open_runner(struct runner *r, struct goldens *goldens, uint32_t chunk) {
    struct error err = {0};
    struct backend *be = NULL;
    must(cuda_backend_create(&be, &(struct cuda_config){0}, &err), &err);
    goldens_load(goldens, model_dir);
    assert_in_range(goldens->n_prompts, SMALL_PROMPTS, MAX_PROMPTS);
    for (uint32_t i = 0; i < goldens->n_prompts; i++) assert_non_null(goldens->prompts[i].margins);
    runner_open_on(r, model_dir, 0, be, N_PAGES, PAGE_BF16,
                   &(struct decoder_limits){.max_rows = chunk, .max_logit_rows = 16});
    return small ? SMALL_PROMPTS : goldens->n_prompts;
}

/* Each alone: its prompt in chunks, then a token at a time. */
static void check_alone(uint32_t chunk) {
    struct runner r;
    struct goldens goldens;
    char how[32];
    const uint32_t n = open_runner(&r, &goldens, chunk);
    snprintf(how, sizeof(how), "chunks of %u", chunk);
    for (uint32_t i = 0; i < n; i++) {
        const struct golden_prompt *p = &goldens.prompts[i];
        struct runner_seq seq;
        float *logits = calloc(r.model->config.n_vocab, sizeof(*logits));
        runner_seq_init(&r, &seq, p->n_tokens + p->n_greedy);
        uint32_t token = runner_feed(&r, &seq, p->tokens, p->n_tokens, chunk, logits);
        expect_top(p, logits);
        for (uint32_t t = 0; t < count_greedy(p); t++) {
            expect_token(p, t, token, logits, how);
            token = runner_feed(&r, &seq, &p->greedy[t], 1, 1, logits);
        }
        runner_seq_fini(&r, &seq);
        free(logits);
    }
    runner_close(&r);
    goldens_fini(&goldens);
}

static void prompts_match_in_large_chunks(void **state) {
    check_alone(2048);
}

static void prompts_match_in_small_chunks(void **state) {
    check_alone(48);
}

/* Takes in the prompts, each alone; writes the sampled tokens and their logits [n_vocab] each. */
static void feed_prompts(struct runner *r, const struct goldens *goldens, uint32_t n,
                         struct runner_seq *seqs, uint32_t *tokens, float *logits) {
    for (uint32_t i = 0; i < n; i++) {
        const struct golden_prompt *p = &goldens->prompts[i];
        runner_seq_init(r, &seqs[i], p->n_tokens + p->n_greedy);
        tokens[i] = runner_feed(r, &seqs[i], p->tokens, p->n_tokens, 512,
                                logits + (size_t)i * r->model->config.n_vocab);
    }
}

/* All prompts decode together. */
static void prompts_match_in_a_batch(void **state) {
    struct runner r;
    struct goldens goldens;
    struct runner_seq seqs[MAX_PROMPTS];
    struct runner_rows rows[MAX_PROMPTS];
    struct sample_row samples[MAX_PROMPTS];
    struct sample_result results[MAX_PROMPTS];
    uint32_t tokens[MAX_PROMPTS];
    const uint32_t n = open_runner(&r, &goldens, 512);
    const size_t n_vocab = r.model->config.n_vocab;
    float *logits = calloc(n * n_vocab, sizeof(*logits));
    assert_non_null(logits);
    feed_prompts(&r, &goldens, n, seqs, tokens, logits);
    for (uint32_t t = 0; t < count_greedy(&goldens.prompts[0]); t++) {
        for (uint32_t i = 0; i < n; i++) {
            const struct golden_prompt *p = &goldens.prompts[i];
            expect_token(p, t, tokens[i], logits + i * n_vocab, "a batch");
            rows[i] = (struct runner_rows){&seqs[i], &p->greedy[t], 1};
            samples[i] = runner_greedy(i);
        }
        runner_step(&r, rows, n, samples, n, results, logits);
        for (uint32_t i = 0; i < n; i++) tokens[i] = results[i].token;
    }
    for (uint32_t i = 0; i < n; i++) runner_seq_fini(&r, &seqs[i]);
    free(logits);
    runner_close(&r);
    goldens_fini(&goldens);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_match_in_large_chunks),
        cmocka_unit_test(prompts_match_in_small_chunks),
        cmocka_unit_test(prompts_match_in_a_batch),
    };
    if (argc > 1) model_dir = argv[1];
    return run_on_backends(argc, argv, 1, tests, COUNT(tests));
}
