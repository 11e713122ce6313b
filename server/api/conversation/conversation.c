/* conversation.c - see conversation.h. */
#include "server/api/conversation/conversation.h"

#include <stdlib.h>

#include "engine/engine.h"
#include "engine/request/shown.h"
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
        chat->answers[i].tools.must_call = chat->request.must_call;
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
        scores_fini(&chat->answers[i].scores);
    }
    free(chat->answers);
    chat_request_fini(&chat->request);
}

/* ---- loop ---- */

/* Finds the calls in what is no reasoning. */
static void find_calls(struct answer *answer) {
    json_check_add(answer->check, answer->said.data, answer->said.length);
    tool_split_add(&answer->tools, answer->said.data, answer->said.length, &answer->content);
    answer->content.failed |= answer->said.failed || answer->tools.failed;
    buffer_clear(&answer->said);
}

static void split_text(struct answer *answer, const char *text, size_t n) {
    reasoning_add(&answer->split, text, n, &answer->reasoning, &answer->said);
    find_calls(answer);
}

/* Tells what has cut an answer off: a stop string, "" for anything else, or NULL: it has ended by
 * itself. */
static const char *cut_of(const struct completion *c, const struct engine_event *event) {
    if (event->stopped_by_string) return c->request.params.stop[event->stop_index];
    return event->reason != FINISH_STOP || event->stopped_by_token ? "" : NULL;
}

static void end_text(const struct completion *c, struct answer *answer,
                     const struct engine_event *event) {
    reasoning_end(&answer->split, &answer->reasoning, &answer->said);
    find_calls(answer);
    tool_split_end(&answer->tools, &answer->content, cut_of(c, event));
}

/* Decides which tokens are content, now that a byte has come, or the end.  n_before: the bytes of
 * content that there were before it. */
static void decide_scores(struct answer *answer, size_t n_before, struct buffer *list) {
    const uint64_t n_held = answer->split.held.length + tool_split_held(&answer->tools),
                   n = answer->n_text - n_held - answer->scores.n_decided,
                   n_content = answer->content.length - n_before;
    scores_decide(&answer->scores, n, n_content < n ? n_content : n, list);
}

/* Splits the text byte by byte, so that it is known of each where it goes. */
static void split_scored(struct answer *answer, const struct engine_event *event,
                         struct choice *choice) {
    for (size_t i = 0; i < event->text_length; i++) {
        const size_t n_before = answer->content.length;
        answer->n_text++;
        split_text(answer, event->text + i, 1);
        decide_scores(answer, n_before, &choice->tokens);
    }
}

/* Splits the event's text.  A token counts as reasoning if its text begins or ends inside. */
void conversation_added(struct completion *c, struct choice *choice,
                        const struct engine_event *event) {
    struct answer *answer = answer_of(c, choice);
    const struct reasoning_split *split = &answer->split;
    if (event->kind == EVENT_PROMPT) return;
    answer->check = &choice->check;
    const bool was_inside = split->thought.place == THOUGHT_INSIDE;
    if (c->format.logprobs) split_scored(answer, event, choice);
    else split_text(answer, event->text, event->text_length);
    if (event->kind == EVENT_FINISH) {
        const size_t n_before = answer->content.length;
        end_text(c, answer, event);
        if (c->format.logprobs) decide_scores(answer, n_before, &choice->tokens);
    }
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

/* Notes a token with the bytes of text that it completes. */
static struct buffer *add_score(struct completion *c, struct choice *choice, uint32_t token) {
    char text[1024];
    size_t n_bytes = 0;
    const struct tokenizer *tokenizer = c->format.tokenizer;
    const struct sampling_params *params = &c->request.params;
    const bool hides = shown_hides(params, tokenizer, token);
    const char *bytes = tokenizer_token_bytes(tokenizer, token, &n_bytes);
    const long n = shown_push(&choice->detokenizer, tokenizer, params, token, text, sizeof(text));
    /* Only an added token can be longer than the buffer, and that is text by itself. */
    const size_t n_own = n >= 0 ? (size_t)n : n_bytes;
    return scores_add(&answer_of(c, choice)->scores, n_own,
                      !hides && bytes && n_bytes > 0 && n_own == 0);
}

void conversation_add_logprobs(struct choice *choice, const struct choice_format *format,
                               const struct token_info *info, bool skip) {
    struct buffer *out = add_score(choice->completion, choice, info->token);
    (void)skip;
    if (!out) {
        choice->tokens.failed = true;
        return;
    }
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
