/* test_default_model.c - the model that ships, against its goldens: logits and 32 greedy tokens of
 * 8 prompts.
 *
 * The goldens are a float64 pass over the stored weights.  Twelve layers in float32 differ from it
 * by about 1e-5 of the largest logit; 1e-3 is allowed.  The greedy tokens must be the very same. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/pages.h"
#include "tests/model/goldens.h"
#include "tests/model/runner.h"
#include "tests/test.h"

enum { CHUNK = 512, N_PAGES = 12 * 50 + 1, SHORT_PROMPT = 200 };

static void expect_top(const struct golden_prompt *p, const float *logits, uint32_t n_vocab) {
    const float tolerance = 1e-3f * fabsf(p->top_logits[0]);
    for (uint32_t i = 0; i < p->n_top; i++) {
        const float got = logits[p->top_ids[i]];
        if (!(fabsf(got - p->top_logits[i]) <= tolerance))
            fail_msg("logit of token %u is %g, not %g", p->top_ids[i], got, p->top_logits[i]);
    }
    uint32_t n_above = 0;
    for (uint32_t i = 0; i < n_vocab; i++)
        n_above += logits[i] > p->top_logits[p->n_top - 1] + tolerance;
    assert_true(n_above < p->n_top); /* the golden ten are the best ten */
}

static void check_prompt(struct runner *r, const struct golden_prompt *p) {
    const uint32_t n_vocab = r->model->config.n_vocab;
    struct runner_seq seq;
    float *logits = calloc(n_vocab, sizeof(*logits));
    assert_non_null(logits);
    assert_int_equal(p->n_top, 10);
    runner_seq_init(r, &seq, p->n_tokens + p->n_greedy);
    uint32_t token = runner_feed(r, &seq, p->tokens, p->n_tokens, CHUNK, logits);
    expect_top(p, logits, n_vocab);
    for (uint32_t i = 0; i < p->n_greedy; i++) {
        if (token != p->greedy[i])
            fail_msg("%s: prompt of %u tokens: greedy token %u is %u, not %u", r->be->description,
                     p->n_tokens, i, token, p->greedy[i]);
        token = runner_feed(r, &seq, &token, 1, 1, NULL);
    }
    runner_seq_fini(r, &seq);
    free(logits);
}

static void check_prompts(enum cpu_isa isa, uint32_t max_tokens, uint32_t n_expected) {
    struct runner runner;
    struct goldens goldens;
    uint32_t n_checked = 0;
    goldens_load(&goldens, MODEL_DIR);
    runner_open(&runner, MODEL_DIR, 0, &(struct cpu_config){.isa = isa}, N_PAGES, PAGE_F32,
                &(struct decoder_limits){.max_rows = CHUNK, .max_logit_rows = 1});
    for (uint32_t i = 0; i < goldens.n_prompts; i++) {
        if (goldens.prompts[i].n_tokens > max_tokens) continue;
        check_prompt(&runner, &goldens.prompts[i]);
        n_checked++;
    }
    assert_int_equal(n_checked, n_expected);
    runner_close(&runner);
    goldens_fini(&goldens);
}

TEST(every_golden_prompt_matches) {
    check_prompts(CPU_ISA_AUTO, UINT32_MAX, 8);
}

/* Plain C is the oracle of the vector versions; the long prompts would take it a minute. */
TEST(short_prompts_match_in_plain_c) {
    check_prompts(CPU_ISA_PLAIN, SHORT_PROMPT, 4);
}

TEST(describes_its_weights) {
    struct runner runner;
    runner_open(&runner, MODEL_DIR, 0, &(struct cpu_config){.n_threads = 1}, 1, PAGE_F32,
                &(struct decoder_limits){.max_rows = 1, .max_logit_rows = 1});
    const struct model *model = runner.model;
    assert_int_equal(model->embedding.format.element, ELEMENT_BF16);
    assert_ptr_equal(model->head.data, model->embedding.data); /* tied */
    assert_int_equal(model->head.rows, 8192);
    assert_int_equal(model->layers[11].k.rows, 128);
    assert_null(model->layers[0].q_bias.data);
    assert_int_equal(model->weight_bytes,
                     61891584); /* the data of its file: nothing twice, nothing left */
    runner_close(&runner);
}
