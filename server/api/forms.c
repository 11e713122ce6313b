/* forms.c - see forms.h. */
#include "server/api/forms.h"

#include <stdbool.h>
#include <string.h>

#include "server/api/completion_request.h"
#include "server/api/request_fields.h"
#include "server/api/structured.h"
#include "server/json/api_error.h"
#include "server/json/json_value.h"

static bool is_empty_text(const json_t *value) {
    return json_is_string(value) && json_string_length(value) == 0;
}

/* ---- formats ---- */

/* The types of a format.  Its value is in one of the members, or in `json_schema.schema`. */
static const struct format_type {
    const char *type;
    const char *way;     /* of structured_read_way(); NULL: answers are free */
    const char *without; /* the way if there is no value; NULL: there must be one */
    const char *members[4];
} format_types[] = {
    {"text", NULL, NULL, {0}},
    {"json_object", "json", "json_object", {"schema", "value"}},
    {"json", "json", "json_object", {"schema", "value"}},
    {"json_schema", "json", NULL, {"json_schema", "schema", "value"}},
    {"regex", "regex", NULL, {"regex", "pattern", "value"}},
    {"grammar", "grammar", NULL, {"grammar", "value"}},
    {"ebnf", "grammar", NULL, {"ebnf", "grammar", "value"}},
    {"choice", "choice", NULL, {"choice", "value"}},
};

static const struct format_type *type_named(const char *name) {
    for (size_t i = 0; i < sizeof(format_types) / sizeof(*format_types); i++)
        if (strcmp(name, format_types[i].type) == 0) return &format_types[i];
    return NULL;
}

/* Members of a format that hold what its answers are.  One that its type does not read would be
 * left out. */
static const char *const value_members[] = {"json_schema", "schema", "value",   "regex",
                                            "pattern",     "ebnf",   "grammar", "choice"};

static bool reads(const struct format_type *type, const char *member) {
    for (size_t i = 0; i < 4 && type->members[i]; i++)
        if (strcmp(type->members[i], member) == 0) return true;
    return false;
}

/* Finds the one value of a format. */
static int find_value(struct request_reading *r, const char *param, const struct format_type *type,
                      const json_t *format, const json_t **out) {
    const char *found = NULL;
    for (size_t i = 0; i < sizeof(value_members) / sizeof(*value_members); i++) {
        const char *member = value_members[i];
        const json_t *value = json_object_get(format, member);
        if (!json_is_given(value)) continue;
        if (!reads(type, member))
            return api_error_set(r->err, 400, "unsupported", param,
                                 "%s.%s is not supported with the type %s", param, member,
                                 type->type);
        if (found)
            return api_error_set(r->err, 400, NULL, param, "%s: only one of %s and %s may be given",
                                 param, found, member);
        found = member;
        *out = value;
    }
    if (!found || strcmp(found, "json_schema") != 0) return 0;
    *out = json_object_get(*out, "schema");
    return *out ? 0 : api_error_set(r->err, 400, NULL, param, "%s needs json_schema.schema", param);
}

/* Reads an object with a type. */
static int read_format(struct request_reading *r, const char *param, const json_t *format) {
    const char *name = json_string_value(json_object_get(format, "type"));
    if (!name)
        return api_error_set(r->err, 400, NULL, param, "%s must be an object with a type", param);
    const struct format_type *type = type_named(name);
    const json_t *value = NULL;
    if (!type)
        return api_error_set(r->err, 400, "unsupported", param,
                             "%s.type must be text, json_object, json_schema, regex, grammar or "
                             "choice",
                             param);
    const int rc = find_value(r, param, type, format, &value);
    if (rc || !type->way) return rc;
    if (value) return structured_read_way(r, param, type->way, value);
    if (type->without) return structured_read_way(r, param, type->without, json_true());
    return api_error_set(
        r->err, 400, NULL, param, "%s needs %s", param,
        strcmp(type->type, "json_schema") == 0 ? "json_schema.schema" : type->members[0]);
}

/* Reads the format of what the assistant says, as OpenAI and Anthropic have it: tools may be called
 * in its place. */
static int read_said_format(struct request_reading *r, const char *param, const json_t *format) {
    const int rc = read_format(r, param, format);
    if (!rc && r->request->structured.param == param) r->request->structured.allows_calls = true;
    return rc;
}

static int read_response_format(struct request_reading *r, const struct request_field *field,
                                const json_t *value) {
    return read_said_format(r, field->name, value);
}

