/* chat.c - see chat.h. */
#include "server/api/chat/chat.h"

#include <stdlib.h>
#include <string.h>

#include "server/api/chat/reasoning.h"
#include "server/api/chat/request.h"
#include "server/api/chat/tool_calls.h"
#include "server/api/completion.h"
#include "server/api/server.h"

/* What a choice has beside its tokens. */
struct answer {
    struct reasoning_split split;
    struct tool_split tools;
    struct buffer said;               /* of the event that is being added: no reasoning */
    struct buffer reasoning, content; /* since the last choice_clear() */
    uint32_t n_calls_sent;
    bool has_begun; /* the role has been sent */
};

struct chat {
    struct completion c; /* first: see completion.h */
    struct chat_request request;
    struct answer *answers; /* [c.n_choices] */
    uint32_t n_reasoning;   /* tokens, of all choices */
};

static struct chat *chat_of(struct completion *c) {
    return (struct chat *)c;
}

static struct answer *answer_of(struct completion *c, const struct choice *choice) {
    return &chat_of(c)->answers[choice - c->choices];
}

/* ---- pool thread ---- */

static int read_body(struct completion *c) {
    return chat_request_parse(&c->request, &chat_of(c)->request, c->job.body, c->job.length,
                              &c->job.server->limits, &c->job.err);
}

static enum reasoning_place first_place(const struct chat_request *request) {
    if (!request->splits_reasoning) return REASONING_BEHIND;
    return request->begins_reasoning ? REASONING_INSIDE : REASONING_BEFORE;
}

static void run(struct job *job) {
    struct chat *chat = (struct chat *)job;
    completion_run(job, read_body);
    if (job->rc) return;
    chat->answers = calloc(chat->c.n_choices, sizeof(*chat->answers));
    if (!chat->answers) {
        job->rc = api_error_set(&job->err, 500, NULL, NULL, "no memory for the answers");
        return;
    }
    for (uint32_t i = 0; i < chat->c.n_choices; i++) {
        chat->answers[i].split.place = first_place(&chat->request);
        chat->answers[i].tools.format = chat->request.tools;
        chat->answers[i].tools.max_calls = chat->request.max_calls;
    }
}

static void fini(struct completion *c) {
    struct chat *chat = chat_of(c);
    for (uint32_t i = 0; chat->answers && i < c->n_choices; i++) {
        buffer_fini(&chat->answers[i].reasoning);
        buffer_fini(&chat->answers[i].content);
        buffer_fini(&chat->answers[i].said);
        tool_split_fini(&chat->answers[i].tools);
    }
    free(chat->answers);
}

/* ---- loop ---- */

/* Finds the calls in what is no reasoning. */
static void add_said(const struct completion *c, struct answer *answer,
                     const struct engine_event *event) {
    for (uint32_t i = 0; i < event->n_tokens && answer->tools.format; i++) {
        const uint32_t token = event->tokens[i].token;
        size_t n = 0;
        const char *bytes = tokenizer_token_bytes(c->format.tokenizer, token, &n);
        if (tokenizer_is_special(c->format.tokenizer, token))
            tool_split_special(&answer->tools, bytes, n);
    }
    tool_split_add(&answer->tools, answer->said.data, answer->said.length, &answer->content);
    if (event->kind == EVENT_FINISH) tool_split_end(&answer->tools, &answer->content);
    answer->content.failed |= answer->said.failed || answer->tools.failed;
    buffer_clear(&answer->said);
}

/* Splits the event's text.  A token counts as reasoning if its text begins or ends inside. */
static void added(struct completion *c, struct choice *choice, const struct engine_event *event) {
    struct answer *answer = answer_of(c, choice);
    struct reasoning_split *split = &answer->split;
    if (event->kind == EVENT_PROMPT) return;
    const bool was_inside = split->place == REASONING_INSIDE;
    reasoning_add(split, event->text, event->text_length, &answer->reasoning, &answer->said);
    if (event->kind == EVENT_FINISH) reasoning_end(split, &answer->reasoning, &answer->said);
    add_said(c, answer, event);
    if (was_inside || split->place == REASONING_INSIDE) chat_of(c)->n_reasoning += event->n_tokens;
}

static void write_bytes(struct buffer *out, const char *bytes, size_t n) {
    buffer_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) buffer_printf(out, i ? ",%u" : "%u", (unsigned char)bytes[i]);
    buffer_puts(out, "]");
}

/* Writes "token":…,"logprob":…,"bytes":[…]. */
static void write_scored(struct buffer *out, const struct tokenizer *tokenizer, uint32_t token,
                         float logprob) {
    size_t n = 0;
    const char *bytes = tokenizer_token_bytes(tokenizer, token, &n);
    buffer_puts(out, "\"token\":");
    choice_write_token(out, tokenizer, token);
    buffer_puts(out, ",\"logprob\":");
    buffer_json_double(out, logprob);
    write_bytes(out, bytes, bytes ? n : 0);
}

static void add_logprobs(struct choice *choice, const struct choice_format *format,
                         const struct token_info *info, bool skip) {
    struct buffer *out = &choice->tokens;
    (void)skip;
    if (out->length) buffer_puts(out, ",");
    buffer_puts(out, "{");
    write_scored(out, format->tokenizer, info->token, info->logprob);
    buffer_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < info->n_top; i++) {
        buffer_puts(out, i ? ",{" : "{");
        write_scored(out, format->tokenizer, info->top[i].token, info->top[i].logprob);
        buffer_puts(out, "}");
    }
    buffer_puts(out, "]}");
}

