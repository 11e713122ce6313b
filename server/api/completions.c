/* completions.c - see completions.h. */
#include "server/api/completions.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/error.h"
#include "engine/engine.h"
#include "engine/grammar/grammar_cache.h"
#include "server/api/auth.h"
#include "server/api/completion.h"
#include "server/api/fanout.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/api/trace.h"
#include "server/http/http.h"
#include "server/replicas/replicas.h"
#include "server/settings/api_keys.h"
#include "server/settings/log.h"

static void completion_free(struct completion *c) {
    trace_end(c);
    if (c->link) {
        *c->link = c->next;
        if (c->next) c->next->link = c->link;
    }
    if (c->api->fini) c->api->fini(c);
    fanout_destroy(c->submission, c->n_choices);
    for (uint32_t i = 0; c->choices && i < c->n_choices; i++) choice_fini(&c->choices[i]);
    free(c->choices);
    completion_request_fini(&c->request);
    buffer_fini(&c->head);
    buffer_fini(&c->out);
    job_free(&c->job);
}

/* ---- pool thread: from the body to the engine's requests ---- */

/* Decodes the prompts given as tokens, because they are echoed as their text. */
static int decode_prompts(struct completion *c) {
    for (uint32_t i = 0; i < c->request.prompts.n; i++) {
        struct prompt *prompt = &c->request.prompts.items[i];
        struct error why = {0};
        if (prompt->text) continue;
        if (tokenizer_decode(c->format.tokenizer, prompt->tokens.ids, prompt->tokens.n,
                             c->format.skip_special, &prompt->text, &prompt->length, &why)) {
            return api_error_from(&c->job.err, &why, "prompt");
        }
        prompt->decoded = true;
    }
    return 0;
}

static int make_choices(struct completion *c) {
    struct error why = {0};
    const uint32_t best_of = c->request.best_of;
    for (uint32_t i = 0; i < c->request.prompts.n; i++)
        c->n_prompt += (uint32_t)c->request.prompts.items[i].tokens.n;
    c->n_choices = c->request.prompts.n * best_of;
    c->choices = calloc(c->n_choices, sizeof(*c->choices));
    if (!c->choices || fanout_create(&c->submission, &c->request, &c->job.server->limits, &why)) {
        free(c->choices);
        c->choices = NULL;
        return api_error_set(&c->job.err, 500, NULL, NULL, "no memory for %u sequences",
                             c->n_choices);
    }
    for (uint32_t i = 0; i < c->n_choices; i++) {
        choice_init(&c->choices[i], c, &c->request.prompts.items[i / best_of], i / best_of);
        c->submission[i].user = &c->choices[i];
        c->submission[i].progress |= c->request.stream && c->api->begins_with_counts;
        c->submission[i].arrived_s = 1e-9 * (double)c->started_ns; /* both clocks are monotonic */
    }
    return 0;
}

/* Explains why the engine refused the request, in terms of the parameter that this is about. */
static int refuse_submission(struct completion *c, const struct error *why) {
    if (why->param && strcmp(why->param, "kv_policy") == 0)
        return api_error_set(&c->job.err, 400, NULL, why->param, "kv_policy: %s", why->text);
    return api_error_from(&c->job.err, why, why->param ? why->param : "prompt");
}

/* Lets the engine check the requests here, where long prompts keep no other request waiting.  A
 * plan depends on the grammar: requests whose grammar is still to be compiled are checked when they
 * are submitted. */
static int admit_choices(struct completion *c) {
    struct error why = {0};
    replicas_name(c->job.server->replicas, c->submission, c->n_choices);
    if (c->job.then) return 0;
    const int rc = replicas_admit(c->job.server->replicas, c->submission, c->n_choices, &why);
    return rc ? refuse_submission(c, &why) : 0;
}

static bool is_stopped(const void *user) {
    return job_is_stopped(user);
}

static void compile_costly(struct job *job);

