/* blocks.c - see blocks.h. */
#include "server/api/messages/blocks.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/api/conversation/arguments.h"
#include "server/api/conversation/content.h"
#include "server/api/conversation/tools.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"

/* A message whose blocks are being read. */
struct reading {
    json_t *messages;       /* to append to */
    json_t *parts;          /* text so far, of the message that is being made */
    json_t *message;        /* the assistant's, borrowed from `messages`; NULL: of another role */
    struct buffer thinking; /* of the message's blocks, set once: a client may send thousands */
    bool thinks;
    char where[64]; /* the place in the body, for errors */
    const char *param;
    struct tool_list *tools; /* to add to */
    struct content_rules content;
    struct api_error *err;
};

static int refuse(const struct reading *r, const char *member, const char *rule) {
    return api_error_set(r->err, 400, NULL, r->param, "%s%s %s", r->where, member, rule);
}

static bool is_type(const json_t *block, const char *type) {
    const char *given = content_type(block);
    return given && strcmp(given, type) == 0;
}

/* Refuses a block of a type that stands in messages of another role. */
static int refuse_type(const struct reading *r, const json_t *block) {
    return api_error_set(r->err, 400, "unsupported", r->param,
                         "%s: blocks of the type '%.100s' are not supported here", r->where,
                         content_type(block));
}

/* ---- text ---- */

static int add_part(const struct reading *r, const json_t *text) {
    json_t *part = json_pack("{s:s, s:O}", "type", "text", "text", text);
    return !part || json_array_append_new(r->parts, part) ? api_error_no_memory(r->err) : 0;
}

/* Reads what a block of any other type says, which may be nothing. */
static int read_text(struct reading *r, const json_t *block) {
    struct buffer text = {0};
    bool has_text = false;
    if (is_type(block, "text") && json_is_string(json_object_get(block, "text")))
        return add_part(r, json_object_get(block, "text"));
    if (!json_is_object(block)) return refuse(r, "", "must be an object");
    if (!content_type(block)) return refuse(r, ".type", "must be a string");
    int rc = content_add(&r->content, r->where, block, &text, &has_text);
    json_t *part = rc || !has_text ? NULL : json_stringn(text.data ? text.data : "", text.length);
    buffer_fini(&text);
    if (rc || !has_text) return rc;
    rc = part ? add_part(r, part) : api_error_no_memory(r->err);
    json_decref(part);
    return rc;
}

/* Appends a message with the parts read so far, if there are any. */
static int flush(struct reading *r, const char *role) {
    if (json_array_size(r->parts) == 0) return 0;
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", r->parts);
    json_t *parts = json_array();
    json_decref(r->parts);
    r->parts = parts;
    if (!message || json_array_append_new(r->messages, message) || !parts)
        return api_error_no_memory(r->err);
    return 0;
}

/* ---- blocks of a user ---- */

static int read_result(struct reading *r, const json_t *block) {
    const json_t *id = json_object_get(block, "tool_use_id");
    json_t *content = NULL;
    char where[96];
    if (!json_is_string(id)) return refuse(r, ".tool_use_id", "must be a string");
    snprintf(where, sizeof(where), "%s.content", r->where);
    /* The text of the message comes behind all of its results. */
    const int rc = content_read(&r->content, where, json_object_get(block, "content"), &content);
    if (rc) return rc;
    json_t *message =
        json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content);
    return !message || json_array_append_new(r->messages, message) ? api_error_no_memory(r->err)
                                                                   : 0;
}

static int read_user_block(struct reading *r, const json_t *block) {
    if (is_type(block, "tool_result")) return read_result(r, block);
    return is_type(block, "tool_use") ? refuse_type(r, block) : read_text(r, block);
}

/* ---- blocks of an assistant ---- */

static int read_use(struct reading *r, const json_t *block) {
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name"),
                 *input = json_object_get(block, "input");
    json_t *parsed = NULL;
    if (!json_is_string(id)) return refuse(r, ".id", "must be a string");
    if (!json_is_string(name)) return refuse(r, ".name", "must be a string");
    const int rc = arguments_of(&parsed, input);
    if (rc)
        return rc == ERR_NOMEM ? api_error_no_memory(r->err)
                               : refuse(r, ".input", "must be an object");
    json_t *calls = json_object_get(r->message, "tool_calls");
    if (!calls) {
        calls = json_array();
        if (json_object_set_new(r->message, "tool_calls", calls)) {
            json_decref(parsed);
            return api_error_no_memory(r->err);
        }
    }
    json_t *shown = tool_shown_name(json_object_get(block, "namespace"), name);
    json_t *call = json_pack("{s:O, s:s, s:{s:o, s:o}}", "id", id, "type", "function", "function",
                             "name", shown, "arguments", parsed);
    return !call || json_array_append_new(calls, call) ? api_error_no_memory(r->err) : 0;
}

