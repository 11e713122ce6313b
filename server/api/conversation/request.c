/* request.c - see request.h. */
#include "server/api/conversation/request.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_tree.h"
#include "engine/base/span.h"
#include "engine/template/template.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/completion_request.h"
#include "server/api/conversation/reading.h"
#include "server/api/conversation/thoughts.h"
#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tool_choice.h"
#include "server/api/conversation/tool_constraint.h"
#include "server/api/conversation/tool_strings.h"
#include "server/api/conversation/tools.h"
#include "server/api/forms.h"
#include "server/api/request_fields.h"
#include "server/json/api_error.h"
#include "server/json/json_guard.h"
#include "server/json/json_value.h"
#include "server/settings/chat_template.h"
#include "server/settings/generation.h"

static struct chat_reading *own(struct request_reading *r) {
    return r->own;
}

/* ---- members of chats of every API ---- */

static int read_generation_prompt(struct request_reading *r, const struct request_field *field,
                                  const json_t *value) {
    bool adds = true;
    const int rc = request_read_flag(r, field, value, &adds);
    r->chat->has_generation_prompt = adds;
    r->chat->no_generation_prompt = !adds;
    return rc;
}

static int read_continue(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    return request_read_flag(r, field, value, &r->chat->continues);
}

static int read_reasoning_apart(struct request_reading *r, const struct request_field *field,
                                const json_t *value) {
    bool separate = true;
    const int rc = request_read_flag(r, field, value, &separate);
    r->chat->keeps_reasoning = !separate;
    return rc;
}

/* Keeps a value in the const json_t * of r->chat that the field's offset names. */
static int keep(struct request_reading *r, const struct request_field *field, const json_t *value) {
    *(const json_t **)((char *)r->chat + field->offset) = value;
    return request_read_ignored(r, field, value);
}

/* Reads the effort in an object: `reasoning` of OpenAI's responses, `output_config` of Anthropic's
 * messages. */
static int read_inner_effort(struct request_reading *r, const struct request_field *field,
                             const json_t *value) {
    const json_t *effort = json_object_get(value, "effort");
    if (!json_is_object(value)) return request_refuse(r, field, "must be an object");
    if (!json_is_given(effort)) return 0;
    r->chat->effort = effort;
    return json_is_string(effort) ? 0
                                  : api_error_set(r->err, 400, NULL, field->name,
                                                  "%s.effort must be a string", field->name);
}

static int read_enable_thinking(struct request_reading *r, const struct request_field *field,
                                const json_t *value) {
    bool on = true;
    const int rc = request_read_flag(r, field, value, &on);
    r->chat->thinking = on ? THINKING_ON : THINKING_OFF;
    return rc;
}

/* Reads whether the model thinks, which its template decides.  A budget cannot be held. */
static int read_thinking(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    const json_t *budget = json_object_get(value, "budget_tokens");
    const char *type = json_string_value(json_object_get(value, "type"));
    const bool off = type && strcmp(type, "disabled") == 0;
    json_int_t n = 0; /* of the budget, which is not held */
    if (!json_is_object(value)) return request_refuse(r, field, "must be an object");
    if (!type || (!off && strcmp(type, "enabled") != 0 && strcmp(type, "adaptive") != 0))
        return api_error_set(r->err, 400, NULL, "thinking",
                             "thinking.type must be enabled, adaptive or disabled");
    if (json_is_given(budget) && !json_read_integer(budget, &n))
        return api_error_set(r->err, 400, NULL, "thinking",
                             "thinking.budget_tokens must be an integer");
    r->chat->thinking = off ? THINKING_OFF : THINKING_ON;
    return 0;
}

/* reasoning_effort comes before the members that hold an effort as an API of its own has it, which
 * win. */
