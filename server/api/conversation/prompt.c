/* prompt.c - the prompt of a chat: see reading.h.  Messages get other forms where the template does
 * not take them as they are.  An answer that continues a message begins behind its text. */
#include <string.h>
#include <time.h>

#include "engine/base/error.h"
#include "engine/base/json_tree.h"
#include "engine/template/template.h"
#include "server/api/completion_request.h"
#include "server/api/conversation/messages.h"
#include "server/api/conversation/prompt_end.h"
#include "server/api/conversation/reading.h"
#include "server/api/conversation/thoughts.h"
#include "server/api/conversation/turns.h"
#include "server/api/request_fields.h"
#include "server/json/api_error.h"
#include "server/json/json_value.h"
#include "server/settings/chat_template.h"

/* Tells what an object of the template's variables says of thinking. */
static enum chat_thinking thinking_in(const json_t *variables) {
    static const char *const names[] = {"enable_thinking", "thinking"};
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(variables, names[i]);
        if (json_is_boolean(value)) return json_is_true(value) ? THINKING_ON : THINKING_OFF;
    }
    return THINKING_DEFAULT;
}

enum chat_thinking chat_thinking(const struct chat_reading *chat) {
    const enum chat_thinking said = thinking_in(chat->kwargs);
    if (said != THINKING_DEFAULT) return said;
    if (chat->thinking != THINKING_DEFAULT) return chat->thinking;
    if (json_is_word(chat->effort, "none")) return THINKING_OFF;
    return thinking_in(chat->defaults);
}

/* Tells templates whether the model is to think, under either of the names that they look for. */
static int set_thinking(json_t *variables, const struct chat_reading *chat) {
    const enum chat_thinking thinking = chat_thinking(chat);
    if (thinking == THINKING_DEFAULT) return 0;
    json_t *on = json_boolean(thinking == THINKING_ON);
    const int rc = json_object_set(variables, "enable_thinking", on);
    return rc ? rc : json_object_set(variables, "thinking", on);
}

/* Adds the server's variables.  They are copied: other threads read the same object. */
static bool add_defaults(json_t *variables, const struct chat_reading *chat) {
    json_t *copy = json_tree_copy(chat->defaults);
    const bool failed = !copy || json_object_update(variables, copy) < 0;
    json_decref(copy);
    return !failed;
}

/* Makes what the template reads.  A request's own members win over chat_template_kwargs, that over
 * what an effort means, and all of them over what the server says. */
static json_t *make_variables(const struct chat_reading *chat, json_t *messages) {
    json_t *variables = json_pack("{s:n, s:n}", "tools", "documents");
    bool failed = !variables || (chat->defaults && !add_defaults(variables, chat)) ||
                  set_thinking(variables, chat);
    if (chat->effort)
        failed |= json_object_set(variables, "reasoning_effort", (json_t *)chat->effort) < 0;
    if (chat->kwargs) failed |= json_object_update(variables, (json_t *)chat->kwargs) < 0;
    if (chat->tools) failed |= json_object_set(variables, "tools", (json_t *)chat->tools) < 0;
    if (chat->documents)
        failed |= json_object_set(variables, "documents", (json_t *)chat->documents) < 0;
    const bool adds = !chat->no_generation_prompt && !chat->continues;
    failed |= json_object_set_new(variables, "add_generation_prompt", json_boolean(adds)) < 0;
    failed |= json_object_set(variables, "messages", messages) < 0;
    if (!failed) return variables;
    json_decref(variables);
    return NULL;
}

/* Renders the messages.  Returns a code of template_render(). */
static int render(struct template_text *text, const struct chat_reading *chat,
                  const struct chat_template *model, json_t *messages, struct error *why) {
    const time_t now = time(NULL);
    struct template_input input = {.variables = make_variables(chat, messages),
                                   .trusted = model->own};
    if (!input.variables) return error_set(why, ERR_NOMEM, "no memory for the chat");
    localtime_r(&now, &input.now);
    const struct template *used =
        chat->tools && model->with_tools ? model->with_tools : model->plain;
    const int rc = template_render(used, &input, NULL, text, why);
    json_decref((json_t *)input.variables);
    return rc;
}

static bool is_among(const json_t *messages, json_t *const *others, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        if (json_equal(messages, others[i])) return true;
    return false;
}

/* Renders the messages.  A template that raises may do so at forms that its model has never seen:
 * the same turns are then tried in forms that more templates take.  Where it raises at all of them,
 * the first error counts.  *used: what has been rendered, the caller's. */
