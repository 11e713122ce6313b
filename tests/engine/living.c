/* living.c - see living.h. */
#include "tests/engine/living.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "engine/device/sample.h"
#include "engine/device/step.h"
#include "engine/model/decoder.h"
#include "engine/model/model.h"
#include "engine/request/sampling.h"
#include "tests/test.h"

enum { MAX_ROWS = 300 };

static void check(int rc, const struct error *err) {
    if (rc) fail_msg("%s", err->text);
}

static void make_pages(struct living *l, uint32_t max_slots) {
    const struct model_config *c = &l->model->config;
    const uint32_t n = (uint32_t)kv_n_pages(max_slots);
    struct error err = {0};
    l->kv = (struct kv_pool){.format = PAGE_F32,
                             .n_pages = n * c->n_layers,
                             .n_kv_heads = c->n_kv_heads,
                             .head_dim = c->head_dim,
                             .tracked = true};
    l->kv.page_bytes = kv_page_bytes(&l->kv);
    check(l->be->ops->alloc(l->be, l->kv.n_pages * l->kv.page_bytes, &l->kv.base, &err), &err);
    assert_true(c->n_layers <= LIVING_MAX_LAYERS);
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        l->pages[layer] = calloc(n, sizeof(uint32_t));
        for (uint32_t i = 0; i < n; i++) l->pages[layer][i] = (n - 1 - i) * c->n_layers + layer;
    }
}

void living_begin(struct living *l, const char *model_dir, const struct kv_choice *choice,
                  uint32_t max_slots) {
    const struct cpu_config cpu = {.n_threads = 1};
    const struct decoder_limits limits = {.max_rows = MAX_ROWS, .max_logit_rows = 1};
    struct error err = {0};
    *l = (struct living){.choice = *choice};
    check(cpu_backend_create(&l->be, &cpu, &err), &err);
    check(model_load(&l->model, model_dir, NULL, l->be, &err), &err);
    make_pages(l, max_slots);
    check(decoder_create(&l->decoder, l->model, l->be, &l->kv, &limits, &err), &err);
    const bool has_window = choice->score == KV_SCORE_WINDOW;
    l->budget =
        (struct kv_budget){.capacity = choice->n_sink + choice->n_recent + choice->n_heavy,
                           .n_sink = choice->n_sink,
                           .n_recent = choice->n_recent,
                           .score = choice->score,
                           .decay = choice->decay,
                           .window = has_window && choice->window == 0 ? 64 : choice->window,
                           .pooling = choice->pooling,
                           .kernel = choice->kernel,
                           .cache_positions = choice->cache_positions};
}

void living_end(struct living *l) {
    decoder_destroy(l->decoder);
    l->be->ops->free(l->be, l->kv.base);
    for (uint32_t i = 0; i < l->model->config.n_layers; i++) free(l->pages[i]);
    model_destroy(l->model, l->be);
    l->be->ops->destroy(l->be);
}

/* Runs a step of the text's next n tokens; row, if not NULL, is drawn from the last one. */
static struct sample_result step(struct living *l, struct step_seq seq, const uint32_t *tokens,
                                 bool generated, const struct sample_row *row) {
    struct kv_view views[LIVING_MAX_LAYERS];
    uint32_t positions[MAX_ROWS];
    struct sample_result result = {0};
    struct evict_total total;
    struct error err = {0};
    const bool full = generated && l->n_kept == l->budget.capacity;
    const uint32_t first = l->budget.cache_positions ? l->n_kept : l->n_tokens;
    for (uint32_t i = 0; i < l->model->config.n_layers; i++)
        views[i] =
            (struct kv_view){l->pages[i], l->n_kept + seq.n_rows, full ? KV_FREE_SLOT : l->n_kept};
    for (uint32_t i = 0; i < seq.n_rows; i++) positions[i] = first + i;
    seq.layers = views;
    seq.budget = &l->budget;
    seq.n_before = l->n_tokens;
    const struct step s = {.n_rows = seq.n_rows,
                           .n_seqs = 1,
                           .n_decode = generated,
                           .n_layers = l->model->config.n_layers,
                           .tokens = tokens,
                           .positions = positions,
                           .seqs = &seq};
    check(decoder_step(l->decoder, &s, row, row ? 1 : 0, &result, &total, NULL, &err), &err);
    l->retained_attention = total.retained_attention;
    l->n_tokens += seq.n_rows;
    l->n_kept += seq.n_rows;
    if (generated || seq.compress) l->n_kept = min_u32(l->n_kept, l->budget.capacity);
    return result;
}

/* Puts what generated tokens have left into the order of the text. */
static void order(const struct living *l) {
    const uint32_t n_layers = l->model->config.n_layers, capacity = l->budget.capacity;
    struct kv_view views[LIVING_MAX_LAYERS];
    struct error err = {0};
    for (uint32_t i = 0; i < n_layers; i++)
        views[i] = (struct kv_view){l->pages[i], capacity + 1, capacity};
    check(l->be->ops->evict->order(l->be, &l->kv, views, n_layers, &err), &err);
}

/* Reads the prompt from the text's end on, in chunks that begin there. */
static struct sample_result read_prompt(struct living *l, const uint32_t *prompt, uint32_t n_prompt,
                                        struct sample_row *row) {
    const uint32_t turn = l->n_tokens, chunk = l->choice.whole ? n_prompt : l->choice.chunk;
    struct sample_result result = {0};
    if (turn > l->budget.capacity) order(l);
    while (l->n_tokens < n_prompt) {
        const uint32_t at = (l->n_tokens - turn) % chunk,
                       end = min_u32(n_prompt, l->n_tokens - at + chunk), left = end - l->n_tokens,
                       n = 1 + (uint32_t)rand() % min_u32(left, MAX_ROWS);
        const bool is_last = l->n_tokens + n == n_prompt;
        struct step_seq seq = {.n_rows = n, .begins_chunk = at == 0, .compress = n == left};
        if (l->budget.window > 0 && left > l->budget.window)
            seq.score_row = min_u32(left - l->budget.window, n);
        row->logit_row = n - 1;
        result = step(l, seq, prompt + l->n_tokens, false, is_last ? row : NULL);
    }
    return result;
}

void living_turn(struct living *l, const uint32_t *prompt, uint32_t n_prompt,
                 const struct sampling_params *params, struct living_token *drawn) {
    struct sampling_state sampling;
    assert_int_equal(sampling_state_init(&sampling, params, NULL, 0), 0);
    for (uint32_t i = 0; i < params->max_tokens; i++) {
        struct sample_row row = sampling_row(&sampling, 0, i);
        const struct sample_result result =
            i == 0 ? read_prompt(l, prompt, n_prompt, &row)
                   : step(l, (struct step_seq){.n_rows = 1}, &drawn[i - 1].token, true, &row);
        drawn[i] = (struct living_token){result.token, result.logprob};
    }
    sampling_state_fini(&sampling);
}
