/* blocks.c - see blocks.h. */
#include "server/api/messages/blocks.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"

/* A message whose blocks are being read. */
struct reading {
    json_t *messages; /* to append to */
    json_t *parts;    /* text so far, of the message that is being made */
    json_t *message;  /* the assistant's, borrowed from `messages`; NULL: of another role */
    char where[64];   /* the place in the body, for errors */
    const char *param;
    struct api_error *err;
};

static int no_memory(struct api_error *err) {
    api_error_set(err, 500, NULL, NULL, "no memory for the messages");
    return ERR_NOMEM;
}

static int refuse(const struct reading *r, const char *member, const char *rule) {
    return api_error_set(r->err, 400, NULL, r->param, "%s%s %s", r->where, member, rule);
}

static const char *type_of(const json_t *block) {
    return json_string_value(json_object_get(block, "type"));
}

static bool is_type(const json_t *block, const char *type) {
    const char *given = type_of(block);
    return given && strcmp(given, type) == 0;
}

/* Refuses a block of an unknown type.  allowed: those that may stand here. */
static int refuse_type(const struct reading *r, const json_t *block, const char *allowed) {
    if (!json_is_object(block)) return refuse(r, "", "must be an object");
    if (!type_of(block)) return refuse(r, ".type", "must be a string");
    return api_error_set(r->err, 400, "unsupported", r->param,
                         "%s: blocks of the type '%.100s' are not supported here, only %s",
                         r->where, type_of(block), allowed);
}

/* ---- text ---- */

static int add_part(const struct reading *r, const json_t *text) {
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", text);
    return !part || json_array_append_new(r->parts, part) ? no_memory(r->err) : 0;
}

static int read_text(const struct reading *r, const json_t *block) {
    const json_t *text = json_object_get(block, "text");
    if (!json_is_string(text)) return refuse(r, ".text", "must be a string");
    return add_part(r, text);
}

/* Appends a message with the parts read so far, if there are any. */
static int flush(struct reading *r, const char *role) {
    if (json_array_size(r->parts) == 0) return 0;
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", r->parts);
    json_t *parts = json_array();
    json_decref(r->parts);
    r->parts = parts;
    if (!message || json_array_append_new(r->messages, message) || !parts) return no_memory(r->err);
    return 0;
}

/* ---- blocks of a user ---- */

/* Reads the content of a tool's result: a string, or an array of text blocks. */
static int read_result_content(struct reading *r, const json_t *content, json_t **out) {
    if (!content || json_is_null(content)) *out = json_string("");
    if (json_is_string(content)) *out = json_incref((json_t *)content);
    if (*out || !json_is_array(content))
        return *out ? 0 : refuse(r, ".content", "must be a string or an array of blocks");
    json_t *kept = r->parts;
    r->parts = json_array();
    int rc = r->parts ? 0 : no_memory(r->err);
    for (size_t i = 0; i < json_array_size(content) && !rc; i++) {
        const json_t *block = json_array_get(content, i);
        const size_t n = strlen(r->where);
        snprintf(r->where + n, sizeof(r->where) - n, ".content[%zu]", i);
        rc = is_type(block, "text") ? read_text(r, block) : refuse_type(r, block, "text");
        r->where[n] = 0;
    }
    if (rc) json_decref(r->parts);
    else *out = r->parts;
    r->parts = kept;
    return rc;
}

static int read_result(struct reading *r, const json_t *block) {
    const json_t *id = json_object_get(block, "tool_use_id");
    json_t *content = NULL;
    if (!json_is_string(id)) return refuse(r, ".tool_use_id", "must be a string");
    int rc = flush(r, "user");
    if (!rc) rc = read_result_content(r, json_object_get(block, "content"), &content);
    if (rc) return rc;
    json_t *message =
        json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content);
    return !message || json_array_append_new(r->messages, message) ? no_memory(r->err) : 0;
}

static int read_user_block(struct reading *r, const json_t *block) {
    if (is_type(block, "text")) return read_text(r, block);
    if (is_type(block, "tool_result")) return read_result(r, block);
    return refuse_type(r, block, "text and tool_result");
}

/* ---- blocks of an assistant ---- */

static int read_use(struct reading *r, const json_t *block) {
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
                 *input = json_object_get(block, "input");
    if (!json_is_string(id)) return refuse(r, ".id", "must be a string");
    if (!json_is_string(name)) return refuse(r, ".name", "must be a string");
    if (!json_is_object(input)) return refuse(r, ".input", "must be an object");
    json_t *calls = json_object_get(r->message, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(r->message, "tool_calls", calls)) return no_memory(r->err);
    }
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function",
                             "name", name, "arguments", input);
    return !call || json_array_append_new(calls, call) ? no_memory(r->err) : 0;
}