/* Compiles the grammar, and gives it to the engine's requests. */
static void compile(struct job *job, enum grammar_effort effort) {
    struct completion *c = (struct completion *)job;
    const struct grammar_trial trial = {effort, is_stopped, job};
    job->rc = structured_compile(&c->request, job->server->info->grammars, &trial, &job->err);
    if (job->rc == ERR_FULL) {
        job->rc = 0;
        job_then(job, compile_costly, LANE_COSTLY_FORM);
    }
    for (uint32_t i = 0; i < c->n_choices && !job->rc; i++)
        c->submission[i].params.grammar = grammar_ref(c->request.params.grammar);
}

static void compile_quickly(struct job *job) {
    compile(job, GRAMMAR_QUICK);
}

static void compile_costly(struct job *job) {
    compile(job, GRAMMAR_COSTLY);
}

/* Finds the request's grammar, or leaves it to another step of the job. */
static int find_grammar(struct completion *c) {
    bool found;
    const int rc = structured_find(&c->request, c->job.server->info->grammars, &found, &c->job.err);
    if (!rc && !found) job_then(&c->job, compile_quickly, LANE_FORM);
    return rc;
}

void completion_run(struct job *job, completion_reader read) {
    struct completion *c = (struct completion *)job;
    const struct request_limits *limits = &job->server->limits;
    const struct tokenizer *tokenizer = job->server->info->tokenizer;
    job->rc = read(c);
    if (job->rc) return;
    job->rc = find_grammar(c);
    if (job->rc) return;
    c->format = (struct choice_format){.tokenizer = tokenizer,
                                       .echo = c->request.echo,
                                       .logprobs = c->request.params.n_logprobs >= 0,
                                       .token_ids = c->request.return_token_ids,
                                       .kept = c->request.return_kept,
                                       .skip_special = c->request.params.skip_special};
    c->request.text_scope = salt_scope(&limits->salt_key, c->request.cache_salt, c->client);
    job->rc = completion_request_tokenize(&c->request, tokenizer, limits, &job->err);
    if (!job->rc && c->request.echo) job->rc = decode_prompts(c);
    if (!job->rc) job->rc = make_choices(c);
    if (!job->rc) job->rc = admit_choices(c);
    if (job->rc) job->then = NULL;
}

/* ---- loop: answers ---- */

void completion_write_head(struct completion *c, const char *object) {
    struct buffer *head = &c->head;
    const char *model = c->request.model;
    if (head->length == 0) {
        buffer_printf(head, "{\"id\":\"%s%s\",\"object\":\"%s\",\"created\":%lld,\"model\":",
                      c->api->id_prefix, c->request_id, object, (long long)c->created);
        buffer_json_string(head, model, strlen(model));
        buffer_puts(head, ",\"choices\":[");
    }
    buffer_append(&c->out, head->data, head->length);
    c->out.failed |= head->failed;
}

uint32_t completion_n_generated(const struct completion *c) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_choices; i++) n += c->choices[i].n_tokens;
    return n;
}

static double seconds_since_start(const struct completion *c) {
    return (double)(uv_hrtime() - c->started_ns) * 1e-9;
}

/* Writes what a whole answer took, as fields of its line in the log; "" of any other. */
static void write_work(const struct completion *c, unsigned status, char *out, size_t size) {
    const char *why = prefill_account_reason(&c->prefill);
    out[0] = 0;
    if (status != 200 || c->n_live > 0) return;
    snprintf(out, size,
             " prompt_tokens=%" PRIu32 " cached_tokens=%" PRIu32 " generated_tokens=%" PRIu32
             " prefill=%s%s%s",
             c->n_prompt, c->n_cached, completion_n_generated(c),
             c->prefill.n_sparse ? "sparse" : "dense", why ? " why_dense=" : "", why ? why : "");
}

/* Logs and counts an answer that ends here; the exchange is not used any more. */
static void note_end(struct completion *c, unsigned status) {
    const double seconds = seconds_since_start(c);
    char work[192];
    write_work(c, status, work, sizeof(work));
    if (status == 200) histogram_add(&c->job.server->counters.whole, &histogram_request_s, seconds);
    c->status = status;
    reply_note(c->job.server, c->request_id, "POST", c->api->path, status, seconds, work);
    c->job.exchange = NULL;
}

