/* items.c - see items.h. */
#include "server/api/responses/items.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/api/conversation/arguments.h"
#include "server/api/conversation/content.h"
#include "server/api/conversation/skipped.h"
#include "server/api/conversation/tools.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/json/json_value.h"

/* The state of a walk over the items. */
struct reading {
    json_t *messages;  /* to append to */
    json_t *assistant; /* the last message, to which an assistant's items are added; NULL: none */
    json_t *outputs;   /* the ids of calls that have an item with their output: the client's */
    struct tool_list *tools;
    size_t index;
    struct content_rules content;
    struct api_error *err;
};

static int refuse(const struct reading *r, const char *member, const char *rule) {
    return api_error_set(r->err, 400, NULL, "input", "input[%zu]%s %s", r->index, member, rule);
}

static int append(struct reading *r, json_t *message) {
    r->assistant = NULL;
    return !message || json_array_append_new(r->messages, message) ? api_error_no_memory(r->err)
                                                                   : 0;
}

/* Reads a member that is content. */
static int read_text(const struct reading *r, const json_t *item, const char *member,
                     json_t **out) {
    char where[64];
    snprintf(where, sizeof(where), "input[%zu].%s", r->index, member);
    return content_read(&r->content, where, json_object_get(item, member), out);
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* ---- an assistant's items ---- */

/* Makes the last message one of the assistant that lacks all of these members. */
static int need_assistant(struct reading *r, const char *const *lacks) {
    bool fits = r->assistant;
    for (; fits && *lacks; lacks++) fits = !json_object_get(r->assistant, *lacks);
    if (fits) return 0;
    json_t *message = json_pack("{s:s}", "role", "assistant");
    const int rc = append(r, message);
    if (!rc) r->assistant = message;
    return rc;
}

/* Takes a text as what the assistant has said. */
static int say(struct reading *r, json_t *text) {
    static const char *const lacks[] = {"content", "tool_calls", NULL};
    const int rc = need_assistant(r, lacks);
    if (rc) {
        json_decref(text);
        return rc;
    }
    return json_object_set_new(r->assistant, "content", text) ? api_error_no_memory(r->err) : 0;
}

static int read_said(struct reading *r, const json_t *item) {
    json_t *text = NULL;
    const int rc = read_text(r, item, "content", &text);
    return rc ? rc : say(r, text);
}

/* Reads reasoning: its text, else the summary of it.  What only another server can decrypt is
 * nothing here. */
static int read_reasoning(struct reading *r, const json_t *item) {
    static const char *const lacks[] = {"reasoning_content", "content", "tool_calls", NULL};
    const char *member = json_array_size(json_object_get(item, "content")) ? "content" : "summary";
    const json_t *parts = json_object_get(item, member);
    json_t *text = NULL;
    if (json_is_given(parts) && !json_is_array(parts))
        return refuse(r, ".summary", "must be an array");
    if (json_array_size(parts) == 0) return 0;
    int rc = read_text(r, item, member, &text);
    if (rc) return rc;
    if (json_string_length(text) > 0) rc = need_assistant(r, lacks);
    if (rc || json_string_length(text) == 0) {
        json_decref(text);
        return rc;
    }
    return json_object_set_new(r->assistant, "reasoning_content", text)
               ? api_error_no_memory(r->err)
               : 0;
}

/* Adds a call, and takes its name and its arguments, an object; NULL: there was no memory for
 * them. */
static int add_call(struct reading *r, const json_t *item, json_t *name, json_t *arguments) {
    static const char *const lacks[] = {NULL};
    const json_t *id = json_object_get(item, "call_id");
    int rc = arguments && name ? 0 : api_error_no_memory(r->err);
    if (!rc && !json_is_string(id)) rc = refuse(r, ".call_id", "must be a string");
    if (!rc) rc = need_assistant(r, lacks);
    if (rc) {
        json_decref(name);
        json_decref(arguments);
        return rc;
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:o, s:o}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    json_t *calls = json_object_get(r->assistant, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(r->assistant, "tool_calls", calls)) calls = NULL;
    }
    if (calls && call) return json_array_append_new(calls, call) ? api_error_no_memory(r->err) : 0;
    json_decref(call);
    return api_error_no_memory(r->err);
}

/* Adds a call of a tool that the item names. */
static int add_named(struct reading *r, const json_t *item, json_t *arguments) {
    const json_t *name = json_object_get(item, "name");
    if (json_is_string(name))
        return add_call(r, item, tool_shown_name(json_object_get(item, "namespace"), name),
                        arguments);
    json_decref(arguments);
    return refuse(r, ".name", "must be a string");
}

