/* serve.c - see serve.h. */
#include "server/serve.h"
#include "server/replicas/replicas.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer_cache.h"
#include "server/api/completions.h"
#include "server/api/job.h"
#include "server/api/responses/store.h"
#include "server/api/server.h"
#include "server/descriptors.h"
#include "server/early_signals.h"
#include "server/http/http.h"
#include "server/kv_events/publisher.h"
#include "server/kv_events/publishers.h"
#include "server/loop_memory.h"
#include "server/model_load.h"
#include "server/ops/health.h"
#include "server/otlp/exporter.h"
#include "server/routes.h"
#include "server/settings/api_keys.h"
#include "server/settings/log.h"
#include "server/settings/model_file.h"
#include "server/settings/model_names.h"
#include "server/settings/options.h"
#include "server/start_log.h"
#include "server/supervisor.h"

/* How much of --shutdown-timeout is left when what still runs is cancelled: a tenth of it, between
 * these bounds, and at most half.  Within the first two thirds clients fetch the final error. */
enum { MIN_FAREWELL_MS = 500, MAX_FAREWELL_MS = 2000 };
/* What they get for it even where the time-out is zero. */
enum { MIN_FETCH_MS = 100 };
/* How often draining is checked. */
enum { DRAIN_TICK_MS = 20 };
/* How often a failing cache on disk is logged at most. */
enum { DISK_LOG_MS = 60000 };
/* How far a streaming reader may lag behind: the largest echo, and as much again for the output
 * after it. */
enum { STREAM_BACKLOG = 2 * REQUEST_MAX_STREAMED_ECHO };

/* Descriptors beside the connections': the program's own, a GPU driver's, and those of refused
 * clients that linger. */
enum { OTHER_DESCRIPTORS = 256, ADDRESS_BYTES = 160 };

struct serve {
    struct server server;
    const struct options *options;
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t tick;
    uv_signal_t terminate, interrupt, hangup;
    uint32_t max_connections;
    uint64_t cancel_ms, close_ms; /* while draining: when requests and then connections end */
    uint64_t n_disk_failures, disk_logged_ms; /* that were logged; when the next line may come */
    bool cancelled, closing;
    struct error *failure; /* the caller's; code 0: none */
    struct model_names models;
    const char *model_name; /* the first of them */
    char *topic;
    struct kv_publishers *publishers; /* NULL: --kv-events is not given */
    struct model_load load;
    struct supervisor supervisor;
    struct api_keys keys; /* that were read last, unless they are the options' */
};

static void engine_wake(void *ctx) {
    uv_async_send(ctx);
}

static void engine_has_events(uv_async_t *wake) {
    struct serve *s = wake->data;
    if (s->server.replicas) completions_take_events(&s->server);
}

/* ---- the end ---- */

static void transport_closed(void *ctx) {
    struct serve *s = ctx;
    uv_close((uv_handle_t *)&s->wake, NULL);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&s->terminate, NULL);
    uv_close((uv_handle_t *)&s->interrupt, NULL);
    uv_close((uv_handle_t *)&s->hangup, NULL);
}

/* Joins the engine thread, then takes the final event of every sequence.  So each client still
 * connected gets its answer, and each completion ends. */
static void close_all(struct serve *s) {
    if (s->closing) return;
    s->closing = true;
    supervisor_stopping(&s->supervisor, "ending");
    /* Connections are answered until they are closed, also where a start fails behind the model. */
    s->server.draining = s->server.stopped = true;
    if (s->server.replicas) {
        replicas_stop(s->server.replicas);
        completions_take_events(&s->server);
    }
    http_close(s->server.http, transport_closed, s);
}

static void set_deadlines(struct serve *s) {
    const uint64_t timeout = 1000 * s->options->shutdown_timeout;
    const uint64_t tenth = max_u64(timeout / 10, MIN_FAREWELL_MS);
    const uint64_t farewell = min_u64(min_u64(tenth, MAX_FAREWELL_MS), timeout / 2);
    s->cancel_ms = uv_now(&s->loop) + timeout - farewell;
    s->close_ms = s->cancel_ms + max_u64(farewell * 2 / 3, MIN_FETCH_MS);
}

static void begin_drain(struct serve *s) {
    s->server.draining = true;
    supervisor_stopping(&s->supervisor, "running requests may finish");
    model_load_stop(&s->load);
    set_deadlines(s);
    http_stop_accepting(s->server.http);
    uv_timer_set_repeat(&s->tick, DRAIN_TICK_MS);
    uv_timer_again(&s->tick);
}