/* Adds thinking behind the thinking of earlier blocks. */
static int read_thinking(struct reading *r, const json_t *block) {
    const json_t *thinking = json_object_get(block, "thinking");
    if (!json_is_string(thinking)) return refuse(r, ".thinking", "must be a string");
    if (r->thinks) buffer_puts(&r->thinking, "\n");
    buffer_append(&r->thinking, json_string_value(thinking), json_string_length(thinking));
    r->thinks = true;
    return 0;
}

/* Gives the message the thinking of its blocks. */
static int take_thinking(struct reading *r) {
    const struct buffer *all = &r->thinking;
    json_t *text = all->failed ? NULL : json_stringn(all->data ? all->data : "", all->length);
    return json_object_set_new(r->message, "reasoning_content", text) ? api_error_no_memory(r->err)
                                                                      : 0;
}

static int read_assistant_block(struct reading *r, const json_t *block) {
    if (is_type(block, "tool_use")) return read_use(r, block);
    if (is_type(block, "thinking")) return read_thinking(r, block);
    return is_type(block, "tool_result") ? refuse_type(r, block) : read_text(r, block);
}

/* Reads a block of the system.  It may define a tool that the model may call from here on; one that
 * it only refers to is among the tools of the body, and has been shown all the time. */
static int read_system_block(struct reading *r, const json_t *block) {
    const struct tool_rules rules = {
        .needs_schema = true, .skipped = r->content.skipped, .err = r->err};
    const json_t *definition = json_object_get(json_object_get(block, "tool"), "definition");
    if (!is_type(block, "tool_addition") || !json_is_object(definition)) return read_text(r, block);
    json_t *tools = json_pack("[O]", definition);
    const int rc =
        tools ? tool_list_add(r->tools, &rules, r->where, tools) : api_error_no_memory(r->err);
    json_decref(tools);
    return rc;
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
    if (!message || json_array_append_new(r->messages, message)) return api_error_no_memory(r->err);
    r->message = message;
    int rc = read_content(r, content, read_assistant_block);
    if (!rc && r->thinks) rc = take_thinking(r);
    buffer_fini(&r->thinking);
    r->thinks = false;
    const json_t *calls = json_object_get(message, "tool_calls");
    if (rc || (json_array_size(r->parts) == 0 && calls)) return rc;
    return json_object_set(message, "content", r->parts) ? api_error_no_memory(r->err) : 0;
}

/* Appends a turn of the user whose blocks have all been skipped: it is a turn nevertheless. */
static int append_empty(struct reading *r) {
    json_t *message = json_pack("{s:s, s:s}", "role", "user", "content", "");
    return !message || json_array_append_new(r->messages, message) ? api_error_no_memory(r->err)
                                                                   : 0;
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
    /* One of the system may be without content: then it says something to the service alone. */
    if (is_user && json_is_array(content) && json_array_size(content) == 0)
        return refuse(r, "", "must not be empty");
    const size_t n_before = json_array_size(r->messages);
    const int rc = read_content(r, content, is_user ? read_user_block : read_system_block);
    if (rc) return rc;
    const bool is_empty =
        json_array_size(r->messages) == n_before && json_array_size(r->parts) == 0;
    if (is_empty && is_user) return append_empty(r);
    return flush(r, role);
}

static struct content_rules rules_of(const char *param, struct skipped_types *skipped,
                                     struct api_error *err) {
    return (struct content_rules){
        .param = param, .noun = "blocks", .list = "content", .skipped = skipped, .err = err};
}

int blocks_read_messages(json_t *messages, struct tool_list *tools, const json_t *from,
                         bool *continues, struct skipped_types *skipped, struct api_error *err) {
    struct reading r = {.messages = messages,
                        .param = "messages",
                        .tools = tools,
                        .content = rules_of("messages", skipped, err),
                        .err = err};
    const size_t n = json_array_size(from);
    if (n == 0)
        return api_error_set(err, 400, NULL, "messages", "messages must be an array of messages");
    int rc = 0;
    for (size_t i = 0; i < n && !rc; i++) {
        r.message = NULL;
        r.parts = json_array();
        rc = r.parts ? read_message(&r, json_array_get(from, i), i) : api_error_no_memory(err);
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
    return is_type(block, "text") && is_for_the_gateway(block) ? 0 : read_text(r, block);
}

int blocks_read_system(json_t *messages, const json_t *system, struct skipped_types *skipped,
                       struct api_error *err) {
    struct reading r = {.messages = messages,
                        .parts = json_array(),
                        .where = "system",
                        .param = "system",
                        .content = rules_of("system", skipped, err),
                        .err = err};
    int rc = r.parts ? read_content(&r, system, read_own_system_block) : api_error_no_memory(err);
    if (!rc) rc = flush(&r, "system");
    json_decref(r.parts);
    return rc;
}
