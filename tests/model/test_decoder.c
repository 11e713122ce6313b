/* test_decoder.c - tiny models of every shape against transformers, on every instruction set at
 * hand.
 *
 * The tolerance is 1e-3 of the largest logit: float32 sums in another order, through two layers,
 * stay near 1e-6; a wrong rotation, mask, bias or scale is off by more than 1e-2. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/attention.h"
#include "engine/device/backend.h"
#include "engine/device/pages.h"
#include "engine/device/sample.h"
#include "engine/device/select.h"
#include "engine/device/sparse.h"
#include "engine/device/step.h"
#include "tests/model/goldens.h"
#include "tests/model/runner.h"
#include "tests/model/tiny_models.h"
#include "tests/test.h"

enum { MAX_ROWS = 256, MAX_LOGIT_ROWS = 4, N_PAGES = 100, N_THREADS = 2, SPARSE_ROWS = 250 };

static const enum cpu_isa isas[] = {CPU_ISA_PLAIN, CPU_ISA_AVX2, CPU_ISA_AVX512, CPU_ISA_NEON};

/* One model on one instruction set. */
struct fixture {
    struct runner runner;
    struct goldens goldens;
    uint32_t n_vocab;
    const char *name;
};

static bool machine_has(enum cpu_isa isa) {
    struct backend *be = NULL;
    struct error err = {0};
    const int rc = cpu_backend_create(&be, &(struct cpu_config){.n_threads = 1, .isa = isa}, &err);
    if (rc == 0) be->ops->destroy(be);
    assert_true(rc == 0 || (rc == ERR_UNSUPPORTED && isa != CPU_ISA_PLAIN));
    return rc == 0;
}

static void with_model(const char *name, enum cpu_isa isa, void (*body)(struct fixture *fixture)) {
    const struct cpu_config cpu = {.n_threads = N_THREADS, .isa = isa};
    struct fixture f = {.name = name};
    char dir[4096];
    snprintf(dir, sizeof(dir), "%s/%s", DATA_DIR, name);
    goldens_load(&f.goldens, dir);
    runner_open(
        &f.runner, dir, f.goldens.context, &cpu, N_PAGES, PAGE_F32,
        &(struct decoder_limits){
            .max_rows = MAX_ROWS, .max_logit_rows = MAX_LOGIT_ROWS, .max_long_rows = MAX_ROWS});
    f.n_vocab = f.runner.model->config.n_vocab;
    body(&f);
    runner_close(&f.runner);
    goldens_fini(&f.goldens);
}

static void with_every_model(void (*body)(struct fixture *fixture)) {
    for (size_t i = 0; i < COUNT(isas); i++)
        for (size_t m = 0; machine_has(isas[i]) && m < N_TINY_MODELS; m++)
            with_model(tiny_models[m], isas[i], body);
}

/* Takes the instruction sets in turn, one for each model: for what the decoder does around the
 * kernels. */
static void with_models_in_turn(void (*body)(struct fixture *fixture)) {
    for (size_t m = 0, i = 0; m < N_TINY_MODELS; i++)
        if (machine_has(isas[i % COUNT(isas)]))
            with_model(tiny_models[m++], isas[i % COUNT(isas)], body);
}

/* Tells whether prompts may be layer-major. */
static bool has_slices(const struct fixture *f) {
    return !model_without_slices(&f->runner.model->config);
}

/* Tells whether the model's last layers have keys of their own, and read what the last rows
 * leave. */
static bool attends_last(const struct fixture *f) {
    const struct model_config *c = &f->runner.model->config;
    return has_slices(f) && c->n_attention > 1 && !model_ends_recurrent(c);
}

