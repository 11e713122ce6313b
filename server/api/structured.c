/* structured.c - see structured.h. */
#include "server/api/structured.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/grammar/grammar_cache.h"
#include "engine/grammar/schema.h"
#include "server/api/completion_request.h"
#include "server/api/request_fields.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/json/json_guard.h"

void request_structured_fini(struct request_structured *structured) {
    free(structured->text);
    *structured = (struct request_structured){0};
}

/* ---- setting the text ---- */

/* Sets the text; only one member of a request may.  Another one may say the same: clients send the
 * older and the newer name of a member, so that any server knows one of them. */
static int set_text(struct completion_request *q, const char *param, enum grammar_kind kind,
                    const char *text, size_t n, struct api_error *err) {
    struct request_structured *s = &q->structured;
    if (s->param && s->kind == kind && s->n_text == n && memcmp(s->text, text, n) == 0) return 0;
    if (s->param)
        return api_error_set(err, 400, NULL, param,
                             "%s: only one member may say what the answer must be, and %s does",
                             param, s->param);
    char *copy = malloc(n + 1);
    if (!copy) return api_error_no_memory(err);
    memcpy(copy, text, n);
    copy[n] = 0;
    *s = (struct request_structured){
        .param = param,
        .kind = kind,
        .text = copy,
        .n_text = n,
        .is_json = kind == GRAMMAR_JSON || kind == GRAMMAR_JSON_SCHEMA,
    };
    return 0;
}

static int set_string(struct request_reading *r, const char *param, const char *what,
                      enum grammar_kind kind, const json_t *value, size_t max) {
    const size_t n = json_string_length(value);
    if (!json_is_string(value) || n == 0 || n > max)
        return api_error_set(r->err, 400, NULL, param, "%s: %s must be a string of 1 to %zu bytes",
                             param, what, max);
    if (strlen(json_string_value(value)) != n)
        return api_error_set(r->err, 400, NULL, param, "%s: %s must not hold a NUL", param, what);
    return set_text(r->request, param, kind, json_string_value(value), n, r->err);
}

/* Sets a text that is JSON. */
static int set_json(struct completion_request *q, const char *param, enum grammar_kind kind,
                    const json_t *value, size_t max, struct api_error *err) {
    struct buffer text = {0};
    buffer_json_value(&text, value);
    int rc = text.failed ? api_error_no_memory(err) : 0;
    if (!rc && text.length > max)
        rc = api_error_set(err, 400, NULL, param, "%s: the schema has more than %zu bytes", param,
                           max);
    if (!rc) rc = set_text(q, param, kind, text.data, text.length, err);
    buffer_fini(&text);
    return rc;
}

/* Reads a schema: an object, true, or a string that holds one. */
static int set_schema(struct request_reading *r, const char *param, const json_t *value) {
    struct error why = {0};
    json_t *parsed = NULL, *schema = NULL;
    if (json_is_string(value)) {
        struct json_span none;
        if (json_guard_load(&parsed, json_string_value(value), json_string_length(value), NULL,
                            &none, &why))
            return api_error_set(r->err, 400, NULL, param, "%s: the string is no schema: %.200s",
                                 param, why.text);
    }
    int rc = schema_prepare(&schema, parsed ? parsed : value, &why);
    if (rc) {
        json_decref(parsed);
        if (rc == ERR_NOMEM) return api_error_no_memory(r->err);
        return api_error_set(r->err, 400, NULL, param, "%s: %.600s", param, why.text);
    }
    rc = set_json(r->request, param, GRAMMAR_JSON_SCHEMA, schema, STRUCTURED_MAX_SCHEMA_BYTES,
                  r->err);
    json_decref(schema);
    json_decref(parsed);
    return rc;
}

/* ---- formats ---- */

enum { MAX_TAG_BYTES = 4 * STRUCTURED_MAX_SCHEMA_BYTES };

/* Takes the format.  NULL is allowed: NULL. */
static json_t *make_tag(json_t *format) {
    return format ? json_pack("{s:s, s:o}", "type", "structural_tag", "format", format) : NULL;
}

int structured_set_format(struct completion_request *q, const char *param, json_t *format,
                          struct api_error *err) {
    json_t *tag = make_tag(format);
    if (!tag) return api_error_no_memory(err);
    request_structured_fini(&q->structured);
    const int rc = set_json(q, param, GRAMMAR_TAGS, tag, MAX_TAG_BYTES, err);
    json_decref(tag);
    return rc;
}

json_t *structured_format(const struct request_structured *s) {
    json_error_t wrong;
    json_t *value = NULL;
    switch (s->kind) {
    case GRAMMAR_JSON:
        return json_pack("{s:s, s:{s:s, s:b}}", "type", "json_schema", "json_schema", "type",
                         "object", "additionalProperties", true);
    case GRAMMAR_JSON_SCHEMA:
        json_arena_load(&value, s->text, s->n_text, JSON_DECODE_ANY, &wrong);
        return value ? json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", value) : NULL;
    case GRAMMAR_REGEX: return json_pack("{s:s, s:s}", "type", "regex", "pattern", s->text);
    case GRAMMAR_EBNF: return json_pack("{s:s, s:s}", "type", "grammar", "grammar", s->text);
    case GRAMMAR_TAGS: break;
    }
    json_arena_load(&value, s->text, s->n_text, 0, &wrong);
    json_t *format = json_incref(json_object_get(value, "format"));
    json_decref(value);
    return format;
}

