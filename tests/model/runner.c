/* runner.c - see runner.h. */
#include "tests/model/runner.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/device/backend.h"
#include "engine/device/step.h"
#include "tests/test.h"

static void check(int rc, const struct error *err) {
    if (rc) fail_msg("%s", err->text);
}

static void *zalloc(size_t n, size_t size) {
    void *memory = calloc(n ? n : 1, size);
    assert_non_null(memory);
    return memory;
}

enum { N_SEQS = 64 }; /* that a runner begins, with recurrent layers */

/* Makes the pool of recurrent states, if the model has any.  Slots begin with what no state is, so
 * that a text which does not begin with zeros is seen. */
static void make_states(struct runner *r) {
    struct error err = {0};
    const struct recurrent_shape *shape = &r->model->config.recurrent;
    if (shape->n_layers == 0) return;
    assert_true(r->be->ops->recurrent && r->be->ops->recurrent->takes(r->be, shape));
    r->states = state_pool_of(shape, r->be->act_dtype, 2 * N_SEQS);
    const size_t bytes = r->states.n_slots * r->states.slot_bytes;
    check(r->be->ops->alloc(r->be, bytes, &r->states.base, &err), &err);
    void *junk = zalloc(bytes, 1);
    memset(junk, 0x3f, bytes);
    check(r->be->ops->upload(r->be, r->states.base, junk, bytes, &err), &err);
    free(junk);
}

static void make_pool(struct runner *r, uint32_t n_pages, enum page_format format) {
    struct error err = {0};
    const struct model_config *c = &r->model->config;
    r->kv = model_pages(c, format, false);
    r->kv.n_pages = n_pages;
    check(r->be->ops->alloc(r->be, n_pages * r->kv.page_bytes, &r->kv.base, &err), &err);
    r->free_pages = zalloc(n_pages, sizeof(*r->free_pages));
    /* A stride of 7 visits every page once unless 7 divides their number. */
    assert_int_not_equal(n_pages % 7, 0);
    for (uint32_t i = 0; i < n_pages; i++)
        r->free_pages[i] = (uint32_t)(((uint64_t)i * 7 + 3) % n_pages);
    r->n_free = n_pages;
}

void runner_open(struct runner *r, const char *dir, uint32_t context, const struct cpu_config *cpu,
                 uint32_t n_pages, enum page_format kv_format,
                 const struct decoder_limits *limits) {
    struct error err = {0};
    struct backend *be = NULL;
    check(cpu_backend_create(&be, cpu, &err), &err);
    runner_open_on(r, dir, context, be, n_pages, kv_format, limits);
}

void runner_open_on(struct runner *r, const char *dir, uint32_t context, struct backend *be,
                    uint32_t n_pages, enum page_format kv_format,
                    const struct decoder_limits *limits) {
    struct error err = {0};
    const struct model_source source = {.context = context};
    *r = (struct runner){.be = be};
    check(model_load(&r->model, dir, &source, r->be, &err), &err);
    make_pool(r, n_pages, kv_format);
    make_states(r);
    struct decoder_limits of_model = *limits;
    if (r->states.n_slots > 0) of_model.states = &r->states;
    if (model_without_slices(&r->model->config)) of_model.max_long_rows = 0;
    check(decoder_create(&r->decoder, r->model, r->be, &r->kv, &of_model, &err), &err);
}

void runner_close(struct runner *r) {
    assert_int_equal(r->n_free, r->kv.n_pages); /* every sequence was finished */
    decoder_destroy(r->decoder);
    r->be->ops->free(r->be, r->kv.base);
    r->be->ops->free(r->be, r->states.base);
    free(r->free_pages);
    model_destroy(r->model, r->be);
    r->be->ops->destroy(r->be);
}

void runner_seq_init(struct runner *r, struct runner_seq *seq, uint32_t max_tokens) {
    const uint32_t n_layers = r->model->config.n_attention;
    *seq = (struct runner_seq){.n_pages = (max_tokens + PAGE_TOKENS - 1) / PAGE_TOKENS};
    assert_true((uint64_t)n_layers * seq->n_pages <= r->n_free);
    assert_true(r->states.n_slots == 0 || r->n_seqs < N_SEQS);
    seq->state = (struct state_slots){STATE_ZERO, 2 * r->n_seqs++};
    seq->pages = zalloc(n_layers, sizeof(*seq->pages));
    for (uint32_t l = 0; l < n_layers; l++)
        seq->pages[l] = zalloc(seq->n_pages, sizeof(**seq->pages));
    for (uint32_t p = 0; p < seq->n_pages; p++)
        for (uint32_t l = 0; l < n_layers; l++) seq->pages[l][p] = r->free_pages[--r->n_free];
}

void runner_seq_fini(struct runner *r, struct runner_seq *seq) {
    for (uint32_t l = 0; l < r->model->config.n_attention; l++) {
        for (uint32_t p = 0; p < seq->n_pages; p++) r->free_pages[r->n_free++] = seq->pages[l][p];
        free(seq->pages[l]);
    }
    free(seq->pages);
}

/* The host arrays behind a step. */
struct step_arrays {
    uint32_t *tokens, *positions;
    struct step_seq *seqs;
    struct kv_view *views; /* [n_seqs][n_layers] */
};

