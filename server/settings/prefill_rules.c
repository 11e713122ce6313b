/* prefill_rules.c - see prefill_rules.h. */
#include "server/settings/prefill_rules.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/sparsity/patterns.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"

#define PREFIX "prefill."
#define PATTERN PREFIX "pattern."

static const char *const mode_names[] = {
    [PREFILL_AUTO] = "auto", [PREFILL_DENSE] = "dense", [PREFILL_SPARSE] = "sparse"};
enum { N_MODES = sizeof(mode_names) / sizeof(*mode_names) };

/* A pattern's number: its name as errors give it, and its bounds; name NULL: there is none. */
struct size {
    const char *name;
    uint32_t low, high, initial;
};

static const struct pattern_type {
    const char *name;
    struct size p1, p2;
} types[PATTERN_N_KINDS] = {
    [PATTERN_DENSE] = {.name = "dense"},
    [PATTERN_A_SHAPE] = {"a_shape",
                         {PATTERN "sink", 0, PATTERNS_MAX_TOKENS, 1024},
                         {PATTERN "recent", 1, PATTERNS_MAX_TOKENS, 4096}},
    [PATTERN_VERTICAL_SLASH] = {"vertical_slash",
                                {PATTERN "columns", 0, SPARSE_MAX_COLUMNS, 1000},
                                {PATTERN "diagonals", 0, PATTERNS_MAX_TOKENS, 6096}},
    [PATTERN_BLOCK_SPARSE] = {"block_sparse",
                              {PATTERN "pages", 1, SPARSE_MAX_PAGES, 100},
                              {NULL, 0, 0, 0}},
    [PATTERN_FILTERS] = {"filters",
                         {PATTERN "selected", 1, PATTERNS_MAX_TOKENS, 4096},
                         {PATTERN "chunk", SPARSE_HALF, PATTERNS_MAX_TOKENS, 2048}},
};

const char *prefill_mode_name(enum prefill_mode mode) {
    return mode_names[mode];
}

const char *prefill_pattern_name(enum attn_pattern_kind kind) {
    return types[kind].name;
}

static int refuse(struct api_error *err, const char *param, const char *rule) {
    return api_error_set(err, 400, NULL, param, "%s %s", param, rule);
}

static int read_mode(enum prefill_mode *out, const json_t *value, const char *param,
                     struct api_error *err) {
    for (unsigned i = 0; json_is_string(value) && i < N_MODES; i++) {
        if (strcmp(json_string_value(value), mode_names[i]) != 0) continue;
        *out = (enum prefill_mode)i;
        return 0;
    }
    return refuse(err, param, "must be auto, dense or sparse");
}

static int read_size(uint32_t *out, const struct size *size, const json_t *pattern,
                     struct api_error *err) {
    *out = size->initial;
    if (!size->name) return 0;
    const json_t *value = json_object_get(pattern, size->name + strlen(PATTERN));
    const json_int_t x = json_integer_value(value);
    if (!value || json_is_null(value)) return 0;
    if (!json_is_integer(value) || x < size->low || x > size->high)
        return api_error_set(err, 400, NULL, size->name,
                             "%s must be a whole number from %" PRIu32 " to %" PRIu32, size->name,
                             size->low, size->high);
    *out = (uint32_t)x;
    return 0;
}

static int read_type(enum attn_pattern_kind *out, const json_t *value, struct api_error *err) {
    for (unsigned i = PATTERN_A_SHAPE; json_is_string(value) && i < PATTERN_N_KINDS; i++) {
        if (strcmp(json_string_value(value), types[i].name) != 0) continue;
        *out = (enum attn_pattern_kind)i;
        return 0;
    }
    return refuse(err, PATTERN "type", "must be a_shape, vertical_slash, block_sparse or filters");
}

static bool has_member(const struct pattern_type *type, const char *key) {
    const struct size *const sizes[] = {&type->p1, &type->p2};
    for (size_t i = 0; i < 2; i++)
        if (sizes[i]->name && strcmp(sizes[i]->name + strlen(PATTERN), key) == 0) return true;
    return strcmp(key, "type") == 0;
}

