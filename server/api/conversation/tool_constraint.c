/* tool_constraint.c - see tool_constraint.h. */
#include "server/api/conversation/tool_constraint.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/grammar/schema.h"
#include "server/api/conversation/skipped.h"
#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_elements.h"
#include "server/json/api_error.h"
#include "server/settings/log.h"

/* Names may have a namespace before them (tools.h). */
enum { MAX_NAME = 160, MAX_MARK = 128 };

static const json_t *function_of(const struct tool_demand *d, size_t i) {
    return json_object_get(json_array_get(d->tools, i), "function");
}

static const char *name_of(const struct tool_demand *d, size_t i) {
    return json_string_value(json_object_get(function_of(d, i), "name"));
}

static bool is_strict(const struct tool_demand *d, size_t i) {
    return json_is_true(json_object_get(function_of(d, i), "strict"));
}

bool tool_demand_constrains(const struct tool_demand *d) {
    bool constrains = d->must_call || d->said;
    for (size_t i = 0; i < json_array_size(d->tools); i++) constrains |= is_strict(d, i);
    return constrains;
}

static bool is_object(const json_t *schema) {
    const char *type = json_string_value(json_object_get(schema, "type"));
    return type && strcmp(type, "object") == 0;
}

/* Returns a schema of the arguments, which is not checked yet.  It is the tool's own; a tool
 * without one has no arguments.  Where nothing holds them, arguments are any object. */
static json_t *described(const struct tool_demand *d, size_t i) {
    const json_t *parameters = json_object_get(function_of(d, i), "parameters");
    if (!d->must_call && !is_strict(d, i)) return json_pack("{s:s}", "type", "object");
    if (!json_is_object(parameters))
        return json_pack("{s:s, s:{}}", "type", "object", "properties");
    if (json_object_size(parameters) == 0) return json_pack("{s:s}", "type", "object");
    return json_incref((json_t *)parameters);
}

static void note_loosened(const struct tool_demand *d, const char *why) {
    char quoted[SKIPPED_NAME_BYTES];
    if (skipped_types_add(d->skipped, "parameters", why))
        log_event(LOG_INFO, "loosened parameters=%s: calls of a tool that is not strict may differ",
                  log_quote(quoted, sizeof(quoted), why));
}

/* Makes the schema of a tool's arguments.  That of a tool which is not strict is followed as far
 * as can be: no client awaits more. */
static int make_schema(json_t **out, const struct tool_demand *d, size_t i, struct api_error *err) {
    json_t *schema = described(d, i);
    struct error why = {0};
    if (!schema) return api_error_no_memory(err);
    const int rc = is_strict(d, i) ? schema_prepare(out, schema, &why)
                                   : schema_prepare_loosely(out, schema, &why);
    json_decref(schema);
    if (rc == ERR_NOMEM) return api_error_no_memory(err);
    if (rc)
        return api_error_set(err, 400, NULL, "tools", "tools[%zu].function.parameters: %s", i,
                             why.text);
    if (*why.text) note_loosened(d, why.text);
    if (is_object(*out)) return 0;
    json_decref(*out);
    return api_error_set(err, 400, NULL, "tools",
                         "tools[%zu].function.parameters: type must be object", i);
}

/* Checks a name that is written as it is: other characters could end the JSON that it stands in. */
static int check_name(const struct tool_demand *d, size_t i, struct api_error *err) {
    const char *name = name_of(d, i);
    bool is_fit = *name && strlen(name) <= MAX_NAME;
    for (const char *at = name; *at; at++)
        is_fit = is_fit && (isalnum((unsigned char)*at) || strchr("_-.", *at));
    return is_fit
               ? 0
               : api_error_set(err, 400, NULL, "tools",
                               "tools[%zu].function.name must have 1 to 160 letters, digits, _, - "
                               "or ., where calls are constrained",
                               i);
}

/* Makes elements of a tool's arguments; of any arguments where a tool that is not strict describes
 * what elements cannot follow. */
static int make_elements(json_t **out, const struct tool_demand *d, size_t i, const json_t *schema,
                         struct api_error *err) {
    const struct tool_format *format = d->format;
    struct error why = {0};
    int rc = tool_elements_make(out, format->elements, schema, d->strings, name_of(d, i),
                                format->end, &why);
    if (rc == ERR_INVALID && !is_strict(d, i)) {
        json_t *any = json_pack("{s:s, s:b}", "type", "object", "additionalProperties", true);
        note_loosened(d, why.text);
        rc = any ? tool_elements_make(out, format->elements, any, d->strings, name_of(d, i),
                                      format->end, &why)
                 : ERR_NOMEM;
        json_decref(any);
    }
    if (!rc) return 0;
    if (rc == ERR_NOMEM) return api_error_no_memory(err);
    return api_error_set(err, 400, NULL, "tools", "tools[%zu].function.parameters: %s", i,
                         why.text);
}

/* Makes what a tool's arguments are, in the format's own way. */
static int make_arguments(json_t **out, const struct tool_demand *d, size_t i,
                          struct api_error *err) {
    json_t *schema;
    int rc = make_schema(&schema, d, i, err);
    if (rc) return rc;
    if (d->format->elements) {
        rc = make_elements(out, d, i, schema, err);
        json_decref(schema);
        return rc;
    }
    *out = json_pack("{s:s, s:o}", "type", "json_schema", "json_schema", schema);
    return *out ? 0 : api_error_no_memory(err);
}

