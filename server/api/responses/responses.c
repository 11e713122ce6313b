/* responses.c - POST /v1/responses: OpenAI's shape of answers that are lists of items.
 *
 * An answer is a list of items, of which one is open at a time.  Events say what happens to them,
 * and items that are complete are kept, because the last event repeats them all:
 *
 *   created  in_progress  ( item added  part added  delta…  part done  item done )…  completed
 *
 * An answer that is not streamed is made in the same way, and its events are dropped.  The last
 * object of an answer is stored, whether it is streamed or not: store.h. */
#include "server/api/handlers.h"

#include <stdio.h>
#include <string.h>
#include <uv.h>

#include "engine/base/error.h"
#include "server/api/conversation/call_ids.h"
#include "server/api/conversation/conversation.h"
#include "server/api/responses/request.h"
#include "server/api/responses/store.h"
#include "server/api/server.h"

enum item { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE };

enum {
    SUFFIX_BYTES = 24,
    RESPONSE_ID_BYTES = sizeof(RESPONSE_ID_PREFIX) + REQUEST_ID_MAX + SUFFIX_BYTES
};

struct responses {
    struct conversation chat; /* first: see conversation.h */
    struct responses_asked asked;
    char suffix[SUFFIX_BYTES]; /* of its ids, where another response would have the same */
    bool has_ids;              /* the suffix is known */
    bool is_long;              /* what it goes on from is as long as a long body */
    /* Where in c->out the response begins and its parts end. */
    struct {
        size_t begin, head, items, end;
    } at;
    enum item open;
    struct buffer text, logprobs; /* of the open item */
    struct buffer items;          /* complete ones, JSON with commas between them */
    uint32_t n_items;             /* begun */
    uint32_t n_events;
};

static struct responses *responses_of(struct completion *c) {
    return (struct responses *)c;
}

/* ---- errors ---- */

void responses_write_error(const struct api_error *err, struct buffer *out) {
    static const char *const names[][2] = {{"messages", "input"},
                                           {"max_tokens", "max_output_tokens"}};
    struct api_error named = *err;
    for (size_t i = 0; named.param && i < sizeof(names) / sizeof(*names); i++)
        if (strcmp(named.param, names[i][0]) == 0) named.param = names[i][1];
    if (named.code && strcmp(named.code, "context_length_exceeded") == 0 && named.param &&
        strcmp(named.param, "prompt") == 0)
        named.param = "input";
    api_error_write(&named, out);
}

/* ---- pool thread ---- */

/* Returns a second of a clock that never goes back. */
static uint64_t now_s(void) {
    return uv_hrtime() / 1000000000u;
}

/* Reads the body.  With the conversation that it goes on from it may be a long one, which waits for
 * the long ones. */
static int read_body(struct completion *c) {
    const struct server *server = c->job.server;
    const bool in_short_lane = c->job.lane == LANE_SHORT_COMPLETION;
    const struct history_source source = {
        .store = server->responses,
        .client = c->client,
        .now_s = now_s(),
        .max_bytes = in_short_lane && server->max_body_bytes > JOB_LONG_BYTES
                         ? JOB_LONG_BYTES
                         : server->max_body_bytes};
    const int rc =
        responses_request_parse(&c->request, &conversation_of(c)->request, &responses_of(c)->asked,
                                c->job.body, c->job.length, &source, &server->limits, &c->job.err);
    responses_of(c)->is_long =
        rc == ERR_FULL && in_short_lane && server->max_body_bytes > JOB_LONG_BYTES;
    return rc;
}

static void run(struct job *job) {
    conversation_run(job, read_body);
    if (!responses_of((struct completion *)job)->is_long) return;
    job->rc = 0;
    job_then(job, run, LANE_LONG_COMPLETION);
}

static void fini(struct completion *c) {
    struct responses *r = responses_of(c);
    conversation_fini(c);
    responses_asked_fini(&r->asked, c->job.server->responses);
    buffer_fini(&r->text);
    buffer_fini(&r->logprobs);
    buffer_fini(&r->items);
}

/* ---- the response ---- */