static int read_pattern(struct attn_pattern *out, json_t *value, struct api_error *err) {
    if (!json_is_object(value)) return refuse(err, PREFIX "pattern", "must be an object");
    struct attn_pattern pattern = {0};
    int rc = read_type(&pattern.kind, json_object_get(value, "type"), err);
    if (rc) return rc;
    const struct pattern_type *type = &types[pattern.kind];
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        if (has_member(type, json_object_iter_key(at))) continue;
        return api_error_set(err, 400, NULL, PREFIX "pattern",
                             PATTERN "%.64s is not a parameter of %s", json_object_iter_key(at),
                             type->name);
    }
    rc = read_size(&pattern.p1, &type->p1, value, err);
    if (!rc) rc = read_size(&pattern.p2, &type->p2, value, err);
    if (!rc) *out = pattern;
    return rc;
}

static int read_reuse(bool *no_reuse, const json_t *value, enum prefill_mode mode,
                      struct api_error *err) {
    if (!value || json_is_null(value)) return 0;
    if (!json_is_boolean(value)) return refuse(err, PREFIX "reuse", "must be true or false");
    if (mode == PREFILL_DENSE)
        return refuse(err, PREFIX "reuse",
                      "needs the mode sparse or auto: a dense prompt does not depend on reuse");
    *no_reuse = json_is_false(value);
    return 0;
}

static bool is_known(const char *key) {
    static const char *const members[] = {"mode", "pattern", "reuse"};
    for (size_t i = 0; i < sizeof(members) / sizeof(*members); i++)
        if (strcmp(key, members[i]) == 0) return true;
    return false;
}

static int copy_to_heads(struct prefill_request *out, const struct attn_pattern *pattern,
                         uint32_t n_heads, struct api_error *err) {
    out->patterns = calloc(n_heads, sizeof(*out->patterns));
    if (!out->patterns) return api_error_no_memory(err);
    for (uint32_t i = 0; i < n_heads; i++) out->patterns[i] = *pattern;
    return 0;
}

static int read_object(struct prefill_request *out, json_t *value,
                       const struct prefill_rules *rules, struct api_error *err) {
    struct attn_pattern pattern;
    json_t *given = json_object_get(value, "pattern");
    int rc = read_mode(&out->mode, json_object_get(value, "mode"), PREFIX "mode", err);
    if (rc) return rc;
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
        const char *key = json_object_iter_key(at);
        if (is_known(key)) continue;
        return api_error_set(err, 400, NULL, "prefill", PREFIX "%.64s is not known", key);
    }
    rc = read_reuse(&out->no_reuse, json_object_get(value, "reuse"), out->mode, err);
    if (rc) return rc;
    if (!given || json_is_null(given)) return 0;
    if (out->mode != PREFILL_SPARSE) return refuse(err, PREFIX "pattern", "needs the mode sparse");
    rc = read_pattern(&pattern, given, err);
    if (rc || !rules->sparse) return rc;
    return copy_to_heads(out, &pattern, rules->n_heads, err);
}

int prefill_rules_read(struct prefill_request *out, const json_t *value,
                       const struct prefill_rules *rules, struct api_error *err) {
    struct prefill_request request = {.named = true};
    int rc = 0;
    if (json_is_object(value)) {
        rc = read_object(&request, (json_t *)value, rules, err);
    } else {
        rc = read_mode(&request.mode, value, "prefill", err);
    }
    if (!rc && request.mode == PREFILL_SPARSE && !rules->sparse)
        rc = api_error_set(
            err, 400, "unsupported", "prefill", "prefill sparse: %s",
            rules->why_dense ? rules->why_dense : "this server computes prompts densely only");
    if (!rc) *out = request;
    else prefill_request_fini(&request);
    return rc;
}

