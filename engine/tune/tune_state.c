/* tune_state.c - see tune_state.h. */
#include "engine/tune/tune_state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/device/sparse.h"
#include "engine/sparsity/patterns.h"

#define FORMAT "quire-tune-1"

enum { MAX_RUNGS = 4 * TUNE_MAX_RUNGS, MAX_LINE = 16 << 20 };

struct known_rung {
    uint64_t patterns;
    struct tune_rung rung;
};

struct tune_state {
    FILE *file;
    char *path;
    struct known_rung rungs[MAX_RUNGS];
    uint32_t n_rungs;
};

/* ---- reading ---- */

static bool read_seconds(const json_t *line, const char *name, double *out) {
    const json_t *value = json_object_get(line, name);
    *out = json_number_value(value);
    return json_is_number(value) && *out > 0;
}

static bool read_index(const json_t *line, const char *name, uint32_t n, uint32_t *out) {
    const json_t *value = json_object_get(line, name);
    const json_int_t x = json_integer_value(value);
    *out = (uint32_t)x;
    return json_is_integer(value) && x >= 0 && x < n;
}

static bool read_doubles(const json_t *array, uint32_t n, double *out) {
    if (json_array_size(array) != n) return false;
    for (uint32_t i = 0; i < n; i++) {
        if (!json_is_number(json_array_get(array, i))) return false;
        out[i] = json_number_value(json_array_get(array, i));
    }
    return true;
}

static bool read_table(const json_t *rows, const struct tune_results *r, float *out) {
    if (json_array_size(rows) != r->n_candidates) return false;
    for (uint32_t c = 0; c < r->n_candidates; c++) {
        const json_t *row = json_array_get(rows, c);
        if (json_array_size(row) != r->n_heads) return false;
        for (uint32_t h = 0; h < r->n_heads; h++) {
            const json_t *value = json_array_get(row, h);
            if (!json_is_number(value)) return false;
            out[(size_t)c * r->n_heads + h] = (float)json_number_value(value);
        }
    }
    return true;
}

/* Returns the largest p1 that the index supports for a kind of pattern. */
static uint32_t most_of(enum attn_pattern_kind kind) {
    return kind == PATTERN_VERTICAL_SLASH ? SPARSE_MAX_COLUMNS
           : kind == PATTERN_BLOCK_SPARSE ? SPARSE_MAX_PAGES
                                          : PATTERNS_MAX_TOKENS;
}

static bool read_number(const json_t *rows, uint32_t row, uint32_t column, uint32_t most,
                        uint32_t *out) {
    const json_t *value = json_array_get(json_array_get(rows, row), column);
    const json_int_t x = json_integer_value(value);
    *out = (uint32_t)x;
    return json_is_integer(value) && x >= 0 && x <= most;
}

/* Reads the sizes of a layer's candidates; both are 0 for a candidate that does not fit. */
static bool read_fitted(const json_t *line, struct tune_results *r) {
    const json_t *p1 = json_object_get(line, "p1"), *p2 = json_object_get(line, "p2");
    uint32_t layer;
    if (!read_index(line, "fitted", r->n_layers, &layer) || r->fitted[layer]) return false;
    for (uint32_t c = 0; c < r->n_candidates; c++)
        for (uint32_t h = 0; h < r->n_heads; h++) {
            struct attn_pattern *p = &tune_results_patterns(r, layer, c)[h];
            if (!read_number(p1, c, h, most_of(p->kind), &p->p1)) return false;
            if (!read_number(p2, c, h, PATTERNS_MAX_TOKENS, &p->p2)) return false;
        }
    for (uint32_t i = 0; i < r->n_candidates * r->n_heads; i++) {
        struct attn_pattern *p = &tune_results_patterns(r, layer, 0)[i];
        if (p->p1 == 0 && p->p2 == 0) p->kind = PATTERN_DENSE;
    }
    return r->fitted[layer] = true;
}

static bool read_layer(const json_t *line, struct tune_results *r) {
    uint32_t sample, layer;
    if (!read_index(line, "sample", r->n_samples, &sample)) return false;
    if (!read_index(line, "layer", r->n_layers, &layer) || !r->fitted[layer]) return false;
    struct tune_layer *at = tune_results_at(r, sample, layer);
    at->done =
        read_seconds(line, "dense_s", &at->dense_s) &&
        read_doubles(json_object_get(line, "index_s"), r->n_candidates, at->index_s) &&
        read_doubles(json_object_get(line, "attention_s"), r->n_candidates, at->attention_s) &&
        read_table(json_object_get(line, "recall"), r, at->recall) &&
        read_table(json_object_get(line, "density"), r, at->density);
    return at->done;
}

