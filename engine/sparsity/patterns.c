/* patterns.c - see patterns.h. */
#include "engine/sparsity/patterns.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/sparsity/provenance.h"

enum { MAX_FILE_BYTES = 16 << 20, REFERENCE_PAGES = 100, N_ENTRY = 4 };

#define FORMAT "quire-patterns-1"

/* The published files' name of each kind, and what its numbers may be. */
static const struct kind {
    const char *name;
    uint32_t low1, high1, low2, high2;
} kinds[PATTERN_N_KINDS] = {
    [PATTERN_DENSE] = {"dense", 0, 0, 0, 0},
    [PATTERN_A_SHAPE] = {"stream_llm", 0, PATTERNS_MAX_TOKENS, 1, PATTERNS_MAX_TOKENS},
    [PATTERN_VERTICAL_SLASH] = {"vertical_and_slash", 0, SPARSE_MAX_COLUMNS, 0,
                                PATTERNS_MAX_TOKENS},
    [PATTERN_BLOCK_SPARSE] = {"block_sparse", 1, SPARSE_MAX_PAGES, 0, 0},
};

static const struct attn_pattern unnamed_head = {PATTERN_VERTICAL_SLASH, 1000, 6096};

struct pattern_reader {
    const char *label;
    struct patterns *out;
    bool published; /* the first form */
    struct error *err;
};

const char *pattern_kind_name(enum attn_pattern_kind kind) {
    return kinds[kind].name;
}

/* ---- break-evens ---- */

/* Returns the index of the backend's break-even, n_break_evens if there is none. */
static uint32_t find_backend(const struct patterns *p, const char *backend) {
    uint32_t i = 0;
    while (i < p->n_break_evens && strcmp(p->break_evens[i].backend, backend) != 0) i++;
    return i;
}

uint32_t patterns_min_sparse_tokens(const struct patterns *patterns, const char *backend) {
    const uint32_t i = find_backend(patterns, backend);
    return i < patterns->n_break_evens ? patterns->break_evens[i].n_tokens : 0;
}

int patterns_set_min_sparse_tokens(struct patterns *patterns, const char *backend,
                                   uint32_t n_tokens) {
    const uint32_t i = find_backend(patterns, backend);
    if (i == PATTERNS_MAX_BACKENDS || strlen(backend) > PATTERNS_MAX_NAME) return ERR_FULL;
    struct pattern_break_even *at = &patterns->break_evens[i];
    snprintf(at->backend, sizeof(at->backend), "%s", backend);
    at->n_tokens = n_tokens;
    if (i == patterns->n_break_evens) patterns->n_break_evens++;
    return 0;
}

void patterns_forget_min_sparse_tokens(struct patterns *patterns, const char *backend) {
    const uint32_t i = find_backend(patterns, backend);
    if (i >= patterns->n_break_evens) return;
    patterns->break_evens[i] = patterns->break_evens[--patterns->n_break_evens];
}

double patterns_loss(const struct patterns *patterns) {
    return patterns->sparse_perplexity - patterns->dense_perplexity;
}

/* ---- reading ---- */

static int refuse(const struct pattern_reader *r, uint32_t layer, const char *head,
                  const char *rule) {
    return error_set(r->err, ERR_INVALID, "%.200s: layer %" PRIu32 ", head %.32s: %s", r->label,
                     layer, head, rule);
}

/* Reads decimal digits without a leading zero: "1" and "01" would be one head with two patterns. */
static bool read_head_number(const char *key, uint32_t n_heads, uint32_t *out) {
    uint64_t number = 0;
    const size_t length = strlen(key);
    if (length == 0 || length > 9 || (key[0] == '0' && length > 1)) return false;
    for (const char *at = key; *at; at++) {
        if (*at < '0' || *at > '9') return false;
        number = 10 * number + (uint64_t)(*at - '0');
    }
    *out = (uint32_t)number;
    return number < n_heads;
}

static int read_kind(const struct pattern_reader *r, uint32_t layer, const char *head,
                     const json_t *value, enum attn_pattern_kind *out) {
    for (unsigned i = 0; json_is_string(value) && i < PATTERN_N_KINDS; i++) {
        if (!kinds[i].name || strcmp(json_string_value(value), kinds[i].name) != 0) continue;
        *out = (enum attn_pattern_kind)i;
        return 0;
    }
    return refuse(r, layer, head,
                  "the pattern is not vertical_and_slash, stream_llm, block_sparse or dense");
}

static int read_size(const struct pattern_reader *r, uint32_t layer, const char *head,
                     const json_t *entry, unsigned at, uint32_t low, uint32_t high, uint32_t *out) {
    char rule[96];
    const json_t *value = json_array_get(entry, at);
    const json_int_t x = json_integer_value(value);
    if (json_is_integer(value) && x >= low && x <= high) {
        *out = (uint32_t)x;
        return 0;
    }
    snprintf(rule, sizeof(rule), "p%u is not a whole number from %" PRIu32 " to %" PRIu32, at, low,
             high);
    return refuse(r, layer, head, rule);
}