static void write_string(struct buffer *out, const struct buffer *text) {
    buffer_json_string(out, text->data ? text->data : "", text->length);
    out->failed |= text->failed;
}

static void write_head(struct completion *c, const char *object) {
    buffer_printf(&c->out, "{\"id\":\"chatcmpl-%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                  c->request_id, object, (long long)c->created);
    buffer_json_string(&c->out, c->job.server->model_name, strlen(c->job.server->model_name));
    buffer_puts(&c->out, ",\"choices\":[");
}

static void write_logprobs(struct completion *c, const struct choice *choice) {
    if (!c->format.logprobs || choice->tokens.length == 0) {
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
    write_string(out, &answer->reasoning);
    buffer_puts(out, ",\"reasoning_content\":");
    write_string(out, &answer->reasoning);
}

/* Writes ,"tool_calls":[…] with the calls that have not been written before; is_delta: with their
 * indices. */
static void write_calls(struct completion *c, const struct choice *choice, bool is_delta) {
    struct answer *answer = answer_of(c, choice);
    struct buffer *out = &c->out;
    if (answer->n_calls_sent == answer->tools.n_calls) return;
    buffer_puts(out, ",\"tool_calls\":[");
    for (uint32_t i = answer->n_calls_sent; i < answer->tools.n_calls; i++) {
        const struct tool_call *call = &answer->tools.calls[i];
        buffer_puts(out, i > answer->n_calls_sent ? ",{" : "{");
        if (is_delta) buffer_printf(out, "\"index\":%u,", i);
        buffer_printf(out,
                      "\"id\":\"call_%.32s_%u_%u\",\"type\":\"function\",\"function\":{\"name\":",
                      c->request_id, (uint32_t)(choice - c->choices), i);
        write_string(out, &call->name);
        buffer_puts(out, ",\"arguments\":");
        write_string(out, &call->arguments);
        buffer_puts(out, "}}");
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
    else write_string(out, &answer->content);
    out->failed |= answer->content.failed;
    buffer_puts(out, ",\"refusal\":null");
    if (answer->reasoning.length > 0) write_reasoning(out, answer);
    write_calls(c, choice, false);
    buffer_puts(out, "}");
    write_logprobs(c, choice);
    write_reason(c, choice);
    if (c->format.token_ids) choice_write_ids(choice, out);
    buffer_puts(out, "}");
}

static void write_answer(struct completion *c) {
    write_head(c, "chat.completion");
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (i) buffer_puts(&c->out, ",");
        write_choice(c, &c->choices[i]);
    }
    buffer_puts(&c->out, "],");
    completion_write_usage(c, chat_of(c)->n_reasoning);
    buffer_puts(&c->out, "}");
}

/* ---- streams ---- */

static bool has_news(const struct answer *answer) {
    return answer->content.length > 0 || answer->reasoning.length > 0 ||
           answer->n_calls_sent < answer->tools.n_calls;
}

static void begin_chunk(struct completion *c, const struct choice *choice) {
    buffer_puts(&c->out, "data: ");
    write_head(c, "chat.completion.chunk");
    buffer_printf(&c->out, "{\"index\":%u,\"delta\":{", (uint32_t)(choice - c->choices));
}

static void end_chunk(struct completion *c) {
    buffer_puts(&c->out, "}]");
    if (c->request.continuous_usage) {
        buffer_puts(&c->out, ",");
        completion_write_usage(c, chat_of(c)->n_reasoning);
    } else if (c->request.include_usage) {
        buffer_puts(&c->out, ",\"usage\":null");
    }
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
    if (has_news(answer)) {
        buffer_puts(&c->out, "\"content\":");
        if (answer->content.length > 0) write_string(&c->out, &answer->content);
        else buffer_puts(&c->out, "null");
    }
    if (answer->reasoning.length > 0) write_reasoning(&c->out, answer);
    write_calls(c, choice, true);
    c->out.failed |= answer->content.failed;
}

static void write_events(struct completion *c, struct choice *choice) {
    struct answer *answer = answer_of(c, choice);
    if (!answer->has_begun) write_first(c, choice);
    answer->has_begun = true;
    if (!has_news(answer) && !choice->finished && !choice->tokens.length && !choice->ids.length)
        return;
    begin_chunk(c, choice);
    write_delta(c, choice);
    buffer_puts(&c->out, "}");
    write_logprobs(c, choice);
    write_reason(c, choice);
    if (c->format.token_ids) choice_write_ids(choice, &c->out);
    end_chunk(c);
    buffer_clear(&answer->content);
    buffer_clear(&answer->reasoning);
}

static void write_end(struct completion *c) {
    if (c->request.include_usage) {
        buffer_puts(&c->out, "data: ");
        write_head(c, "chat.completion.chunk");
        buffer_puts(&c->out, "],");
        completion_write_usage(c, chat_of(c)->n_reasoning);
        buffer_puts(&c->out, "}\n\n");
    }
    buffer_puts(&c->out, "data: [DONE]\n\n");
}

void chat_completions(struct server *server, struct http_exchange *exchange) {
    static const struct completion_api api = {.path = "/v1/chat/completions",
                                              .size = sizeof(struct chat),
                                              .run = run,
                                              .fini = fini,
                                              .write_answer = write_answer,
                                              .write_events = write_events,
                                              .write_end = write_end,
                                              .add_logprobs = add_logprobs,
                                              .added = added};
    completion_start(server, exchange, &api);
}
