/* http_rig.c - a transport on its own loop thread with a handler per path, and a raw client, for
 * tests.
 *
 * Thread: as http_rig.h says.  Memory: as http_rig.h says. */
#define _GNU_SOURCE /* memmem, RUSAGE_THREAD */

#include "tests/server/http_rig.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "tests/test.h"

static const char EVENT[] = "data: {\"n\":1}\n\n";

/* An exchange that is answered later. */
struct job {
    uv_timer_t timer;
    struct rig *rig;
    struct http_exchange *exchange;
    const char *body;
    size_t length;
    unsigned left;
};

static void job_closed(uv_handle_t *handle) {
    free(handle->data);
}

static void job_end(struct job *job) {
    uv_close((uv_handle_t *)&job->timer, job_closed);
}

static void job_gone(void *user) {
    struct job *job = user;
    /* A body that is kept has not moved. */
    struct http_held_body kept = http_hold_body(job->exchange);
    if (job->length > 0) assert_ptr_equal(kept.data, job->body);
    http_free_body(&kept);
    atomic_fetch_add(&job->rig->n_gone, 1);
    job_end(job);
}

static struct job *job_start(struct rig *rig, struct http_exchange *exchange) {
    struct job *job = calloc(1, sizeof(*job));
    assert_non_null(job);
    uv_timer_init(&rig->loop, &job->timer);
    job->timer.data = job;
    job->rig = rig;
    job->exchange = exchange;
    job->body = http_body(exchange, &job->length);
    http_on_gone(exchange, job_gone, job);
    return job;
}

static void late_due(uv_timer_t *timer) {
    struct job *job = timer->data;
    http_reply(job->exchange, 200, "text/plain", "late", 4);
    job_end(job);
}

static void tick_due(uv_timer_t *timer) {
    struct job *job = timer->data;
    if (job->left-- > 0) {
        http_stream_write(job->exchange, EVENT, sizeof(EVENT) - 1);
        return;
    }
    http_stream_end(job->exchange);
    job_end(job);
}

static void lump_due(uv_timer_t *timer) {
    static const char lump[64 * 1024] = {0};
    struct job *job = timer->data;
    http_stream_write(job->exchange, lump, sizeof(lump));
}

static void on_echo(struct rig *rig, struct http_exchange *exchange) {
    (void)rig;
    char text[512];
    http_set_header(exchange, "X-Extra", "yes");
    const int n = snprintf(text, sizeof(text), "%.100s %.200s %.200s", http_method(exchange),
                           http_path(exchange), http_body(exchange, NULL));
    http_reply(exchange, 200, "text/plain", text, (size_t)n);
}

static void on_size(struct rig *rig, struct http_exchange *exchange) {
    (void)rig;
    char text[64];
    size_t length;
    uint32_t sum = 0;
    const char *body = http_body(exchange, &length);
    for (size_t i = 0; i < length; i++) sum = sum * 31 + (unsigned char)body[i];
    const int n = snprintf(text, sizeof(text), "%zu %u %d", length, sum, body[length]);
    http_reply(exchange, 200, "text/plain", text, (size_t)n);
}

static void on_late(struct rig *rig, struct http_exchange *exchange) {
    uv_timer_start(&job_start(rig, exchange)->timer, late_due, 20, 0);
}

static void on_hold(struct rig *rig, struct http_exchange *exchange) {
    job_start(rig, exchange);
}

static void on_big(struct rig *rig, struct http_exchange *exchange) {
    (void)rig;
    char *bytes = calloc(1, BIG_BYTES);
    assert_non_null(bytes);
    http_reply(exchange, 200, "application/octet-stream", bytes, BIG_BYTES);
    free(bytes);
}

static void on_some(struct rig *rig, struct http_exchange *exchange) {
    (void)rig;
    static const char bytes[SOME_BYTES] = {0};
    http_reply(exchange, 200, "application/octet-stream", bytes, sizeof(bytes));
}

static struct job *begin_stream(struct rig *rig, struct http_exchange *exchange) {
    struct job *job = job_start(rig, exchange);
    http_stream_begin(exchange, 200, "text/event-stream");
    return job;
}

static void on_silent(struct rig *rig, struct http_exchange *exchange) {
    begin_stream(rig, exchange);
}

static void on_ticks(struct rig *rig, struct http_exchange *exchange) {
    struct job *job = begin_stream(rig, exchange);
    job->left = N_TICKS;
    uv_timer_start(&job->timer, tick_due, 5, 5);
}

static void on_burst(struct rig *rig, struct http_exchange *exchange) {
    (void)rig;
    http_stream_begin(exchange, 200, "text/event-stream");
    for (int i = 0; i < N_TICKS; i++) http_stream_write(exchange, EVENT, sizeof(EVENT) - 1);
    http_stream_end(exchange);
}

static void on_lump(struct rig *rig, struct http_exchange *exchange) {
    uv_timer_start(&begin_stream(rig, exchange)->timer, lump_due, 1, 1);
}

static void on_fill(struct rig *rig, struct http_exchange *exchange) {
    char *bytes = calloc(1, LUMP_BYTES);
    assert_non_null(bytes);
    begin_stream(rig, exchange);
    http_stream_write(exchange, bytes, LUMP_BYTES);
    free(bytes);
}

