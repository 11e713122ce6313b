/* openapi.c - see openapi.h. */
#include "server/openapi.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

#include "server/api/request_fields.h"
#include "server/json/buffer.h"
#include "server/routes.h"
#include "server/settings/build_info.h"
#include "server/settings/kv_policy.h"
#include "server/settings/prefill_rules.h"

/* The schemas of answers.json, without the braces around them: written by embed_answers.py. */
extern const char openapi_answers[];

static void write_string(struct buffer *out, const char *text) {
    buffer_json_string(out, text, strlen(text));
}

/* ---- types ---- */

static void write_bounds(const struct request_field *field, struct buffer *out) {
    if (field->low >= field->high) return;
    buffer_printf(out, ",\"minimum\":%.12g,\"maximum\":%.12g", field->low, field->high);
}

/* Writes one type: a word, and a pair of brackets for each array that it is in; "[+]" is an array
 * that is not empty, "string+" a string that is not, and 'word' a string that may be nothing
 * else. */
static void write_type(const struct request_field *field, const char *type, size_t n,
                       struct buffer *out) {
    if (n > 3 && memcmp(type + n - 3, "[+]", 3) == 0) {
        buffer_puts(out, "{\"type\":\"array\",\"minItems\":1,\"items\":");
        write_type(field, type, n - 3, out);
    } else if (n > 2 && memcmp(type + n - 2, "[]", 2) == 0) {
        buffer_puts(out, "{\"type\":\"array\",\"items\":");
        write_type(field, type, n - 2, out);
    } else if (*type == '\'') {
        buffer_printf(out, "{\"const\":\"%.*s\"", (int)n - 2, type + 1);
    } else if (type[n - 1] == '+') {
        buffer_printf(out, "{\"type\":\"%.*s\",\"minLength\":1", (int)n - 1, type);
    } else if (*type == '@') {
        buffer_printf(out, "{\"$ref\":\"#/components/schemas/%.*s\"", (int)n - 1, type + 1);
    } else {
        buffer_printf(out, "{\"type\":\"%.*s\"", (int)n, type);
        if (strncmp(type, "integer", n) == 0 || strncmp(type, "number", n) == 0)
            write_bounds(field, out);
    }
    buffer_puts(out, "}");
}

static void write_types(const struct request_field *field, struct buffer *out) {
    for (const char *type = field->type; *type;) {
        const size_t n = strcspn(type, "|");
        if (type != field->type) buffer_puts(out, ",");
        write_type(field, type, n, out);
        type += n + (type[n] == '|');
    }
}

/* Writes the values by which a refused member asks for nothing. */
static void write_nothing(const struct request_field *field, struct buffer *out) {
    buffer_puts(out, ":{\"anyOf\":[{\"enum\":[false,null,\"\"");
    if (field->high > 0) buffer_printf(out, ",%.12g", field->low);
    buffer_puts(out, "]},{\"type\":\"array\",\"maxItems\":0},"
                     "{\"type\":\"object\",\"maxProperties\":0}]");
}

/* Writes the schema of a member, which may also be null unless it is required. */
static void write_field(const struct request_field *field, bool is_required, struct buffer *out) {
    write_string(out, field->name);
    if (strcmp(field->type, "refused") == 0) {
        write_nothing(field, out);
    } else {
        buffer_puts(out, ":{\"anyOf\":[");
        write_types(field, out);
        buffer_puts(out, is_required ? "]" : ",{\"type\":\"null\"}]");
    }
    buffer_puts(out, ",\"description\":");
    write_string(out, field->about);
    buffer_puts(out, "}");
}

static bool has_field(const struct request_table *table, const char *name) {
    for (size_t i = 0; i < table->n; i++)
        if (strcmp(table->fields[i].name, name) == 0) return true;
    return false;
}

/* Tells whether a later table has a member of the same name, whose description then counts. */
static bool is_replaced(const struct request_table *const *tables, const char *name) {
    for (tables++; *tables; tables++)
        if (has_field(*tables, name)) return true;
    return false;
}

/* Tells whether a member is among the required ones: NULL, or up to ROUTE_MAX_REQUIRED names. */
static bool is_listed(const char *const *required, const char *name) {
    for (size_t i = 0; required && i < ROUTE_MAX_REQUIRED && required[i]; i++)
        if (strcmp(required[i], name) == 0) return true;
    return false;
}

static void write_properties(const struct request_table *const *tables, const char *const *required,
                             struct buffer *out) {
    bool first = true;
    buffer_puts(out, "\"properties\":{");
    for (; *tables; tables++) {
        for (size_t i = 0; i < (*tables)->n; i++) {
            const struct request_field *field = &(*tables)->fields[i];
            if (is_replaced(tables, field->name)) continue;
            if (!first) buffer_puts(out, ",");
            first = false;
            write_field(field, is_listed(required, field->name), out);
        }
    }
    buffer_puts(out, "}");
}

/* ---- routes ---- */