static const struct request_field template_fields[] = {
    {"add_generation_prompt", "boolean", read_generation_prompt, 0, 0, 0,
     "The prompt ends where the assistant's message begins."},
    {"continue_final_message", "boolean", read_continue, 0, 0, 0,
     "The answer continues the last message."},
    {"chat_template_kwargs", "object", keep, offsetof(struct chat_reading, kwargs), 0, 0,
     "Further variables of the template."},
    {"documents", "object[]", keep, offsetof(struct chat_reading, documents), 0, 0,
     "For templates that know documents."},
    {"reasoning_effort", "string", keep, offsetof(struct chat_reading, effort), 0, 0,
     "Given to the template; none also turns its thinking off."},
    {"reasoning", "object", read_inner_effort, 0, 0, 0,
     "effort as reasoning_effort; summary is ignored."},
    {"output_config", "object", read_inner_effort, 0, 0, 0,
     "effort as reasoning_effort, format as response_format."},
    {"enable_thinking", "boolean", read_enable_thinking, 0, 0, 0,
     "Whether the model thinks first."},
    {"thinking", "object", read_thinking, 0, 0, 0,
     "Whether the model thinks first: the type enabled, adaptive or disabled."},
    {"separate_reasoning", "boolean", read_reasoning_apart, 0, 0, 0,
     "Reasoning is a member of its own, not text."},
};

const struct request_table chat_template_table = REQUEST_TABLE(template_fields);

/* ---- members ---- */

static int read_logprobs(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    return request_read_flag(r, field, value, &own(r)->logprobs);
}

static int read_top_logprobs(struct request_reading *r, const struct request_field *field,
                             const json_t *value) {
    json_int_t n = 0;
    const int rc = request_read_i32(r, field, value); /* checks it */
    if (!rc && json_read_integer(value, &n)) own(r)->top_logprobs = (int32_t)n;
    return rc;
}

static int read_tools(struct request_reading *r, const struct request_field *field,
                      const json_t *value) {
    const struct tool_rules rules = {.skipped = r->limits->skipped, .err = r->err};
    if (!json_is_array(value)) return request_refuse(r, field, "must be an array");
    return tool_list_add(&own(r)->list, &rules, "tools", value);
}

/* Reads the choice.  parallel_tool_calls, which is read later, may add to it. */
static int read_tool_choice(struct request_reading *r, const struct request_field *field,
                            const json_t *value) {
    (void)field;
    return tool_choice_read(&own(r)->choice, value, r->err);
}

static int read_parallel(struct request_reading *r, const struct request_field *field,
                         const json_t *value) {
    bool parallel = true;
    const int rc = request_read_flag(r, field, value, &parallel);
    own(r)->choice.one_call |= !parallel;
    return rc;
}

static int read_modalities(struct request_reading *r, const struct request_field *field,
                           const json_t *value) {
    const char *only = json_string_value(json_array_get(value, 0));
    if (json_array_size(value) == 1 && only && strcmp(only, "text") == 0) return 0;
    return request_read_refused(r, field, value);
}

static int refuse_older(struct request_reading *r, const struct request_field *field,
                        const char *newer) {
    return api_error_set(r->err, 400, "unsupported", field->name, "%s is not supported: send %s",
                         field->name, newer);
}

/* Refuses the functions of OpenAI's older requests. */
static int read_functions(struct request_reading *r, const struct request_field *field,
                          const json_t *value) {
    return request_read_refused(r, field, value) ? refuse_older(r, field, "tools") : 0;
}

/* Refuses the choice of a function, which OpenAI's older requests have.  Without functions none and
 * auto ask for nothing. */
static int read_function_call(struct request_reading *r, const struct request_field *field,
                              const json_t *value) {
    const char *word = json_string_value(value);
    if (word && (strcmp(word, "none") == 0 || strcmp(word, "auto") == 0)) return 0;
    return request_read_refused(r, field, value) ? refuse_older(r, field, "tool_choice") : 0;
}

/* Refuses a search, which an empty object asks for, too. */
static int read_web_search(struct request_reading *r, const struct request_field *field,
                           const json_t *value) {
    return request_read_refused(r, field, json_is_object(value) ? json_true() : value);
}

#define AT(member) offsetof(struct completion_request, member)

/* max_completion_tokens comes after max_tokens, its older name, so it wins when a client sends
 * both. */