static void handle(struct http_exchange *exchange, void *ctx) {
    static const struct {
        const char *path;
        void (*run)(struct rig *, struct http_exchange *);
    } routes[] = {
        {"/echo", on_echo}, {"/size", on_size},     {"/late", on_late},   {"/hold", on_hold},
        {"/big", on_big},   {"/silent", on_silent}, {"/ticks", on_ticks}, {"/burst", on_burst},
        {"/lump", on_lump}, {"/fill", on_fill},     {"/some", on_some},
    };
    struct rig *rig = ctx;
    atomic_fetch_add(&rig->n_handled, 1);
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        if (strcmp(http_path(exchange), routes[i].path) == 0) {
            routes[i].run(rig, exchange);
            return;
        }
    }
    http_reply(exchange, 404, "text/plain", http_request_id(exchange),
               strlen(http_request_id(exchange)));
}

static void refused(void *ctx, const char *request_id, unsigned status, const char *why) {
    struct rig *rig = ctx;
    assert_true(*request_id && status >= 400 && *why);
    atomic_fetch_add(&rig->n_refused, 1);
}

/* ---- the loop thread ---- */

void rig_init(struct rig *rig) {
    memset(rig, 0, sizeof(*rig));
    rig->config = (struct http_config){
        .host = "127.0.0.1",
        .max_body_bytes = 1 << 20,
        .max_buffered_bytes = 64 << 20,
        .max_connections = 600,
        .request_timeout_ms = 60000,
        .idle_timeout_ms = 60000,
        .max_stream_backlog = 16 << 20,
        .stream_stall_timeout_ms = 60000,
        .handler = handle,
        .refused = refused,
        .ctx = rig,
    };
}

static void all_closed(void *ctx) {
    struct rig *rig = ctx;
    rig->http = NULL;
    uv_close((uv_handle_t *)&rig->wake, NULL);
    uv_close((uv_handle_t *)&rig->sample, NULL);
}

static void woken(uv_async_t *wake) {
    struct rig *rig = wake->data;
    if (atomic_load(&rig->stop_accepting)) http_stop_accepting(rig->http);
    if (atomic_load(&rig->stop)) http_close(rig->http, all_closed, rig);
}

static void sample(uv_timer_t *timer) {
    struct rig *rig = timer->data;
    if (!rig->http) return;
    atomic_store(&rig->n_open, http_n_open(rig->http));
    atomic_store(&rig->n_buffered, (unsigned)http_body_bytes(rig->http));
}

static void count_iteration(uv_check_t *check) {
    struct rig *rig = check->data;
    atomic_fetch_add(&rig->n_iterations, 1);
}