static int set_choices(struct request_reading *r, const char *param, const json_t *value) {
    const size_t n = json_array_size(value);
    size_t bytes = 0;
    if (n == 0 || n > STRUCTURED_MAX_CHOICES)
        return api_error_set(r->err, 400, NULL, param,
                             "%s: choice must be an array of 1 to %d strings", param,
                             STRUCTURED_MAX_CHOICES);
    json_t *elements = json_array();
    bool failed = !elements;
    for (size_t i = 0; i < n; i++) {
        const json_t *choice = json_array_get(value, i);
        bytes += json_string_length(choice);
        if (json_string_length(choice) == 0 || bytes > STRUCTURED_MAX_GRAMMAR_BYTES) {
            json_decref(elements);
            return api_error_set(r->err, 400, NULL, param,
                                 "%s: choice must be an array of strings that are not empty, with "
                                 "at most %d bytes together",
                                 param, STRUCTURED_MAX_GRAMMAR_BYTES);
        }
        json_t *format = json_pack("{s:s, s:O}", "type", "const_string", "value", choice);
        failed |= json_array_append_new(elements, format) < 0;
    }
    if (failed) {
        json_decref(elements);
        return api_error_no_memory(r->err);
    }
    json_t *tag = make_tag(json_pack("{s:s, s:o}", "type", "or", "elements", elements));
    if (!tag) return api_error_no_memory(r->err);
    const int rc = set_json(r->request, param, GRAMMAR_TAGS, tag, MAX_TAG_BYTES, r->err);
    json_decref(tag);
    return rc;
}

/* Sets a grammar, as far as it is told from one of another language. */
static int set_grammar(struct request_reading *r, const char *param, const json_t *value) {
    if (json_string_length(value) > 0 && !strstr(json_string_value(value), "::="))
        return api_error_set(r->err, 400, NULL, param,
                             "%s: grammar must be EBNF with rules such as root ::= \"a\": other "
                             "languages, as Lark, are not read",
                             param);
    return set_string(r, param, "grammar", GRAMMAR_EBNF, value, STRUCTURED_MAX_GRAMMAR_BYTES);
}

/* ---- ways ---- */

int structured_read_way(struct request_reading *r, const char *param, const char *way,
                        const json_t *value) {
    if (strcmp(way, "json") == 0) return set_schema(r, param, value);
    if (strcmp(way, "choice") == 0) return set_choices(r, param, value);
    if (strcmp(way, "regex") == 0)
        return set_string(r, param, way, GRAMMAR_REGEX, value, STRUCTURED_MAX_REGEX_BYTES);
    if (strcmp(way, "grammar") == 0) return set_grammar(r, param, value);
    if (strcmp(way, "json_object") == 0 && json_is_true(value))
        return set_text(r->request, param, GRAMMAR_JSON, "", 0, r->err);
    if (strcmp(way, "json_object") == 0 && json_is_false(value)) return 0;
    /* They ask for what is done in any case, or for nothing. */
    if (strcmp(way, "disable_any_whitespace") == 0 || strcmp(way, "disable_fallback") == 0 ||
        strcmp(way, "disable_additional_properties") == 0)
        return json_is_boolean(value) ? 0
                                      : api_error_set(r->err, 400, NULL, param,
                                                      "%s.%s must be true or false", param, way);
    return api_error_set(r->err, 400, "unsupported", param, "%s.%.64s is not supported", param,
                         way);
}

/* ---- compiling ---- */

int structured_find(struct completion_request *q, struct grammar_cache *cache, bool *found,
                    struct api_error *err) {
    const struct request_structured *s = &q->structured;
    *found = true;
    if (!s->param) return 0;
    if (!cache)
        return api_error_set(err, 400, "unsupported", s->param,
                             "%s: this server cannot constrain answers: %s", s->param,
                             grammar_is_available() ? "the model has no end token"
                                                    : "it was built without xgrammar");
    q->params.grammar = grammar_cache_find(cache, s->kind, s->text, s->n_text);
    *found = q->params.grammar != NULL;
    return 0;
}

int structured_compile(struct completion_request *q, struct grammar_cache *cache,
                       const struct grammar_trial *trial, struct api_error *err) {
    const struct request_structured *s = &q->structured;
    struct error why = {0};
    const int rc =
        grammar_cache_get(cache, &q->params.grammar, s->kind, s->text, s->n_text, trial, &why);
    if (!rc || rc == ERR_FULL) return rc;
    if (why.code == ERR_NOMEM) return api_error_no_memory(err);
    if (why.code == ERR_STOPPED)
        return api_error_set(err, 503, NULL, NULL,
                             "the request ended before its form was compiled");
    return api_error_set(err, 400, NULL, s->param, "%s: %.600s", s->param, why.text);
}
