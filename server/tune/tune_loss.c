/* tune_loss.c - measures what the chosen patterns lose: the perplexity of held-out text, read
 * densely and sparsely through an engine.  Densely it is read once, whatever patterns follow.
 *
 *   window   0 … FIRST_ROW │ rows that count │ tail
 *
 * Patterns leave nothing out of a short beginning, and the rows of the tail are dense.
 *
 * Thread: main.  Memory: the log-probabilities of a window. */
#include "server/tune/tune_job.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "server/bench/timed_engine.h"
#include "server/settings/options.h"

enum { N_WINDOWS = 3, TAIL = 256, SHORTEST = 256 };

struct reading {
    float *logprobs;               /* [longest] */
    uint32_t n_tokens, first, end; /* rows that count: [first, end) */
};

/* Returns the text that the loss is measured by, or NULL. */
static const char *text_of(const struct tune *t) {
    return t->held_out ? t->held_out : t->prose;
}

/* Encodes the text, as far as the windows need it.  ids: the caller frees them. */
static int encode(struct tune *t, struct token_list *ids, struct error *err) {
    const char *text = text_of(t);
    size_t n = strlen(text);
    const size_t enough = (size_t)N_WINDOWS * t->longest * 8; /* bytes: more than a token has */
    if (n > enough) {
        n = enough;
        while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--; /* a whole character */
    }
    return tokenizer_encode(t->tokenizer, text, n, false, 0, ids, err);
}

/* Reads t->prompt and returns its mean negative log-likelihood in *nll. */
static int read_window(struct tune *t, struct timed_engine *timed, const struct reading *r,
                       enum prefill_mode mode, double *nll, struct timing *timing,
                       struct error *err) {
    const struct timed_batch batch = {
        .tokens = t->prompt.ids,
        .n_prompt = r->n_tokens,
        .n_sequences = 1,
        .n_generate = 1,
        .prefill = {.mode = mode, .dense_tail = (uint32_t)t->options->dense_tail},
        .scores = r->logprobs};
    double sum = 0;
    const int rc = timed_engine_run(timed, &batch, timing, err);
    for (uint32_t i = r->first; !rc && i < r->end; i++) sum -= (double)r->logprobs[i];
    *nll = sum / (r->end - r->first);
    return rc;
}

/* Makes t->prompt of window i: what begins a text, and the text from there on. */
static int take_window(struct tune *t, const struct token_list *ids, uint32_t i, uint32_t n,
                       struct error *err) {
    const struct token_list *prefix = tokenizer_prefix(t->tokenizer);
    const size_t n_text = n - min_u64(prefix->n, n), step = (ids->n - n_text) / N_WINDOWS;
    uint32_t *room = realloc(t->prompt.ids, n * sizeof(*room));
    if (!room) return error_set(err, ERR_NOMEM, "tune: no memory for a prompt");
    memcpy(room, prefix->ids, (n - n_text) * sizeof(*room));
    memcpy(room + (n - n_text), ids->ids + i * step, n_text * sizeof(*room));
    t->prompt = (struct token_list){room, n, n};
    return 0;
}

static int read_windows(struct tune *t, struct timed_engine *timed, const struct token_list *ids,
                        const struct reading *r, struct error *err) {
    struct tune_loss *loss = &t->loss;
    const bool is_first = loss->n_tokens == 0;
    double dense = 0, sparse = 0;
    loss->density = 0;
    for (uint32_t i = 0; i < N_WINDOWS; i++) {
        struct timing timing = {0};
        double nll = 0;
        int rc = take_window(t, ids, i, r->n_tokens, err);
        if (!rc && is_first) {
            rc = read_window(t, timed, r, PREFILL_DENSE, &nll, &timing, err);
            dense += nll / N_WINDOWS;
            loss->dense_s = timing.total_seconds;
        }
        if (!rc) rc = read_window(t, timed, r, PREFILL_SPARSE, &nll, &timing, err);
        if (rc) return rc;
        sparse += nll / N_WINDOWS;
        loss->pair_s = loss->dense_s + timing.total_seconds;
        loss->density += timing.prefill.density / N_WINDOWS;
        progress_add(&t->progress, tune_loss_work(t) / N_WINDOWS, "held-out text");
    }
    loss->n_tokens = r->n_tokens;
    if (is_first) loss->dense = exp(dense);
    t->patterns.dense_perplexity = loss->dense;
    t->patterns.sparse_perplexity = exp(sparse);
    return 0;
}

double tune_loss_work(const struct tune *t) {
    return text_of(t) && t->tokenizer ? 2.0 * N_WINDOWS * t->model.n_attention : 0;
}

/* Opens the engine and reads the windows with it. */
static int read_all(struct tune *t, const struct token_list *ids, const struct reading *r,
                    struct error *err) {
    struct timed_engine timed;
    int rc = tune_open_engine(t, &timed, err);
    if (rc) return rc;
    rc = read_windows(t, &timed, ids, r, err);
    timed_engine_close(&timed);
    return rc;
}

int tune_measure_loss(struct tune *t, struct error *err) {
    struct token_list ids = {0};
    struct reading r = {.n_tokens = min_u32(t->longest, t->top)};
    t->loss.is_known = true;
    if (tune_is_all_dense(t))
        t->patterns.dense_perplexity = t->patterns.sparse_perplexity = t->loss.dense;
    if (tune_loss_work(t) == 0 || tune_is_all_dense(t)) return 0;
    r.first = min_u32(r.n_tokens / 4, 512);
    r.end = r.n_tokens - min_u32(TAIL, r.n_tokens / 4);
    int rc = encode(t, &ids, err);
    if (!rc && r.n_tokens >= SHORTEST && ids.n > r.n_tokens) {
        r.logprobs = calloc(r.n_tokens, sizeof(*r.logprobs));
        rc = r.logprobs ? read_all(t, &ids, &r, err)
                        : error_set(err, ERR_NOMEM, "tune: no memory for log-probabilities");
    }
    free(ids.ids);
    free(r.logprobs);
    return rc;
}

/* Returns why there is no figure; NULL: there is one. */
static const char *why_not(const struct tune *t) {
    if (tune_is_all_dense(t)) return "nothing is left out, because every head is dense";
    if (!t->loss.is_known) return "not measured: the search has not come so far";
    if (t->patterns.dense_perplexity > 0) return NULL;
    return "not measured: there is no held-out text of this length (--text)";
}

void tune_describe_loss(struct buffer *out, const struct tune *t) {
    const struct patterns *p = &t->patterns;
    const char *why = why_not(t);
    if (why) {
        buffer_puts(out, why);
        return;
    }
    buffer_printf(
        out,
        "perplexity of %d windows of %" PRIu32
        " tokens: %.2f dense, %.2f with these patterns (%+.2f) at a density of %.2f; auto "
        "takes patterns that lose %.1f at most",
        N_WINDOWS, t->loss.n_tokens, p->dense_perplexity, p->sparse_perplexity,
        p->sparse_perplexity - p->dense_perplexity, t->loss.density, PATTERNS_MOST_LOSS);
}