void prefill_request_fini(struct prefill_request *request) {
    free(request->patterns);
    *request = (struct prefill_request){0};
}

struct prefill_choice prefill_rules_resolve(const struct prefill_rules *rules,
                                            const struct prefill_request *request,
                                            const struct dense_rule *dense) {
    struct prefill_choice choice = {.mode = request->named ? request->mode : rules->initial,
                                    .patterns = request->patterns,
                                    .dense_tail = rules->dense_tail,
                                    .synthetic = rules->synthetic,
                                    .no_reuse = request->no_reuse};
    choice.why_dense = prefill_why_dense(dense, choice.mode);
    if (!choice.why_dense && !rules->sparse) choice.why_dense = DENSE_UNAVAILABLE;
    if (choice.why_dense) choice.mode = PREFILL_DENSE;
    if (choice.mode == PREFILL_SPARSE && !choice.patterns) choice.patterns = rules->fallback;
    return choice;
}

static void write_name(struct buffer *out, const char *name) {
    if (name) buffer_json_string(out, name, strlen(name));
    else buffer_puts(out, "null");
}

void prefill_rules_write(const struct prefill_rules *rules, struct buffer *out) {
    const bool chooses = rules->sparse && rules->pattern_file;
    buffer_printf(out, "\"prefill\":{\"mode\":\"%s\",\"modes\":[\"auto\",\"dense\"%s]",
                  rules->sparse ? mode_names[rules->initial] : mode_names[PREFILL_DENSE],
                  rules->sparse ? ",\"sparse\"" : "");
    buffer_puts(out, ",\"pattern_file\":");
    write_name(out, rules->pattern_file);
    buffer_puts(out, ",\"min_sparse_tokens\":");
    if (chooses) {
        buffer_printf(out, "%" PRIu32, rules->min_sparse_tokens);
    } else {
        buffer_puts(out, "null");
    }
    buffer_puts(out, ",\"measured_on\":");
    write_name(out, chooses ? rules->measured_on : NULL);
    buffer_printf(out, ",\"dense_tail\":%" PRIu32 "}", rules->dense_tail);
}

/* ---- the schema ---- */

static void write_sizes(const struct pattern_type *type, struct buffer *out) {
    const struct size *const sizes[] = {&type->p1, &type->p2};
    for (size_t i = 0; i < 2; i++) {
        if (!sizes[i]->name) continue;
        buffer_printf(out,
                      ",\"%s\":{\"type\":[\"integer\",\"null\"],\"minimum\":%u,\"maximum\":%u}",
                      sizes[i]->name + strlen(PATTERN), sizes[i]->low, sizes[i]->high);
    }
}

void prefill_rules_write_schema(struct buffer *out) {
    buffer_puts(out, "{\"anyOf\":[{\"enum\":[");
    for (unsigned i = 0; i < N_MODES; i++)
        buffer_printf(out, i ? ",\"%s\"" : "\"%s\"", mode_names[i]);
    buffer_puts(out, "]},{\"type\":\"object\",\"additionalProperties\":false,"
                     "\"required\":[\"mode\"],\"properties\":{\"mode\":{\"enum\":[");
    for (unsigned i = 0; i < N_MODES; i++)
        buffer_printf(out, i ? ",\"%s\"" : "\"%s\"", mode_names[i]);
    buffer_puts(out, "]},\"reuse\":{\"type\":[\"boolean\",\"null\"]},"
                     "\"pattern\":{\"anyOf\":[{\"type\":\"null\"}");
    for (unsigned i = PATTERN_A_SHAPE; i < PATTERN_N_KINDS; i++) {
        buffer_printf(out,
                      ",{\"type\":\"object\",\"additionalProperties\":false,"
                      "\"required\":[\"type\"],\"properties\":{\"type\":{\"enum\":[\"%s\"]}",
                      types[i].name);
        write_sizes(&types[i], out);
        buffer_puts(out, "}}");
    }
    buffer_puts(out, "]}}}]}");
}