static bool read_similarity(const json_t *line, struct tune_results *r) {
    const json_t *rows = json_object_get(line, "similarity");
    uint32_t sample;
    if (!read_index(line, "compared", r->n_samples, &sample)) return false;
    if (json_array_size(rows) != r->n_layers) return false;
    double *at = tune_results_similarity(r, sample);
    for (uint32_t l = 0; l < r->n_layers; l++)
        if (!read_doubles(json_array_get(rows, l), r->n_layers, at + (size_t)l * r->n_layers))
            return false;
    return r->compared[sample] = true;
}

static bool read_rung(const json_t *line, struct tune_state *state) {
    const char *patterns = json_string_value(json_object_get(line, "patterns"));
    struct known_rung known;
    char *end;
    if (!patterns || state->n_rungs == MAX_RUNGS) return false;
    known.patterns = strtoull(patterns, &end, 16);
    if (*end || !read_index(line, "n_tokens", UINT32_MAX, &known.rung.n_tokens)) return false;
    if (!read_seconds(line, "dense_s", &known.rung.dense_s)) return false;
    if (!read_seconds(line, "sparse_s", &known.rung.sparse_s)) return false;
    state->rungs[state->n_rungs++] = known;
    return true;
}

static bool read_result(const char *text, size_t length, struct tune_state *state,
                        struct tune_results *results) {
    json_t *line = json_loadb(text, length, 0, NULL);
    bool good;
    if (json_object_get(line, "sample")) good = read_layer(line, results);
    else if (json_object_get(line, "compared")) good = read_similarity(line, results);
    else if (json_object_get(line, "fitted")) good = read_fitted(line, results);
    else good = read_rung(line, state);
    json_decref(line);
    return good;
}

static bool has_settings(const char *text, size_t length, const char *settings) {
    json_t *line = json_loadb(text, length, 0, NULL);
    const char *format = json_string_value(json_object_get(line, "format"));
    const char *found = json_string_value(json_object_get(line, "settings"));
    const bool same =
        format && found && strcmp(format, FORMAT) == 0 && strcmp(found, settings) == 0;
    json_decref(line);
    return same;
}

/* Reads whole lines until the end or the first invalid one, and truncates the file there. */
static int read_lines(struct tune_state *state, const char *settings, struct tune_results *results,
                      bool *is_new, struct error *err) {
    char *text = NULL;
    size_t size = 0;
    ssize_t length;
    off_t good = 0;
    int rc = 0;
    while (!rc && (length = getline(&text, &size, state->file)) > 0) {
        if (text[length - 1] != '\n' || length > MAX_LINE) break;
        if (good == 0 && !has_settings(text, (size_t)length, settings))
            rc = error_set(err, ERR_INVALID,
                           "%.200s belongs to another search (other settings, model, device or "
                           "version): remove it, or name another file with --state",
                           state->path);
        else if (good > 0 && !read_result(text, (size_t)length, state, results)) break;
        good += length;
    }
    free(text);
    *is_new = good == 0;
    if (!rc && (fseeko(state->file, good, SEEK_SET) || ftruncate(fileno(state->file), good)))
        rc = error_set(err, ERR_IO, "%.200s: %s", state->path, strerror(errno));
    return rc;
}

/* ---- writing ---- */

/* Writes the line and takes ownership of it; it is NULL if there was no memory for it. */
static int write_line(struct tune_state *state, json_t *line, struct error *err) {
    if (!line) return error_set(err, ERR_NOMEM, "tune: no memory for a line of the state");
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(9);
    const int failed = json_dumpf(line, state->file, flags) || fputc('\n', state->file) == EOF ||
                       fflush(state->file);
    json_decref(line);
    return failed ? error_set(err, ERR_IO, "%.200s: %s", state->path, strerror(errno)) : 0;
}

static json_t *doubles_to_json(const double *values, uint32_t n) {
    json_t *array = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(array, json_real(values[i]));
    return array;
}

static json_t *table_to_json(const float *values, const struct tune_results *r) {
    json_t *rows = json_array();
    for (uint32_t c = 0; c < r->n_candidates; c++) {
        json_t *row = json_array();
        for (uint32_t h = 0; h < r->n_heads; h++)
            json_array_append_new(row, json_real((double)values[(size_t)c * r->n_heads + h]));
        json_array_append_new(rows, row);
    }
    return rows;
}