static void expect_close(const struct fixture *f, const float *got, const float *want) {
    float largest = 0, difference = 0;
    for (uint32_t i = 0; i < f->n_vocab; i++) {
        if (!isfinite(got[i]))
            fail_msg("%s on %s: a logit is not finite", f->name, f->runner.be->description);
        largest = fmaxf(largest, fabsf(want[i]));
        difference = fmaxf(difference, fabsf(got[i] - want[i]));
    }
    if (difference > 1e-3f * largest)
        fail_msg("%s on %s: logits off by %g of %g", f->name, f->runner.be->description, difference,
                 largest);
}

/* The golden logits of a prompt's last token. */
static const float *last_logits(const struct fixture *f, const struct golden_prompt *p) {
    assert_int_equal(p->positions[p->n_positions - 1], p->n_tokens - 1);
    return p->logits + (size_t)(p->n_positions - 1) * f->n_vocab;
}

static float *new_logits(const struct fixture *f, uint32_t n_rows) {
    float *logits = calloc((size_t)n_rows * f->n_vocab, sizeof(*logits));
    assert_non_null(logits);
    return logits;
}

/* Goes on from the first greedy token, one row a step. */
static void expect_greedy(struct fixture *f, struct runner_seq *seq, const struct golden_prompt *p,
                          uint32_t token) {
    for (uint32_t i = 0; i < p->n_greedy; i++) {
        if (token != p->greedy[i])
            fail_msg("%s on %s: greedy token %u is %u, not %u", f->name, f->runner.be->description,
                     i, token, p->greedy[i]);
        token = runner_feed(&f->runner, seq, &token, 1, 1, NULL);
    }
}

/* The whole prompt at once, with the logits of every golden position: out of order, more than one
 * slice, and the first one asked for again at the end. */
static void check_one_step(struct fixture *f) {
    for (uint32_t i = 0; i < f->goldens.n_prompts; i++) {
        const struct golden_prompt *p = &f->goldens.prompts[i];
        const uint32_t n = p->n_positions + 1;
        struct runner_seq seq;
        struct sample_row samples[8];
        struct sample_result results[8];
        float *logits = new_logits(f, n);
        assert_true(n <= 8);
        for (uint32_t s = 0; s < n; s++)
            samples[s] = runner_greedy(p->positions[p->n_positions - 1 - s % p->n_positions]);
        runner_seq_init(&f->runner, &seq, p->n_tokens + p->n_greedy);
        runner_step(&f->runner, &(struct runner_rows){&seq, p->tokens, p->n_tokens}, 1, samples, n,
                    results, logits);
        for (uint32_t s = 0; s < n; s++) {
            const uint32_t golden = p->n_positions - 1 - s % p->n_positions;
            expect_close(f, logits + (size_t)s * f->n_vocab,
                         p->logits + (size_t)golden * f->n_vocab);
        }
        assert_int_equal(results[n - 1].token, results[0].token);
        expect_greedy(f, &seq, p, results[0].token);
        runner_seq_fini(&f->runner, &seq);
        free(logits);
    }
}

/* Goes on from a token that only the backend knows, drawn in the last of several slices. */
static void check_sampled_tokens(struct fixture *f) {
    for (uint32_t i = 0; i < f->goldens.n_prompts; i++) {
        const struct golden_prompt *p = &f->goldens.prompts[i];
        struct runner_seq seq;
        struct sample_row samples[8];
        struct sample_result results[8];
        const uint32_t n = sizeof(samples) / sizeof(samples[0]);
        for (uint32_t s = 0; s < n; s++)
            samples[s] = runner_greedy(s + 1 < n ? 0 : p->n_tokens - 1);
        runner_seq_init(&f->runner, &seq, p->n_tokens + p->n_greedy);
        runner_step(&f->runner, &(struct runner_rows){&seq, p->tokens, p->n_tokens}, 1, samples, n,
                    results, NULL);
        uint32_t token = STEP_SAMPLED | (n - 1);
        for (uint32_t g = 1; g < p->n_greedy; g++) {
            assert_int_equal(runner_feed(&f->runner, &seq, &token, 1, 1, NULL), p->greedy[g]);
            token = STEP_SAMPLED;
        }
        runner_seq_fini(&f->runner, &seq);
    }
}

