/* chat.c - POST /v1/chat/completions: the OpenAI shape of chats.
 *
 * Thread: loop (but for the job).  Memory: see completion.h. */
#include "server/api/handlers.h"

#include "server/api/conversation/call_ids.h"
#include "server/api/conversation/conversation.h"
#include "server/api/render.h"
#include "server/api/server.h"

/* ---- pool thread ---- */

static int read_body(struct completion *c) {
    return chat_request_parse(&c->request, &conversation_of(c)->request, NULL, c->job.body,
                              c->job.length, &c->job.server->limits, &c->job.err);
}

static void run(struct job *job) {
    conversation_run(job, read_body);
}

/* ---- loop ---- */

static void write_head(struct completion *c) {
    completion_write_head(c, c->request.stream ? "chat.completion.chunk" : "chat.completion");
}

static void write_logprobs(struct completion *c, const struct choice *choice) {
    if (!c->format.logprobs || (c->request.stream && choice->tokens.length == 0)) {
        buffer_puts(&c->out, ",\"logprobs\":null");
        return;
    }
    buffer_puts(&c->out, ",\"logprobs\":{\"content\":[");
    buffer_append(&c->out, choice->tokens.data, choice->tokens.length);
    buffer_puts(&c->out, "],\"refusal\":null}");
    c->out.failed |= choice->tokens.failed;
}

/* Writes the reasoning under both of the names that clients read. */
static void write_reasoning(struct buffer *out, const struct answer *answer) {
    buffer_puts(out, ",\"reasoning\":");
    answer_write_string(out, &answer->reasoning);
    buffer_puts(out, ",\"reasoning_content\":");
    answer_write_string(out, &answer->reasoning);
}

/* Writes the members of a call. */
static void write_call(struct completion *c, const struct choice *choice, uint32_t i) {
    const struct tool_call *call = &answer_of(c, choice)->tools.calls[i];
    const struct tool_origin origin = answer_origin(c, call);
    const char *type = origin.kind == TOOL_CUSTOM ? "custom" : "function";
    struct buffer *out = &c->out;
    char id[CALL_ID_LENGTH + 1];
    call_id_make(id, c->request_id, c->n_prompt, (uint32_t)(choice - c->choices), i);
    buffer_printf(out, "\"id\":\"%s\",\"type\":\"%s\",\"%s\":{", id, type, type);
    answer_write_name(out, &origin);
    if (origin.kind == TOOL_CUSTOM) {
        buffer_puts(out, ",\"input\":");
        answer_write_custom_input(out, call);
    } else {
        buffer_puts(out, ",\"arguments\":");
        answer_write_string(out, &call->arguments);
    }
    buffer_puts(out, "}}");
}

/* Writes ,"tool_calls":[…] with the calls that have not been written before; is_delta: with their
 * indices. */
static void write_calls(struct completion *c, const struct choice *choice, bool is_delta) {
    struct answer *answer = answer_of(c, choice);
    struct buffer *out = &c->out;
    if (answer->n_calls_sent == answer->tools.n_calls) return;
    buffer_puts(out, ",\"tool_calls\":[");
    for (uint32_t i = answer->n_calls_sent; i < answer->tools.n_calls; i++) {
        buffer_puts(out, i > answer->n_calls_sent ? ",{" : "{");
        if (is_delta) buffer_printf(out, "\"index\":%u,", i);
        write_call(c, choice, i);
    }
    buffer_puts(out, "]");
    answer->n_calls_sent = answer->tools.n_calls;
}

static void write_reason(struct completion *c, const struct choice *choice) {
    const bool calls = answer_of(c, choice)->tools.n_calls > 0 && choice->reason == FINISH_STOP;
    choice_write_reason(choice, calls ? "tool_calls" : NULL, c->request.params.stop, &c->out);
}

static void write_choice(struct completion *c, struct choice *choice) {
    const struct answer *answer = answer_of(c, choice);
    struct buffer *out = &c->out;
    buffer_printf(out, "{\"index\":%u,\"message\":{\"role\":\"assistant\",\"content\":",
                  (uint32_t)(choice - c->choices));
    if (answer->content.length == 0 && answer->tools.n_calls > 0) buffer_puts(out, "null");
    else answer_write_string(out, &answer->content);
    out->failed |= answer->content.failed;
    buffer_puts(out, ",\"refusal\":null");
    if (answer->reasoning.length > 0) write_reasoning(out, answer);
    write_calls(c, choice, false);
    buffer_puts(out, "}");
    write_logprobs(c, choice);
    write_reason(c, choice);
    if (c->format.token_ids) choice_write_ids(choice, out);
    if (c->format.kept) choice_write_kept(choice, out);
    buffer_puts(out, "}");
}