static int render_somehow(struct template_text *text, const struct chat_reading *chat,
                          const struct chat_template *model, json_t *messages, json_t **used,
                          struct error *why) {
    json_t *tried[1 + TURN_ATTEMPTS] = {json_incref(messages)};
    struct error other = {0};
    unsigned n = 1;
    int rc = render(text, chat, model, messages, why);
    for (unsigned i = 0; i < TURN_ATTEMPTS && rc == ERR_INVALID; i++) {
        json_t *made = turns_make(messages, &turn_attempts[i]);
        if (is_among(made, tried, n)) {
            json_decref(made);
            continue;
        }
        if (made) rc = render(text, chat, model, tried[n++] = made, &other);
        else rc = error_set(&other, ERR_NOMEM, "no memory for the messages");
        if (rc == ERR_NOMEM) *why = other;
    }
    *used = json_incref(tried[n - 1]);
    while (n > 0) json_decref(tried[--n]);
    return rc;
}

static bool is_blank(const json_t *text) {
    const char *at = json_string_value(text);
    return !at || at[strspn(at, " \t\r\n")] == 0;
}

/* Makes a message that has thought and said nothing one whose text is the thought, for templates
 * that write the thoughts of no message. */
static int tell_thought(json_t *message, const json_t *thought, const struct thought_tags *tags) {
    json_t *text = json_sprintf("%s\n%s", tags->begin, json_string_value(thought));
    json_object_del(message, "reasoning");
    json_object_del(message, "reasoning_content");
    return json_object_set_new(message, "content", text);
}

/* Cuts what the template puts behind the last message, so that the answer continues it: what it
 * says, or what it thinks if it says nothing. */
static int continue_last(struct request_reading *r, const struct chat_template *model,
                         json_t *messages, struct template_text *text) {
    const enum thought_form form = model->thoughts;
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content"),
                 *thought = json_object_get(last, "reasoning_content");
    const bool thinks = is_blank(content) && !is_blank(thought);
    const json_t *begun = thinks ? thought : content;
    struct error why = {0};
    if (prompt_end_cut(text, form, json_string_value(begun), json_string_length(begun))) return 0;
    if (thinks && thought_tags_of(form)) {
        template_text_fini(text);
        if (tell_thought(last, thought, thought_tags_of(form))) return api_error_no_memory(r->err);
        const int rc = render(text, r->own, model, messages, &why);
        if (rc) return api_error_from(r->err, &why, "messages");
        begun = json_object_get(last, "content");
        if (prompt_end_cut(text, form, json_string_value(begun), json_string_length(begun)))
            return 0;
    }
    return api_error_set(r->err, 400, NULL, "continue_final_message",
                         "the chat template does not write the last message as it is, so it cannot "
                         "be continued");
}

/* Tells whether the last message says nothing that an answer could continue, and takes it off.  The
 * answer then begins a new one. */
static bool drops_last(json_t *messages) {
    const size_t n = json_array_size(messages);
    const json_t *last = json_array_get(messages, n - 1);
    const bool says = !is_blank(json_object_get(last, "content")) ||
                      !is_blank(json_object_get(last, "reasoning_content")) ||
                      json_object_get(last, "tool_calls");
    return n > 1 && !says && json_array_remove(messages, n - 1) == 0;
}

/* Changes the messages so that the template writes all of them. */
static int make_whole(const struct chat_template *model, json_t **messages, struct api_error *err) {
    bool needed;
    const struct turn_rules rules =
        turns_whole(*messages, model->drops_systems, model->drops_calls, &needed);
    if (!needed) return 0;
    json_t *made = turns_make(*messages, &rules);
    if (!made) return api_error_no_memory(err);
    json_decref(*messages);
    *messages = made;
    return 0;
}

int chat_make_prompt(struct request_reading *r, const struct chat_template *model,
                     struct template_text *text) {
    struct chat_reading *chat = r->own;
    json_t *messages = NULL, *used = NULL;
    struct error why = {0};
    if (!model->plain && !chat->tools)
        return api_error_set(r->err, 400, "unsupported", "tools",
                             "the model has a chat template for requests with tools only: give "
                             "tools, or start the server with --chat-template");
    int rc = chat_messages_read(&messages, chat->messages, model->names_developer,
                                r->limits->skipped, r->err);
    if (rc) return rc;
    if (chat->continues && drops_last(messages)) chat->continues = false;
    rc = make_whole(model, &messages, r->err);
    if (rc) {
        json_decref(messages);
        return rc;
    }
    rc = render_somehow(text, chat, model, messages, &used, &why);
    if (rc) rc = api_error_from(r->err, &why, "messages");
    else if (chat->continues) rc = continue_last(r, model, used, text);
    json_decref(used);
    json_decref(messages);
    if (!rc && model->marks_reasoning)
        chat->thought =
            prompt_end_read(text, model->thoughts, chat->continues, r->limits->tokenizer);
    chat->thought.has_calls = chat->format != NULL;
    return rc;
}