/* 37 and 100 cross pages at odd places, 64 ends on them, 63 and 65 drift; 1 is decoding all the
 * way. */
static void check_chunks(struct fixture *f) {
    static const uint32_t chunks[] = {1, 37, 63, 64, 65, 100};
    float *logits = new_logits(f, 1);
    for (size_t c = 0; c < COUNT(chunks); c++) {
        for (uint32_t i = 0; i < f->goldens.n_prompts; i++) {
            const struct golden_prompt *p = &f->goldens.prompts[i];
            struct runner_seq seq;
            runner_seq_init(&f->runner, &seq, p->n_tokens + p->n_greedy);
            const uint32_t token =
                runner_feed(&f->runner, &seq, p->tokens, p->n_tokens, chunks[c], logits);
            expect_close(f, logits, last_logits(f, p));
            expect_greedy(f, &seq, p, token);
            runner_seq_fini(&f->runner, &seq);
        }
    }
    free(logits);
}

/* How often prompts attended in the last layer, and in the one before it. */
static struct {
    const struct backend_ops *real;
    struct backend_ops ops;
    uint32_t last_layer, n_last, n_before;
} counted;

static int counted_attn_prefill(struct backend *be, const struct attn_args *args,
                                struct error *err) {
    counted.n_last += args->layer == counted.last_layer;
    counted.n_before += args->layer + 1 == counted.last_layer;
    return counted.real->attn_prefill(be, args, err);
}

static void begin_counting(struct runner *r) {
    memset(&counted, 0, sizeof(counted));
    counted.real = r->be->ops;
    counted.ops = *r->be->ops;
    counted.ops.attn_prefill = counted_attn_prefill;
    counted.last_layer = r->model->config.n_attention - 1;
    r->be->ops = &counted.ops;
}

/* Nothing reads what a prompt's first chunks attend to in the last layer, even beside a sequence
 * that decodes.  What they leave in the pages is the same. */
static void check_unread_attention(struct fixture *f) {
    const struct golden_prompt *p = &f->goldens.prompts[0];
    const uint32_t chunk = p->n_tokens / 3;
    const struct sample_row greedy = runner_greedy(0);
    struct runner_seq seq, beside;
    struct sample_result result;
    if (!attends_last(f)) return;
    float *logits = new_logits(f, 1);
    runner_seq_init(&f->runner, &seq, p->n_tokens);
    runner_seq_init(&f->runner, &beside, p->n_tokens);
    runner_feed(&f->runner, &beside, p->tokens, p->n_tokens - 1, p->n_tokens, NULL);
    begin_counting(&f->runner);
    const struct runner_rows alone = {&seq, p->tokens, chunk},
                             both[] = {{&beside, p->tokens + p->n_tokens - 1, 1},
                                       {&seq, p->tokens + chunk, chunk}};
    runner_step(&f->runner, &alone, 1, NULL, 0, NULL, NULL);
    runner_step(&f->runner, both, 2, &greedy, 1, &result, logits);
    expect_close(f, logits, last_logits(f, p));
    assert_int_equal(counted.n_before, 2);
    assert_int_equal(counted.n_last, 0);
    const uint32_t n_left = p->n_tokens - 2 * chunk;
    runner_feed(&f->runner, &seq, p->tokens + 2 * chunk, n_left, n_left, logits);
    expect_close(f, logits, last_logits(f, p));
    assert_int_equal(counted.n_before, 3);
    assert_int_equal(counted.n_last, 1);
    f->runner.be->ops = counted.real;
    runner_seq_fini(&f->runner, &beside);
    runner_seq_fini(&f->runner, &seq);
    free(logits);
}

