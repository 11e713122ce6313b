/* conversation.c - see conversation.h. */
#include "server/api/conversation/conversation.h"

#include <stdlib.h>

#include "engine/engine.h"
#include "server/api/conversation/arguments.h"
#include "server/json/api_error.h"

void conversation_run(struct job *job, completion_reader read) {
    struct conversation *chat = (struct conversation *)job;
    completion_run(job, read);
    if (job->rc) return;
    chat->answers = calloc(chat->c.n_choices, sizeof(*chat->answers));
    if (!chat->answers) {
        job->rc = api_error_set(&job->err, 500, NULL, NULL, "no memory for the answers");
        return;
    }
    for (uint32_t i = 0; i < chat->c.n_choices; i++) {
        if (chat->request.splits_reasoning) chat->answers[i].split.thought = chat->request.thought;
        chat->answers[i].tools.format = chat->request.tools;
        chat->answers[i].tools.strings = chat->request.strings;
        chat->answers[i].tools.max_calls = chat->request.max_calls;
    }
}

void conversation_fini(struct completion *c) {
    struct conversation *chat = conversation_of(c);
    for (uint32_t i = 0; chat->answers && i < c->n_choices; i++) {
        buffer_fini(&chat->answers[i].reasoning);
        buffer_fini(&chat->answers[i].content);
        buffer_fini(&chat->answers[i].said);
        reasoning_split_fini(&chat->answers[i].split);
        tool_split_fini(&chat->answers[i].tools);
    }
    free(chat->answers);
    chat_request_fini(&chat->request);
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
void conversation_added(struct completion *c, struct choice *choice,
                        const struct engine_event *event) {
    struct answer *answer = answer_of(c, choice);
    struct reasoning_split *split = &answer->split;
    if (event->kind == EVENT_PROMPT) return;
    const bool was_inside = split->thought.place == THOUGHT_INSIDE;
    reasoning_add(split, event->text, event->text_length, &answer->reasoning, &answer->said);
    if (event->kind == EVENT_FINISH) reasoning_end(split, &answer->reasoning, &answer->said);
    add_said(c, answer, event);
    if (was_inside || split->thought.place == THOUGHT_INSIDE)
        conversation_of(c)->n_reasoning += event->n_tokens;
}

/* ---- log-probabilities ---- */

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

void conversation_add_logprobs(struct choice *choice, const struct choice_format *format,
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

/* ---- answers ---- */

bool answer_has_news(const struct answer *answer) {
    return answer->content.length > 0 || answer->reasoning.length > 0 ||
           answer->n_calls_sent < answer->tools.n_calls;
}

struct buffer answer_next_text(const struct answer *answer, size_t *begin) {
    const size_t from = *begin, end = answer->n_calls_sent < answer->tools.n_calls
                                          ? answer->tools.calls[answer->n_calls_sent].at
                                          : answer->content.length;
    *begin = end;
    return (struct buffer){.data = end > from ? answer->content.data + from : NULL,
                           .length = end - from,
                           .failed = answer->content.failed};
}

void answer_clear(struct answer *answer) {
    buffer_clear(&answer->content);
    buffer_clear(&answer->reasoning);
}

void answer_write_string(struct buffer *out, const struct buffer *text) {
    buffer_json_string(out, text->data ? text->data : "", text->length);
    out->failed |= text->failed;
}

/* ---- calls ---- */

struct tool_origin answer_origin(struct completion *c, const struct tool_call *call) {
    const char *name = call->name.data ? call->name.data : "";
    const struct tool_origin origin = tool_origin_find(conversation_of(c)->request.origins, name);
    return origin.name ? origin : (struct tool_origin){.kind = TOOL_FUNCTION, .name = name};
}

void answer_write_name(struct buffer *out, const struct tool_origin *origin) {
    buffer_puts(out, "\"name\":");
    buffer_json_string(out, origin->name, strlen(origin->name));
    if (!origin->space) return;
    buffer_puts(out, ",\"namespace\":");
    buffer_json_string(out, origin->space, strlen(origin->space));
}

void answer_write_custom_input(struct buffer *out, const struct tool_call *call) {
    const struct buffer *arguments = &call->arguments;
    json_t *root = NULL;
    const json_t *input = NULL;
    if (arguments->length > 0 && !arguments_read(&root, arguments->data, arguments->length))
        input = json_object_get(root, "input");
    if (json_is_string(input))
        buffer_json_string(out, json_string_value(input), json_string_length(input));
    else answer_write_string(out, arguments);
    json_decref(root);
}
