/* items.c - see items.h. */
#include "server/api/responses/items.h"

#include <stdbool.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/json/json_guard.h"

/* The state of a walk over the items. */
struct reading {
    json_t *messages;  /* to append to */
    json_t *assistant; /* the last message, to which an assistant's items are added; NULL: none */
    size_t index;
    struct api_error *err;
};

static int no_memory(struct api_error *err) {
    api_error_set(err, 500, NULL, NULL, "no memory for the input");
    return ERR_NOMEM;
}

static int refuse(const struct reading *r, const char *member, const char *rule) {
    return api_error_set(r->err, 400, NULL, "input", "input[%zu]%s %s", r->index, member, rule);
}

static bool is_given(const json_t *value) {
    return value && !json_is_null(value);
}

static bool is_word(const json_t *value, const char *word) {
    return json_is_string(value) && strcmp(json_string_value(value), word) == 0;
}

static int append(struct reading *r, json_t *message) {
    r->assistant = NULL;
    return !message || json_array_append_new(r->messages, message) ? no_memory(r->err) : 0;
}

/* ---- text ---- */

/* Returns the text of a part, or NULL with err filled. */
static const json_t *part_text(const struct reading *r, const json_t *part, const char *member,
                               size_t i) {
    static const char *const types[] = {"input_text", "output_text", "text", "reasoning_text",
                                        "summary_text"};
    const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
    if (is_word(type, "refusal")) text = json_object_get(part, "refusal");
    bool known = is_word(type, "refusal");
    for (size_t k = 0; k < sizeof(types) / sizeof(*types); k++)
        known = known || is_word(type, types[k]);
    if (!known) {
        const char *name = json_string_value(type);
        api_error_set(r->err, 400, "unsupported", "input",
                      "input[%zu].%s[%zu]: parts of the type '%.100s' are not supported, only text",
                      r->index, member, i, name ? name : "");
        return NULL;
    }
    if (json_is_string(text)) return text;
    api_error_set(r->err, 400, NULL, "input", "input[%zu].%s[%zu].text must be a string", r->index,
                  member, i);
    return NULL;
}

/* Joins the texts of parts by line ends into a new string. */
static int join_parts(const struct reading *r, const json_t *parts, const char *member,
                      json_t **out) {
    struct buffer joined = {0};
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = part_text(r, json_array_get(parts, i), member, i);
        if (!text) {
            buffer_fini(&joined);
            return ERR_INVALID;
        }
        if (i) buffer_puts(&joined, "\n");
        buffer_append(&joined, json_string_value(text), json_string_length(text));
    }
    *out = joined.failed ? NULL : json_stringn(joined.data ? joined.data : "", joined.length);
    buffer_fini(&joined);
    return *out ? 0 : no_memory(r->err);
}

/* Reads a member that is a string or an array of text parts. */
static int read_text(const struct reading *r, const json_t *item, const char *member,
                     json_t **out) {
    const json_t *value = json_object_get(item, member);
    if (json_is_array(value)) return join_parts(r, value, member, out);
    if (!json_is_string(value)) {
        return api_error_set(r->err, 400, NULL, "input",
                             "input[%zu].%s must be a string or an array of parts", r->index,
                             member);
    }
    *out = json_incref((json_t *)value);
    return 0;
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

static int read_said(struct reading *r, const json_t *item) {
    static const char *const lacks[] = {"content", "tool_calls", NULL};
    json_t *text = NULL;
    int rc = read_text(r, item, "content", &text);
    if (rc) return rc;
    rc = need_assistant(r, lacks);
    if (rc) {
        json_decref(text);
        return rc;
    }
    return json_object_set_new(r->assistant, "content", text) ? no_memory(r->err) : 0;
}

/* Reads reasoning: its text, else the summary of it.  What only another server can decrypt is
 * nothing here. */
static int read_reasoning(struct reading *r, const json_t *item) {
    static const char *const lacks[] = {"reasoning_content", "content", "tool_calls", NULL};
    const char *member = json_array_size(json_object_get(item, "content")) ? "content" : "summary";
    const json_t *parts = json_object_get(item, member);
    json_t *text = NULL;
    if (is_given(parts) && !json_is_array(parts)) return refuse(r, ".summary", "must be an array");
    if (json_array_size(parts) == 0) return 0;
    int rc = join_parts(r, parts, member, &text);
    if (rc) return rc;
    rc = need_assistant(r, lacks);
    if (rc) {
        json_decref(text);
        return rc;
    }
    return json_object_set_new(r->assistant, "reasoning_content", text) ? no_memory(r->err) : 0;
}

/* Adds a call, and takes its arguments, an object; NULL: there was no memory for them. */
static int add_call(struct reading *r, const json_t *item, json_t *arguments) {
    static const char *const lacks[] = {NULL};
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    int rc = arguments ? 0 : no_memory(r->err);
    if (!rc && !json_is_string(id)) rc = refuse(r, ".call_id", "must be a string");
    if (!rc && !json_is_string(name)) rc = refuse(r, ".name", "must be a string");
    if (!rc) rc = need_assistant(r, lacks);
    if (rc) {
        json_decref(arguments);
        return rc;
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:o}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", arguments);
    json_t *calls = json_object_get(r->assistant, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(r->assistant, "tool_calls", calls)) calls = NULL;
    }
    if (calls && call) return json_array_append_new(calls, call) ? no_memory(r->err) : 0;
    json_decref(call);
    return no_memory(r->err);
}