static void drain_further(struct serve *s) {
    const uint64_t now = uv_now(&s->loop);
    if (!s->server.completions && http_n_open(s->server.http) == 0) {
        close_all(s);
    } else if (now >= s->cancel_ms && !s->cancelled) {
        log_event(LOG_WARN, "--shutdown-timeout ends: cancelling the requests that still run");
        s->cancelled = true;
        completions_cancel_all(&s->server);
    } else if (s->cancelled && now >= s->close_ms) {
        close_all(s);
    }
}

/* Logs that the system refuses reads or writes of the cache on disk, once for each minute of it. */
static void log_disk(struct serve *s) {
    struct error why;
    const uint64_t n = replicas_disk_failure(s->server.replicas, &why), now = uv_now(&s->loop);
    if (n == s->n_disk_failures || now < s->disk_logged_ms) return;
    log_event(LOG_WARN, "the cache on disk: %.400s (%" PRIu64 " times so far); it costs only hits",
              why.text, n);
    s->n_disk_failures = n;
    s->disk_logged_ms = now + DISK_LOG_MS;
}

static void log_throughput(struct serve *s) {
    struct engine_stats stats;
    replicas_stats(s->server.replicas, &stats);
    if (throughput_tick(&s->server.throughput, &stats, uv_now(&s->loop)))
        throughput_log(&s->server.throughput, &stats);
}

/* Ends the server once no replica is left.  While some are, they go on without those that have
 * failed. */
static void watch_failures(struct serve *s) {
    struct error why;
    uint32_t replica;
    while (replicas_take_failure(s->server.replicas, &replica, &why)) {
        const uint32_t n_left = replicas_n_healthy(s->server.replicas);
        if (n_left > 0) {
            log_event(LOG_ERROR, "replica %" PRIu32 " has failed, %" PRIu32 " go on: %.400s",
                      replica, n_left, why.text);
            continue;
        }
        error_set(s->failure, ERR_DEVICE, "the engine has failed: %.400s", why.text);
        begin_drain(s);
        return;
    }
}

static void watch_engine(struct serve *s) {
    completions_tick(&s->server);
    if (s->server.responses) responses_store_expire(s->server.responses, uv_hrtime() / 1000000000u);
    if (!s->server.draining) watch_failures(s);
    log_disk(s);
    log_throughput(s);
}

static void on_tick(uv_timer_t *timer) {
    struct serve *s = timer->data;
    if (s->closing) return;
    supervisor_tick(&s->supervisor, uv_now(&s->loop), health_is_live(&s->server));
    if (s->server.replicas) watch_engine(s);
    if (s->server.draining) drain_further(s);
}

static void on_signal(uv_signal_t *handle, int number) {
    struct serve *s = handle->data;
    if (s->server.draining) {
        log_event(LOG_WARN, "signal %d again: stopping at once", number);
        if (s->server.replicas) replicas_skip_saving(s->server.replicas);
        close_all(s);
        return;
    }
    if (s->server.replicas)
        log_event(LOG_INFO, "signal %d: running requests may finish within %" PRIu64 " s", number,
                  s->options->shutdown_timeout);
    else log_event(LOG_INFO, "signal %d: the model is not loaded any further", number);
    begin_drain(s);
}

static void renew_certificate(struct serve *s, int number) {
    struct error err;
    if (http_reload_certificate(s->server.http, &err)) {
        log_event(LOG_ERROR, "signal %d: the former certificate stays in use: %.400s", number,
                  err.text);
    } else {
        log_event(LOG_INFO, "signal %d: read %s again", number, s->options->ssl_certfile);
    }
}

/* Replaces the API keys, all at once.  Requests that run go on, also those of a key that has
 * gone. */
static void renew_keys(struct serve *s, int number) {
    struct server *server = &s->server;
    struct api_keys fresh = {0};
    struct error err;
    if (api_keys_renew(&fresh, server->keys, s->options, &err)) {
        log_event(LOG_ERROR, "signal %d: the former API keys stay in use: %.400s", number,
                  err.text);
        return;
    }
    for (uint32_t i = 0; i < fresh.n; i++)
        if (!api_keys_have_tenant(server->keys, fresh.all[i].tenant))
            server->rates[fresh.all[i].tenant] = (struct rate_limit){0};
    api_keys_fini(&s->keys);
    s->keys = fresh;
    server->keys = &s->keys;
    log_event(LOG_INFO, "signal %d: read the API keys again: there are %" PRIu32, number, fresh.n);
}

