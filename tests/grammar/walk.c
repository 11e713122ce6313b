/* walk.c - walks through grammars at random, as a model would that knows nothing: a tool for tests.
 *
 *   walk TOKENIZER N_TOKENS < requests > answers
 *
 * A request is a line of JSON: {"kind": "schema", "text": {…} or "…", "seed": 1, "n": 3}.  Its
 * answer is a line, too: {"error": "…"}, or {"texts": […], "unfinished": 0, "compile_ms": …,
 * "bytes": …, "masks": …, "mask_us": mean, "mask_us_99": …, "mask_us_max": …, "accept_us": mean}.
 *
 * Half of the tokens are drawn from those that may come, half from the short ones among them, so
 * that most texts end within N_TOKENS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/rng.h"
#include "engine/grammar/grammar.h"
#include "engine/grammar/schema.h"
#include "engine/tokenizer/tokenizer.h"

struct walker {
    struct tokenizer *tokenizer;
    struct grammar_vocab *vocab;
    uint32_t n_vocab, eos, n_tokens;
    uint32_t *mask, *choices, *ids; /* [n_ids] */
    size_t n_ids;
    uint64_t seed, n_drawn;
    double *times;
    size_t n_times, times_capacity;
    double accepting;
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double uniform(struct walker *w) {
    return rng_uniform(w->seed, (uint32_t)w->n_drawn++);
}

static void add_time(struct walker *w, double s) {
    if (w->n_times == w->times_capacity) {
        w->times_capacity = 2 * w->times_capacity + 1024;
        w->times = realloc(w->times, w->times_capacity * sizeof(*w->times));
        if (!w->times) abort();
    }
    w->times[w->n_times++] = s;
}

/* Returns a token that may come, or UINT32_MAX. */
static uint32_t choose(struct walker *w) {
    uint32_t n = 0, n_short = 0;
    const bool is_short = uniform(w) < 0.5;
    if (w->mask[w->eos / 32] >> w->eos % 32 & 1 && uniform(w) < 0.5) return w->eos;
    for (uint32_t i = 0; i < w->n_vocab; i++) {
        size_t bytes = 0;
        if (!(w->mask[i / 32] >> i % 32 & 1)) continue;
        tokenizer_token_bytes(w->tokenizer, i, &bytes);
        if (is_short && bytes < 3) {
            w->choices[n] = w->choices[n_short];
            w->choices[n_short++] = i;
            n++;
        } else {
            w->choices[n++] = i;
        }
    }
    if (n_short > 0) n = n_short;
    return n ? w->choices[(uint32_t)(uniform(w) * n)] : UINT32_MAX;
}

/* Walks once.  Returns 0; -1: it has not ended; -2: nothing could follow. */
static int walk(struct walker *w, struct grammar *grammar) {
    struct grammar_matcher *matcher = NULL;
    int result = -1;
    w->n_ids = 0;
    if (grammar_matcher_create(&matcher, grammar)) return -2;
    for (uint32_t i = 0; i < w->n_tokens; i++) {
        double at = seconds();
        const int code = grammar_matcher_mask(matcher, w->mask);
        add_time(w, seconds() - at);
        const uint32_t token = code ? UINT32_MAX : choose(w);
        at = seconds();
        if (token == UINT32_MAX || grammar_matcher_accept(matcher, token)) {
            result = -2;
            break;
        }
        w->accepting += seconds() - at;
        if (grammar_matcher_is_over(matcher)) {
            result = 0;
            break;
        }
        w->ids[w->n_ids++] = token;
    }
    grammar_matcher_destroy(matcher);
    return result;
}

