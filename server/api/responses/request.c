/* request.c - see request.h. */
#include "server/api/responses/request.h"

#include "server/api/completion_request.h"
#include "server/api/conversation/request.h"
#include "server/api/conversation/tools.h"
#include "server/api/forms.h"
#include "server/api/request_fields.h"
#include "server/api/responses/items.h"
#include "server/json/api_error.h"
#include "server/json/json_value.h"

/* A longer member of the request is not repeated in its answer. */
enum { ECHO_MAX_BYTES = 256 << 10 };

/* What the readers of the API's own members find.  JSON is borrowed from the body. */
struct responses_reading {
    struct responses_asked *asked;
    const struct history_source *source;
    const json_t *input, *instructions, *tools, *choice, *parallel, *management, *previous;
    json_int_t top_logprobs;
    bool logprobs, no_store;
};

static struct responses_reading *own(struct request_reading *r) {
    return r->own;
}

/* ---- members ---- */

static int read_parallel(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    bool parallel = true;
    own(r)->parallel = value;
    return request_read_flag(r, field, value, &parallel);
}

/* Reads what the answer is to include.  Most of it is about tools of OpenAI's own service. */
static int read_include(struct request_reading *r, const struct request_field *field,
                        const json_t *value) {
    if (!json_is_array(value)) return request_refuse(r, field, "must be an array of strings");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *what = json_array_get(value, i);
        if (!json_is_string(what)) return request_refuse(r, field, "must be an array of strings");
        own(r)->logprobs |= json_is_word(what, "message.output_text.logprobs");
    }
    return 0;
}

static int read_top_logprobs(struct request_reading *r, const struct request_field *field,
                             const json_t *value) {
    json_int_t n = 0;
    const int rc = request_read_i32(r, field, value); /* checks it */
    if (!rc && json_read_integer(value, &n)) own(r)->top_logprobs = n;
    return rc;
}

static int read_previous(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    own(r)->previous = json_string_length(value) > 0 ? value : NULL;
    return json_is_string(value) ? 0 : request_refuse(r, field, "must be a string");
}

static int read_conversation(struct request_reading *r, const struct request_field *field,
                             const json_t *value) {
    if (!request_read_refused(r, field, value)) return 0;
    return api_error_set(r->err, 400, "unsupported", field->name,
                         "conversation is not supported: go on from a response with "
                         "previous_response_id, or send the items of the conversation in input");
}

static int read_background(struct request_reading *r, const struct request_field *field,
                           const json_t *value) {
    if (!request_read_refused(r, field, value)) return 0;
    return api_error_set(r->err, 400, "unsupported", field->name,
                         "background is not supported: a response ends when its client leaves; "
                         "use stream to read it while it comes");
}

static int read_store(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    bool stores = true;
    const int rc = request_read_flag(r, field, value, &stores);
    own(r)->no_store = !stores;
    return rc;
}

/* Takes both words.  A prompt that is longer than the context is refused under either. */
static int read_truncation(struct request_reading *r, const struct request_field *field,
                           const json_t *value) {
    if (json_is_word(value, "disabled") || json_is_word(value, "auto")) return 0;
    return request_refuse(r, field, "must be disabled or auto");
}

static int read_ignored_count(struct request_reading *r, const struct request_field *field,
                              const json_t *value) {
    json_int_t ignored = 0;
    return json_read_integer(value, &ignored) ? 0 : request_refuse(r, field, "must be an integer");
}

#define AT(member) offsetof(struct completion_request, member)

static const struct request_field fields[] = {
    {"input", "string|object[+]", request_keep_any, offsetof(struct responses_reading, input), 0, 0,
     "The conversation: a text of the user, or items."},
    {"instructions", "string", request_keep, offsetof(struct responses_reading, instructions), 0, 0,
     "A message of the system before the conversation."},
    {"max_output_tokens", "integer", request_read_max_tokens, AT(max_tokens), REQUEST_ALL_TOKENS,
     INT32_MAX, "Most tokens of an answer."},
    {"tools", "object[]", request_keep, offsetof(struct responses_reading, tools), 0, 0,
     "Functions that the model may call, also in namespaces, and custom tools, which take a text."},
    {"tool_choice", "'none'|'auto'|'required'|object", request_keep_any,
     offsetof(struct responses_reading, choice), 0, 0,
     "Whether the model may call them: auto or none."},
    {"parallel_tool_calls", "boolean", read_parallel, 0, 0, 0, "Several calls may be answered."},
    {"include", "string[]", read_include, 0, 0, 0,
     "message.output_text.logprobs; the rest is ignored."},
    {"top_logprobs", "integer", read_top_logprobs, AT(params.n_logprobs), 0, SAMPLE_MAX_TOP,
     "Log-probabilities of each token, and of so many best ones."},
    {"previous_response_id", "string", read_previous, 0, 0, 0,
     "A stored response to go on from; its instructions and tools are not kept."},
    {"conversation", "refused", read_conversation, 0, 0, 0, "Not supported."},
    {"background", "refused", read_background, 0, 0, 0, "Not supported."},
    {"prompt", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"truncation", "'disabled'|'auto'", read_truncation, 0, 0, 0,
     "No item is left out under either: a prompt beyond the context is refused."},
    {"context_management", "array", request_keep, offsetof(struct responses_reading, management), 0,
     0, "Ignored: no item is left out of the prompt."},
    {"store", "boolean", read_store, 0, 0, 0, "Whether the response is stored; true unless given."},
    {"max_tool_calls", "integer", read_ignored_count, 0, 0, INT32_MAX,
     "Ignored: no tool runs here."},
    {"metadata", "object", request_read_ignored, 0, 0, 0, "Repeated in the answer."},
    {"stream_options", "object", request_read_ignored, 0, 0, 0, "Ignored."},
    {"user", "string", request_read_ignored, 0, 0, 0, "Ignored."},
    {"safety_identifier", "string", request_read_ignored, 0, 0, 0, "Ignored."},
    {"prompt_cache_key", "string", request_read_ignored, 0, 0, 0,
     "Ignored: prefixes are cached in any case."},
    {"prompt_cache_retention", "string", request_read_ignored, 0, 0, 0, "Ignored."},
    {"service_tier", "string", request_read_ignored, 0, 0, 0, "Ignored."},
};