static const struct request_field fields[] = {
    {"messages", "object[+]", request_keep_any, offsetof(struct chat_reading, messages), 0, 0,
     "The conversation: role and content of each message."},
    {"max_tokens", "integer", request_read_max_tokens, AT(max_tokens), REQUEST_ALL_TOKENS,
     INT32_MAX, "The older name of max_completion_tokens."},
    {"max_completion_tokens", "integer", request_read_max_tokens, AT(max_tokens),
     REQUEST_ALL_TOKENS, INT32_MAX, "Most tokens of an answer."},
    {"logprobs", "boolean", read_logprobs, 0, 0, 0, "Log-probabilities of each token."},
    {"top_logprobs", "integer", read_top_logprobs, AT(params.n_logprobs), 0, SAMPLE_MAX_TOP,
     "And of so many best ones."},
    {"modalities", "'text'[]", read_modalities, 0, 0, 0, "Only text."},
    {"tools", "object[]", read_tools, 0, 0, 0, "Functions that the model may call."},
    {"tool_choice", "'none'|'auto'|'required'|object", read_tool_choice, 0, 0, 0,
     "Whether the model may call them: auto or none."},
    {"parallel_tool_calls", "boolean", read_parallel, 0, 0, 0, "Several calls may be answered."},
    {"functions", "refused", read_functions, 0, 0, 0, "Only an empty one: use tools."},
    {"function_call", "refused", read_function_call, 0, 0, 0, "Not supported."},
    {"chat_template", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"audio", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"web_search_options", "refused", read_web_search, 0, 0, 0, "Not supported."},
    {"best_of", "refused", request_read_refused, 0, 1, 1, "Not supported."},
    {"suffix", "refused", request_read_refused, 0, 0, 0, "Not supported."},
    {"echo", "refused", request_read_refused, 0, 0, 0, "Not supported."},
};

#undef AT

static const struct request_table own_table = REQUEST_TABLE(fields);
const struct request_table *const chat_tables[] = {
    &request_common, &request_openai, &request_forms, &chat_template_table, &own_table, NULL};

/* Settles which tools may be called.  Where all that are given are skipped, the answer has none,
 * unless one must be called, or one is of a type that is not known here: then the client awaits
 * what cannot come. */
static int complete_tools(struct request_reading *r) {
    struct chat_reading *chat = own(r);
    struct tool_list *list = &chat->list;
    const int rc = chat->choice.allowed ? tool_list_allow(list, chat->choice.allowed, r->err) : 0;
    if (rc) return rc;
    if (json_array_size(list->functions) > 0 && !chat->choice.none) chat->tools = list->functions;
    if (chat->choice.must_call && !chat->tools)
        return api_error_set(r->err, 400, NULL, "tool_choice", "tool_choice needs tools%s",
                             list->has_skipped ? " that are run by the client and described by a "
                                                 "schema: none of those in tools is"
                                               : "");
    if (!chat->tools && !chat->choice.none && *list->unknown)
        return api_error_set(r->err, 400, "unsupported", "tools",
                             "%s is not supported, only tools that are run by the client and "
                             "described by a schema",
                             list->unknown);
    const char *shown = chat->choice.named
                            ? tool_shown_find(list->origins, chat->choice.space, chat->choice.named)
                            : NULL;
    if (shown) chat->choice.named = shown;
    return 0;
}

/* Checks and completes what involves more than one of a chat's own members. */
static int complete(struct request_reading *r) {
    struct chat_reading *chat = own(r);
    struct completion_request *q = r->request;
    if (!chat->messages)
        return api_error_set(r->err, 400, NULL, "messages", "messages is required");
    if (chat->continues && chat->has_generation_prompt)
        return api_error_set(r->err, 400, NULL, "continue_final_message",
                             "continue_final_message excludes add_generation_prompt");
    if (!chat->logprobs && chat->top_logprobs > 0)
        return api_error_set(r->err, 400, NULL, "top_logprobs", "top_logprobs needs logprobs");
    q->params.n_logprobs = chat->logprobs ? chat->top_logprobs : -1;
    const int rc = complete_tools(r);
    if (rc) return rc;
    if (chat->tools) chat->format = tool_format_of(r->limits->chat->tool_text);
    if (!chat->tools || chat->format) return 0;
    return api_error_set(r->err, 400, "unsupported", "tools",
                         "tools: the model's chat template writes no format of calls that is "
                         "known here");
}

/* ---- what the answer may be ---- */

/* Shows the marks that an answer is split by. */
static int show_marks(struct request_reading *r, const struct chat_template *model) {
    const struct tokenizer *tokenizer = r->limits->tokenizer;
    struct sampling_params *params = &r->request->params;
    int rc = model->marks_reasoning ? thoughts_show(params, model->thoughts, tokenizer, r->err) : 0;
    for (size_t i = 0; own(r)->format && tool_marks[i] && !rc; i++)
        rc = thoughts_show_mark(params, tool_marks[i], 0, tokenizer, r->err);
    return rc;
}