static void write_usage(struct completion *c) {
    const uint32_t n_output = completion_n_generated(c);
    buffer_printf(&c->out,
                  "\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u,"
                  "\"cache_write_tokens\":0},\"output_tokens\":%u,\"output_tokens_details\":{"
                  "\"reasoning_tokens\":%u},\"total_tokens\":%u",
                  c->n_prompt, c->n_cached, n_output, conversation_of(c)->n_reasoning,
                  c->n_prompt + n_output);
    completion_write_accounts(c);
    buffer_puts(&c->out, "}");
}

/* Writes the id of a response to id [RESPONSE_ID_BYTES]. */
static void write_id_of(const struct completion *c, char *id) {
    snprintf(id, RESPONSE_ID_BYTES, RESPONSE_ID_PREFIX "%s%s", c->request_id,
             ((const struct responses *)c)->suffix);
}

/* Tells whether its client may name another response by the id of this one.  That may be one that
 * is stored, or still being made.  It may also have been dropped: a request that names it must get
 * an error then, and not go on from this one. */
static bool shares_id(const struct completion *c) {
    const struct server *server = c->job.server;
    char id[RESPONSE_ID_BYTES], others[RESPONSE_ID_BYTES];
    write_id_of(c, id);
    bool shares = responses_store_knows(server->responses, c->client, id);
    for (const struct completion *other = server->completions; other && !shares;
         other = other->next) {
        if (other == c || other->client != c->client || other->api != c->api) continue;
        write_id_of(other, others);
        shares = strcmp(others, id) == 0;
    }
    return shares;
}

/* Makes the ids of a response differ from those of any other that its client may still name.
 * Clients choose the ids of requests, and may choose one twice. */
static void choose_ids(struct completion *c) {
    struct responses *r = responses_of(c);
    if (r->has_ids || !r->asked.stores) return;
    r->has_ids = true;
    while (shares_id(c))
        snprintf(r->suffix, sizeof(r->suffix), "-%llu",
                 (unsigned long long)++c->job.server->n_same_ids);
}

