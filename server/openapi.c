/* openapi.c - see openapi.h. */
#include "server/openapi.h"

#include <stdbool.h>
#include <string.h>

#include "server/api/request_fields.h"
#include "server/json/buffer.h"
#include "server/routes.h"
#include "server/settings/build_info.h"
#include "server/settings/kv_policy.h"
#include "server/settings/prefill_rules.h"

static void write_string(struct buffer *out, const char *text) {
    buffer_json_string(out, text, strlen(text));
}

/* ---- types ---- */

static void write_bounds(const struct request_field *field, struct buffer *out) {
    if (field->low >= field->high) return;
    buffer_printf(out, ",\"minimum\":%.12g,\"maximum\":%.12g", field->low, field->high);
}

/* Writes one type: a word, and a pair of brackets for each array that it is in. */
static void write_type(const struct request_field *field, const char *type, size_t n,
                       struct buffer *out) {
    if (n > 2 && memcmp(type + n - 2, "[]", 2) == 0) {
        buffer_puts(out, "{\"type\":\"array\",\"items\":");
        write_type(field, type, n - 2, out);
    } else if (*type == '@') {
        buffer_printf(out, "{\"$ref\":\"#/components/schemas/%.*s\"", (int)n - 1, type + 1);
    } else {
        buffer_printf(out, "{\"type\":\"%.*s\"", (int)n, type);
        if (strncmp(type, "integer", n) == 0 || strncmp(type, "number", n) == 0)
            write_bounds(field, out);
    }
    buffer_puts(out, "}");
}

/* Writes the values by which a refused member asks for nothing. */
static void write_nothing(const struct request_field *field, struct buffer *out) {
    buffer_puts(out, ":{\"anyOf\":[{\"enum\":[false,null,\"\"");
    if (field->high > 0) buffer_printf(out, ",%.12g", field->low);
    buffer_puts(out, "]},{\"type\":\"array\",\"maxItems\":0},"
                     "{\"type\":\"object\",\"maxProperties\":0}]");
}

/* Writes the schema of a member, which may also be null. */
static void write_field(const struct request_field *field, struct buffer *out) {
    write_string(out, field->name);
    if (strcmp(field->type, "refused") == 0) {
        write_nothing(field, out);
    } else {
        buffer_puts(out, ":{\"anyOf\":[");
        for (const char *type = field->type; *type;) {
            const size_t n = strcspn(type, "|");
            write_type(field, type, n, out);
            buffer_puts(out, ",");
            type += n + (type[n] == '|');
        }
        buffer_puts(out, "{\"type\":\"null\"}]");
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

static void write_properties(const struct request_table *const *tables, struct buffer *out) {
    bool first = true;
    buffer_puts(out, "\"properties\":{");
    for (; *tables; tables++) {
        for (size_t i = 0; i < (*tables)->n; i++) {
            const struct request_field *field = &(*tables)->fields[i];
            if (is_replaced(tables, field->name)) continue;
            if (!first) buffer_puts(out, ",");
            first = false;
            write_field(field, out);
        }
    }
    buffer_puts(out, "}");
}

/* ---- routes ---- */

static void write_body(const struct route *route, struct buffer *out) {
    buffer_puts(out, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{"
                     "\"schema\":{\"type\":\"object\",");
    write_properties(route->tables, out);
    buffer_puts(out, ",\"required\":[");
    for (size_t i = 0; i < ROUTE_MAX_REQUIRED && route->required[i]; i++) {
        if (i) buffer_puts(out, ",");
        write_string(out, route->required[i]);
    }
    buffer_puts(out, "]}}}}");
}

static void write_answers(const struct route *route, struct buffer *out) {
    buffer_puts(out, ",\"responses\":{\"200\":{\"description\":");
    write_string(out, route->about);
    buffer_printf(out, ",\"content\":{\"%s\":{}}}",
                  route->content ? route->content : "application/json");
    buffer_puts(out,
                ",\"default\":{\"description\":\"An error\",\"content\":{\"application/json\":{"
                "\"schema\":{\"type\":\"object\",\"properties\":{\"error\":{\"type\":\"object\"}},"
                "\"required\":[\"error\"]}}}}}");
}

static void write_route(const struct route *route, struct buffer *out) {
    write_string(out, route->shown ? route->shown : route->path);
    buffer_printf(out,
                  ":{\"%s\":{\"summary\":", strcmp(route->method, "GET") == 0 ? "get" : "post");
    write_string(out, route->about);
    if (route->shown)
        buffer_puts(out, ",\"parameters\":[{\"name\":\"id\",\"in\":\"path\",\"required\":true,"
                         "\"schema\":{\"type\":\"string\"}}]");
    if (route->tables) write_body(route, out);
    write_answers(route, out);
    if (route->open) buffer_puts(out, ",\"security\":[]");
    buffer_puts(out, "}}");
}

void openapi_write(const struct route *routes, size_t n, struct buffer *out) {
    static const struct request_table *const stream_options[] = {&request_stream_options, NULL};
    buffer_puts(out, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"quire\",\"version\":");
    write_string(out, build_info.version);
    buffer_puts(out, "},\"security\":[{},{\"bearer\":[]},{\"x-api-key\":[]}],\"paths\":{");
    for (size_t i = 0; i < n; i++) {
        if (i) buffer_puts(out, ",");
        write_route(&routes[i], out);
    }
    buffer_puts(out,
                "},\"components\":{\"securitySchemes\":{"
                "\"bearer\":{\"type\":\"http\",\"scheme\":\"bearer\"},"
                "\"x-api-key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"x-api-key\"}},"
                "\"schemas\":{\"stream_options\":{\"type\":\"object\",");
    write_properties(stream_options, out);
    buffer_puts(out, "},\"kv_policy\":");
    kv_policy_write_schema(out);
    buffer_puts(out, ",\"prefill\":");
    prefill_rules_write_schema(out);
    buffer_puts(out, "}}}");
}