/* Constrains the answer to the calls that are asked for, or that may come in place of the form that
 * the client wants.  Of a call that must be made, response_format says nothing. */
static int constrain_calls(struct request_reading *r, const struct tool_demand *demand) {
    const char *param = demand->must_call ? "tool_choice" : "tools";
    if (demand->said) param = r->request->structured.param;
    json_t *format = NULL;
    struct sampling_params *params = &r->request->params;
    /* Calls begin with the token itself.  Text may come before it, or instead of it, unless one
     * must be made. */
    params->has_prefix = demand->format->is_special && !*demand->mark;
    params->is_free_before = !demand->must_call;
    const int rc = tool_constraint_make(&format, demand, r->err);
    return rc ? rc : structured_set_format(r->request, param, format, r->err);
}

/* Finds the form of an answer that calls no tool, where that must be told from calls. */
static int find_said(struct request_reading *r, struct tool_demand *demand, json_t **said) {
    const char *param = r->request->structured.param;
    if (!demand->tools || demand->must_call || !param) return 0;
    const bool has_token = demand->format->is_special && !*demand->mark;
    if (has_token || !r->request->structured.allows_calls) {
        if (!tool_demand_constrains(demand)) return 0;
        return api_error_set(r->err, 400, "unsupported", param,
                             "%s is not supported beside strict tools that may be called: %s",
                             param,
                             has_token ? "this model's calls begin with a token of their own"
                                       : "it is the form of the whole answer");
    }
    demand->said = *said = structured_format(&r->request->structured);
    return *said ? 0 : api_error_no_memory(r->err);
}

/* Tells whether the client's own form of a text says where the thought ends.  It then holds from
 * the first token on. */
static bool covers_thought(const struct request_structured *form) {
    if (form->kind == GRAMMAR_JSON || form->kind == GRAMMAR_JSON_SCHEMA) return false;
    return strstr(form->text, THOUGHT_END) || strstr(form->text, "<\\/think>");
}

/* Lets the model think before a constrained answer, as far as the prompt and the request do. */
static int allow_thought(struct request_reading *r, const struct chat_template *model,
                         bool is_calls) {
    struct completion_request *q = r->request;
    struct chat_reading *chat = own(r);
    const struct thought_lead lead = {.form = model->thoughts,
                                      .is_calls = is_calls,
                                      .is_off = chat_thinking(chat) == THINKING_OFF,
                                      .tokenizer = r->limits->tokenizer,
                                      .param = q->structured.param};
    if (q->params.has_prefix) {
        if (chat->thought.place != THOUGHT_INSIDE || q->params.is_free_before) return 0;
        return api_error_set(r->err, 400, "unsupported", lead.param,
                             "%s is not supported where the prompt begins reasoning", lead.param);
    }
    const bool is_json = q->structured.is_json;
    bool is_same = false;
    json_t *format = structured_format(&q->structured);
    int rc = format ? thoughts_lead(&format, &chat->thought, &lead, &is_same, r->err)
                    : api_error_no_memory(r->err);
    if (rc || is_same) {
        if (is_same) json_decref(format);
        return rc;
    }
    rc = structured_set_format(q, lead.param, format, r->err);
    q->structured.is_json = is_json && !rc;
    return rc;
}

/* Notes the tools' names, and which of their arguments are strings. */
static int note_strings(struct chat_reading *chat, struct api_error *err) {
    if (!chat->format) return 0;
    chat->strings = tool_strings_create(chat->tools);
    return chat->strings ? 0 : api_error_no_memory(err);
}

static int constrain(struct request_reading *r, const struct chat_template *model) {
    const struct chat_reading *chat = own(r);
    struct tool_demand demand = {.tools = chat->tools,
                                 .mark = "",
                                 .named = chat->choice.named,
                                 .must_call = chat->choice.must_call,
                                 .one_call = chat->choice.one_call || chat->choice.named,
                                 .format = chat->format,
                                 .strings = chat->strings,
                                 .skipped = r->limits->skipped};
    json_t *said = NULL;
    const struct tokenizer *tokenizer = r->limits->tokenizer;
    if (chat->format && chat->format->is_special &&
        !(tokenizer &&
          tokenizer_find_added(tokenizer, chat->format->begin, strlen(chat->format->begin),
                               &r->request->params.prefix)))
        demand.mark = chat->format->begin;
    int rc = find_said(r, &demand, &said);
    const bool calls = chat->tools && tool_demand_constrains(&demand);
    const bool covers =
        !calls && r->request->structured.param && covers_thought(&r->request->structured);
    if (!rc && calls) rc = constrain_calls(r, &demand);
    json_decref(said);
    if (rc || covers || !r->request->structured.param || !model->marks_reasoning) return rc;
    return allow_thought(r, model, calls);
}