static void cancel_live(struct completion *c) {
    for (uint32_t i = 0; i < c->n_choices; i++) {
        if (!c->choices[i].finished)
            replicas_cancel(c->job.server->replicas, c->choices[i].engine_id);
    }
}

static void write_failure(struct completion *c, const struct api_error *err) {
    buffer_puts(&c->out, "data: ");
    api_error_write(err, &c->out);
    buffer_puts(&c->out, "\n\n");
}

/* Ends the answer with an error, whatever part of it has been sent. */
static void fail(struct completion *c, const struct api_error *err) {
    struct http_exchange *exchange = c->job.exchange;
    if (c->accepted) cancel_live(c);
    c->status = err->status;
    if (!c->request.stream) {
        c->job.exchange = NULL;
        reply_error_as(c->job.server, exchange, err, c->api->write_error);
        return;
    }
    static const char no_memory[] = "data: " REPLY_NO_MEMORY "\n\n";
    buffer_clear(&c->out);
    (c->api->write_failure ? c->api->write_failure : write_failure)(c, err);
    /* A failed stream must not look whole: without memory a fixed error is sent, and a write that
     * fails resets the connection. */
    if (c->out.failed) http_stream_write(exchange, no_memory, sizeof(no_memory) - 1);
    else http_stream_write(exchange, c->out.data, c->out.length);
    http_stream_end(exchange);
    note_end(c, err->status);
}

static int refuse_cancelled(struct api_error *err) {
    return api_error_set(err, 409, "request_cancelled", NULL, "the request has been cancelled");
}

static int refuse_stopping(struct api_error *err) {
    return api_error_set(err, 503, "shutting_down", NULL, "the server is shutting down");
}

static void fail_for_memory(struct completion *c) {
    struct api_error err;
    api_error_set(&err, 500, NULL, NULL, "no memory for the answer");
    fail(c, &err);
}

static void send_out(struct completion *c) {
    if (c->out.failed) {
        fail_for_memory(c);
        return;
    }
    http_stream_write(c->job.exchange, c->out.data, c->out.length);
    c->written_ms = uv_now(c->job.server->loop);
}

/* Sends the events with which the stream begins, once. */
static void send_begin(struct completion *c) {
    if (c->begun || !c->api->write_begin) return;
    c->begun = true;
    buffer_clear(&c->out);
    c->api->write_begin(c);
    send_out(c);
}

static void stream_choice(struct completion *c, struct choice *choice) {
    if (!choice_has_news(choice)) return;
    buffer_clear(&c->out);
    c->api->write_events(c, choice);
    choice_clear(choice);
    if (c->out.length > 0 || c->out.failed) send_out(c);
}

static void end_stream(struct completion *c) {
    buffer_clear(&c->out);
    c->api->write_end(c);
    struct http_exchange *exchange = c->job.exchange;
    send_out(c);
    if (!c->job.exchange) return;
    http_stream_end(exchange);
    note_end(c, 200);
}

static void send_whole(struct completion *c) {
    struct http_exchange *exchange = c->job.exchange;
    buffer_clear(&c->out);
    c->api->write_answer(c);
    if (c->out.failed) {
        fail_for_memory(c);
        return;
    }
    http_reply(exchange, 200, "application/json", c->out.data, c->out.length);
    note_end(c, 200);
}

/* ---- loop: events ---- */

static struct rate_limit *rate_of(const struct completion *c) {
    return &c->job.server->rates[c->tenant];
}

static bool is_first_of_prompt(const struct choice *choice) {
    const struct completion *c = choice->completion;
    return choice == &c->choices[choice->prompt_index * c->request.best_of];
}

/* Counts what the cache had of the choice's prompt with its first event, so that usage in the
 * middle of a stream knows it, too. */
static void count_found(struct choice *choice, const struct engine_event *event) {
    if (choice->found_counted || !is_first_of_prompt(choice)) return;
    choice->found_counted = true;
    choice->completion->n_cached += event->n_cached;
}

