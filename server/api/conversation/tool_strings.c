/* tool_strings.c - see tool_strings.h.
 *
 * A table is JSON: {"tool": {"named": {"key": 1}, "other": 0}}, with the numbers of enum
 * tool_string, and `other` for keys that the schema does not name. */
#include "server/api/conversation/tool_strings.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Tells whether the text can stand bare and be read back: no mark of a format, no line end. */
static bool can_be_bare(const json_t *value) {
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) && !strpbrk(text, "<\n");
}

/* Tells how one of some values is written. */
static enum tool_string string_of_values(const json_t *values) {
    enum tool_string is = TOOL_STRING_BARE;
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        if (!json_is_string(value)) return TOOL_STRING_NONE;
        if (!can_be_bare(value)) is = TOOL_STRING_QUOTED;
    }
    return json_array_size(values) > 0 ? is : TOOL_STRING_NONE;
}

/* Tells how arguments of this schema are written. */
static enum tool_string string_of_schema(const json_t *schema) {
    static const char *const shapes[] = {"$ref", "anyOf", "oneOf", "allOf"}, *const bounds[] = {
                                                                                 "pattern",
                                                                                 "format",
                                                                                 "minLength",
                                                                                 "maxLength"};
    const char *type = json_string_value(json_object_get(schema, "type"));
    const json_t *value = json_object_get(schema, "const");
    for (int i = 0; i < 4; i++)
        if (json_object_get(schema, shapes[i])) return TOOL_STRING_NONE;
    if (value && !json_is_string(value)) return TOOL_STRING_NONE;
    if (value) return can_be_bare(value) ? TOOL_STRING_BARE : TOOL_STRING_QUOTED;
    if (json_object_get(schema, "enum")) return string_of_values(json_object_get(schema, "enum"));
    if (!type || strcmp(type, "string") != 0) return TOOL_STRING_NONE;
    for (int i = 0; i < 4; i++)
        if (json_object_get(schema, bounds[i])) return TOOL_STRING_QUOTED;
    return TOOL_STRING_BARE;
}

/* Makes the entry of a tool. */
static json_t *make_entry(const json_t *parameters) {
    const json_t *properties = json_object_get(parameters, "properties");
    const char *key;
    json_t *schema, *named = json_object();
    bool failed = !named;
    json_object_foreach((json_t *)properties, key, schema) {
        failed |= json_object_set_new(named, key, json_integer(string_of_schema(schema))) < 0;
    }
    const enum tool_string other =
        string_of_schema(json_object_get(parameters, "additionalProperties"));
    if (!failed) return json_pack("{s:o, s:i}", "named", named, "other", (int)other);
    json_decref(named);
    return NULL;
}

json_t *tool_strings_create(const json_t *tools) {
    json_t *table = json_object();
    bool failed = !table;
    for (size_t i = 0; i < json_array_size(tools) && !failed; i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        json_t *entry = make_entry(json_object_get(function, "parameters"));
        failed = json_object_set_new(table, name, entry) < 0;
    }
    if (!failed) return table;
    json_decref(table);
    return NULL;
}

enum tool_string tool_strings_find(const json_t *table, const char *tool, const char *key,
                                   size_t n_key) {
    const json_t *entry = json_object_get(table, tool);
    char *name = entry ? strndup(key, n_key) : NULL;
    const json_t *is = name ? json_object_get(json_object_get(entry, "named"), name) : NULL;
    if (!is) is = json_object_get(entry, "other");
    free(name);
    return (enum tool_string)json_integer_value(is);
}