static void fill_seq(const struct runner *r, const struct runner_rows *rows, struct step *step,
                     struct step_arrays *arrays, uint32_t i) {
    const uint32_t n_layers = r->model->config.n_attention, end = rows->seq->n_tokens + rows->n;
    struct kv_view *views = arrays->views + (size_t)i * n_layers;
    assert_true(end <= rows->seq->n_pages * PAGE_TOKENS);
    for (uint32_t l = 0; l < n_layers; l++)
        views[l] = (struct kv_view){
            .pages = rows->seq->pages[l], .n_slots = end, .append_slot = rows->seq->n_tokens};
    arrays->seqs[i] =
        (struct step_seq){.first_row = step->n_rows, .n_rows = rows->n, .layers = views};
    arrays->seqs[i].state = rows->seq->state;
    arrays->seqs[i].n_before = rows->seq->n_tokens;
    for (uint32_t j = 0; j < rows->n; j++, step->n_rows++) {
        arrays->tokens[step->n_rows] = rows->tokens[j];
        arrays->positions[step->n_rows] = rows->seq->n_tokens + j;
    }
    if (rows->n > 1) arrays->seqs[i].sparse = r->sparse;
    if (rows->n == 1) {
        assert_int_equal(step->n_decode, i); /* single rows come first */
        step->n_decode++;
    }
}

static struct step_arrays arrays_make(const struct runner *r, size_t n_rows, size_t n_seqs) {
    return (struct step_arrays){
        .tokens = zalloc(n_rows, sizeof(uint32_t)),
        .positions = zalloc(n_rows, sizeof(uint32_t)),
        .seqs = zalloc(n_seqs, sizeof(struct step_seq)),
        .views = zalloc(n_seqs * r->model->config.n_attention, sizeof(struct kv_view)),
    };
}

static struct step empty_step(const struct runner *r, const struct step_arrays *arrays) {
    return (struct step){.tokens = arrays->tokens,
                         .positions = arrays->positions,
                         .seqs = arrays->seqs,
                         .n_layers = r->model->config.n_attention};
}

static void arrays_free(struct step_arrays *arrays) {
    free(arrays->tokens);
    free(arrays->positions);
    free(arrays->seqs);
    free(arrays->views);
}

void runner_step(struct runner *r, const struct runner_rows *rows, uint32_t n_seqs,
                 const struct sample_row *samples, uint32_t n_samples,
                 struct sample_result *results, float *logits) {
    struct error err = {0};
    size_t n_rows = 0;
    for (uint32_t i = 0; i < n_seqs; i++) n_rows += rows[i].n;
    struct step_arrays arrays = arrays_make(r, n_rows, n_seqs);
    struct step step = empty_step(r, &arrays);
    step.n_seqs = n_seqs;
    for (uint32_t i = 0; i < n_seqs; i++) fill_seq(r, &rows[i], &step, &arrays, i);
    check(decoder_step(r->decoder, &step, samples, n_samples, results, NULL, logits, &err), &err);
    for (uint32_t i = 0; i < n_seqs; i++) {
        struct state_slots *state = &rows[i].seq->state;
        rows[i].seq->n_tokens += rows[i].n;
        *state = (struct state_slots){state->to, state->to ^ 1};
    }
    arrays_free(&arrays);
}

static void run_slice(struct runner *r, struct runner_seq *seq, const uint32_t *tokens,
                      const struct layer_slice *slice) {
    struct error err = {0};
    struct step_arrays arrays = arrays_make(r, slice->n_rows, 1);
    struct step step = empty_step(r, &arrays);
    seq->n_tokens = slice->first_row; /* they count as stored only when all layers have them */
    fill_seq(r, &(struct runner_rows){seq, tokens + slice->first_row, slice->n_rows}, &step,
             &arrays, 0);
    /* Later slices of a layer go on where the first one has left its state. */
    if (slice->first_row > 0) arrays.seqs[0].state.from = arrays.seqs[0].state.to;
    step.n_seqs = 1;
    step.n_decode = 0;
    check(decoder_submit_slice(r->decoder, &step, slice, NULL, 0, NULL, NULL, &err), &err);
    check(decoder_collect(r->decoder, 0, &err), &err);
    arrays_free(&arrays);
}

void runner_feed_long(struct runner *r, struct runner_seq *seq, const uint32_t *tokens, uint32_t n,
                      uint32_t rows, void (*between)(void *ctx), void *ctx) {
    const bool leaves = model_ends_recurrent(&r->model->config);
    assert_int_equal(seq->n_tokens, 0);
    for (uint32_t layer = 0; layer < r->model->config.n_attention + leaves; layer++)
        for (uint32_t at = 0; at < n; at += rows) {
            const uint32_t take = n - at < rows ? n - at : rows;
            run_slice(r, seq, tokens, &(struct layer_slice){layer, at, take, n, leaves});
            if (between) between(ctx);
        }
    seq->n_tokens = n;
    seq->state = (struct state_slots){seq->state.to, seq->state.to ^ 1};
}

struct sample_row runner_greedy(uint32_t logit_row) {
    return (struct sample_row){.logit_row = logit_row,
                               .kind = SAMPLE_DRAW,
                               .sampler = {.top_p = 1.0f, .repetition_penalty = 1.0f}};
}

uint32_t runner_feed(struct runner *r, struct runner_seq *seq, const uint32_t *tokens, uint32_t n,
                     uint32_t chunk, float *logits) {
    struct sample_result result = {0};
    for (uint32_t at = 0; at < n; at += chunk) {
        const uint32_t take = n - at < chunk ? n - at : chunk;
        const bool last = at + take == n;
        const struct runner_rows rows = {.seq = seq, .tokens = tokens + at, .n = take};
        const struct sample_row sample = runner_greedy(take - 1);
        runner_step(r, &rows, 1, &sample, last ? 1 : 0, &result, last ? logits : NULL);
    }
    assert_false(result.invalid);
    return result.token;
}
