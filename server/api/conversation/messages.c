/* messages.c - see messages.h. */
#include "server/api/conversation/messages.h"

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

/* A message that is being read. */
struct reading {
    const json_t *from;
    json_t *to;
    size_t index;
    const char *role;
    bool names_developer;
    struct content_rules content;
    struct api_error *err;
};

static int refuse(const struct reading *r, const char *member, const char *rule) {
    return api_error_set(r->err, 400, NULL, "messages", "messages[%zu].%s %s", r->index, member,
                         rule);
}

static int set(const struct reading *r, const char *member, const json_t *value) {
    return json_object_set(r->to, member, (json_t *)value) ? api_error_no_memory(r->err) : 0;
}

static int set_new(const struct reading *r, const char *member, json_t *value) {
    return !value || json_object_set_new(r->to, member, value) ? api_error_no_memory(r->err) : 0;
}

static int set_reasoning(const struct reading *r, const json_t *text) {
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    int rc = 0;
    for (size_t i = 0; i < 3 && !rc; i++) rc = set(r, names[i], text);
    return rc;
}

/* ---- content ---- */

/* Moves the thoughts among an assistant's parts into its reasoning. */
static int read_thoughts(const struct reading *r, const json_t *parts, json_t *others) {
    struct buffer thoughts = {0};
    bool has_any = false, has_text = false;
    char where[64];
    int rc = 0;
    for (size_t i = 0; i < json_array_size(parts) && !rc; i++) {
        json_t *part = json_array_get(parts, i);
        const char *type = content_type(part);
        const bool thinks = type && strcmp(type, "thinking") == 0;
        snprintf(where, sizeof(where), "messages[%zu].content[%zu]", r->index, i);
        if (thinks && has_any) buffer_puts(&thoughts, "\n");
        if (thinks) rc = content_add(&r->content, where, part, &thoughts, &has_text);
        else if (json_array_append(others, part)) rc = api_error_no_memory(r->err);
        has_any |= thinks && has_text;
    }
    json_t *text = rc || !has_any ? NULL : json_stringn(thoughts.data, thoughts.length);
    buffer_fini(&thoughts);
    if (rc || !has_any) return rc;
    rc = text ? set_reasoning(r, text) : api_error_no_memory(r->err);
    json_decref(text);
    return rc;
}

/* Reads the content, which an assistant that calls tools may leave out, and a tool without a
 * result. */
static int read_content(const struct reading *r) {
    const json_t *content = json_object_get(r->from, "content");
    const bool answers = strcmp(r->role, "assistant") == 0;
    json_t *text = NULL, *others = NULL;
    char where[64];
    if (!json_is_given(content) && !answers && strcmp(r->role, "tool") != 0)
        return refuse(r, "content", "is required");
    if (json_is_array(content) && answers) {
        others = json_array();
        const int rc = others ? read_thoughts(r, content, others) : api_error_no_memory(r->err);
        if (rc) {
            json_decref(others);
            return rc;
        }
    }
    snprintf(where, sizeof(where), "messages[%zu].content", r->index);
    const int rc = content_read(&r->content, where, others ? others : content, &text);
    json_decref(others);
    return rc ? rc : set_new(r, "content", text);
}

/* Tells whether the message instructs the model, and all of its parts have been skipped. */
static bool says_nothing(const struct reading *r) {
    const json_t *content = json_object_get(r->to, "content");
    return (strcmp(r->role, "system") == 0 || strcmp(r->role, "developer") == 0) &&
           json_array_size(json_object_get(r->from, "content")) > 0 &&
           json_string_length(content) == 0;
}

/* ---- tool calls ---- */

static int refuse_call(const struct reading *r, size_t call, const char *rule) {
    return api_error_set(r->err, 400, NULL, "messages", "messages[%zu].tool_calls[%zu]%s", r->index,
                         call, rule);
}

