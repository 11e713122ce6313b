/* messages.c - POST /v1/messages and /v1/messages/count_tokens: Anthropic's shape of chats.
 *
 * A stream is a sequence of blocks, of which one is open at a time:
 *
 *   message_start  ( block_start  block_delta…  block_stop )…  message_delta  message_stop */
#include "server/api/handlers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/api/conversation/call_ids.h"
#include "server/api/conversation/conversation.h"
#include "server/api/messages/request.h"
#include "server/api/render.h"
#include "server/api/server.h"

enum block { BLOCK_NONE, BLOCK_THINKING, BLOCK_TEXT };

struct messages {
    struct conversation chat; /* first: see conversation.h */
    enum block open;          /* of the stream */
    uint32_t n_blocks;        /* begun in the stream */
};

static struct messages *messages_of(struct completion *c) {
    return (struct messages *)c;
}

/* ---- errors ---- */

static const char *error_type(unsigned status) {
    static const struct {
        unsigned status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {413, "request_too_large"},
                 {429, "rate_limit_error"},     {503, "overloaded_error"}};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (types[i].status == status) return types[i].type;
    return status >= 500 ? "api_error" : "invalid_request_error";
}

/* Writes what clients of this API look for in a message: then some shorten the conversation, or the
 * answer.  Our own words follow. */
static void write_length(const struct api_error *err, char *out, size_t size) {
    if (err->tokens.prompt > err->tokens.most)
        snprintf(out, size, "prompt is too long: %" PRIu64 " tokens > %" PRIu64 " maximum: %s",
                 err->tokens.prompt, err->tokens.most, err->message);
    else
        snprintf(out, size,
                 "input length and `max_tokens` exceed context limit: %" PRIu64 " + %" PRIu64
                 " > %" PRIu64 ": %s",
                 err->tokens.prompt, err->tokens.answer, err->tokens.most, err->message);
}

void messages_write_error(const struct api_error *err, struct buffer *out) {
    char text[sizeof(err->message) + 256];
    if (err->tokens.most) write_length(err, text, sizeof(text));
    else snprintf(text, sizeof(text), "%s", err->message);
    buffer_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":",
                  error_type(err->status));
    buffer_json_string(out, text, strlen(text));
    buffer_puts(out, "}}");
}

/* ---- pool thread ---- */

static int read_body(struct completion *c) {
    return messages_request_parse(&c->request, &conversation_of(c)->request, false, c->job.body,
                                  c->job.length, &c->job.server->limits, &c->job.err);
}

static void run(struct job *job) {
    conversation_run(job, read_body);
}

/* ---- loop ---- */