/* Where a sequence of a mixed batch stands. */
struct job {
    const struct golden_prompt *prompt;
    struct runner_seq seq;
    uint32_t chunk, start; /* rows a step while reading the prompt; the step it joins in */
    uint32_t n_read, n_greedy;
    uint32_t token; /* the newest greedy token */
};

static uint32_t job_rows(const struct job *job, uint32_t step) {
    const uint32_t left = job->prompt->n_tokens - job->n_read;
    if (step < job->start || job->n_greedy == job->prompt->n_greedy) return 0;
    if (left == 0) return 1;
    return left < job->chunk ? left : job->chunk;
}

static void job_advance(struct fixture *f, struct job *job, uint32_t n,
                        const struct sample_result *result, const float *logits) {
    const struct golden_prompt *p = job->prompt;
    const bool reading = job->n_read < p->n_tokens;
    if (reading) job->n_read += n;
    if (job->n_read < p->n_tokens) return;
    if (reading) expect_close(f, logits, last_logits(f, p));
    job->token = result->token;
    if (job->token != p->greedy[job->n_greedy])
        fail_msg("%s on %s: batched greedy token %u is %u, not %u", f->name,
                 f->runner.be->description, job->n_greedy, job->token, p->greedy[job->n_greedy]);
    job->n_greedy++;
}

/* Runs one step of all jobs that have rows; returns how many had. */
static uint32_t step_jobs(struct fixture *f, struct job *jobs, uint32_t n_jobs, uint32_t step) {
    struct runner_rows rows[8];
    struct sample_row samples[8];
    struct sample_result results[8];
    struct job *order[8];
    uint32_t n = 0, row = 0;
    assert_true(n_jobs <= 8);
    for (int single = 1; single >= 0; single--) {
        for (uint32_t j = 0; j < n_jobs; j++) {
            const uint32_t take = job_rows(&jobs[j], step);
            if (take == 0 || (take == 1) != (single == 1)) continue;
            const bool reading = jobs[j].n_read < jobs[j].prompt->n_tokens;
            rows[n] = (struct runner_rows){
                &jobs[j].seq, reading ? jobs[j].prompt->tokens + jobs[j].n_read : &jobs[j].token,
                take};
            row += take;
            samples[n] = runner_greedy(row - 1);
            order[n++] = &jobs[j];
        }
    }
    if (n == 0) return 0;
    float *logits = new_logits(f, n);
    runner_step(&f->runner, rows, n, samples, n, results, logits);
    for (uint32_t i = 0; i < n; i++)
        job_advance(f, order[i], rows[i].n, &results[i], logits + (size_t)i * f->n_vocab);
    free(logits);
    return n;
}

/* Sequences join at different steps, so that prompts are read while others decode, in every mix. */
static void check_mixed_batches(struct fixture *f) {
    const struct golden_prompt *p = f->goldens.prompts;
    struct job jobs[] = {
        {.prompt = &p[2], .chunk = 50, .start = 0}, {.prompt = &p[0], .chunk = 5, .start = 0},
        {.prompt = &p[1], .chunk = 64, .start = 1}, {.prompt = &p[0], .chunk = 2, .start = 2},
        {.prompt = &p[1], .chunk = 23, .start = 3}, {.prompt = &p[2], .chunk = 150, .start = 5},
    };
    enum { N_JOBS = sizeof(jobs) / sizeof(jobs[0]) };
    uint32_t step = 0;
    for (uint32_t j = 0; j < N_JOBS; j++)
        runner_seq_init(&f->runner, &jobs[j].seq,
                        jobs[j].prompt->n_tokens + jobs[j].prompt->n_greedy);
    while (step_jobs(f, jobs, N_JOBS, step) > 0) step++;
    for (uint32_t j = 0; j < N_JOBS; j++) {
        assert_int_equal(jobs[j].n_greedy, jobs[j].prompt->n_greedy);
        runner_seq_fini(&f->runner, &jobs[j].seq);
    }
}