#undef AT

static const struct request_table own_table = REQUEST_TABLE(fields);
const struct request_table *const responses_tables[] = {&request_common, &request_forms,
                                                        &chat_template_table, &own_table, NULL};

/* ---- translation ---- */

static int translate_tools(struct request_reading *r, struct tool_list *tools) {
    const struct tool_rules rules = {.skipped = r->limits->skipped, .err = r->err};
    return tool_list_add(tools, &rules, "tools", own(r)->tools);
}

static int translate_input(struct request_reading *r, json_t *members, struct tool_list *tools) {
    json_t *messages = json_array();
    const json_t *instructions = own(r)->instructions;
    if (json_object_set_new(members, "messages", messages)) return api_error_no_memory(r->err);
    if (instructions) {
        json_t *system = json_pack("{s:s, s:O}", "role", "system", "content", instructions);
        if (!system || json_array_append_new(messages, system)) return api_error_no_memory(r->err);
    }
    const size_t n_messages = json_array_size(messages);
    struct responses_asked *asked = own(r)->asked;
    json_t *items = NULL;
    size_t n_before = 0;
    asked->stores = !own(r)->no_store && own(r)->source->store;
    int rc = history_read(&asked->history, own(r)->source, own(r)->previous, own(r)->input,
                          asked->stores, &items, &n_before, r->err);
    if (!rc) rc = items_read(messages, tools, items, n_before, r->limits->skipped, r->err);
    json_decref(items);
    if (rc || json_array_size(messages) > n_messages) return rc;
    return api_error_set(r->err, 400, NULL, "input", "input: no item says anything to the model");
}

static int translate_flags(struct request_reading *r, json_t *members) {
    const struct responses_reading *q = own(r);
    bool failed = false;
    if (q->choice) failed |= json_object_set(members, "tool_choice", (json_t *)q->choice) < 0;
    if (q->parallel)
        failed |= json_object_set(members, "parallel_tool_calls", (json_t *)q->parallel) < 0;
    if (q->logprobs || q->top_logprobs > 0) {
        failed |= json_object_set_new(members, "logprobs", json_true()) < 0;
        failed |= json_object_set_new(members, "top_logprobs", json_integer(q->top_logprobs)) < 0;
    }
    return failed ? api_error_no_memory(r->err) : 0;
}

/* ---- the echo ---- */

/* Writes ,"name":value.  Values that are missing, or too long to repeat, are given as
 * `otherwise`. */
static void echo(struct buffer *out, const json_t *root, const char *name, const char *otherwise) {
    const json_t *value = json_object_get(root, name);
    buffer_printf(out, ",\"%s\":", name);
    const size_t n = out->length;
    if (json_is_given(value)) buffer_json_value(out, value);
    if (out->length > n && out->length - n <= ECHO_MAX_BYTES) return;
    if (out->failed) return;
    out->length = n;
    buffer_puts(out, otherwise);
}

static int make_echo(struct request_reading *r, const json_t *root) {
    struct buffer *out = &own(r)->asked->members;
    echo(out, root, "previous_response_id", "null");
    echo(out, root, "instructions", "null");
    echo(out, root, "max_output_tokens", "null");
    echo(out, root, "metadata", "{}");
    echo(out, root, "parallel_tool_calls", "true");
    echo(out, root, "reasoning", "{\"effort\":null,\"summary\":null}");
    echo(out, root, "temperature", "1");
    echo(out, root, "text", "{\"format\":{\"type\":\"text\"}}");
    echo(out, root, "tool_choice", "\"auto\"");
    echo(out, root, "tools", "[]");
    echo(out, root, "top_logprobs", "0");
    echo(out, root, "top_p", "1");
    echo(out, root, "truncation", "\"disabled\"");
    echo(out, root, "user", "null");
    return out->failed ? api_error_no_memory(r->err) : 0;
}

void responses_asked_fini(struct responses_asked *asked, struct responses_store *store) {
    buffer_fini(&asked->members);
    history_fini(&asked->history, store);
}

static int translate(struct request_reading *r, const json_t *root, json_t *members,
                     struct tool_list *tools) {
    int rc = request_read_tables(r, responses_tables, root);
    r->request->repeats = true;
    if (!rc && !own(r)->input) rc = api_error_set(r->err, 400, NULL, "input", "input is required");
    if (!rc && own(r)->tools) rc = translate_tools(r, tools);
    if (!rc) rc = translate_input(r, members, tools);
    if (!rc) rc = translate_flags(r, members);
    return rc ? rc : make_echo(r, root);
}

int responses_request_parse(struct completion_request *out, struct chat_request *chat,
                            struct responses_asked *asked, const char *body, size_t length,
                            const struct history_source *source,
                            const struct request_limits *limits, struct api_error *err) {
    struct responses_reading reading = {.asked = asked, .source = source};
    const struct chat_dialect dialect = {.translate = translate, .own = &reading};
    const int rc = chat_request_parse(out, chat, &dialect, body, length, limits, err);
    if (rc) {
        responses_asked_fini(asked, source->store);
        *asked = (struct responses_asked){0};
    }
    return rc;
}