static void take_ending(struct completion *c, struct choice *choice,
                        const struct engine_event *event) {
    assert(!choice->finished && c->n_live > 0);
    choice->finished = true;
    choice->reason = event->reason; /* and the tokens: known though the client has left */
    choice->n_tokens = event->n_generated;
    c->n_live--;
    rate_limit_take(rate_of(c), event->n_generated);
    if (is_first_of_prompt(choice)) prefill_account_add_reused(&c->prefill, &event->prefill);
    if (event->n_generated > c->n_longest) c->n_longest = event->n_generated;
    kv_account_add(&c->kv, event);
    prefill_account_add(&c->prefill, &event->prefill);
    speculation_usage_add(&c->speculation, &event->speculation);
    counters_count_prompt(&c->job.server->counters, event->prefill.mode);
    const bool is_whole =
        event->reason != FINISH_ERROR && (event->reason != FINISH_CANCELLED || c->cancelled);
    if (!c->job.exchange || is_whole) return;
    struct api_error err;
    if (event->reason == FINISH_CANCELLED) {
        refuse_stopping(&err);
    } else {
        const struct error why = {.code = event->error_code};
        /* The request had passed its checks, all but what its grammar leads to. */
        const bool by_grammar = event->error_code == ERR_UNSUPPORTED;
        log_event(by_grammar ? LOG_INFO : LOG_ERROR, "request id=%s failed: %s", c->request_id,
                  event->error_text);
        api_error_from(&err, &why, c->request.structured.param);
        if (err.status < 500 && !by_grammar) err.status = 500;
        strncpy(err.message, event->error_text, sizeof(err.message) - 1);
        err.message[sizeof(err.message) - 1] = 0;
    }
    fail(c, &err);
}

/* Fails an answer that has ended by itself and should be JSON, but is none: what allowed it is at
 * fault. */
static void check_form(struct completion *c, const struct choice *choice) {
    struct api_error err;
    if (!choice->finished || choice->reason != FINISH_STOP || choice->stop_string >= 0 ||
        choice->stop_token >= 0 || json_check_is_whole(&choice->check))
        return;
    log_event(LOG_ERROR, "request id=%s: the answer has ended and is no JSON", c->request_id);
    api_error_set(&err, 500, NULL, c->request.structured.param,
                  "%s: the answer has ended and is no JSON", c->request.structured.param);
    fail(c, &err);
}

static void send_progress(struct completion *c, const struct choice *choice,
                          const struct engine_event *event) {
    if (!c->job.exchange || !c->request.return_progress) return;
    buffer_clear(&c->out);
    c->api->write_progress(c, choice, event);
    send_out(c);
}

static void take_event(struct choice *choice, const struct engine_event *event) {
    struct completion *c = choice->completion;
    count_found(choice, event);
    if (event->kind == EVENT_PROGRESS) {
        if (c->job.exchange) send_begin(c);
        send_progress(c, choice, event);
        return;
    }
    if (event->kind == EVENT_FINISH) take_ending(c, choice, event);
    if (c->job.exchange) choice_add(choice, &c->format, event);
    if (c->job.exchange && c->api->added) c->api->added(c, choice, event);
    else if (c->job.exchange && event->kind != EVENT_PROMPT)
        json_check_add(&choice->check, event->text, event->text_length);
    if (c->job.exchange && c->request.structured.is_json) check_form(c, choice);
    if (c->job.exchange && c->request.stream) send_begin(c);
    if (c->job.exchange && c->request.stream) stream_choice(c, choice);
    if (c->n_live > 0) return;
    histogram_add(&c->job.server->counters.longest, &histogram_tokens, c->n_longest);
    if (c->job.exchange && c->request.stream) {
        end_stream(c);
    } else if (c->job.exchange) {
        send_whole(c);
    }
    completion_free(c);
}

void completions_take_events(struct server *server) {
    struct engine_event *event = replicas_take_events(server->replicas);
    while (event) {
        struct engine_event *next = event->next;
        take_event(event->user, event);
        engine_event_free(event);
        event = next;
    }
}