int tune_state_add_layer(struct tune_state *state, const struct tune_results *results,
                         uint32_t sample, uint32_t layer, struct error *err) {
    const struct tune_layer *at = tune_results_at(results, sample, layer);
    json_t *line = json_pack("{s:I, s:I, s:f, s:o, s:o, s:o, s:o}", "sample", (json_int_t)sample,
                             "layer", (json_int_t)layer, "dense_s", at->dense_s, "index_s",
                             doubles_to_json(at->index_s, results->n_candidates), "attention_s",
                             doubles_to_json(at->attention_s, results->n_candidates), "recall",
                             table_to_json(at->recall, results), "density",
                             table_to_json(at->density, results));
    return write_line(state, line, err);
}

static json_t *sizes_to_json(const struct tune_results *r, uint32_t layer, bool second) {
    json_t *rows = json_array();
    for (uint32_t c = 0; c < r->n_candidates; c++) {
        const struct attn_pattern *heads = tune_results_patterns(r, layer, c);
        json_t *row = json_array();
        for (uint32_t h = 0; h < r->n_heads; h++)
            json_array_append_new(row, json_integer(second ? heads[h].p2 : heads[h].p1));
        json_array_append_new(rows, row);
    }
    return rows;
}

int tune_state_add_fitted(struct tune_state *state, const struct tune_results *results,
                          uint32_t layer, struct error *err) {
    json_t *line =
        json_pack("{s:I, s:o, s:o}", "fitted", (json_int_t)layer, "p1",
                  sizes_to_json(results, layer, false), "p2", sizes_to_json(results, layer, true));
    return write_line(state, line, err);
}

int tune_state_add_similarity(struct tune_state *state, const struct tune_results *results,
                              uint32_t sample, struct error *err) {
    const uint32_t n_layers = results->n_layers;
    const double *at = tune_results_similarity(results, sample);
    json_t *rows = json_array();
    for (uint32_t l = 0; l < n_layers; l++)
        json_array_append_new(rows, doubles_to_json(at + (size_t)l * n_layers, n_layers));
    return write_line(
        state, json_pack("{s:I, s:o}", "compared", (json_int_t)sample, "similarity", rows), err);
}

int tune_state_add_rung(struct tune_state *state, uint64_t patterns, const struct tune_rung *rung,
                        struct error *err) {
    char hash[32];
    snprintf(hash, sizeof(hash), "%016" PRIx64, patterns);
    if (state->n_rungs < MAX_RUNGS)
        state->rungs[state->n_rungs++] = (struct known_rung){patterns, *rung};
    return write_line(
        state,
        json_pack("{s:s, s:I, s:f, s:f}", "patterns", hash, "n_tokens", (json_int_t)rung->n_tokens,
                  "dense_s", rung->dense_s, "sparse_s", rung->sparse_s),
        err);
}

bool tune_state_find_rung(const struct tune_state *state, uint64_t patterns, uint32_t n_tokens,
                          struct tune_rung *out) {
    for (uint32_t i = 0; i < state->n_rungs; i++) {
        const struct known_rung *known = &state->rungs[i];
        if (known->patterns != patterns || known->rung.n_tokens != n_tokens) continue;
        *out = known->rung;
        return true;
    }
    return false;
}

/* ---- the file ---- */

static int open_file(struct tune_state *state, const char *path, struct error *err) {
    state->path = strdup(path);
    if (!state->path) return error_set(err, ERR_NOMEM, "tune: no memory");
    int fd;
    const int rc = file_open(&fd, path, O_RDWR | O_CREAT, err);
    if (rc) return rc;
    state->file = fdopen(fd, "r+");
    if (state->file) return 0;
    close(fd);
    return error_set(err, ERR_NOMEM, "tune: no memory");
}

int tune_state_open(struct tune_state **out, const char *path, const char *settings,
                    struct tune_results *results, struct error *err) {
    struct tune_state *state = calloc(1, sizeof(*state));
    bool is_new = false;
    if (!state) return error_set(err, ERR_NOMEM, "tune: no memory");
    int rc = open_file(state, path, err);
    if (!rc) rc = read_lines(state, settings, results, &is_new, err);
    if (!rc && is_new)
        rc =
            write_line(state, json_pack("{s:s, s:s}", "format", FORMAT, "settings", settings), err);
    if (rc) tune_state_close(state);
    else *out = state;
    return rc;
}

void tune_state_close(struct tune_state *state) {
    if (!state) return;
    if (state->file) fclose(state->file);
    free(state->path);
    free(state);
}