/* Rows and tokens that lie outside the buffers are refused before anything is submitted. */
static void check_bad_steps(struct fixture *f) {
    struct error err = {0};
    struct sample_result result;
    const uint32_t tokens[] = {1, f->n_vocab}, positions[] = {0, 1};
    struct runner_seq seq;
    runner_seq_init(&f->runner, &seq, 2);
    struct kv_view views[2];
    for (int l = 0; l < 2; l++) views[l] = (struct kv_view){.pages = seq.pages[l], .n_slots = 1};
    struct step_seq step_seq = {.n_rows = 1, .layers = views};
    struct step step = {.n_rows = 1,
                        .n_seqs = 1,
                        .n_decode = 1,
                        .tokens = tokens,
                        .positions = positions,
                        .seqs = &step_seq};
    struct sample_row sample = runner_greedy(1);
    struct decoder *d = f->runner.decoder;
    assert_int_equal(decoder_step(d, &step, &sample, 1, &result, NULL, NULL, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "row 1 of 1"));
    step.tokens = tokens + 1;
    assert_int_equal(decoder_step(d, &step, NULL, 0, NULL, NULL, NULL, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "outside the vocabulary"));
    const uint32_t undrawn = STEP_SAMPLED; /* nothing has been drawn yet */
    step.tokens = &undrawn;
    assert_int_equal(decoder_step(d, &step, NULL, 0, NULL, NULL, NULL, &err), ERR_INVALID);
    step.n_rows = MAX_ROWS + 1;
    assert_int_equal(decoder_step(d, &step, NULL, 0, NULL, NULL, NULL, &err), ERR_INVALID);
    step.n_rows = 0;
    assert_int_equal(decoder_step(d, &step, NULL, 0, NULL, NULL, NULL, &err), ERR_INVALID);
    runner_seq_fini(&f->runner, &seq);
}

/* Another sequence that generates all the while. */
struct neighbour {
    struct runner *runner;
    struct runner_seq seq;
    uint32_t token;
};

static void generate(void *ctx) {
    struct neighbour *n = ctx;
    if (n->seq.n_tokens < n->seq.n_pages * PAGE_TOKENS)
        n->token = runner_feed(n->runner, &n->seq, &n->token, 1, 1, NULL);
}

static void check_layer_by_layer(struct fixture *f) {
    static const uint32_t slices[] = {1, 37, MAX_ROWS};
    if (!has_slices(f)) return;
    for (uint32_t i = 0; i < f->goldens.n_prompts; i++) {
        const struct golden_prompt *p = &f->goldens.prompts[i];
        const uint32_t last = p->n_tokens - 1;
        float *want = new_logits(f, 1), *got = new_logits(f, 1);
        struct runner_seq seq;
        runner_seq_init(&f->runner, &seq, p->n_tokens);
        runner_feed(&f->runner, &seq, p->tokens, p->n_tokens, MAX_ROWS, want);
        runner_seq_fini(&f->runner, &seq);
        for (size_t s = 0; s < COUNT(slices); s++) {
            struct neighbour other = {.runner = &f->runner, .token = 1};
            runner_seq_init(&f->runner, &seq, p->n_tokens);
            runner_seq_init(&f->runner, &other.seq, PAGE_TOKENS);
            runner_feed_long(&f->runner, &seq, p->tokens, last, slices[s], generate, &other);
            runner_feed(&f->runner, &seq, p->tokens + last, 1, 1, got);
            assert_memory_equal(got, want, f->n_vocab * sizeof(*got)); /* to the bit */
            runner_seq_fini(&f->runner, &other.seq);
            runner_seq_fini(&f->runner, &seq);
        }
        free(want);
        free(got);
    }
}

