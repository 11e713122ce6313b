/* request.c - see request.h. */
#include "server/api/messages/request.h"

#include <string.h>

#include "server/api/completion_request.h"
#include "server/api/conversation/request.h"
#include "server/api/conversation/skipped.h"
#include "server/api/conversation/tools.h"
#include "server/api/forms.h"
#include "server/api/messages/blocks.h"
#include "server/api/request_fields.h"
#include "server/json/api_error.h"

/* What the readers of the API's own members find.  JSON is borrowed from the body. */
struct messages_reading {
    const json_t *messages, *system, *tools, *choice;
    bool counts, has_max_tokens;
};

static struct messages_reading *own(struct request_reading *r) {
    return r->own;
}

/* ---- members ---- */

static int read_messages(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    own(r)->messages = value;
    return json_is_array(value) ? 0 : request_refuse(r, field, "must be an array of messages");
}

/* Reads the most tokens of an answer.  An answer also ends where the context does, which is no
 * error in this API. */
static int read_max_tokens(struct request_reading *r, const struct request_field *field,
                           const json_t *value) {
    own(r)->has_max_tokens = true;
    return request_read_u32(r, field, value);
}

static int read_stops(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    if (!json_is_array(value)) return request_refuse(r, field, "must be an array of strings");
    return request_read_stop(r, field, value);
}

/* Reads the servers that Anthropic's own service would ask, as tools of the type mcp are in other
 * APIs. */
static int read_servers(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    bool fits = json_is_array(value);
    for (size_t i = 0; i < json_array_size(value); i++)
        fits = fits && json_is_object(json_array_get(value, i));
    if (!fits) return request_refuse(r, field, "must be an array of objects");
    if (json_array_size(value) > 0) skipped_types_note(r->limits->skipped, field->name, "mcp");
    return 0;
}

static const struct request_field fields[] = {
    {"messages", "object[+]", read_messages, 0, 0, 0,
     "The conversation: role and content of each message."},
    {"max_tokens", "integer", read_max_tokens, offsetof(struct completion_request, max_tokens), 0,
     INT32_MAX, "Most tokens of an answer; required."},
    {"system", "string|object[]", request_keep_any, offsetof(struct messages_reading, system), 0, 0,
     "What stands before the conversation."},
    {"stop_sequences", "string[]", read_stops, 0, 0, 0, "Up to 16 strings that end the text."},
    {"tools", "object[]", request_keep, offsetof(struct messages_reading, tools), 0, 0,
     "Functions that the model may call."},
    {"tool_choice", "object", request_keep_any, offsetof(struct messages_reading, choice), 0, 0,
     "Whether the model may call them: the type auto or none."},
    {"metadata", "object", request_read_ignored, 0, 0, 0, "Ignored."},
    {"service_tier", "string", request_read_ignored, 0, 0, 0, "Ignored."},
    {"cache_control", "object", request_read_ignored, 0, 0, 0,
     "Ignored: prefixes are cached in any case."},
    {"context_management", "object", request_read_ignored, 0, 0, 0, "Ignored."},
    {"container", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"mcp_servers", "object[]", read_servers, 0, 0, 0, "Accepted and not used: no tool runs here."},
};

static const struct request_table own_table = REQUEST_TABLE(fields);
const struct request_table *const messages_tables[] = {&request_common, &request_forms,
                                                       &chat_template_table, &own_table, NULL};

/* ---- translation ---- */

static int translate_tools(struct request_reading *r, struct tool_list *tools) {
    const struct tool_rules rules = {
        .needs_schema = true, .skipped = r->limits->skipped, .err = r->err};
    return tool_list_add(tools, &rules, "tools", own(r)->tools);
}

static int translate_messages(struct request_reading *r, json_t *members, struct tool_list *tools) {
    json_t *messages = json_array();
    bool continues = false;
    if (json_object_set_new(members, "messages", messages)) return api_error_no_memory(r->err);
    struct skipped_types *skipped = r->limits->skipped;
    int rc = own(r)->system ? blocks_read_system(messages, own(r)->system, skipped, r->err) : 0;
    if (!rc)
        rc = blocks_read_messages(messages, tools, own(r)->messages, &continues, skipped, r->err);
    if (rc || !continues) return rc;
    return json_object_set_new(members, "continue_final_message", json_true())
               ? api_error_no_memory(r->err)
               : 0;
}

static int translate(struct request_reading *r, const json_t *root, json_t *members,
                     struct tool_list *tools) {
    int rc = request_read_tables(r, messages_tables, root);
    if (rc) return rc;
    if (!own(r)->messages)
        return api_error_set(r->err, 400, NULL, "messages", "messages is required");
    if (!own(r)->has_max_tokens && !own(r)->counts)
        return api_error_set(r->err, 400, NULL, "max_tokens", "max_tokens is required");
    if (own(r)->tools) rc = translate_tools(r, tools);
    if (!rc) rc = translate_messages(r, members, tools);
    if (rc || !own(r)->choice) return rc;
    return json_object_set(members, "tool_choice", (json_t *)own(r)->choice)
               ? api_error_no_memory(r->err)
               : 0;
}

int messages_request_parse(struct completion_request *out, struct chat_request *chat, bool counts,
                           const char *body, size_t length, const struct request_limits *limits,
                           struct api_error *err) {
    struct messages_reading reading = {.counts = counts};
    const struct chat_dialect dialect = {.translate = translate, .own = &reading};
    return chat_request_parse(out, chat, &dialect, body, length, limits, err);
}