static void write_reason(struct completion *c) {
    const struct choice *choice = &c->choices[0];
    const char *reason = "end_turn";
    if (choice->reason == FINISH_CANCELLED) {
        reason = "abort";
    } else if (choice->reason == FINISH_LENGTH) {
        reason = choice->n_tokens >= c->request.max_tokens ? "max_tokens"
                                                           : "model_context_window_exceeded";
    } else if (answer_of(c, choice)->tools.n_calls > 0) {
        reason = "tool_use";
    } else if (choice->stop_string >= 0) {
        reason = "stop_sequence";
    }
    buffer_printf(&c->out, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (choice->stop_string >= 0) {
        const char *stop = c->request.params.stop[choice->stop_string];
        buffer_json_string(&c->out, stop, strlen(stop));
    } else {
        buffer_puts(&c->out, "null");
    }
}

/* Writes the usage.  What was found in the cache is no input token here. */
static void write_usage(struct completion *c) {
    buffer_printf(&c->out,
                  "\"usage\":{\"input_tokens\":%u,\"cache_creation_input_tokens\":0,"
                  "\"cache_read_input_tokens\":%u,\"output_tokens\":%u",
                  c->n_prompt - c->n_cached, c->n_cached, completion_n_generated(c));
    if (conversation_of(c)->n_reasoning > 0)
        buffer_printf(&c->out, ",\"output_tokens_details\":{\"thinking_tokens\":%u}",
                      conversation_of(c)->n_reasoning);
    completion_write_accounts(c);
    buffer_puts(&c->out, "}");
}

static void write_head(struct completion *c) {
    buffer_printf(&c->out,
                  "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\","
                  "\"model\":",
                  c->request_id);
    buffer_json_string(&c->out, c->request.model, strlen(c->request.model));
    buffer_puts(&c->out, ",\"content\":[");
}

/* Writes the beginning of the block of a call, whose input follows. */
static void write_call(struct completion *c, uint32_t i) {
    const struct tool_call *call = &answer_of(c, &c->choices[0])->tools.calls[i];
    const struct tool_origin origin = answer_origin(c, call);
    char id[CALL_ID_LENGTH + 1];
    call_id_make(id, c->request_id, c->n_prompt, 0, i);
    buffer_printf(&c->out, "{\"type\":\"tool_use\",\"id\":\"toolu_%s\",", id);
    answer_write_name(&c->out, &origin);
    buffer_puts(&c->out, ",\"input\":");
}

/* Writes a whole block, with a comma before it unless it is the first. */
static void write_text_block(struct completion *c, enum block block, const struct buffer *text) {
    const bool thinks = block == BLOCK_THINKING;
    c->out.failed |= text->failed;
    if (text->length == 0) return;
    buffer_puts(&c->out, messages_of(c)->n_blocks++ ? "," : "");
    buffer_puts(&c->out,
                thinks ? "{\"type\":\"thinking\",\"thinking\":" : "{\"type\":\"text\",\"text\":");
    answer_write_string(&c->out, text);
    buffer_puts(&c->out, thinks ? ",\"signature\":\"\"}" : ",\"citations\":null}");
}

static void write_whole_call(struct completion *c, uint32_t i) {
    const struct buffer *arguments = &answer_of(c, &c->choices[0])->tools.calls[i].arguments;
    buffer_puts(&c->out, messages_of(c)->n_blocks++ ? "," : "");
    write_call(c, i);
    buffer_append(&c->out, arguments->data, arguments->length);
    buffer_puts(&c->out, "}");
    c->out.failed |= arguments->failed;
}

static void write_answer(struct completion *c) {
    struct answer *answer = answer_of(c, &c->choices[0]);
    size_t begin = 0;
    write_head(c);
    write_text_block(c, BLOCK_THINKING, &answer->reasoning);
    struct buffer text = answer_next_text(answer, &begin);
    write_text_block(c, BLOCK_TEXT, &text);
    while (answer->n_calls_sent < answer->tools.n_calls) {
        write_whole_call(c, answer->n_calls_sent++);
        text = answer_next_text(answer, &begin);
        write_text_block(c, BLOCK_TEXT, &text);
    }
    buffer_puts(&c->out, "],");
    write_reason(c);
    buffer_puts(&c->out, ",");
    write_usage(c);
    buffer_puts(&c->out, "}");
}

/* ---- streams ---- */

static void write_begin(struct completion *c) {
    buffer_puts(&c->out, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":");
    write_head(c);
    buffer_puts(&c->out, "],\"stop_reason\":null,\"stop_sequence\":null,");
    write_usage(c);
    buffer_puts(&c->out, "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n");
}

/* Begins an event about the block that has been begun last. */
static void begin_event(struct completion *c, const char *type) {
    buffer_printf(&c->out, "event: %s\ndata: {\"type\":\"%s\",\"index\":%u", type, type,
                  messages_of(c)->n_blocks - 1);
}

static void end_event(struct completion *c) {
    buffer_puts(&c->out, "}\n\n");
}

static void close_block(struct completion *c) {
    if (messages_of(c)->open == BLOCK_NONE) return;
    begin_event(c, "content_block_stop");
    end_event(c);
    messages_of(c)->open = BLOCK_NONE;
}

static void write_delta(struct completion *c, const char *type, const char *member,
                        const struct buffer *text) {
    begin_event(c, "content_block_delta");
    buffer_printf(&c->out, ",\"delta\":{\"type\":\"%s\",\"%s\":", type, member);
    answer_write_string(&c->out, text);
    buffer_puts(&c->out, "}");
    end_event(c);
}

/* Writes text into a block of its kind, which is begun unless it is open. */
static void write_text(struct completion *c, enum block block, const struct buffer *text) {
    const bool thinks = block == BLOCK_THINKING;
    c->out.failed |= text->failed;
    if (text->length == 0) return;
    if (messages_of(c)->open != block) {
        close_block(c);
        messages_of(c)->open = block;
        messages_of(c)->n_blocks++;
        begin_event(c, "content_block_start");
        buffer_puts(&c->out, ",\"content_block\":");
        buffer_puts(&c->out, thinks ? "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}"
                                    : "{\"type\":\"text\",\"text\":\"\",\"citations\":null}");
        end_event(c);
    }
    write_delta(c, thinks ? "thinking_delta" : "text_delta", thinks ? "thinking" : "text", text);
}

static void write_call_block(struct completion *c, uint32_t i) {
    close_block(c);
    messages_of(c)->n_blocks++;
    begin_event(c, "content_block_start");
    buffer_puts(&c->out, ",\"content_block\":");
    write_call(c, i);
    buffer_puts(&c->out, "{}}");
    end_event(c);
    write_delta(c, "input_json_delta", "partial_json",
                &answer_of(c, &c->choices[0])->tools.calls[i].arguments);
    begin_event(c, "content_block_stop");
    end_event(c);
}

static void write_events(struct completion *c, struct choice *choice) {
    struct answer *answer = answer_of(c, choice);
    size_t begin = 0;
    struct buffer text = answer_next_text(answer, &begin);
    write_text(c, BLOCK_THINKING, &answer->reasoning);
    write_text(c, BLOCK_TEXT, &text);
    while (answer->n_calls_sent < answer->tools.n_calls) {
        write_call_block(c, answer->n_calls_sent++);
        text = answer_next_text(answer, &begin);
        write_text(c, BLOCK_TEXT, &text);
    }
    answer_clear(answer);
}

/* Writes progress into a ping, which clients skip. */
static void write_progress(struct completion *c, const struct choice *choice,
                           const struct engine_event *event) {
    (void)choice;
    buffer_puts(&c->out, "event: ping\ndata: {\"type\":\"ping\"");
    completion_write_progress(c, event);
    buffer_puts(&c->out, "}\n\n");
}

static void write_end(struct completion *c) {
    close_block(c);
    buffer_puts(&c->out, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{");
    write_reason(c);
    buffer_puts(&c->out, "},");
    write_usage(c);
    buffer_puts(&c->out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void write_failure(struct completion *c, const struct api_error *err) {
    buffer_puts(&c->out, "event: error\ndata: ");
    messages_write_error(err, &c->out);
    buffer_puts(&c->out, "\n\n");
}

void messages_create(struct server *server, struct http_exchange *exchange) {
    static const struct completion_api api = {
        .path = "/v1/messages",
        .id_prefix = "msg_",
        .size = sizeof(struct messages),
        .run = run,
        .fini = conversation_fini,
        .write_error = messages_write_error,
        .write_answer = write_answer,
        .write_begin = write_begin,
        .begins_with_counts = true,
        .write_events = write_events,
        .write_progress = write_progress,
        .write_end = write_end,
        .write_failure = write_failure,
        .ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        .added = conversation_added,
    };
    completion_start(server, exchange, &api);
}

/* ---- counting ---- */

static int read_counted(struct completion_request *out, const char *body, size_t length,
                        const struct request_limits *limits, struct api_error *err) {
    struct chat_request chat;
    const int rc = messages_request_parse(out, &chat, true, body, length, limits, err);
    if (!rc) chat_request_fini(&chat);
    return rc;
}

static void write_count(const struct prompt_list *prompts, struct buffer *out) {
    buffer_printf(out, "{\"input_tokens\":%zu}", prompts->items[0].tokens.n);
}

static void run_count(struct job *job) {
    render_run(job, read_counted, write_count);
}

void messages_count(struct server *server, struct http_exchange *exchange) {
    render_start(server, exchange, run_count, messages_write_error);
}