/* Reads again what may change while the server runs. */
static void on_hangup(uv_signal_t *handle, int number) {
    struct serve *s = handle->data;
    const bool has_certificate = s->options->ssl_certfile,
               has_keys = api_keys_can_change(s->options);
    if (s->closing) return;
    supervisor_reloading(&s->supervisor);
    if (has_certificate) renew_certificate(s, number);
    if (has_keys) renew_keys(s, number);
    if (!has_certificate && !has_keys)
        log_event(LOG_INFO, "signal %d: there is nothing to read again", number);
    supervisor_reloaded(&s->supervisor);
}

/* ---- the beginning ---- */

static int name_model(struct serve *s, const char *model_dir, struct error *err) {
    char name[PATH_MAX];
    model_name_write(name, model_dir);
    const int rc = model_names_read(&s->models, s->options->served_model_name,
                                    s->options->model_alias, name, err);
    s->model_name = s->models.names[0];
    return rc;
}

/* Starts publishing what is cached, before the model is loaded: an endpoint that cannot be bound
 * ends the server at once. */
static int start_kv_events(struct serve *s, struct error *err) {
    const struct options *o = s->options;
    if (!o->kv_events) return 0;
    const size_t size = strlen(o->host) + strlen(s->model_name) + 8;
    s->topic = o->kv_events_topic ? strdup(o->kv_events_topic) : malloc(size);
    if (!s->topic) return error_set(err, ERR_NOMEM, "no memory for --kv-events");
    if (!o->kv_events_topic) snprintf(s->topic, size, "kv@%s@%s", o->host, s->model_name);
    const struct kv_publisher_config config = {
        .endpoint = o->kv_events, .replay_endpoint = o->kv_events_replay, .topic = s->topic};
    const int rc =
        kv_publishers_start(&s->publishers, &config, (uint32_t)o->data_parallel_size, err);
    if (!rc) log_event(LOG_INFO, "KV events: %s, topic %s", o->kv_events, s->topic);
    return rc;
}

/* Starts posting spans, before the model is loaded: an endpoint that is none ends the server at
 * once. */
static int start_traces(struct serve *s, struct error *err) {
    const struct options *o = s->options;
    const struct otlp_settings settings = {
        .endpoint = o->otlp_endpoint, .ca_file = o->otlp_ca_file, .service = "quire"};
    if (o->otlp_endpoint) return otlp_start(&s->server.otlp, &settings, err);
    return 0;
}

/* Tells the routes what is known before the model is. */
static void describe_server(struct serve *s) {
    struct server *server = &s->server;
    server->loop = &s->loop;
    server->model_name = s->model_name;
    server->keys = &s->options->keys;
    server->deadline_s = s->options->request_deadline;
    server->route_of = routes_name;
    server->has_ui = s->options->ui;
    server->max_body_bytes = s->options->max_body_size;
}

/* Sets what requests that do not say do; refuses where no request could.  Left to itself it guesses
 * where that pays: not on a backend that runs ahead, which must wait for a step before the next one
 * can have guesses. */
static int choose_speculation(struct serve *s, struct error *err) {
    struct server *server = &s->server;
    const char *excluded = server->info->speculation_excluded;
    const bool pays = !excluded && !s->load.backends[0]->runs_ahead,
               guesses = s->options->speculation == SPECULATE_SUFFIX ||
                         (s->options->speculation == SPECULATE_AUTO && pays);
    server->limits.speculation.mode = guesses ? SPECULATION_SUFFIX : SPECULATION_OFF;
    if (!guesses || !excluded) return 0;
    return error_set(err, ERR_INVALID, "--speculation suffix does not go with %s", excluded);
}

/* Creates the tokenizer's cache.  Requests that share no prefixes share no texts, either. */
static int create_tokenizer_cache(struct serve *s, struct error *err) {
    struct tokenizer_cache_config config = {.max_bytes = s->options->tokenizer_cache_size};
    if (config.max_bytes == 0 || !s->options->enable_prefix_caching) return 0;
    memcpy(config.key, s->server.info->salt_key, sizeof(config.key));
    return tokenizer_cache_create(&s->server.limits.tokenizer_cache, &config, err);
}

static int create_responses_store(struct serve *s, struct error *err) {
    struct responses_store_config config = {.max_bytes = s->options->responses_store_size,
                                            .max_age_s = s->options->responses_store_time};
    if (config.max_bytes == 0) return 0;
    memcpy(config.key, s->server.info->salt_key, sizeof(config.key));
    return responses_store_create(&s->server.responses, &config, err);
}