static int by_time(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static json_t *report(struct walker *w, json_t *texts, int n_open, double compile_s, size_t bytes) {
    double sum = 0;
    qsort(w->times, w->n_times, sizeof(*w->times), by_time);
    for (size_t i = 0; i < w->n_times; i++) sum += w->times[i];
    const double n = w->n_times ? (double)w->n_times : 1;
    return json_pack("{s:o, s:i, s:f, s:I, s:I, s:f, s:f, s:f, s:f}", "texts", texts, "unfinished",
                     n_open, "compile_ms", compile_s * 1e3, "bytes", (json_int_t)bytes, "masks",
                     (json_int_t)w->n_times, "mask_us", sum / n * 1e6, "mask_us_99",
                     w->n_times ? w->times[w->n_times * 99 / 100] * 1e6 : 0.0, "mask_us_max",
                     w->n_times ? w->times[w->n_times - 1] * 1e6 : 0.0, "accept_us",
                     w->accepting / n * 1e6);
}

static json_t *refusal(const char *text) {
    return json_pack("{s:s}", "error", text);
}

static int compile(struct walker *w, const json_t *request, struct grammar **grammar,
                   struct error *err) {
    static const char *const kinds[] = {"json", "schema", "regex", "ebnf", "tags"};
    const char *kind = json_string_value(json_object_get(request, "kind"));
    const json_t *text = json_object_get(request, "text");
    char *dumped = NULL;
    int code = error_set(err, ERR_INVALID, "unknown kind");
    for (int i = 0; kind && i < 5; i++) {
        if (strcmp(kinds[i], kind) != 0) continue;
        json_t *schema = NULL;
        code = 0;
        if (i == GRAMMAR_JSON_SCHEMA) code = schema_prepare(&schema, text, err);
        if (!code) dumped = json_dumps(schema ? schema : text, JSON_COMPACT | JSON_ENCODE_ANY);
        json_decref(schema);
        const char *source = json_is_string(text) ? json_string_value(text) : dumped;
        if (!code)
            code = grammar_compile(grammar, w->vocab, (enum grammar_kind)i, source ? source : "",
                                   source ? strlen(source) : 0, NULL, err);
        json_arena_free(dumped);
    }
    return code;
}

/* Appends the text as a server would show it: what is no UTF-8 becomes U+FFFD. */
static void add_text(struct walker *w, json_t *texts) {
    char *text = NULL;
    size_t n = 0;
    if (tokenizer_decode(w->tokenizer, w->ids, w->n_ids, true, &text, &n, NULL)) abort();
    json_array_append_new(texts, json_stringn(text, n));
    free(text);
}

static json_t *answer(struct walker *w, const json_t *request) {
    struct grammar *grammar = NULL;
    struct error err = {0};
    const double began = seconds();
    if (compile(w, request, &grammar, &err)) return refusal(err.text);
    const double compiled = seconds() - began;
    const size_t bytes = grammar_bytes(grammar);
    json_t *texts = json_array();
    int n_open = 0;
    w->seed = (uint64_t)json_integer_value(json_object_get(request, "seed"));
    w->n_drawn = w->n_times = 0;
    w->accepting = 0;
    for (json_int_t i = json_integer_value(json_object_get(request, "n")); i > 0; i--) {
        const int n = walk(w, grammar);
        n_open += n == -1;
        if (n == -2) {
            json_decref(texts);
            grammar_unref(grammar);
            return refusal("no token may follow");
        }
        if (n == 0) add_text(w, texts);
    }
    grammar_unref(grammar);
    return report(w, texts, n_open, compiled, bytes);
}

int main(int argc, char **argv) {
    struct walker w = {0};
    struct error err = {0};
    if (argc != 3) return 2;
    w.n_tokens = (uint32_t)strtoul(argv[2], NULL, 10);
    if (tokenizer_load(&w.tokenizer, argv[1], &err)) goto fail;
    w.n_vocab = tokenizer_n_vocab(w.tokenizer);
    while (w.eos < w.n_vocab && !tokenizer_is_special(w.tokenizer, w.eos)) w.eos++;
    const double began = seconds();
    const struct grammar_tokens special = {.eos = &w.eos, .n_eos = 1};
    if (grammar_vocab_create(&w.vocab, w.tokenizer, w.n_vocab, &special, &err)) goto fail;
    fprintf(stderr, "%u tokens, prepared in %.0f ms\n", w.n_vocab, (seconds() - began) * 1e3);
    w.mask = calloc(grammar_mask_words(w.n_vocab), sizeof(*w.mask));
    w.choices = calloc(w.n_vocab, sizeof(*w.choices));
    w.ids = calloc(w.n_tokens + 1, sizeof(*w.ids));
    char *line = NULL;
    size_t capacity = 0;
    while (w.mask && w.choices && w.ids && getline(&line, &capacity, stdin) > 0) {
        json_t *request = json_loads(line, 0, NULL), *out = answer(&w, request);
        json_dumpf(out, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(request);
    }
    free(line);
    free(w.ids);
    free(w.mask);
    free(w.choices);
    free(w.times);
    grammar_vocab_destroy(w.vocab);
    tokenizer_destroy(w.tokenizer);
    return 0;

fail:
    fprintf(stderr, "%s\n", err.text);
    return 1;
}