/* Makes the tag of a tool's calls. */
static int make_call(json_t **out, const struct tool_demand *d, const struct tool_writing *w,
                     size_t i, struct api_error *err) {
    char begin[MAX_MARK + MAX_NAME];
    json_t *arguments;
    int rc = check_name(d, i, err);
    if (!rc) rc = make_arguments(&arguments, d, i, err);
    if (rc) return rc;
    snprintf(begin, sizeof(begin), "%s%s%s", w->before_name, name_of(d, i), w->before_arguments);
    *out = json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin", begin, "content", arguments,
                     "end", w->behind);
    return *out ? 0 : api_error_no_memory(err);
}

/* Makes the tags of all tools that may be called. */
static int make_calls(json_t **out, const struct tool_demand *d, const struct tool_writing *w,
                      struct api_error *err) {
    json_t *tags = json_array();
    int rc = tags ? 0 : api_error_no_memory(err);
    for (size_t i = 0; i < json_array_size(d->tools) && !rc; i++) {
        json_t *tag = NULL;
        if (d->named && strcmp(d->named, name_of(d, i)) != 0) continue;
        rc = make_call(&tag, d, w, i, err);
        if (!rc && json_array_append_new(tags, tag)) rc = api_error_no_memory(err);
    }
    if (!rc && json_array_size(tags) == 0)
        rc = api_error_set(err, 400, NULL, "tool_choice", "tool_choice: there is no tool '%.64s'",
                           d->named);
    if (rc) json_decref(tags);
    else *out = tags;
    return rc;
}

/* Makes one call or several of them, without what stands around all. */
static json_t *make_inner(const struct tool_demand *d, json_t *tags) {
    return json_pack("{s:s, s:o, s:s, s:b, s:b}", "type", "tags_with_separator", "tags", tags,
                     "separator", d->format->writing->between, "at_least_one", true,
                     "stop_after_first", d->one_call);
}

/* Makes a tag of all calls, with what stands around them; or of one of those that are messages, of
 * which an answer has one. */
static json_t *make_list(const struct tool_demand *d, json_t *tags) {
    const struct tool_writing *w = d->format->writing;
    char begin[2 * MAX_MARK];
    if (w->is_message) return json_pack("{s:s, s:o}", "type", "or", "elements", tags);
    json_t *list = make_inner(d, tags);
    if (!list || (!*w->open && !*d->mark)) return list;
    snprintf(begin, sizeof(begin), "%s%s", d->mark, w->open);
    return json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin", begin, "content", list, "end",
                     w->close);
}

/* Adds a message that is no call. */
static json_t *add_said(const struct tool_demand *d, json_t *tags) {
    json_t *content =
        d->said ? json_incref((json_t *)d->said) : json_pack("{s:s}", "type", "any_text");
    json_t *said = json_pack("{s:s, s:s, s:o, s:s}", "type", "tag", "begin",
                             d->format->writing->text, "content", content, "end", "");
    if (json_array_append_new(tags, said) == 0) return tags;
    json_decref(tags);
    return NULL;
}

/* A call as models write it that leave the marks out (tool_bare.h). */
static const struct tool_writing bare = {
    .before_name = "{\"name\": \"", .before_arguments = "\", \"arguments\": ", .behind = "}"};

/* Makes an answer that is calls, or all of a form.  A call may have no marks, else a form that is
 * JSON would make something else of it. */
static int make_said(json_t **out, const struct tool_demand *d, json_t *tags,
                     struct api_error *err) {
    json_t *more = NULL, *list = json_pack("[o, O]", make_list(d, tags), d->said);
    int rc = list ? 0 : api_error_no_memory(err);
    if (!rc && *d->format->begin && !d->format->elements) rc = make_calls(&more, d, &bare, err);
    if (!rc && more && json_array_extend(list, more)) rc = api_error_no_memory(err);
    json_decref(more);
    *out = rc ? NULL : json_pack("{s:s, s:O}", "type", "or", "elements", list);
    json_decref(list);
    return rc || *out ? rc : api_error_no_memory(err);
}

/* Makes an answer that may be text, and calls where a call begins.  Behind a token come calls
 * alone. */
static int make_free(json_t **out, const struct tool_demand *d, json_t *tags,
                     struct api_error *err) {
    const struct tool_writing *w = d->format->writing;
    if (w->is_message) {
        *out = make_list(d, add_said(d, tags));
        return *out ? 0 : api_error_no_memory(err);
    }
    if (d->said) return make_said(out, d, tags, err);
    if (*d->mark || (*w->open && !d->format->is_special))
        *out = json_pack("{s:s, s:[s], s:[o], s:b}", "type", "triggered_tags", "triggers",
                         *d->mark ? d->mark : d->format->begin, "tags", make_list(d, tags),
                         "stop_after_first", true);
    else if (d->format->is_special) *out = make_list(d, tags);
    else if (*d->format->begin)
        *out = json_pack("{s:s, s:[s], s:o, s:b}", "type", "triggered_tags", "triggers",
                         d->format->begin, "tags", tags, "stop_after_first", d->one_call);
    else
        *out = json_pack("{s:s, s:[o, {s:s, s:s}]}", "type", "or", "elements", make_list(d, tags),
                         "type", "regex", "pattern", w->text);
    return *out ? 0 : api_error_no_memory(err);
}

int tool_constraint_make(json_t **out, const struct tool_demand *d, struct api_error *err) {
    json_t *tags = NULL;
    const int rc = make_calls(&tags, d, d->format->writing, err);
    if (rc) return rc;
    if (!d->must_call) return make_free(out, d, tags, err);
    *out = make_list(d, tags);
    return *out ? 0 : api_error_no_memory(err);
}