static void write_answer(struct completion *c) {
    write_head(c);
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (i) buffer_puts(&c->out, ",");
        write_choice(c, &c->choices[i]);
    }
    buffer_puts(&c->out, "],");
    completion_write_usage(c, conversation_of(c)->n_reasoning);
    buffer_puts(&c->out, "}");
}

/* ---- streams ---- */

static void begin_chunk(struct completion *c, const struct choice *choice) {
    buffer_puts(&c->out, "data: ");
    write_head(c);
    buffer_printf(&c->out, "{\"index\":%u,\"delta\":{", (uint32_t)(choice - c->choices));
}

static void end_chunk(struct completion *c) {
    buffer_puts(&c->out, "}]");
    completion_write_interim_usage(c, conversation_of(c)->n_reasoning);
    buffer_puts(&c->out, "}\n\n");
}

static void write_first(struct completion *c, const struct choice *choice) {
    begin_chunk(c, choice);
    buffer_puts(&c->out, "\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
                         "\"finish_reason\":null");
    end_chunk(c);
}

static void write_delta(struct completion *c, const struct choice *choice) {
    const struct answer *answer = answer_of(c, choice);
    if (answer_has_news(answer)) {
        buffer_puts(&c->out, "\"content\":");
        if (answer->content.length > 0) answer_write_string(&c->out, &answer->content);
        else buffer_puts(&c->out, "null");
    }
    if (answer->reasoning.length > 0) write_reasoning(&c->out, answer);
    write_calls(c, choice, true);
    c->out.failed |= answer->content.failed;
}

/* Ends a chunk behind its delta.  is_last: with the reason why the choice has ended. */
static void end_delta(struct completion *c, struct choice *choice, bool is_last) {
    buffer_puts(&c->out, "}");
    write_logprobs(c, choice);
    if (is_last) write_reason(c, choice);
    else buffer_puts(&c->out, ",\"finish_reason\":null,\"stop_reason\":null");
    if (c->format.token_ids) choice_write_ids(choice, &c->out);
    if (c->format.kept && is_last) choice_write_kept(choice, &c->out);
    end_chunk(c);
    buffer_clear(&choice->tokens); /* neither is written twice */
    buffer_clear(&choice->ids);
}

/* Writes what has come.  The chunk with the reason has an empty delta, because some clients read no
 * text in it. */
static void write_events(struct completion *c, struct choice *choice) {
    struct answer *answer = answer_of(c, choice);
    if (!answer->has_begun) write_first(c, choice);
    answer->has_begun = true;
    if (answer_has_news(answer) || choice->tokens.length ||
        (choice->ids.length && !choice->finished)) {
        begin_chunk(c, choice);
        write_delta(c, choice);
        end_delta(c, choice, false);
    }
    answer_clear(answer);
    if (!choice->finished) return;
    begin_chunk(c, choice);
    end_delta(c, choice, true);
}

static void write_progress(struct completion *c, const struct choice *choice,
                           const struct engine_event *event) {
    begin_chunk(c, choice);
    buffer_puts(&c->out, "},\"logprobs\":null,\"finish_reason\":null}]");
    completion_write_progress(c, event);
    completion_write_interim_usage(c, 0);
    buffer_puts(&c->out, "}\n\n");
}

static void write_end(struct completion *c) {
    if (c->request.include_usage) {
        buffer_puts(&c->out, "data: ");
        write_head(c);
        buffer_puts(&c->out, "],");
        completion_write_usage(c, conversation_of(c)->n_reasoning);
        buffer_puts(&c->out, "}\n\n");
    }
    buffer_puts(&c->out, "data: [DONE]\n\n");
}

void chat_completions(struct server *server, struct http_exchange *exchange) {
    static const struct completion_api api = {.path = "/v1/chat/completions",
                                              .id_prefix = "chatcmpl-",
                                              .size = sizeof(struct conversation),
                                              .run = run,
                                              .fini = conversation_fini,
                                              .write_answer = write_answer,
                                              .write_events = write_events,
                                              .write_progress = write_progress,
                                              .write_end = write_end,
                                              .add_logprobs = conversation_add_logprobs,
                                              .added = conversation_added};
    completion_start(server, exchange, &api);
}

static int read_rendered(struct completion_request *out, const char *body, size_t length,
                         const struct request_limits *limits, struct api_error *err) {
    struct chat_request chat;
    const int rc = chat_request_parse(out, &chat, NULL, body, length, limits, err);
    if (!rc) chat_request_fini(&chat);
    return rc;
}

static void write_rendered(const struct prompt_list *prompts, struct buffer *out) {
    render_write_ids(&prompts->items[0], out);
}

static void run_render(struct job *job) {
    render_run(job, read_rendered, write_rendered);
}

void chat_render(struct server *server, struct http_exchange *exchange) {
    render_start(server, exchange, run_render, NULL);
}
