/* tool_json.c - see tool_json.h. */
#include "server/api/conversation/tool_json.h"

#include <string.h>

#include "engine/base/json_reader.h"
#include "server/api/conversation/arguments.h"
#include "server/api/conversation/tool_calls.h"

static const char *const argument_names[] = {"arguments", "parameters"};

/* ---- JSON that has been parsed before, so that it is legal ---- */

/* Returns the value that the piece begins with. */
static struct piece value_of(struct piece p) {
    size_t depth = 0, i = 0;
    bool in_string = false;
    for (; i < p.n; i++) {
        const char c = p.at[i];
        if (in_string) {
            if (c == '\\') i++;
            else if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']') {
            if (depth == 0) break;
            depth--;
        } else if (c == ',' && depth == 0) {
            break;
        }
    }
    return trimmed((struct piece){p.at, i < p.n ? i : p.n});
}

/* Returns the value of the object's member as it is written; at NULL: there is none.  Names with
 * escapes are not found. */
static struct piece member_of(struct piece object, const char *name) {
    struct piece p = skip_space(behind(object, object.at + 1));
    while (p.n > 0 && p.at[0] == '"') {
        const char *quote = p.at + 1;
        while (*quote != '"') quote += *quote == '\\' ? 2 : 1;
        const bool same =
            (size_t)(quote - p.at) == strlen(name) + 1 && memcmp(p.at + 1, name, strlen(name)) == 0;
        p = skip_space(behind(p, quote + 1));
        p = skip_space(behind(p, p.at + 1)); /* the colon */
        const struct piece value = value_of(p);
        if (same) return value;
        p = skip_space(behind(p, value.at + value.n));
        if (p.n > 0 && p.at[0] == ',') p = skip_space(behind(p, p.at + 1));
    }
    return (struct piece){0};
}

/* Parses a text, whose root must be an object; NULL: it is none. */
static json_t *parse_object(struct piece text, struct json_oddities *odd) {
    json_t *root = NULL;
    return arguments_parse(&root, text.at, text.n, odd) ? NULL : root;
}

/* Adds the arguments that an object's member has: its text, which is not looked for where there may
 * be two such members, or what the text means; or JSON in a string, as some models write them. */
static bool add_arguments(struct tool_call *call, struct piece object, const char *member,
                          const json_t *value, bool has_doubled) {
    const struct piece text =
        has_doubled || !json_is_object(value) ? (struct piece){0} : member_of(object, member);
    if (json_is_string(value))
        buffer_append(&call->arguments, json_string_value(value), json_string_length(value));
    else if (text.at) buffer_append(&call->arguments, text.at, text.n);
    else if (json_is_object(value)) buffer_json_value(&call->arguments, value);
    return arguments_mend(&call->arguments);
}

bool tool_json_has_arguments(struct piece object) {
    struct json_oddities odd = {0};
    json_t *root = parse_object(object, &odd);
    bool has = false;
    for (size_t i = 0; i < 2; i++) has |= json_object_get(root, argument_names[i]) != NULL;
    json_decref(root);
    return has;
}

bool tool_json_read(struct tool_split *split, struct piece text) {
    static const char *const own_names[] = {"name", "tool_name"};
    struct json_oddities odd = {0};
    json_t *root = text.n > 0 && text.at[0] == '{' ? parse_object(text, &odd) : NULL;
    const json_t *name = NULL, *arguments = NULL;
    const char *member = NULL;
    for (size_t i = 0; i < 2 && !name; i++) name = json_object_get(root, own_names[i]);
    for (size_t i = 0; i < 2 && !arguments; i++)
        arguments = json_object_get(root, member = argument_names[i]);
    const bool is_call =
        json_is_string(name) && (!arguments || json_is_null(arguments) ||
                                 json_is_object(arguments) || json_is_string(arguments));
    struct tool_call *call =
        is_call ? tool_split_add_call(
                      split, (struct piece){json_string_value(name), json_string_length(name)})
                : NULL;
    const bool is_whole = call && add_arguments(call, text, member, arguments, odd.n_doubled > 0);
    json_decref(root);
    if (call && !is_whole) tool_split_drop_last(split);
    return is_whole;
}

bool tool_json_read_all(struct tool_split *split, struct piece text, char between) {
    for (text = trimmed(text); text.n > 0;) {
        const struct piece object = braced_of(text);
        if (!tool_json_read(split, object)) return false;
        text = skip_space(behind(text, text.at + object.n));
        if (text.n > 0 && text.at[0] != between) return false;
        if (text.n > 0) text = skip_space(behind(text, text.at + 1));
    }
    return true;
}

bool tool_json_is_value(struct piece text) {
    json_t *value = NULL;
    struct json_oddities odd;
    struct buffer list = {0};
    buffer_puts(&list, "{\"v\":");
    buffer_append(&list, text.at, text.n);
    buffer_puts(&list, "}");
    if (!list.failed && text.n > 0)
        value = parse_object((struct piece){list.data, list.length}, &odd);
    const bool is = json_object_size(value) == 1;
    json_decref(value);
    buffer_fini(&list);
    return is;
}