static int describe_model(struct serve *s, struct error *err) {
    struct server *server = &s->server;
    int rc;
    server->info = replicas_info(server->replicas);
    server->cache = s->load.cache;
    server->created = (int64_t)time(NULL);
    const uint64_t n_places = s->options->max_num_seqs + s->options->max_num_queued_reqs;
    server->limits = (struct request_limits){
        .models = &s->models,
        .n_vocab = server->info->model->n_vocab,
        .max_model_len = server->info->max_model_len,
        .max_sequences =
            n_places < REQUEST_MAX_SEQUENCES ? (uint32_t)n_places : REQUEST_MAX_SEQUENCES,
        .trained_context = server->info->model->max_position,
        .learned_positions = server->info->model->positions == POSITIONS_LEARNED,
        .kv_tokens = server->info->budget_tokens,
        .long_rows = server->info->long_rows,
        .kv = s->options->kv_rules,
        .tokenizer = server->info->tokenizer,
        .chat = &s->load.chat,
        .generation = &s->load.generation,
        .spare_ids = &server->spare_ids,
        .skipped = &server->skipped,
        .strict_fields = s->options->strict_fields};
    memcpy(server->limits.salt_key.words, server->info->salt_key, sizeof(server->info->salt_key));
    offload_setup_rules(&server->limits.kv.offload, &s->load.offload, s->options);
    if ((rc = choose_speculation(s, err))) return rc;
    if ((rc = create_tokenizer_cache(s, err))) return rc;
    if ((rc = create_responses_store(s, err))) return rc;
    rc = prefill_setup_rules(&server->limits.prefill, &s->load.prefill, s->options, server->info,
                             err);
    return rc ? rc : kv_rules_resolve(&server->limits.kv, server->info, err);
}

/* Logs and counts a request that the transport refused before it reached a route. */
static void request_refused(void *ctx, const char *request_id, unsigned status, const char *why) {
    struct server *server = ctx;
    counters_count_answer(&server->counters, NULL, "", status, -1);
    log_event(LOG_INFO, "request id=%s refused: %s status=%u", request_id, why, status);
}

static int start_http(struct serve *s, struct error *err) {
    const struct options *o = s->options;
    const struct http_config config = {
        .host = o->host,
        .port = (uint16_t)o->port,
        .feed = o->feed,
        .certificate_file = o->ssl_certfile,
        .key_file = o->ssl_keyfile,
        .max_body_bytes = o->max_body_size,
        .max_buffered_bytes = o->max_buffered_body,
        .max_connections = s->max_connections,
        .request_timeout_ms = (uint32_t)(1000 * o->request_timeout),
        .idle_timeout_ms = (uint32_t)(1000 * o->keep_alive_timeout),
        .max_stream_backlog = STREAM_BACKLOG,
        .stream_stall_timeout_ms = (uint32_t)(1000 * o->stall_timeout),
        .admit = routes_admit,
        .handler = routes_handle,
        .refused = request_refused,
        .ctx = &s->server,
    };
    const int rc = http_create(&s->server.http, &s->loop, &config, err);
    if (rc) return rc;
    s->server.browsers = (struct browser_rules){.origins = o->allowed_origins,
                                                .hosts = o->allowed_hosts,
                                                .is_loopback = http_is_loopback(s->server.http)};
    s->server.open_metrics =
        o->metrics_key == METRICS_KEY_OPEN ||
        (o->metrics_key == METRICS_KEY_AUTO && http_is_loopback(s->server.http));
    return 0;
}

/* Opens the way to the supervisor.  One that cannot be told is no reason not to serve. */
static void open_supervisor(struct serve *s) {
    struct error err;
    if (supervisor_open(&s->supervisor, &err)) log_event(LOG_WARN, "%s", err.text);
}

static void init_handles(struct serve *s) {
    uv_async_init(&s->loop, &s->wake, engine_has_events);
    uv_timer_init(&s->loop, &s->tick);
    uv_signal_init(&s->loop, &s->terminate);
    uv_signal_init(&s->loop, &s->interrupt);
    uv_signal_init(&s->loop, &s->hangup);
    s->wake.data = s->tick.data = s->terminate.data = s->interrupt.data = s->hangup.data = s;
}

static void start_handles(struct serve *s) {
    uv_timer_start(&s->tick, on_tick, COMPLETIONS_TICK_MS, COMPLETIONS_TICK_MS);
    uv_signal_start(&s->terminate, on_signal, SIGTERM);
    uv_signal_start(&s->interrupt, on_signal, SIGINT);
    uv_signal_start(&s->hangup, on_hangup, SIGHUP);
}

/* Counts the descriptors of a connection: with TLS its socket and a pair (tls.h). */
static uint32_t descriptors_per_connection(const struct options *options) {
    return options->ssl_certfile ? 3 : 1;
}