/* Adds a call of a tool that takes free text, which templates know as a function of one string. */
static int read_custom_call(const struct reading *r, const json_t *call, size_t index,
                            json_t *calls) {
    const json_t *custom = json_object_get(call, "custom"), *name = json_object_get(custom, "name"),
                 *input = json_object_get(custom, "input"), *id = json_object_get(call, "id");
    if (!json_is_string(name)) return refuse_call(r, index, ".custom.name must be a string");
    if (json_is_given(input) && !json_is_string(input))
        return refuse_call(r, index, ".custom.input must be a string");
    if (json_is_given(id) && !json_is_string(id))
        return refuse_call(r, index, ".id must be a string");
    json_t *shown = tool_shown_name(json_object_get(custom, "namespace"), name);
    json_t *text = json_is_given(input) ? json_incref((json_t *)input) : json_string("");
    json_t *out = json_pack("{s:s, s:{s:o, s:{s:o}}, s:O*}", "type", "function", "function", "name",
                            shown, "arguments", "input", text, "id", json_is_given(id) ? id : NULL);
    return !out || json_array_append_new(calls, out) ? api_error_no_memory(r->err) : 0;
}

static int read_call(const struct reading *r, const json_t *call, size_t index, json_t *calls) {
    const char *type = content_type(call);
    if (json_is_object(json_object_get(call, "custom")))
        return read_custom_call(r, call, index, calls);
    if (type && strcmp(type, "function") != 0 && !json_object_get(call, "function")) {
        skipped_types_note(r->content.skipped, "tool_calls", type);
        return 0;
    }
    const json_t *function = json_object_get(call, "function"),
                 *name = json_object_get(function, "name"),
                 *arguments = json_object_get(function, "arguments"),
                 *id = json_object_get(call, "id");
    if (!json_is_string(name)) return refuse_call(r, index, ".function.name must be a string");
    if (json_is_given(id) && !json_is_string(id))
        return refuse_call(r, index, ".id must be a string");
    json_t *parsed = NULL;
    if (arguments_of(&parsed, arguments) == ERR_NOMEM) return api_error_no_memory(r->err);
    if (!parsed)
        return refuse_call(r, index, ".function.arguments must be a JSON object in a string");
    json_t *shown = tool_shown_name(json_object_get(function, "namespace"), name);
    json_t *out = json_pack("{s:s, s:{s:o, s:o}}", "type", "function", "function", "name", shown,
                            "arguments", parsed);
    if (!out || json_array_append_new(calls, out)) return api_error_no_memory(r->err);
    return json_is_given(id) && json_object_set(out, "id", (json_t *)id)
               ? api_error_no_memory(r->err)
               : 0;
}

static int read_calls(const struct reading *r) {
    if (json_is_given(json_object_get(r->from, "function_call")))
        return refuse(r, "function_call", "is not supported: calls are in tool_calls");
    const json_t *calls = json_object_get(r->from, "tool_calls");
    if (!json_is_given(calls)) return 0;
    if (!json_is_array(calls)) return refuse(r, "tool_calls", "must be an array");
    if (strcmp(r->role, "assistant") != 0)
        return refuse(r, "tool_calls", "is for messages of the assistant");
    if (json_array_size(calls) == 0) return 0;
    json_t *out = json_array();
    if (set_new(r, "tool_calls", out)) return ERR_NOMEM;
    size_t i;
    const json_t *call;
    json_array_foreach(calls, i, call) {
        const int rc = read_call(r, call, i, out);
        if (rc) return rc;
    }
    if (json_array_size(out) == 0) json_object_del(r->to, "tool_calls");
    return 0;
}

/* ---- the rest ---- */

static int read_role(struct reading *r) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(r->from, "role"));
    for (size_t i = 0; role && i < sizeof(roles) / sizeof(*roles); i++)
        if (strcmp(role, roles[i]) == 0) r->role = roles[i];
    if (role && strcmp(role, "function") == 0)
        return refuse(r, "role", "function is not supported: results of tools have the role tool");
    if (!r->role) return refuse(r, "role", "must be system, developer, user, assistant or tool");
    if (strcmp(role, "developer") == 0 && !r->names_developer) r->role = "system";
    return set_new(r, "role", json_string(r->role));
}