static int read_entry(const struct pattern_reader *r, uint32_t layer, const char *head,
                      const json_t *entry, struct attn_pattern *out) {
    struct attn_pattern pattern = {0};
    int rc = read_kind(r, layer, head, json_array_get(entry, 0), &pattern.kind);
    if (rc) return rc;
    const struct kind *kind = &kinds[pattern.kind];
    const bool whatever = r->published && pattern.kind == PATTERN_BLOCK_SPARSE;
    if (whatever) pattern.p1 = REFERENCE_PAGES;
    if (kind->high1 && !whatever &&
        (rc = read_size(r, layer, head, entry, 1, kind->low1, kind->high1, &pattern.p1)))
        return rc;
    if (kind->high2 &&
        (rc = read_size(r, layer, head, entry, 2, kind->low2, kind->high2, &pattern.p2)))
        return rc;
    *out = pattern;
    return 0;
}

static int read_layer(const struct pattern_reader *r, uint32_t layer, json_t *object) {
    const uint32_t n_heads = r->out->n_heads;
    if (!json_is_object(object))
        return error_set(r->err, ERR_INVALID, "%.200s: layer %" PRIu32 " is not an object",
                         r->label, layer);
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const char *key = json_object_iter_key(at);
        const json_t *entry = json_object_iter_value(at);
        uint32_t head = 0;
        if (!read_head_number(key, n_heads, &head))
            return error_set(r->err, ERR_INVALID,
                             "%.200s: layer %" PRIu32 ", head %.32s: the model has heads 0 to "
                             "%" PRIu32,
                             r->label, layer, key, n_heads - 1);
        const size_t i = (size_t)layer * n_heads + head;
        const json_t *score = json_array_get(entry, N_ENTRY - 1);
        if (json_array_size(entry) != N_ENTRY || !json_is_number(score))
            return refuse(r, layer, key, "it is not a list of a pattern, two sizes and a score");
        const int rc = read_entry(r, layer, key, entry, &r->out->heads[i]);
        if (rc) return rc;
        r->out->scores[i] = json_number_value(score);
    }
    return 0;
}

static int read_layers(const struct pattern_reader *r, const json_t *layers) {
    if (!json_is_array(layers))
        return error_set(r->err, ERR_INVALID, "%.200s: 'layers' is not a list", r->label);
    if (json_array_size(layers) != r->out->n_layers)
        return error_set(r->err, ERR_INVALID,
                         "%.200s: patterns of %zu layers, the model has %" PRIu32, r->label,
                         json_array_size(layers), r->out->n_layers);
    for (uint32_t i = 0; i < r->out->n_layers; i++) {
        const int rc = read_layer(r, i, json_array_get(layers, i));
        if (rc) return rc;
    }
    return 0;
}

static int read_break_evens(const struct pattern_reader *r, json_t *object) {
    if (object && !json_is_object(object))
        return error_set(r->err, ERR_INVALID,
                         "%.200s: 'min_sparse_tokens' is not an object with backends", r->label);
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        const json_t *value = json_object_iter_value(at);
        const json_int_t n = json_integer_value(value);
        const char *backend = json_object_iter_key(at), *rule = "it is not a number of tokens";
        if (json_is_integer(value) && n > 0 && n <= UINT32_MAX) {
            if (!patterns_set_min_sparse_tokens(r->out, backend, (uint32_t)n)) continue;
            rule = "there are too many backends, or the name is too long";
        }
        return error_set(r->err, ERR_INVALID, "%.200s: 'min_sparse_tokens' of %.32s: %s", r->label,
                         backend, rule);
    }
    return 0;
}

/* Reads what the patterns lose; both numbers or none. */
static int read_perplexity(const struct pattern_reader *r, const json_t *object) {
    const double dense = json_number_value(json_object_get(object, "dense")),
                 sparse = json_number_value(json_object_get(object, "sparse"));
    if (!object) return 0;
    if (!(dense >= 1 && dense <= 1e9) || !(sparse >= 1 && sparse <= 1e9))
        return error_set(r->err, ERR_INVALID,
                         "%.200s: 'perplexity' needs the numbers 'dense' and 'sparse' of 1 to 1e9",
                         r->label);
    r->out->dense_perplexity = dense;
    r->out->sparse_perplexity = sparse;
    return 0;
}

static int read_wrapped(const struct pattern_reader *r, const json_t *root) {
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, FORMAT) != 0)
        return error_set(r->err, ERR_INVALID, "%.200s: 'format' is not " FORMAT, r->label);
    int rc = read_break_evens(r, json_object_get(root, "min_sparse_tokens"));
    if (!rc) rc = read_perplexity(r, json_object_get(root, "perplexity"));
    return rc ? rc : read_layers(r, json_object_get(root, "layers"));
}