static int open_loop(struct serve *s, struct error *err) {
    const int rc = loop_memory_reserve(
        s->max_connections * descriptors_per_connection(s->options) + OTHER_DESCRIPTORS, err);
    if (rc) return rc;
    const int status = uv_loop_init(&s->loop);
    if (!status) return 0;
    loop_memory_release();
    return error_set(err, ERR_IO, "no event loop: %s", uv_strerror(status));
}

static void close_loop(struct serve *s) {
    uv_loop_close(&s->loop);
    loop_memory_release();
}

/* Writes where connections are taken: an address of IPv6 is in brackets, as in any URL. */
static void describe_address(const struct serve *s, char out[ADDRESS_BYTES]) {
    const struct options *o = s->options;
    const bool is_v6 = strchr(o->host, ':') != NULL;
    if (o->feed) snprintf(out, ADDRESS_BYTES, "the command that has started it");
    else
        snprintf(out, ADDRESS_BYTES, "%s://%s%.100s%s:%u", o->ssl_certfile ? "https" : "http",
                 is_v6 ? "[" : "", o->host, is_v6 ? "]" : "", http_port(s->server.http));
}

/* Tells the supervisor and the log that requests are taken, and where. */
static void tell_ready(struct serve *s) {
    char address[ADDRESS_BYTES], status[300];
    describe_address(s, address);
    snprintf(status, sizeof(status), "serving %.100s on %s", s->model_name, address);
    supervisor_ready(&s->supervisor, status);
    log_event(LOG_INFO, "ready: listening on %s", address);
}

/* Serves the model that was loaded.  A server that has been told to end meanwhile only ends. */
static void model_loaded(void *ctx) {
    struct serve *s = ctx;
    if (s->server.draining || s->closing) return;
    if (!s->load.replicas) {
        *s->failure = s->load.err;
        close_all(s);
        return;
    }
    s->server.replicas = s->load.replicas;
    if (describe_model(s, s->failure)) {
        close_all(s);
        return;
    }
    start_log_model(&s->server, s->options, &s->load);
    tell_ready(s);
}

/* Loads the model while the transport answers. */
static void begin_load(struct serve *s, const char *model_dir, struct backend *const *backends) {
    s->load.options = s->options;
    s->load.model_dir = model_dir;
    s->load.backends = backends;
    s->load.publishers = s->publishers;
    s->load.wake = engine_wake;
    s->load.wake_ctx = &s->wake;
    s->load.done = model_loaded;
    s->load.done_ctx = s;
    char address[ADDRESS_BYTES];
    describe_address(s, address);
    log_event(LOG_INFO, "loading the model; %s answers /live, /ready and /metrics meanwhile",
              address);
    model_load_begin(&s->load, &s->loop);
}

int serve_run(const struct options *options, const char *model_dir, struct backend *const *backends,
              struct error *err) {
    struct serve s = {.options = options, .failure = err};
    signal(SIGPIPE, SIG_IGN);
    err->code = 0;
    int rc = descriptors_for_connections(&s.max_connections, options->max_connections,
                                         descriptors_per_connection(options), err);
    if (!rc) rc = job_make_threads(err);
    if (!rc) rc = open_loop(&s, err);
    if (rc) return rc;
    init_handles(&s);
    open_supervisor(&s);
    skipped_types_init(&s.server.skipped);
    rc = name_model(&s, model_dir, err);
    if (!rc) rc = start_kv_events(&s, err);
    if (!rc) rc = start_traces(&s, err);
    if (!rc) describe_server(&s);
    if (!rc) rc = start_http(&s, err);
    if (rc) {
        transport_closed(&s);
    } else {
        api_keys_warn(options, http_is_loopback(s.server.http));
        start_handles(&s);
        if (early_signals_hung_up()) on_hangup(&s.hangup, SIGHUP);
        begin_load(&s, model_dir, backends);
    }
    /* Returns when every handle is closed and no job is left. */
    uv_run(&s.loop, UV_RUN_DEFAULT);
    if (s.server.replicas) completions_take_events(&s.server);
    model_load_fini(&s.load);
    tokenizer_cache_destroy(s.server.limits.tokenizer_cache);
    responses_store_destroy(s.server.responses);
    spare_ids_fini(&s.server.spare_ids);
    skipped_types_fini(&s.server.skipped);
    kv_publishers_stop(s.publishers);
    otlp_stop(s.server.otlp);
    supervisor_close(&s.supervisor);
    free(s.topic);
    close_loop(&s);
    api_keys_fini(&s.keys);
    model_names_fini(&s.models);
    return err->code;
}