/* Reads the arguments of a call, JSON in a string. */
static int read_arguments(const struct reading *r, const json_t *arguments, json_t **out) {
    const int rc = arguments_of(out, arguments);
    if (rc == ERR_NOMEM) return api_error_no_memory(r->err);
    return rc ? refuse(r, ".arguments", "must be a JSON object in a string") : 0;
}

static int read_call(struct reading *r, const json_t *item) {
    json_t *arguments = NULL;
    const int rc = read_arguments(r, json_object_get(item, "arguments"), &arguments);
    return rc ? rc : add_named(r, item, arguments);
}

/* Reads a call of a tool that takes free text, which templates know as a function of one string. */
static int read_custom_call(struct reading *r, const json_t *item) {
    const json_t *input = json_object_get(item, "input");
    if (json_is_given(input) && !json_is_string(input))
        return refuse(r, ".input", "must be a string");
    json_t *text = json_is_given(input) ? json_incref((json_t *)input) : json_string("");
    return add_named(r, item, json_pack("{s:o}", "input", text));
}

/* ---- calls of other types ---- */

static int skip(struct reading *r, const json_t *item) {
    const char *type = content_type(item);
    skipped_types_note(r->content.skipped, "input", type ? type : "");
    return 0;
}

/* Reads what an item hands over to its tool as an object. */
static int read_action(const struct reading *r, const json_t *item, json_t **out) {
    static const char *const members[] = {"arguments", "action", "operation", "actions", "input"};
    const json_t *given = NULL;
    const char *member = NULL;
    for (size_t i = 0; !json_is_given(given) && i < sizeof(members) / sizeof(*members); i++)
        given = json_object_get(item, member = members[i]);
    if (json_is_string(given) && strcmp(member, "arguments") == 0)
        return read_arguments(r, given, out);
    if (json_is_object(given)) *out = json_incref((json_t *)given);
    else *out = json_is_given(given) ? json_pack("{s:O}", member, given) : json_object();
    return *out ? 0 : api_error_no_memory(r->err);
}

/* Reads what a call that another service ran says of its result.  The call itself is nothing that
 * the model could repeat. */
static int read_result_of(struct reading *r, const json_t *item) {
    static const struct {
        const char *type, *member;
    } results[] = {{"file_search_call", "results"},
                   {"code_interpreter_call", "outputs"},
                   {"image_generation_call", NULL},
                   {"computer_call", NULL},
                   {"", "output"}};
    size_t i = 0;
    while (*results[i].type && !json_is_word(json_object_get(item, "type"), results[i].type)) i++;
    json_t *text = NULL;
    const json_t *result = results[i].member ? json_object_get(item, results[i].member) : NULL;
    if (!json_is_given(result)) return skip(r, item);
    const int rc = read_text(r, item, results[i].member, &text);
    if (rc) return rc;
    if (json_string_length(text) > 0) return say(r, text);
    json_decref(text);
    return skip(r, item);
}

/* Reads a call of another type: one of the client's if its output is there, too. */
static int read_other_call(struct reading *r, const json_t *item) {
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    json_t *arguments = NULL;
    if (!json_is_string(id) || !json_object_get(r->outputs, json_string_value(id)))
        return read_result_of(r, item);
    const int rc = read_action(r, item, &arguments);
    if (rc) return rc;
    if (json_is_string(name)) return add_named(r, item, arguments);
    const char *type = content_type(item);
    return add_call(r, item, json_stringn(type, strlen(type) - strlen("_call")), arguments);
}

/* ---- the other items ---- */

/* Takes the text of an output. */
static int append_output(struct reading *r, const json_t *item, json_t *text) {
    const json_t *id = json_object_get(item, "call_id");
    return append(r, json_pack("{s:s, s:O*, s:o}", "role", "tool", "tool_call_id",
                               json_is_string(id) ? id : NULL, "content", text));
}

/* Reads an output of a call of any type. */
static int read_output(struct reading *r, const json_t *item) {
    json_t *text = NULL;
    const int rc = read_text(r, item, "output", &text);
    return rc ? rc : append_output(r, item, text);
}

static int read_function_output(struct reading *r, const json_t *item) {
    if (json_is_string(json_object_get(item, "call_id"))) return read_output(r, item);
    return refuse(r, ".call_id", "must be a string");
}

static int add_tools(struct reading *r, const json_t *item) {
    const struct tool_rules rules = {.skipped = r->content.skipped, .err = r->err};
    char where[64];
    snprintf(where, sizeof(where), "input[%zu].tools", r->index);
    return tool_list_add(r->tools, &rules, where, json_object_get(item, "tools"));
}

/* Reads tools that a search has found: the model may call them from here on.  What it is told of
 * them as the search's output is their names. */