/* ---- loop: the beginning ---- */

static void client_gone(void *user) {
    struct completion *c = user;
    note_end(c, 0);
    cancel_live(c);
}

static void begin_stream(struct completion *c) {
    struct http_exchange *exchange = c->job.exchange;
    http_set_header(exchange, "Cache-Control", "no-cache");
    http_set_header(exchange, "X-Accel-Buffering", "no");
    http_stream_begin(exchange, 200, "text/event-stream; charset=utf-8");
    c->written_ms = uv_now(c->job.server->loop);
    if (!c->api->begins_with_counts) send_begin(c);
}

static void begin_answer(struct completion *c) {
    http_on_gone(c->job.exchange, client_gone, c);
    if (c->request.stream) begin_stream(c);
}

/* Tells the client that its request has been refused before it ran. */
static void refuse(struct completion *c) {
    const struct api_error *err = &c->job.err;
    const bool is_too_long = err->code && strcmp(err->code, "context_length_exceeded") == 0 &&
                             err->param && strcmp(err->param, "max_tokens") != 0;
    if (is_too_long && c->request.stream && c->api->streams_too_long) {
        begin_stream(c);
        if (c->job.exchange) fail(c, err);
        return;
    }
    c->status = err->status;
    reply_error_as(c->job.server, c->job.exchange, err, c->api->write_error);
}

/* Tells the engine on whose behalf the sequences run. */
static void attribute(struct completion *c) {
    for (uint32_t i = 0; i < c->n_choices; i++) {
        c->submission[i].tenant = c->tenant;
        c->submission[i].weight = c->weight;
        c->submission[i].client = c->client;
    }
}

static void count_accepted(struct completion *c) {
    struct counters *counters = &c->job.server->counters;
    histogram_add(&counters->n_choices, &histogram_choices, c->request.n);
    histogram_add(&counters->max_tokens, &histogram_tokens, c->request.max_tokens);
}

/* Submits the sequences to the engine, all or none. */
static int submit(struct completion *c) {
    struct server *server = c->job.server;
    struct error why = {0};
    if (server->stopped) return refuse_stopping(&c->job.err);
    attribute(c);
    uint64_t *ids = calloc(c->n_choices, sizeof(*ids));
    int rc = ids ? 0 : error_set(&why, ERR_NOMEM, "no memory for %u sequences", c->n_choices);
    if (!rc) rc = replicas_submit(server->replicas, c->submission, c->n_choices, ids, &why);
    if (!rc) {
        for (uint32_t i = 0; i < c->n_choices; i++) c->choices[i].engine_id = ids[i];
        rate_limit_take(rate_of(c), c->n_prompt);
        free(c->submission); /* the engine owns what it held */
        c->submission = NULL;
    }
    free(ids);
    if (!rc) count_accepted(c);
    if (rc == ERR_FULL) server->counters.n_queue_full++;
    return rc ? refuse_submission(c, &why) : 0;
}

static void job_done(struct job *job) {
    struct completion *c = (struct completion *)job;
    struct server *server = job->server;
    server->n_preparing--;
    if (job->exchange && c->cancelled) job->rc = refuse_cancelled(&job->err);
    if (job->exchange && !job->rc) job->rc = submit(c);
    if (!job->exchange || job->rc) {
        if (job->exchange) refuse(c);
        else note_end(c, 0);
        completion_free(c);
        return;
    }
    c->format.add_logprobs = c->api->add_logprobs;
    c->n_live = c->n_choices;
    c->accepted = true;
    begin_answer(c);
    if (!c->request.prompts.items[0].text)
        spare_ids_prepare(&server->spare_ids, server->loop, c->n_prompt);
}

/* Refuses a request whose key has used up its tokens of this minute. */
static int check_rate(struct server *server, const struct api_key *key, struct api_error *err) {
    if (!key) return 0;
    const uint32_t wait =
        rate_limit_wait(&server->rates[key->tenant], key->tokens_per_minute, uv_now(server->loop));
    if (wait == 0) return 0;
    api_error_set(err, 429, "rate_limit_exceeded", NULL,
                  "this API key may use %llu tokens a minute: try again in %u s",
                  (unsigned long long)key->tokens_per_minute, wait);
    err->retry_s = wait;
    return ERR_INVALID;
}