/* Writes the response as it is now.  err: why it failed, or NULL. */
static void write_response(struct completion *c, const char *status, const struct api_error *err) {
    struct responses *r = responses_of(c);
    const bool ended = c->accepted && c->n_live == 0 && !err;
    choose_ids(c);
    r->at.begin = c->out.length;
    buffer_printf(&c->out,
                  "{\"id\":\"" RESPONSE_ID_PREFIX "%s%s\",\"object\":\"response\","
                  "\"created_at\":%lld,\"status\":\"%s\",\"model\":",
                  c->request_id, r->suffix, (long long)c->created, status);
    buffer_json_string(&c->out, c->request.model, strlen(c->request.model));
    buffer_puts(&c->out, ",\"error\":");
    if (err) {
        buffer_puts(&c->out, "{\"code\":");
        const char *code = err->code ? err->code : "server_error";
        buffer_json_string(&c->out, code, strlen(code));
        buffer_puts(&c->out, ",\"message\":");
        buffer_json_string(&c->out, err->message, strlen(err->message));
        buffer_puts(&c->out, "}");
    } else {
        buffer_puts(&c->out, "null");
    }
    buffer_printf(
        &c->out, ",\"incomplete_details\":%s,\"output\":[",
        strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    r->at.head = c->out.length;
    buffer_append(&c->out, r->items.data, r->items.length);
    r->at.items = c->out.length;
    buffer_printf(&c->out, "],\"store\":%s,\"background\":false",
                  r->asked.stores ? "true" : "false");
    buffer_append(&c->out, r->asked.members.data, r->asked.members.length);
    buffer_puts(&c->out, ",");
    if (ended) write_usage(c);
    else buffer_puts(&c->out, "\"usage\":null");
    buffer_puts(&c->out, "}");
    r->at.end = c->out.length;
    c->out.failed |= r->items.failed;
}

/* Stores the response that has been written last.  A response that a client has not waited for is
 * never written, and so is not stored. */
static void store(struct completion *c, bool failed) {
    struct responses *r = responses_of(c);
    const char *out = c->out.data;
    char id[RESPONSE_ID_BYTES];
    if (!r->asked.stores || c->out.failed) return;
    write_id_of(c, id);
    const struct new_response response = {
        .client = c->client,
        .id = id,
        .head = {out + r->at.begin, r->at.head - r->at.begin},
        .tail = {out + r->at.items, r->at.end - r->at.items},
        .input = &r->asked.history.input,
        .output = &r->items,
        .before = &r->asked.history.before,
        .failed = failed,
    };
    responses_store_add(c->job.server->responses, &response, now_s());
}

/* ---- events ---- */

static void begin_event(struct completion *c, const char *type) {
    buffer_printf(&c->out,
                  "event: response.%s\ndata: {\"type\":\"response.%s\","
                  "\"sequence_number\":%u",
                  type, type, responses_of(c)->n_events++);
}

static void end_event(struct completion *c) {
    buffer_puts(&c->out, "}\n\n");
}

static void write_item_id(struct buffer *out, const struct completion *c, const char *prefix,
                          uint32_t item) {
    buffer_printf(out, "\"%s_%s%s_%u\"", prefix, c->request_id,
                  ((const struct responses *)c)->suffix, item);
}

static const char *prefix_of(enum item item) {
    return item == ITEM_REASONING ? "rs" : "msg";
}

/* Begins an event about a part of the item that was begun last. */
static void begin_item_event(struct completion *c, const char *type, const char *prefix,
                             bool has_part) {
    begin_event(c, type);
    buffer_printf(&c->out, ",\"output_index\":%u,\"item_id\":", responses_of(c)->n_items - 1);
    write_item_id(&c->out, c, prefix, responses_of(c)->n_items - 1);
    if (has_part) buffer_puts(&c->out, ",\"content_index\":0");
}

static void write_item_event(struct completion *c, const char *type, const struct buffer *item) {
    begin_event(c, type);
    buffer_printf(&c->out, ",\"output_index\":%u,\"item\":", responses_of(c)->n_items - 1);
    buffer_append(&c->out, item->data, item->length);
    end_event(c);
}

/* ---- items of text ---- */

static void write_list(struct buffer *out, const struct buffer *list) {
    buffer_puts(out, "[");
    buffer_append(out, list->data, list->length);
    buffer_puts(out, "]");
    out->failed |= list->failed;
}

/* Writes a part with the text and log-probabilities. */
static void write_part(struct buffer *out, enum item item, const struct buffer *text,
                       const struct buffer *logprobs) {
    buffer_puts(out, item == ITEM_REASONING ? "{\"type\":\"reasoning_text\",\"text\":"
                                            : "{\"type\":\"output_text\",\"text\":");
    answer_write_string(out, text);
    if (item == ITEM_MESSAGE) {
        buffer_puts(out, ",\"annotations\":[],\"logprobs\":");
        write_list(out, logprobs);
    }
    buffer_puts(out, "}");
}

static void write_part_event(struct completion *c, const char *type, enum item item,
                             const struct buffer *text, const struct buffer *logprobs) {
    begin_item_event(c, type, prefix_of(item), true);
    buffer_puts(&c->out, ",\"part\":");
    write_part(&c->out, item, text, logprobs);
    end_event(c);
}

/* Writes the open item; how: completed or incomplete, with its text, or in_progress. */
static void write_item(struct completion *c, struct buffer *out, const char *how) {
    struct responses *r = responses_of(c);
    const bool reasons = r->open == ITEM_REASONING;
    buffer_puts(out, "{\"id\":");
    write_item_id(out, c, prefix_of(r->open), r->n_items - 1);
    buffer_printf(out, ",%s,\"status\":\"%s\",\"content\":[",
                  reasons ? "\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":null"
                          : "\"type\":\"message\",\"role\":\"assistant\"",
                  how);
    if (strcmp(how, "in_progress") != 0) write_part(out, r->open, &r->text, &r->logprobs);
    buffer_puts(out, "]}");
}

/* Takes a complete item; it is freed. */
static void keep_item(struct completion *c, struct buffer *item) {
    struct responses *r = responses_of(c);
    write_item_event(c, "output_item.done", item);
    if (r->items.length > 0) buffer_puts(&r->items, ",");
    buffer_append(&r->items, item->data, item->length);
    r->items.failed |= item->failed;
    buffer_fini(item);
}

static void open_item(struct completion *c, enum item item) {
    static const struct buffer none = {0};
    struct responses *r = responses_of(c);
    struct buffer added = {0};
    r->open = item;
    r->n_items++;
    buffer_clear(&r->text);
    buffer_clear(&r->logprobs);
    write_item(c, &added, "in_progress");
    write_item_event(c, "output_item.added", &added);
    c->out.failed |= added.failed;
    buffer_fini(&added);
    write_part_event(c, "content_part.added", item, &none, &none);
}

/* Ends the open item, if there is one; how: completed or incomplete. */
static void close_item(struct completion *c, const char *how) {
    struct responses *r = responses_of(c);
    const bool reasons = r->open == ITEM_REASONING;
    struct buffer done = {0};
    if (r->open == ITEM_NONE) return;
    begin_item_event(c, reasons ? "reasoning_text.done" : "output_text.done", prefix_of(r->open),
                     true);
    buffer_puts(&c->out, ",\"text\":");
    answer_write_string(&c->out, &r->text);
    if (!reasons) {
        buffer_puts(&c->out, ",\"logprobs\":");
        write_list(&c->out, &r->logprobs);
    }
    end_event(c);
    write_part_event(c, "content_part.done", r->open, &r->text, &r->logprobs);
    write_item(c, &done, how);
    keep_item(c, &done);
    r->open = ITEM_NONE;
}

/* Adds text to an item of its kind, which is begun unless it is open. */
static void add_text(struct completion *c, enum item item, const struct buffer *text,
                     const struct buffer *logprobs) {
    struct responses *r = responses_of(c);
    c->out.failed |= text->failed;
    if (text->length == 0) return;
    if (r->open != item) {
        close_item(c, "completed");
        open_item(c, item);
    }
    buffer_append(&r->text, text->data, text->length);
    begin_item_event(c, item == ITEM_REASONING ? "reasoning_text.delta" : "output_text.delta",
                     prefix_of(item), true);
    buffer_puts(&c->out, ",\"delta\":");
    answer_write_string(&c->out, text);
    if (item == ITEM_MESSAGE) {
        buffer_puts(&c->out, ",\"logprobs\":");
        write_list(&c->out, logprobs);
        if (r->logprobs.length > 0 && logprobs->length > 0) buffer_puts(&r->logprobs, ",");
        buffer_append(&r->logprobs, logprobs->data, logprobs->length);
    }
    end_event(c);
}

/* ---- items of calls ---- */

/* How calls of each kind of tool are written. */
static const struct call_form {
    const char *type, *prefix, *input, *delta, *done;
} call_forms[] = {
    [TOOL_FUNCTION] = {"function_call", "fc", "arguments", "function_call_arguments.delta",
                       "function_call_arguments.done"},
    [TOOL_CUSTOM] = {"custom_tool_call", "ctc", "input", "custom_tool_call_input.delta",
                     "custom_tool_call_input.done"},
    [TOOL_SEARCH] = {"tool_search_call", "tsc", "arguments", NULL, NULL},
};

/* Writes what a call hands over: a text, but for a search, which hands over an object. */
static void write_input(struct buffer *out, const struct tool_call *call, enum tool_kind kind) {
    if (kind == TOOL_CUSTOM) answer_write_custom_input(out, call);
    else if (kind == TOOL_FUNCTION) answer_write_string(out, &call->arguments);
    else buffer_append(out, call->arguments.data, call->arguments.length);
    out->failed |= call->arguments.failed;
}

/* Writes the item of a call, which hands over nothing while it is only begun. */
static void write_call(struct completion *c, struct buffer *out, uint32_t i,
                       const struct tool_origin *origin, bool is_done) {
    const struct tool_call *call = &answer_of(c, &c->choices[0])->tools.calls[i];
    const struct call_form *form = &call_forms[origin->kind];
    char id[CALL_ID_LENGTH + 1];
    call_id_make(id, c->request_id, c->n_prompt, 0, i);
    buffer_puts(out, "{\"id\":");
    write_item_id(out, c, form->prefix, responses_of(c)->n_items - 1);
    buffer_printf(out, ",\"type\":\"%s\",\"status\":\"%s\",\"call_id\":\"call_%s\",", form->type,
                  is_done ? "completed" : "in_progress", id);
    if (origin->kind == TOOL_SEARCH) buffer_puts(out, "\"execution\":\"client\"");
    else answer_write_name(out, origin);
    buffer_printf(out, ",\"%s\":", form->input);
    if (is_done) write_input(out, call, origin->kind);
    else buffer_puts(out, origin->kind == TOOL_SEARCH ? "{}" : "\"\"");
    buffer_puts(out, "}");
}

static void write_input_event(struct completion *c, uint32_t i, const struct tool_origin *origin,
                              bool is_done) {
    const struct tool_call *call = &answer_of(c, &c->choices[0])->tools.calls[i];
    const struct call_form *form = &call_forms[origin->kind];
    if (!form->delta) return;
    begin_item_event(c, is_done ? form->done : form->delta, form->prefix, false);
    buffer_printf(&c->out, ",\"%s\":", is_done ? form->input : "delta");
    write_input(&c->out, call, origin->kind);
    if (is_done && origin->kind == TOOL_FUNCTION) {
        buffer_puts(&c->out, ",");
        answer_write_name(&c->out, origin);
    }
    end_event(c);
}

static void add_call(struct completion *c, uint32_t i) {
    const struct tool_origin origin =
        answer_origin(c, &answer_of(c, &c->choices[0])->tools.calls[i]);
    struct buffer item = {0};
    close_item(c, "completed");
    responses_of(c)->n_items++;
    write_call(c, &item, i, &origin, false);
    write_item_event(c, "output_item.added", &item);
    write_input_event(c, i, &origin, false);
    write_input_event(c, i, &origin, true);
    buffer_clear(&item);
    write_call(c, &item, i, &origin, true);
    keep_item(c, &item);
}

/* ---- answers ---- */

static void write_events(struct completion *c, struct choice *choice) {
    static const struct buffer none = {0};
    struct answer *answer = answer_of(c, choice);
    const struct buffer *logprobs = &choice->tokens; /* of the first text: they are not split */
    size_t begin = 0;
    add_text(c, ITEM_REASONING, &answer->reasoning, logprobs);
    for (bool more = true; more;) {
        const struct buffer text = answer_next_text(answer, &begin);
        add_text(c, ITEM_MESSAGE, &text, logprobs);
        if (text.length > 0) logprobs = &none;
        more = answer->n_calls_sent < answer->tools.n_calls;
        if (more) add_call(c, answer->n_calls_sent++);
    }
    answer_clear(answer);
}

static void write_progress(struct completion *c, const struct choice *choice,
                           const struct engine_event *event) {
    (void)choice;
    begin_event(c, "prompt_progress");
    completion_write_progress(c, event);
    end_event(c);
}

static void write_lifecycle(struct completion *c, const char *type, const char *status,
                            const struct api_error *err) {
    begin_event(c, type);
    buffer_puts(&c->out, ",\"response\":");
    write_response(c, status, err);
    end_event(c);
}

static void write_begin(struct completion *c) {
    write_lifecycle(c, "created", "in_progress", NULL);
    write_lifecycle(c, "in_progress", "in_progress", NULL);
}

static const char *final_status(const struct completion *c) {
    if (c->choices[0].reason == FINISH_CANCELLED) return "cancelled";
    return c->choices[0].reason == FINISH_LENGTH ? "incomplete" : "completed";
}

/* Ends the item in which the answer has ended, which is cut off where the answer is. */
static void close_last_item(struct completion *c) {
    close_item(c, strcmp(final_status(c), "completed") == 0 ? "completed" : "incomplete");
}

static void write_end(struct completion *c) {
    close_last_item(c);
    const char *status = final_status(c);
    write_lifecycle(c, strcmp(status, "completed") == 0 ? "completed" : "incomplete", status, NULL);
    store(c, false);
}

static void write_failure(struct completion *c, const struct api_error *err) {
    write_lifecycle(c, "failed", "failed", err);
    store(c, true);
}

static void write_answer(struct completion *c) {
    choose_ids(c);
    write_events(c, &c->choices[0]);
    close_last_item(c);
    if (c->out.failed) return;
    buffer_clear(&c->out);
    write_response(c, final_status(c), NULL);
    store(c, false);
}

void responses_create(struct server *server, struct http_exchange *exchange) {
    static const struct completion_api api = {
        .path = "/v1/responses",
        .id_prefix = RESPONSE_ID_PREFIX,
        .size = sizeof(struct responses),
        .run = run,
        .fini = fini,
        .write_error = responses_write_error,
        .write_answer = write_answer,
        .write_begin = write_begin,
        .write_events = write_events,
        .write_progress = write_progress,
        .write_end = write_end,
        .write_failure = write_failure,
        .streams_too_long = true, /* as OpenAI's own service: Codex shortens a conversation on this
                                     event, and not on a 400 */
        .add_logprobs = conversation_add_logprobs,
        .added = conversation_added,
    };
    completion_start(server, exchange, &api);
}