/* Reads the members of a chat and renders its prompt into *text. */
static int read_chat(struct request_reading *r, const json_t *root,
                     const struct chat_template *model, struct template_text *text) {
    int rc = request_read_tables(r, chat_tables, root);
    if (!rc) rc = complete(r);
    if (!rc && own(r)->keeps_reasoning && model->marks_reasoning &&
        !thought_tags_of(model->thoughts))
        rc = api_error_set(r->err, 400, "unsupported", "separate_reasoning",
                           "separate_reasoning must be true: the model thinks in messages of their "
                           "own, which are no text");
    if (!rc) rc = chat_make_prompt(r, model, text);
    if (rc) return rc;
    rc = note_strings(own(r), r->err);
    if (!rc) rc = show_marks(r, model);
    return rc ? rc : constrain(r, model);
}

/* Translates a body, and reads what comes of it. */
static int read_translated(struct request_reading *r, const json_t *root,
                           const struct chat_dialect *dialect, struct template_text *text) {
    struct chat_reading *const reading = r->own;
    json_t *members = json_object();
    int rc = members ? 0 : api_error_no_memory(r->err);
    r->own = dialect->own;
    if (!rc) rc = dialect->translate(r, root, members, &reading->list);
    r->own = reading;
    if (!rc) rc = read_chat(r, members, r->limits->chat, text);
    json_decref(members);
    return rc;
}

/* Returns how many tokens a chat gets that does not say. */
static uint32_t most_tokens(const struct request_limits *limits) {
    const uint32_t most = limits->generation ? limits->generation->max_tokens : 0;
    return most > 0 && most < limits->max_model_len ? most : limits->max_model_len;
}

int chat_request_parse(struct completion_request *out, struct chat_request *chat,
                       const struct chat_dialect *dialect, const char *body, size_t length,
                       const struct request_limits *limits, struct api_error *err) {
    const struct chat_template *model = limits->chat;
    struct completion_request request = completion_request_defaults(limits);
    struct chat_reading reading = {.defaults = model ? model->defaults : NULL};
    struct request_reading r = {
        .request = &request, .limits = limits, .err = err, .own = &reading, .chat = &reading};
    struct template_text text = {0};
    struct error why = {0};
    struct json_span none;
    json_t *root = NULL;
    if (!model || !(model->plain || model->with_tools))
        return api_error_set(err, 400, "unsupported", NULL,
                             "the model has no chat template: start the server with "
                             "--chat-template, or use /v1/completions");
    int rc = json_guard_load(&root, body, length, NULL, &none, &why);
    if (rc) {
        api_error_from(err, &why, NULL);
        return rc;
    }
    request.max_tokens = most_tokens(limits);
    rc = dialect ? read_translated(&r, root, dialect, &text) : read_chat(&r, root, model, &text);
    json_decref(root);
    if (!rc) rc = prompt_list_take_rendered(&request.prompts, &text, err);
    if (!rc) rc = completion_request_check(&r);
    if (rc) {
        template_text_fini(&text);
        completion_request_fini(&request);
        json_decref(reading.strings);
        tool_list_fini(&reading.list);
        return rc;
    }
    chat->splits_reasoning = model->marks_reasoning && !reading.keeps_reasoning;
    chat->tools = reading.format;
    chat->strings = reading.strings;
    chat->must_call = reading.choice.must_call;
    chat->max_calls = reading.choice.one_call ? 1 : TOOL_MAX_CALLS;
    chat->thought = reading.thought;
    if (chat->splits_reasoning) request.params.thought = reading.thought;
    chat->origins = json_incref(reading.list.origins);
    tool_list_fini(&reading.list);
    *out = request;
    return 0;
}

void chat_request_fini(struct chat_request *chat) {
    json_decref(chat->strings);
    json_decref(chat->origins);
    chat->strings = chat->origins = NULL;
}
