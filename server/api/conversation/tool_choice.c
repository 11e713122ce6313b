/* tool_choice.c - see tool_choice.h. */
#include "server/api/conversation/tool_choice.h"

#include <string.h>

#include "server/json/api_error.h"
#include "server/json/json_value.h"

static int refuse(struct api_error *err, const char *rule) {
    return api_error_set(err, 400, NULL, "tool_choice", "tool_choice %s", rule);
}

/* Takes a word; returns whether it is one. */
static bool take_word(struct tool_choice *out, const char *word) {
    out->none = strcmp(word, "none") == 0;
    out->must_call = strcmp(word, "required") == 0 || strcmp(word, "any") == 0;
    return out->none || out->must_call || strcmp(word, "auto") == 0;
}

/* Reads which tools alone may be called, and whether one must be. */
static int read_allowed(struct tool_choice *out, const json_t *members, struct api_error *err) {
    out->allowed = json_object_get(members, "tools");
    out->must_call = json_is_word(json_object_get(members, "mode"), "required");
    if (!out->must_call && !json_is_word(json_object_get(members, "mode"), "auto"))
        return refuse(err, "must have a mode, auto or required");
    return json_is_array(out->allowed) ? 0 : refuse(err, "must have an array of tools");
}

static int read_named(struct tool_choice *out, const json_t *members, struct api_error *err) {
    out->named = json_string_value(json_object_get(members, "name"));
    out->space = json_string_value(json_object_get(members, "namespace"));
    out->must_call = true;
    return out->named ? 0 : refuse(err, "must name a tool: its name must be a string");
}

static int read_object(struct tool_choice *out, const json_t *value, struct api_error *err) {
    const char *type = json_string_value(json_object_get(value, "type"));
    const json_t *one = json_object_get(value, "disable_parallel_tool_use");
    if (json_is_given(one) && !json_is_boolean(one))
        return refuse(err, "must have true or false as disable_parallel_tool_use");
    out->one_call = json_is_true(one);
    if (type && take_word(out, type)) return 0;
    const json_t *inner = json_object_get(value, type ? type : "function");
    const json_t *members = json_is_object(inner) ? inner : value;
    if (type && strcmp(type, "allowed_tools") == 0) return read_allowed(out, members, err);
    if (!type || strcmp(type, "function") == 0 || strcmp(type, "custom") == 0 ||
        strcmp(type, "tool") == 0)
        return read_named(out, members, err);
    return api_error_set(err, 400, "unsupported", "tool_choice",
                         "tool_choice.type must be auto, none, required, any, allowed_tools, "
                         "function, custom or tool");
}

int tool_choice_read(struct tool_choice *out, const json_t *value, struct api_error *err) {
    const char *word = json_string_value(value);
    if (json_is_object(value)) return read_object(out, value, err);
    if (word && take_word(out, word)) return 0;
    return refuse(err, "must be auto, none, required, or an object that names a tool");
}