static int read_found(struct reading *r, const json_t *item) {
    const json_t *tools = json_object_get(item, "tools");
    struct buffer names = {0};
    const int rc = add_tools(r, item);
    if (rc || !json_is_string(json_object_get(item, "call_id"))) return rc;
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *name = json_object_get(json_array_get(tools, i), "name");
        if (names.length && json_is_string(name)) buffer_puts(&names, "\n");
        buffer_append(&names, json_string_value(name), json_string_length(name));
    }
    json_t *text = names.failed ? NULL : json_stringn(names.data ? names.data : "", names.length);
    buffer_fini(&names);
    return text ? append_output(r, item, text) : api_error_no_memory(r->err);
}

static int read_message(struct reading *r, const json_t *item) {
    static const char *const roles[] = {"user", "system", "developer"};
    const json_t *role = json_object_get(item, "role");
    json_t *text = NULL;
    if (json_is_word(role, "assistant")) return read_said(r, item);
    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
        if (!json_is_word(role, roles[i])) continue;
        if (!json_is_given(json_object_get(item, "content")))
            return refuse(r, ".content", "must be a string or an array of parts");
        const int rc = read_text(r, item, "content", &text);
        if (rc || i == 0 || json_string_length(text) > 0 ||
            !json_array_size(json_object_get(item, "content")))
            return rc ? rc : append(r, json_pack("{s:s, s:o}", "role", roles[i], "content", text));
        json_decref(text); /* an instruction of which nothing is left is none */
        return 0;
    }
    return refuse(r, ".role", "must be user, assistant, system or developer");
}

/* Reads an item of a type that says nothing of what it is: a message, if it has text. */
static int read_unknown(struct reading *r, const json_t *item) {
    const json_t *role = json_object_get(item, "role");
    char where[64];
    struct buffer text = {0};
    bool has_text = false;
    snprintf(where, sizeof(where), "input[%zu]", r->index);
    int rc = content_add(&r->content, where, item, &text, &has_text);
    json_t *content =
        rc || !has_text ? NULL : json_stringn(text.data ? text.data : "", text.length);
    buffer_fini(&text);
    if (rc || !has_text) return rc;
    if (!content) return api_error_no_memory(r->err);
    if (json_is_word(role, "assistant")) return say(r, content);
    const bool instructs = json_is_word(role, "system") || json_is_word(role, "developer");
    return append(r, json_pack("{s:s, s:o}", "role", instructs ? json_string_value(role) : "user",
                               "content", content));
}

static int read_item(struct reading *r, const json_t *item) {
    static const struct {
        const char *type;
        int (*read)(struct reading *r, const json_t *item);
    } kinds[] = {
        {"message", read_message},
        {"reasoning", read_reasoning},
        {"function_call", read_call},
        {"custom_tool_call", read_custom_call},
        {"function_call_output", read_function_output},
        {"custom_tool_call_output", read_function_output},
        {"tool_search_output", read_found},
        {"additional_tools", add_tools},
    };
    const json_t *type = json_object_get(item, "type");
    if (!json_is_object(item)) return refuse(r, "", "must be an object");
    if (!json_is_given(type)) return read_message(r, item);
    if (!json_is_string(type)) return refuse(r, ".type", "must be a string");
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (json_is_word(type, kinds[i].type)) return kinds[i].read(r, item);
    const char *name = json_string_value(type);
    if (ends_with(name, "_call_output")) return read_output(r, item);
    if (ends_with(name, "_call")) return read_other_call(r, item);
    return read_unknown(r, item);
}

/* Notes the ids of the calls that the client has run. */
static int find_outputs(struct reading *r, const json_t *input) {
    int rc = r->outputs ? 0 : api_error_no_memory(r->err);
    for (size_t i = 0; i < json_array_size(input) && !rc; i++) {
        const json_t *item = json_array_get(input, i), *id = json_object_get(item, "call_id");
        const char *type = content_type(item);
        if (!type || !ends_with(type, "_output") || !json_is_string(id)) continue;
        if (json_object_set_new(r->outputs, json_string_value(id), json_true()))
            rc = api_error_no_memory(r->err);
    }
    return rc;
}

int items_read(json_t *messages, struct tool_list *tools, const json_t *items, size_t n_before,
               struct skipped_types *skipped, struct api_error *err) {
    struct reading r = {.messages = messages,
                        .outputs = json_object(),
                        .tools = tools,
                        .content = {.param = "input",
                                    .noun = "parts",
                                    .list = "input",
                                    .skipped = skipped,
                                    .err = err},
                        .err = err};
    int rc = find_outputs(&r, items);
    for (size_t i = 0; i < json_array_size(items) && !rc; i++) {
        r.index = i < n_before ? 0 : i - n_before;
        rc = read_item(&r, json_array_get(items, i));
    }
    json_decref(r.outputs);
    return rc;
}