/* Reads the member `format` of an object that has others besides. */
static int read_inner_format(struct request_reading *r, const struct request_field *field,
                             const json_t *value) {
    const json_t *format = json_object_get(value, "format");
    if (!json_is_object(value)) return request_refuse(r, field, "must be an object");
    if (!json_is_given(format)) return 0;
    if (json_is_string(json_object_get(format, "type")))
        return read_said_format(r, field->name, format);
    return api_error_set(r->err, 400, NULL, field->name, "%s.format must be an object with a type",
                         field->name);
}

/* ---- other servers' names ---- */

/* Reads a schema, or an object that names one: {"name": …, "schema": …}. */
static int read_schema(struct request_reading *r, const struct request_field *field,
                       const json_t *value) {
    const json_t *named = json_object_get(value, "schema");
    if (is_empty_text(value)) return 0;
    return structured_read_way(r, field->name, "json",
                               named && json_object_get(value, "name") ? named : value);
}

static int read_text_way(struct request_reading *r, const struct request_field *field,
                         const json_t *value, const char *way) {
    if (is_empty_text(value)) return 0;
    if (!json_is_string(value)) return request_refuse(r, field, "must be a string");
    return structured_read_way(r, field->name, way, value);
}

static int read_regex(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    return read_text_way(r, field, value, "regex");
}

static int read_ebnf(struct request_reading *r, const struct request_field *field,
                     const json_t *value) {
    return read_text_way(r, field, value, "grammar");
}

/* Reads a grammar: its text, or an object with a type. */
static int read_grammar(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    return json_is_object(value) ? read_format(r, field->name, value) : read_ebnf(r, field, value);
}

/* Reads the word json, a schema, or an object with the type of a format. */
static int read_any_format(struct request_reading *r, const struct request_field *field,
                           const json_t *value) {
    const char *word = json_string_value(value),
               *type = json_string_value(json_object_get(value, "type"));
    if (is_empty_text(value) || (word && strcmp(word, "text") == 0)) return 0;
    if (word && strcmp(word, "json") == 0)
        return structured_read_way(r, field->name, "json_object", json_true());
    if (!json_is_object(value)) return request_refuse(r, field, "must be \"json\" or a schema");
    if (type && type_named(type)) return read_format(r, field->name, value);
    return structured_read_way(r, field->name, "json", value);
}

/* ---- vLLM's ---- */

static int read_outputs(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    const char *way;
    json_t *what;
    if (!json_is_object(value)) return request_refuse(r, field, "must be an object");
    json_object_foreach((json_t *)value, way, what) {
        const int rc = json_is_null(what) ? 0 : structured_read_way(r, field->name, way, what);
        if (rc) return rc;
    }
    return 0;
}

static int read_guided(struct request_reading *r, const struct request_field *field,
                       const json_t *value) {
    return structured_read_way(r, field->name, field->name + strlen("guided_"), value);
}

static const struct request_field fields[] = {
    {"response_format", "object", read_response_format, 0, 0, 0,
     "text, json_object, json_schema, regex, grammar or choice."},
    {"structured_outputs", "object", read_outputs, 0, 0, 0,
     "json, regex, choice, grammar: the form of the answer."},
    {"guided_json", "object|string", read_guided, 0, 0, 0, "As structured_outputs.json."},
    {"guided_regex", "string", read_guided, 0, 0, 0, "As structured_outputs.regex."},
    {"guided_choice", "string[+]", read_guided, 0, 0, 0, "As structured_outputs.choice."},
    {"guided_grammar", "string", read_guided, 0, 0, 0, "As structured_outputs.grammar."},
    {"guided_json_object", "boolean", read_guided, 0, 0, 0, "As structured_outputs.json_object."},
    {"guided_whitespace_pattern", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"structural_tag", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"json_schema", "object|string", read_schema, 0, 0, 0,
     "As structured_outputs.json; llama.cpp and SGLang."},
    {"grammar", "string|object", read_grammar, 0, 0, 0,
     "As structured_outputs.grammar (llama.cpp), or an object with a type (TGI)."},
    {"grammar_lazy", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"grammar_triggers", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"regex", "string", read_regex, 0, 0, 0, "As structured_outputs.regex; SGLang."},
    {"ebnf", "string", read_ebnf, 0, 0, 0, "As structured_outputs.grammar; SGLang."},
    {"format", "'json'|object", read_any_format, 0, 0, 0, "json, or a schema; Ollama."},
    {"output_format", "object", read_response_format, 0, 0, 0, "As response_format; Anthropic."},
    {"output_config", "object", read_inner_format, 0, 0, 0,
     "format as response_format; Anthropic."},
    {"text", "object", read_inner_format, 0, 0, 0,
     "format as response_format, of OpenAI's responses; verbosity is ignored."},
};

const struct request_table request_forms = REQUEST_TABLE(fields);