static int read_root(struct patterns *out, const json_t *root, const char *label, uint32_t n_layers,
                     uint32_t n_heads, struct error *err) {
    struct patterns patterns = {0};
    int rc = patterns_default(&patterns, n_layers, n_heads, err);
    if (rc) return rc;
    const struct pattern_reader r = {label, &patterns, json_is_array(root), err};
    rc = r.published ? read_layers(&r, root) : read_wrapped(&r, root);
    if (rc) {
        patterns_fini(&patterns);
        return rc;
    }
    *out = patterns;
    return 0;
}

int patterns_parse(struct patterns *out, const char *bytes, size_t size, const char *label,
                   uint32_t n_layers, uint32_t n_heads, struct error *err) {
    json_t *root = NULL;
    int rc = json_guard_parse_any(&root, bytes, size, 0, label, err);
    if (!rc) rc = read_root(out, root, label, n_layers, n_heads, err);
    json_decref(root);
    return rc;
}

int patterns_load(struct patterns *out, const char *path, uint32_t n_layers, uint32_t n_heads,
                  struct error *err) {
    json_t *root = NULL;
    int rc = json_guard_read_any(&root, path, MAX_FILE_BYTES, err);
    if (!rc) rc = read_root(out, root, path, n_layers, n_heads, err);
    json_decref(root);
    return rc;
}

int patterns_default(struct patterns *out, uint32_t n_layers, uint32_t n_heads, struct error *err) {
    const size_t n = (size_t)n_layers * n_heads;
    struct patterns patterns = {.n_layers = n_layers, .n_heads = n_heads};
    patterns.heads = calloc(n, sizeof(*patterns.heads));
    patterns.scores = calloc(n, sizeof(*patterns.scores));
    if (!patterns.heads || !patterns.scores) {
        patterns_fini(&patterns);
        return error_set(err, ERR_NOMEM, "no memory for the patterns of %zu heads", n);
    }
    for (size_t i = 0; i < n; i++) patterns.heads[i] = unnamed_head;
    *out = patterns;
    return 0;
}

void patterns_fini(struct patterns *patterns) {
    free(patterns->heads);
    free(patterns->scores);
    *patterns = (struct patterns){0};
}

/* ---- writing ---- */

static json_t *layer_to_json(const struct patterns *p, uint32_t layer) {
    json_t *object = json_object();
    for (uint32_t head = 0; head < p->n_heads; head++) {
        char key[16];
        const size_t i = (size_t)layer * p->n_heads + head;
        const struct attn_pattern *pattern = &p->heads[i];
        snprintf(key, sizeof(key), "%" PRIu32, head);
        json_object_set_new(
            object, key,
            json_pack("[s, I, I, f]", kinds[pattern->kind].name, (json_int_t)pattern->p1,
                      (json_int_t)pattern->p2, p->scores[i]));
    }
    return object;
}

static json_t *break_evens_to_json(const struct patterns *p) {
    json_t *object = json_object();
    for (uint32_t i = 0; i < p->n_break_evens; i++)
        json_object_set_new(object, p->break_evens[i].backend,
                            json_integer(p->break_evens[i].n_tokens));
    return object;
}

/* Writes the value and frees it.  It lacks members if there was no memory for them. */
static int write_whole(FILE *file, json_t *value, uint32_t n_members, size_t flags) {
    const int failed = json_object_size(value) != n_members || json_dumpf(value, file, flags) != 0;
    json_decref(value);
    return failed;
}

/* Writes a line for each layer, as a person would; jansson puts all on one, or each number on its
 * own. */
static int write_members(FILE *file, const void *ctx) {
    const struct patterns *p = ctx;
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(6);
    int failed = fputs("\"min_sparse_tokens\": ", file) < 0;
    failed |= write_whole(file, break_evens_to_json(p), p->n_break_evens, 0);
    if (p->dense_perplexity > 0)
        failed |= fprintf(file, ",\n\"perplexity\": {\"dense\": %.4f, \"sparse\": %.4f}",
                          p->dense_perplexity, p->sparse_perplexity) < 0;
    failed |= fputs(",\n\"layers\": [", file) < 0;
    for (uint32_t i = 0; i < p->n_layers && !failed; i++) {
        failed |= fputs(i ? ",\n" : "\n", file) < 0;
        failed |= write_whole(file, layer_to_json(p, i), p->n_heads, flags);
    }
    failed |= fputs("\n]", file) < 0;
    return failed ? ERR_IO : 0;
}

int patterns_save(const struct patterns *patterns, const struct provenance_note *notes,
                  size_t n_notes, const char *path, struct error *err) {
    return provenance_save(path, FORMAT, notes, n_notes, write_members, patterns, err);
}