/* Refuses a request that could not wait, before its body is read: in an overload only the work for
 * those that are accepted gains anything.  Those that are being prepared have a place each. */
static int check_room(struct server *server, struct api_error *err) {
    struct error why = {0};
    if (!replicas_check_room(server->replicas, server->n_preparing + 1, &why)) return 0;
    server->counters.n_queue_full++;
    return api_error_from(err, &why, NULL);
}

static int check_start(struct server *server, const struct api_key *key, struct api_error *err) {
    if (server->draining) return refuse_stopping(err);
    const int rc = check_rate(server, key, err);
    return rc ? rc : check_room(server, err);
}

void completion_start(struct server *server, struct http_exchange *exchange,
                      const struct completion_api *api) {
    const struct api_key *key = auth_find(server->keys, exchange);
    struct api_error err;
    if (check_start(server, key, &err)) {
        reply_error_as(server, exchange, &err, api->write_error);
        return;
    }
    struct completion *c = (struct completion *)job_create(server, exchange, JOB_COMPLETION,
                                                           api->size, api->run, job_done);
    if (!c) return;
    server->n_preparing++;
    c->api = api;
    c->tenant = key ? key->tenant : 0;
    c->weight = key ? key->weight : 1;
    strncpy(c->request_id, http_request_id(exchange), REQUEST_ID_MAX);
    c->client = auth_client(server->keys, &server->limits.salt_key, exchange);
    c->created = (int64_t)time(NULL);
    c->started_ns = uv_hrtime();
    trace_begin(c, exchange);
    c->next = server->completions;
    c->link = &server->completions;
    if (c->next) c->next->link = &c->next;
    server->completions = c;
    job_submit(&c->job); /* from now on the pool's thread reads what is set above */
}

static void ping(struct completion *c, uint64_t now_ms) {
    if (now_ms - c->written_ms < COMPLETIONS_SILENCE_MS) return;
    const char *text = c->api->ping ? c->api->ping : ": ping\n\n";
    http_stream_write(c->job.exchange, text, strlen(text));
    c->written_ms = now_ms;
}

static bool is_late(const struct completion *c) {
    const uint64_t limit = c->job.server->deadline_s;
    return limit > 0 && seconds_since_start(c) > (double)limit;
}

static void fail_late(struct completion *c) {
    struct api_error err;
    api_error_set(&err, 504, "deadline_exceeded", NULL,
                  "the request was not finished within %llu s (--request-deadline)",
                  (unsigned long long)c->job.server->deadline_s);
    fail(c, &err);
}

void completions_tick(struct server *server) {
    const uint64_t now_ms = uv_now(server->loop);
    for (struct completion *c = server->completions; c; c = c->next) {
        if (!c->accepted || !c->job.exchange) continue;
        if (is_late(c)) fail_late(c);
        else if (c->request.stream) ping(c, now_ms);
    }
}

void completions_cancel_all(struct server *server) {
    for (struct completion *c = server->completions; c; c = c->next) {
        job_stop(&c->job);
        if (c->accepted) cancel_live(c);
    }
}

static bool has_id(const struct completion *c, const char *id) {
    const size_t n = strlen(c->api->id_prefix);
    if (strcmp(id, c->request_id) == 0) return true;
    return strncmp(id, c->api->id_prefix, n) == 0 && strcmp(id + n, c->request_id) == 0;
}

uint32_t completions_cancel(struct server *server, const char *id, uint64_t client) {
    uint32_t n = 0;
    for (struct completion *c = server->completions; c; c = c->next) {
        if (!c->job.exchange || c->client != client || !has_id(c, id)) continue;
        c->cancelled = true;
        job_stop(&c->job);
        if (c->accepted) cancel_live(c);
        n++;
    }
    return n;
}