/* Adds thinking behind the thinking of earlier blocks. */
static int read_thinking(struct reading *r, const json_t *block) {
    const json_t *thinking = json_object_get(block, "thinking"),
                 *before = json_object_get(r->message, "reasoning_content");
    if (!json_is_string(thinking)) return refuse(r, ".thinking", "must be a string");
    if (!before)
        return json_object_set(r->message, "reasoning_content", (json_t *)thinking)
                   ? no_memory(r->err)
                   : 0;
    struct buffer all = {0};
    buffer_append(&all, json_string_value(before), json_string_length(before));
    buffer_puts(&all, "\n");
    buffer_append(&all, json_string_value(thinking), json_string_length(thinking));
    json_t *joined = all.failed ? NULL : json_stringn(all.data, all.length);
    buffer_fini(&all);
    return json_object_set_new(r->message, "reasoning_content", joined) ? no_memory(r->err) : 0;
}

static int read_assistant_block(struct reading *r, const json_t *block) {
    if (is_type(block, "text")) return read_text(r, block);
    if (is_type(block, "tool_use")) return read_use(r, block);
    if (is_type(block, "thinking")) return read_thinking(r, block);
    return refuse_type(r, block, "text, thinking and tool_use");
}

static int read_system_block(struct reading *r, const json_t *block) {
    return is_type(block, "text") ? read_text(r, block) : refuse_type(r, block, "text");
}

/* ---- messages ---- */

typedef int (*block_reader)(struct reading *r, const json_t *block);

/* Reads content: a string, or an array of blocks. */
static int read_content(struct reading *r, const json_t *content, block_reader read) {
    const size_t n = strlen(r->where);
    if (json_is_string(content)) return add_part(r, content);
    if (!json_is_array(content)) return refuse(r, "", "must be a string or an array of blocks");
    int rc = 0;
    for (size_t i = 0; i < json_array_size(content) && !rc; i++) {
        snprintf(r->where + n, sizeof(r->where) - n, "[%zu]", i);
        rc = read(r, json_array_get(content, i));
    }
    r->where[n] = 0;
    return rc;
}

/* Makes the message of an assistant, of which there is one even if it says nothing. */
static int read_assistant(struct reading *r, const json_t *content) {
    json_t *message = json_pack("{s:s}", "role", "assistant");
    if (!message || json_array_append_new(r->messages, message)) return no_memory(r->err);
    r->message = message;
    int rc = read_content(r, content, read_assistant_block);
    const json_t *calls = json_object_get(message, "tool_calls");
    if (rc || (json_array_size(r->parts) == 0 && calls)) return rc;
    return json_object_set(message, "content", r->parts) ? no_memory(r->err) : 0;
}

static int read_message(struct reading *r, const json_t *message, size_t index) {
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *content = json_object_get(message, "content");
    snprintf(r->where, sizeof(r->where), "messages[%zu]", index);
    if (!json_is_object(message)) return refuse(r, "", "must be an object");
    const bool is_user = role && strcmp(role, "user") == 0,
               is_system = role && strcmp(role, "system") == 0;
    if (!role || (!is_user && !is_system && strcmp(role, "assistant") != 0))
        return refuse(r, ".role", "must be user, assistant or system");
    snprintf(r->where, sizeof(r->where), "messages[%zu].content", index);
    if (!is_user && !is_system) return read_assistant(r, content);
    const size_t n_before = json_array_size(r->messages);
    int rc = read_content(r, content, is_user ? read_user_block : read_system_block);
    if (!rc) rc = flush(r, role);
    if (!rc && json_array_size(r->messages) == n_before) rc = refuse(r, "", "must not be empty");
    return rc;
}

int blocks_read_messages(json_t *messages, const json_t *from, bool *continues,
                         struct api_error *err) {
    struct reading r = {.messages = messages, .param = "messages", .err = err};
    const size_t n = json_array_size(from);
    if (n == 0)
        return api_error_set(err, 400, NULL, "messages", "messages must be an array of messages");
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        r.message = NULL;
        r.parts = json_array();
        rc = r.parts ? read_message(&r, json_array_get(from, i), i) : no_memory(err);
        json_decref(r.parts);
    }
    *continues = !rc && r.message;
    return rc;
}

static bool is_for_the_gateway(const json_t *block) {
    static const char begin[] = "x-anthropic-billing-header:";
    const char *text = json_string_value(json_object_get(block, "text"));
    return text && strncmp(text, begin, sizeof(begin) - 1) == 0;
}

static int read_own_system_block(struct reading *r, const json_t *block) {
    return is_type(block, "text") && is_for_the_gateway(block) ? 0 : read_system_block(r, block);
}

int blocks_read_system(json_t *messages, const json_t *system, struct api_error *err) {
    struct reading r = {.messages = messages,
                        .parts = json_array(),
                        .where = "system",
                        .param = "system",
                        .err = err};
    int rc = r.parts ? read_content(&r, system, read_own_system_block) : no_memory(err);
    if (!rc) rc = flush(&r, "system");
    json_decref(r.parts);
    return rc;
}