static int read_call(struct reading *r, const json_t *item) {
    const json_t *arguments = json_object_get(item, "arguments");
    json_t *parsed = NULL;
    struct json_span none;
    if (!json_is_string(arguments)) return refuse(r, ".arguments", "must be a string");
    if (json_string_length(arguments) == 0) return add_call(r, item, json_object());
    const int rc = json_guard_load(&parsed, json_string_value(arguments),
                                   json_string_length(arguments), NULL, &none, NULL);
    if (rc == ERR_NOMEM) return no_memory(r->err);
    if (rc) return refuse(r, ".arguments", "must be a JSON object in a string");
    return add_call(r, item, parsed);
}

/* Reads a call of a tool that takes free text, which templates know as a function of one string. */
static int read_custom_call(struct reading *r, const json_t *item) {
    const json_t *input = json_object_get(item, "input");
    if (!json_is_string(input)) return refuse(r, ".input", "must be a string");
    return add_call(r, item, json_pack("{s:O}", "input", input));
}

/* ---- the other items ---- */

static int read_output(struct reading *r, const json_t *item) {
    const json_t *id = json_object_get(item, "call_id");
    json_t *text = NULL;
    if (!json_is_string(id)) return refuse(r, ".call_id", "must be a string");
    const int rc = read_text(r, item, "output", &text);
    if (rc) return rc;
    return append(
        r, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", text));
}

static int read_message(struct reading *r, const json_t *item) {
    static const char *const roles[] = {"user", "system", "developer"};
    const json_t *role = json_object_get(item, "role");
    json_t *text = NULL;
    if (is_word(role, "assistant")) return read_said(r, item);
    for (size_t i = 0; i < sizeof(roles) / sizeof(*roles); i++) {
        if (!is_word(role, roles[i])) continue;
        const int rc = read_text(r, item, "content", &text);
        return rc ? rc : append(r, json_pack("{s:s, s:o}", "role", roles[i], "content", text));
    }
    return refuse(r, ".role", "must be user, assistant, system or developer");
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
        {"function_call_output", read_output},
        {"custom_tool_call_output", read_output},
    };
    const json_t *type = json_object_get(item, "type");
    if (!json_is_object(item)) return refuse(r, "", "must be an object");
    if (!is_given(type)) return read_message(r, item);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        if (is_word(type, kinds[i].type)) return kinds[i].read(r, item);
    if (is_word(type, "item_reference"))
        return refuse(r, "", "refers to a stored item, and nothing is stored here");
    const char *name = json_string_value(type);
    return api_error_set(r->err, 400, "unsupported", "input",
                         "input[%zu]: items of the type '%.100s' are not supported", r->index,
                         name ? name : "");
}

int items_read(json_t *messages, const json_t *input, struct api_error *err) {
    struct reading r = {.messages = messages, .err = err};
    if (json_is_string(input))
        return append(&r, json_pack("{s:s, s:O}", "role", "user", "content", input));
    if (!json_is_array(input) || json_array_size(input) == 0)
        return api_error_set(err, 400, NULL, "input",
                             "input must be a string or an array of items");
    int rc = 0;
    for (; r.index < json_array_size(input) && !rc; r.index++)
        rc = read_item(&r, json_array_get(input, r.index));
    return rc;
}