static void *run_loop(void *arg) {
    struct rig *rig = arg;
    struct rusage usage;
    uv_check_t check;
    uv_check_init(&rig->loop, &check);
    check.data = rig;
    uv_check_start(&check, count_iteration);
    uv_unref((uv_handle_t *)&check);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&check, NULL);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    getrusage(RUSAGE_THREAD, &usage);
    rig->cpu_us = (uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                  (uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    return NULL;
}

void rig_start(struct rig *rig) {
    struct error err = {0};
    assert_int_equal(uv_loop_init(&rig->loop), 0);
    uv_async_init(&rig->loop, &rig->wake, woken);
    uv_timer_init(&rig->loop, &rig->sample);
    rig->wake.data = rig->sample.data = rig;
    uv_timer_start(&rig->sample, sample, 5, 5);
    if (http_create(&rig->http, &rig->loop, &rig->config, &err) != 0) fail_msg("%s", err.text);
    rig->config.port = http_port(rig->http);
    assert_int_equal(pthread_create(&rig->thread, NULL, run_loop, rig), 0);
}

void rig_open(struct rig *rig) {
    rig_init(rig);
    rig_start(rig);
}

void rig_stop(struct rig *rig) {
    atomic_store(&rig->stop, true);
    uv_async_send(&rig->wake);
    pthread_join(rig->thread, NULL);
    assert_null(rig->http);
    assert_int_equal(uv_loop_close(&rig->loop), 0);
}

bool rig_wait(atomic_uint *value, unsigned expected) {
    for (int i = 0; i < 2500 && atomic_load(value) != expected; i++) usleep(2000);
    return atomic_load(value) == expected;
}

uint64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- the client ---- */

static void open_client(struct client *client, const struct rig *rig, int window,
                        const char *from) {
    struct sockaddr_in address = {.sin_family = AF_INET}, own = {.sin_family = AF_INET};
    address.sin_port = htons(rig->config.port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client->n_buffered = 0;
    client->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(client->fd >= 0);
    if (window) setsockopt(client->fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window));
    if (from) {
        assert_int_equal(inet_pton(AF_INET, from, &own.sin_addr), 1);
        assert_int_equal(bind(client->fd, (struct sockaddr *)&own, sizeof(own)), 0);
    }
    assert_int_equal(connect(client->fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

void client_open_with_window(struct client *client, const struct rig *rig, int window) {
    open_client(client, rig, window, NULL);
}

void client_open_from(struct client *client, const struct rig *rig, const char *address) {
    open_client(client, rig, 0, address);
}

void client_open(struct client *client, const struct rig *rig) {
    open_client(client, rig, 0, NULL);
}

void client_close(struct client *client) {
    close(client->fd);
}

void client_reset(struct client *client) {
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    setsockopt(client->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    close(client->fd);
}

bool client_send_bytes(struct client *client, const void *data, size_t length) {
    const char *bytes = data;
    while (length) {
        const ssize_t n = send(client->fd, bytes, length, MSG_NOSIGNAL);
        if (n < 0) return false;
        bytes += n;
        length -= (size_t)n;
    }
    return true;
}

void client_send(struct client *client, const char *text) {
    assert_true(client_send_bytes(client, text, strlen(text)));
}

void client_send_last(struct client *client, const char *text) {
    const ssize_t n = send(client->fd, text, strlen(text), MSG_NOSIGNAL | MSG_MORE);
    assert_int_equal(n, strlen(text));
    shutdown(client->fd, SHUT_WR);
}

void client_get(struct client *client, const char *path) {
    char text[128];
    snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    client_send(client, text);
}

/* False at the end of the connection, however it ended. */
static bool receive(struct client *client) {
    struct pollfd waiting = {.fd = client->fd, .events = POLLIN};
    assert_true(client->n_buffered < sizeof(client->buffer));
    if (poll(&waiting, 1, 10000) != 1) fail_msg("nothing came for 10 s");
    const ssize_t n = recv(client->fd, client->buffer + client->n_buffered,
                           sizeof(client->buffer) - client->n_buffered, 0);
    if (n <= 0) return false;
    client->n_buffered += (size_t)n;
    return true;
}

static void consume(struct client *client, size_t n) {
    memmove(client->buffer, client->buffer + n, client->n_buffered - n);
    client->n_buffered -= n;
}

/* The length of the line or head that ends with mark, mark included; 0 when the connection ends
 * before. */
static size_t receive_until(struct client *client, const char *mark) {
    for (;;) {
        const char *found = memmem(client->buffer, client->n_buffered, mark, strlen(mark));
        if (found) return (size_t)(found - client->buffer) + strlen(mark);
        if (!receive(client)) return 0;
    }
}

static bool receive_body(struct client *client, struct answer *answer, size_t length) {
    answer->body = realloc(answer->body, answer->length + length + 1);
    assert_non_null(answer->body);
    while (length) {
        if (!client->n_buffered && !receive(client)) return false;
        const size_t n = length < client->n_buffered ? length : client->n_buffered;
        memcpy(answer->body + answer->length, client->buffer, n);
        consume(client, n);
        answer->length += n;
        length -= n;
    }
    answer->body[answer->length] = '\0';
    return true;
}

static bool receive_chunks(struct client *client, struct answer *answer) {
    for (;;) {
        const size_t line = receive_until(client, "\r\n");
        if (!line) return false;
        const size_t size = strtoul(client->buffer, NULL, 16);
        consume(client, line);
        if (!receive_body(client, answer, size)) return false;
        if (receive_until(client, "\r\n") != 2) return false;
        consume(client, 2);
        if (size == 0) return true;
    }
}

static void receive_rest(struct client *client, struct answer *answer) {
    do {
        receive_body(client, answer, client->n_buffered);
    } while (receive(client));
}

void client_read(struct client *client, struct answer *answer, bool has_body) {
    memset(answer, 0, sizeof(*answer));
    answer->body = calloc(1, 1);
    const size_t head = receive_until(client, "\r\n\r\n");
    if (!head) return;
    assert_true(head < sizeof(answer->head));
    memcpy(answer->head, client->buffer, head);
    consume(client, head);
    assert_int_equal(sscanf(answer->head, "HTTP/1.%*c %u", &answer->status), 1);
    const char *length = strcasestr(answer->head, "\r\nContent-Length:");
    if (!has_body || answer->status == 100) {
        answer->complete = true;
    } else if (strcasestr(answer->head, "\r\nTransfer-Encoding: chunked")) {
        answer->complete = receive_chunks(client, answer);
    } else if (length) {
        answer->complete = receive_body(client, answer, strtoul(length + 17, NULL, 10));
    } else {
        receive_rest(client, answer);
        answer->complete = true;
    }
}

void client_ask(struct client *client, const char *text, struct answer *answer) {
    client_send(client, text);
    client_read(client, answer, true);
}

bool client_at_end(struct client *client) {
    return client->n_buffered == 0 && !receive(client);
}

void answer_fini(struct answer *answer) {
    free(answer->body);
    answer->body = NULL;
}

void client_open_and_get(struct client *client, const struct rig *rig, const char *path) {
    client_open(client, rig);
    client_get(client, path);
}

unsigned ask(const struct rig *rig, const char *request) {
    struct client client;
    struct answer answer;
    client_open(&client, rig);
    client_send(&client, request);
    client_read(&client, &answer, strncmp(request, "HEAD ", 5) != 0);
    client_close(&client);
    answer_fini(&answer);
    return answer.status;
}