/* Of a model whose layers have so many heads. */
static struct attn_pattern *every_kind_of_pattern(const struct model_config *c) {
    static const struct attn_pattern kinds[] = {{PATTERN_VERTICAL_SLASH, 30, 100},
                                                {PATTERN_A_SHAPE, 16, 20},
                                                {PATTERN_DENSE, 0, 0},
                                                {PATTERN_BLOCK_SPARSE, 1, 0}};
    struct attn_pattern *patterns = calloc(c->n_layers * c->n_heads, sizeof(*patterns));
    assert_non_null(patterns);
    for (uint32_t i = 0; i < c->n_layers * c->n_heads; i++) patterns[i] = kinds[i % 4];
    return patterns;
}

static void reserve_sparse(struct fixture *f) {
    const struct model_config *c = &f->runner.model->config;
    const struct sparse_limits largest = {SPARSE_ROWS, SPARSE_ROWS};
    const struct step_limits limits = {.max_rows = MAX_ROWS,
                                       .max_seqs = 4,
                                       .max_seq_pages = SPARSE_ROWS / PAGE_TOKENS + 1,
                                       .max_slots = 4 * SPARSE_ROWS,
                                       .max_logit_rows = MAX_LOGIT_ROWS,
                                       .n_layers = c->n_attention,
                                       .n_heads = c->n_heads,
                                       .n_kv_heads = c->n_kv_heads,
                                       .head_dim = c->head_dim,
                                       .n_freqs = c->n_freqs,
                                       .n_vocab = c->n_vocab,
                                       .sparse = &largest};
    struct error err = {0};
    if (f->runner.be->ops->reserve(f->runner.be, &limits, &err)) fail_msg("%s", err.text);
}

/* Rows that are indexed together give the same in one step and layer by layer; the token behind
 * them sees what became of them. */
static void check_sparse_layer_by_layer(struct fixture *f) {
    uint32_t tokens[SPARSE_ROWS + 1];
    struct runner *r = &f->runner;
    if (!has_slices(f)) return;
    struct attn_pattern *patterns = every_kind_of_pattern(&r->model->config);
    const struct attn_sparse sparse = {
        .patterns = patterns, .n_rows = SPARSE_ROWS, .dense_from = SPARSE_ROWS, .dense_above = 1};
    float *exact = new_logits(f, 1), *want = new_logits(f, 1), *got = new_logits(f, 1);
    struct runner_seq seq;
    for (uint32_t i = 0; i <= SPARSE_ROWS; i++) tokens[i] = i * 7919 % f->n_vocab;
    reserve_sparse(f);
    for (int way = 0; way < 3; way++) {
        runner_seq_init(r, &seq, SPARSE_ROWS + 1);
        r->sparse = way > 0 ? &sparse : NULL;
        if (way < 2) runner_feed(r, &seq, tokens, SPARSE_ROWS, SPARSE_ROWS, NULL);
        else runner_feed_long(r, &seq, tokens, SPARSE_ROWS, SPARSE_TILE, NULL, NULL);
        float *logits = way == 0 ? exact : way == 1 ? want : got;
        runner_feed(r, &seq, tokens + SPARSE_ROWS, 1, 1, logits);
        runner_seq_fini(r, &seq);
    }
    r->sparse = NULL;
    assert_memory_equal(got, want, f->n_vocab * sizeof(*got));
    /* Something was left out, unless every layer has a window.  Nothing reads what a prompt's rows
     * see in the last one. */
    struct model_config others = r->model->config;
    if (!model_ends_recurrent(&others)) {
        others.n_layers--;
        others.n_attention--;
    }
    assert_true((memcmp(got, exact, f->n_vocab * sizeof(*got)) != 0) ==
                (others.n_attention > 0 && model_has_full_attention(&others)));
    free(patterns);
    free(exact);
    free(want);
    free(got);
}