static void write_body(const struct route *route, struct buffer *out) {
    buffer_puts(out, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{"
                     "\"schema\":{\"type\":\"object\",");
    write_properties(route->tables, route->required, out);
    buffer_puts(out, ",\"required\":[");
    for (size_t i = 0; i < ROUTE_MAX_REQUIRED && route->required[i]; i++) {
        if (i) buffer_puts(out, ",");
        write_string(out, route->required[i]);
    }
    buffer_puts(out, "]}}}}");
}

/* Writes "TYPE":{"schema":{...}}, a part of a content. */
static void write_content(const char *type, const char *schema, struct buffer *out) {
    buffer_printf(out, "\"%s\":{", type);
    if (schema) buffer_printf(out, "\"schema\":{\"$ref\":\"#/components/schemas/%s\"}", schema);
    buffer_puts(out, "}");
}

static void write_answers(const struct route *route, struct buffer *out) {
    buffer_puts(out, ",\"responses\":{\"200\":{\"description\":");
    write_string(out, route->about);
    buffer_puts(out, ",\"content\":{");
    write_content(route->content ? route->content : "application/json", route->answer, out);
    if (route->event) {
        buffer_puts(out, ",");
        write_content("text/event-stream", route->event, out);
    }
    buffer_puts(out, "}},\"default\":{\"description\":\"An error\",\"content\":{");
    /* Routes with a shape of their own have it under their names, as those of events. */
    write_content("application/json",
                  route->write_error == messages_write_error ? "messages_error" : "error", out);
    buffer_puts(out, "}}}");
}

/* Writes a name of its own for the method and path, in the letters of identifiers:
 * post_v1_chat_completions. */
static void write_operation(const char *method, const char *path, struct buffer *out) {
    buffer_printf(out, "\"operationId\":\"%s", method);
    bool is_apart = false;
    for (; *path; path++) {
        const bool is_letter = isalnum((unsigned char)*path) || *path == '_';
        if (is_letter && !is_apart) buffer_puts(out, "_");
        if (is_letter) buffer_append(out, path, 1);
        is_apart = is_letter;
    }
    buffer_puts(out, "\"");
}

static void write_argument(const struct request_field *field, struct buffer *out) {
    buffer_puts(out, ",{\"in\":\"query\",\"name\":");
    write_string(out, field->name);
    buffer_puts(out, ",\"description\":");
    write_string(out, field->about);
    buffer_puts(out, ",\"schema\":{\"anyOf\":[");
    write_types(field, out);
    buffer_puts(out, "]}}");
}

/* Writes the parameter that stands in braces in the path, and those of the query. */
static void write_parameters(const struct route *route, struct buffer *out) {
    const char *name = strchr(route->shown, '{') + 1;
    buffer_printf(out,
                  ",\"parameters\":[{\"name\":\"%.*s\",\"in\":\"path\",\"required\":true,"
                  "\"schema\":{\"type\":\"string\"}}",
                  (int)strcspn(name, "}"), name);
    for (size_t i = 0; route->arguments && i < route->arguments->n; i++)
        write_argument(&route->arguments->fields[i], out);
    buffer_puts(out, "]");
}

static const char *path_of(const struct route *route) {
    return route->shown ? route->shown : route->path;
}

/* Writes what a method does on a path. */
static void write_route(const struct route *route, struct buffer *out) {
    const char *path = path_of(route);
    char method[8] = "";
    for (size_t i = 0; route->method[i] && i < sizeof(method) - 1; i++)
        method[i] = (char)tolower((unsigned char)route->method[i]);
    buffer_printf(out, "\"%s\":{", method);
    write_operation(method, path, out);
    buffer_puts(out, ",\"summary\":");
    write_string(out, route->about);
    if (route->shown) write_parameters(route, out);
    if (route->tables) write_body(route, out);
    write_answers(route, out);
    if (route->open) buffer_puts(out, ",\"security\":[]");
    buffer_puts(out, "}");
}

/* Writes the paths, of which some have several methods. */
static void write_paths(const struct route *routes, size_t n, struct buffer *out) {
    for (size_t i = 0; i < n; i++) {
        const bool same = i > 0 && strcmp(path_of(&routes[i]), path_of(&routes[i - 1])) == 0;
        if (i > 0) buffer_puts(out, same ? "," : "},");
        if (!same) write_string(out, path_of(&routes[i]));
        if (!same) buffer_puts(out, ":{");
        write_route(&routes[i], out);
    }
    buffer_puts(out, "}");
}

void openapi_write(const struct route *routes, size_t n, struct buffer *out) {
    static const struct request_table *const stream_options[] = {&request_stream_options, NULL};
    buffer_puts(out, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"quire\",\"version\":");
    write_string(out, build_info.version);
    buffer_puts(out, "},\"security\":[{},{\"bearer\":[]},{\"x-api-key\":[]}],\"paths\":{");
    write_paths(routes, n, out);
    buffer_puts(out,
                "},\"components\":{\"securitySchemes\":{"
                "\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"},"
                "\"x-api-key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"x-api-key\"}},"
                "\"schemas\":{\"stream_options\":{\"type\":\"object\",");
    write_properties(stream_options, NULL, out);
    buffer_puts(out, "},\"kv_policy\":");
    kv_policy_write_schema(out);
    buffer_puts(out, ",\"prefill\":");
    prefill_rules_write_schema(out);
    buffer_printf(out, ",%s}}}", openapi_answers);
}