static int read_string(const struct reading *r, const char *member) {
    const json_t *value = json_object_get(r->from, member);
    if (!json_is_given(value)) return 0;
    return json_is_string(value) ? set(r, member, value) : refuse(r, member, "must be a string");
}

/* Reads the reasoning of an earlier answer under either of its names.  Templates look for either,
 * and gpt-oss's for a third one. */
static int read_reasoning(const struct reading *r) {
    const json_t *reasoning = json_object_get(r->from, "reasoning_content");
    if (!json_is_given(reasoning)) reasoning = json_object_get(r->from, "reasoning");
    if (!json_is_given(reasoning)) return 0;
    if (!json_is_string(reasoning)) return refuse(r, "reasoning_content", "must be a string");
    return set_reasoning(r, reasoning);
}

static int read_message(struct reading *r) {
    if (!json_is_object(r->from))
        return api_error_set(r->err, 400, NULL, "messages", "messages[%zu] must be an object",
                             r->index);
    int rc = read_role(r);
    if (!rc) rc = read_content(r);
    if (!rc) rc = read_string(r, "name");
    if (!rc) rc = read_string(r, "tool_call_id");
    if (!rc) rc = read_reasoning(r);
    return rc ? rc : read_calls(r);
}

static bool is_role(const json_t *message, const char *role) {
    const char *given = json_string_value(json_object_get(message, "role"));
    return given && strcmp(given, role) == 0;
}

/* Moves all of `from` behind `to`. */
static bool move_behind(json_t *to, json_t *from) {
    return json_array_extend(to, from) == 0 && json_array_clear(from) == 0;
}

/* Appends messages in another order: no template knows a text between a call and its result.  So
 * the results come in front of all else between a message with calls and the next of the assistant.
 * `late` has what is to come behind them; it is empty before and afterwards. */
static bool append_in_order(json_t *sorted, json_t *late, const json_t *list) {
    bool awaits = false, failed = false;
    for (size_t i = 0; i < json_array_size(list) && !failed; i++) {
        json_t *message = json_array_get(list, i);
        if (is_role(message, "assistant")) {
            failed = !move_behind(sorted, late);
            awaits = json_object_get(message, "tool_calls");
        }
        const bool is_late = awaits && !is_role(message, "assistant") && !is_role(message, "tool");
        failed |= json_array_append(is_late ? late : sorted, message) < 0;
    }
    return !failed && move_behind(sorted, late);
}

static int put_results_first(json_t **list) {
    json_t *sorted = json_array(), *late = json_array();
    const bool is_done = sorted && late && append_in_order(sorted, late, *list);
    json_decref(late);
    json_decref(is_done ? *list : sorted);
    if (is_done) *list = sorted;
    return is_done ? 0 : ERR_NOMEM;
}

int chat_messages_read(json_t **out, const json_t *messages, bool names_developer,
                       struct skipped_types *skipped, struct api_error *err) {
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return api_error_set(err, 400, NULL, "messages", "messages must be an array of messages");
    json_t *list = json_array();
    int rc = list ? 0 : api_error_no_memory(err);
    for (size_t i = 0; i < json_array_size(messages) && !rc; i++) {
        struct reading r = {.from = json_array_get(messages, i),
                            .to = json_object(),
                            .index = i,
                            .names_developer = names_developer,
                            .content = {.param = "messages",
                                        .noun = "parts",
                                        .list = "content",
                                        .skipped = skipped,
                                        .err = err},
                            .err = err};
        /* The list owns the message from here on. */
        rc = !r.to || json_array_append_new(list, r.to) ? api_error_no_memory(err)
                                                        : read_message(&r);
        if (!rc && says_nothing(&r)) json_array_remove(list, json_array_size(list) - 1);
    }
    if (!rc && json_array_size(list) == 0)
        rc = api_error_set(err, 400, NULL, "messages", "messages must say something");
    if (!rc && put_results_first(&list)) rc = api_error_no_memory(err);
    if (rc) json_decref(list);
    else *out = list;
    return rc;
}
