/* messages.c - see messages.h. */
#include "server/api/conversation/messages.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"
#include "server/json/json_guard.h"

/* A message that is being read. */
struct reading {
    const json_t *from;
    json_t *to;
    size_t index;
    const char *role;
    bool names_developer;
    struct api_error *err;
};

static int no_memory(struct api_error *err) {
    api_error_set(err, 500, NULL, NULL, "no memory for the messages");
    return ERR_NOMEM;
}

static int refuse(const struct reading *r, const char *member, const char *rule) {
    return api_error_set(r->err, 400, NULL, "messages", "messages[%zu].%s %s", r->index, member,
                         rule);
}

static int set(const struct reading *r, const char *member, const json_t *value) {
    return json_object_set(r->to, member, (json_t *)value) ? no_memory(r->err) : 0;
}

static int set_new(const struct reading *r, const char *member, json_t *value) {
    return !value || json_object_set_new(r->to, member, value) ? no_memory(r->err) : 0;
}

static bool is_given(const json_t *value) {
    return value && !json_is_null(value);
}

/* ---- content ---- */

static int refuse_part(const struct reading *r, size_t part, const char *type) {
    return api_error_set(r->err, 400, "unsupported", "messages",
                         "messages[%zu].content[%zu]: parts of the type '%.100s' are not "
                         "supported, only text",
                         r->index, part, type ? type : "");
}

/* Returns the text of a part, or NULL with err filled. */
static const json_t *part_text(const struct reading *r, const json_t *part, size_t index) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const bool refusal = type && strcmp(type, "refusal") == 0;
    if (!type || (strcmp(type, "text") != 0 && !refusal)) {
        refuse_part(r, index, type);
        return NULL;
    }
    const json_t *text = json_object_get(part, refusal ? "refusal" : "text");
    if (json_is_string(text)) return text;
    api_error_set(r->err, 400, NULL, "messages", "messages[%zu].content[%zu].%s must be a string",
                  r->index, index, refusal ? "refusal" : "text");
    return NULL;
}

/* Joins the texts of parts by line ends. */
static int join_parts(const struct reading *r, const json_t *parts) {
    struct buffer joined = {0};
    size_t i;
    const json_t *part;
    json_array_foreach(parts, i, part) {
        const json_t *text = part_text(r, part, i);
        if (!text) {
            buffer_fini(&joined);
            return ERR_INVALID;
        }
        if (i) buffer_puts(&joined, "\n");
        buffer_append(&joined, json_string_value(text), json_string_length(text));
    }
    const int rc =
        joined.failed
            ? no_memory(r->err)
            : set_new(r, "content", json_stringn(joined.data ? joined.data : "", joined.length));
    buffer_fini(&joined);
    return rc;
}

/* Reads the content, which only an assistant that calls tools may leave out. */
static int read_content(const struct reading *r) {
    const json_t *content = json_object_get(r->from, "content");
    if (json_is_string(content)) return set(r, "content", content);
    if (json_is_array(content)) return join_parts(r, content);
    if (is_given(content)) return refuse(r, "content", "must be a string or an array of parts");
    if (strcmp(r->role, "assistant") == 0) return set_new(r, "content", json_string(""));
    return refuse(r, "content", "is required");
}

/* ---- tool calls ---- */

static int refuse_call(const struct reading *r, size_t call, const char *rule) {
    return api_error_set(r->err, 400, NULL, "messages", "messages[%zu].tool_calls[%zu]%s", r->index,
                         call, rule);
}

/* Parses the arguments of a call, JSON in a string; an empty one has none. */
static int parse_arguments(json_t **out, const json_t *text) {
    struct json_span none;
    if (json_string_length(text) > 0)
        return json_guard_load(out, json_string_value(text), json_string_length(text), NULL, &none,
                               NULL);
    *out = json_object();
    return *out ? 0 : ERR_NOMEM;
}

static int read_call(const struct reading *r, const json_t *call, size_t index, json_t *calls) {
    const json_t *function = json_object_get(call, "function"),
                 *name = json_object_get(function, "name"),
                 *arguments = json_object_get(function, "arguments"),
                 *id = json_object_get(call, "id");
    if (!json_is_string(name)) return refuse_call(r, index, ".function.name must be a string");
    if (is_given(id) && !json_is_string(id)) return refuse_call(r, index, ".id must be a string");
    json_t *parsed = json_is_object(arguments) ? json_incref((json_t *)arguments) : NULL;
    int rc = 0;
    if (!is_given(arguments)) parsed = json_object();
    else if (json_is_string(arguments)) rc = parse_arguments(&parsed, arguments);
    if (rc == ERR_NOMEM || (!parsed && !is_given(arguments))) return no_memory(r->err);
    if (!parsed)
        return refuse_call(r, index, ".function.arguments must be a JSON object in a string");
    json_t *out = json_pack("{s:s, s:{s:O, s:o}}", "type", "function", "function", "name", name,
                            "arguments", parsed);
    if (!out || json_array_append_new(calls, out)) return no_memory(r->err);
    return is_given(id) && json_object_set(out, "id", (json_t *)id) ? no_memory(r->err) : 0;
}

static int read_calls(const struct reading *r) {
    const json_t *calls = json_object_get(r->from, "tool_calls");
    if (!is_given(calls)) return 0;
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
    return 0;
}

/* ---- the rest ---- */

static int read_role(struct reading *r) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(r->from, "role"));
    for (size_t i = 0; role && i < sizeof(roles) / sizeof(*roles); i++)
        if (strcmp(role, roles[i]) == 0) r->role = roles[i];
    if (!r->role) return refuse(r, "role", "must be system, developer, user, assistant or tool");
    if (strcmp(role, "developer") == 0 && !r->names_developer) r->role = "system";
    return set_new(r, "role", json_string(r->role));
}

static int read_string(const struct reading *r, const char *member) {
    const json_t *value = json_object_get(r->from, member);
    if (!is_given(value)) return 0;
    return json_is_string(value) ? set(r, member, value) : refuse(r, member, "must be a string");
}

/* Reads the reasoning of an earlier answer under either of its names, for templates that look for
 * either. */
static int read_reasoning(const struct reading *r) {
    const json_t *reasoning = json_object_get(r->from, "reasoning_content");
    if (!is_given(reasoning)) reasoning = json_object_get(r->from, "reasoning");
    if (!is_given(reasoning)) return 0;
    if (!json_is_string(reasoning)) return refuse(r, "reasoning_content", "must be a string");
    const int rc = set(r, "reasoning_content", reasoning);
    return rc ? rc : set(r, "reasoning", reasoning);
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

int chat_messages_read(json_t **out, const json_t *messages, bool names_developer,
                       struct api_error *err) {
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return api_error_set(err, 400, NULL, "messages", "messages must be an array of messages");
    json_t *list = json_array();
    int rc = list ? 0 : no_memory(err);
    for (size_t i = 0; i < json_array_size(messages) && !rc; i++) {
        struct reading r = {.from = json_array_get(messages, i),
                            .to = json_object(),
                            .index = i,
                            .names_developer = names_developer,
                            .err = err};
        /* The list owns the message from here on. */
        rc = !r.to || json_array_append_new(list, r.to) ? no_memory(err) : read_message(&r);
    }
    if (rc) json_decref(list);
    else *out = list;
    return rc;
}