static void check_bad_slices(struct fixture *f) {
    const uint32_t token = 1, position = 0, n_layers = f->runner.model->config.n_attention;
    struct kv_view views[8];
    struct runner_seq seq;
    struct error err = {0};
    assert_true(n_layers <= 8);
    if (!has_slices(f)) return;
    runner_seq_init(&f->runner, &seq, 1);
    for (uint32_t l = 0; l < n_layers; l++) views[l] = (struct kv_view){seq.pages[l], 1, 0};
    struct step_seq step_seq = {.n_rows = 1, .layers = views};
    struct step step = {.n_rows = 1,
                        .n_seqs = 1,
                        .n_layers = n_layers,
                        .tokens = &token,
                        .positions = &position,
                        .seqs = &step_seq};
    const struct layer_slice bad[] = {{n_layers, 0, 1, 1, false},
                                      {0, 0, 2, 2, false},
                                      {0, 1, 1, 1, false},
                                      {0, 2, 1, 1, false},
                                      {0, 0, 1, MAX_ROWS + 1, false},
                                      {n_layers + 1, 0, 1, 1, true}};
    struct decoder *d = f->runner.decoder;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(decoder_submit_slice(d, &step, &bad[i], NULL, 0, NULL, NULL, &err),
                         ERR_INVALID);
    const struct layer_slice good = {0, 0, 1, 1, true};
    const struct sample_row early = runner_greedy(0);
    struct sample_result result;
    assert_int_equal(decoder_submit_slice(d, &step, &good, &early, 1, &result, NULL, &err),
                     ERR_INVALID);
    step.n_decode = 1;
    assert_int_equal(decoder_submit_slice(d, &step, &good, NULL, 0, NULL, NULL, &err), ERR_INVALID);
    const struct kv_select select = {.n_selected = 64, .n_candidates = 128};
    step_seq.select = &select; /* there are no groups */
    assert_int_equal(decoder_submit(d, &step, NULL, 0, NULL, NULL, &err), ERR_INVALID);
    runner_seq_fini(&f->runner, &seq);
}

static void check_limits(struct fixture *f) {
    struct error err = {0};
    struct decoder *d = NULL;
    struct runner *r = &f->runner;
    struct kv_pool other = r->kv;
    other.head_dim *= 2;
    const struct decoder_limits none = {.max_rows = 0, .max_logit_rows = 1},
                                one = {.max_rows = 1, .max_logit_rows = 1};
    assert_int_equal(decoder_create(&d, r->model, r->be, &r->kv, &none, &err), ERR_INVALID);
    assert_int_equal(decoder_create(&d, r->model, r->be, &other, &one, &err), ERR_INVALID);
    assert_null(d);
    const struct decoder_limits two = {.max_rows = 129, .max_logit_rows = 1};
    assert_true(decoder_workspace_bytes(&r->model->config, r->be, &one) <
                decoder_workspace_bytes(&r->model->config, r->be, &two));
    struct decoder_limits three = two;
    three.max_long_rows = 1000;
    assert_true(decoder_workspace_bytes(&r->model->config, r->be, &three) >=
                decoder_workspace_bytes(&r->model->config, r->be, &two) +
                    decoder_long_bytes(&r->model->config, 1000, DTYPE_F32));
}

TEST(a_prompt_in_one_step_gives_the_golden_logits) {
    with_every_model(check_one_step);
}

TEST(a_token_may_be_named_before_it_is_known) {
    with_every_model(check_sampled_tokens);
}

TEST(chunks_of_any_size_give_the_same) {
    with_models_in_turn(check_chunks);
}

TEST(attention_that_nothing_reads_is_left_out) {
    with_models_in_turn(check_unread_attention);
}

TEST(batches_mix_prompts_and_decoding) {
    with_models_in_turn(check_mixed_batches);
}

TEST(layer_by_layer_gives_the_same_bits) {
    with_models_in_turn(check_layer_by_layer);
    with_models_in_turn(check_sparse_layer_by_layer);
}

TEST(steps_outside_the_plan_are_refused) {
    with_models_in_turn(check_bad_steps);
    with_models_in_turn(check_bad_slices);
}

TEST(decoders_without_a_plan_are_refused) {
    with_models_in_turn(check_limits);
}
