/* test_serve.c - the whole server over a backend that fails on demand: what clients, supervisors
 * and the caller of serve_run() see of it.
 *
 * Thread: the test's; the server has its own.  Memory: none kept. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/cpu/cpu.h"
#include "engine/device/backend.h"
#include "server/serve.h"
#include "server/settings/log.h"
#include "server/settings/options.h"
#include "tests/server/http_rig.h"
#include "tests/test.h"

static const char *model_dir;

/* The CPU's table with two entries replaced.  held: weights stay on their way; broken: what is
 * asked next fails. */
static atomic_bool broken, hung, held;
static struct backend *_Atomic breaks; /* the only one that is broken; NULL: all are */
static atomic_uint n_loads;
static int (*real_collect)(struct backend *be, uint32_t n_newer, struct error *err);
static int (*real_weight_load)(struct backend *be, const struct weight *host, struct weight *out,
                               struct error *err);

static int failing_collect(struct backend *be, uint32_t n_newer, struct error *err) {
    while (atomic_load(&hung)) poll(NULL, 0, 2);
    struct backend *only = atomic_load(&breaks);
    if (atomic_load(&broken) && (!only || only == be))
        return error_set(err, ERR_DEVICE, "pulled the plug");
    return real_collect(be, n_newer, err);
}

static int holding_weight_load(struct backend *be, const struct weight *host, struct weight *out,
                               struct error *err) {
    atomic_fetch_add(&n_loads, 1);
    while (atomic_load(&held)) poll(NULL, 0, 2);
    if (atomic_load(&broken)) return error_set(err, ERR_DEVICE, "no such device");
    return real_weight_load(be, host, out, err);
}

enum { MOST_REPLICAS = 2 };

struct running {
    struct options options;
    struct backend *backends[MOST_REPLICAS];
    struct backend_ops ops;
    struct error err;
    int rc;
    pthread_t thread;
};

static void *run_server(void *arg) {
    struct running *r = arg;
    r->rc = serve_run(&r->options, model_dir, r->backends, &r->err);
    return NULL;
}

/* A port that is free; the server takes it a moment later.  It is below those that the kernel gives
 * to outgoing connections, one of which could have it by then. */
static uint16_t free_port(void) {
    enum { FIRST = 10240, END = 32768 };
    struct sockaddr_in address = {.sin_family = AF_INET};
    unsigned seed = (unsigned)getpid();
    int rc;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    do {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        address.sin_port = htons((uint16_t)(FIRST + rand_r(&seed) % (END - FIRST)));
        rc = bind(fd, (struct sockaddr *)&address, sizeof(address));
        close(fd);
    } while (rc != 0);
    return ntohs(address.sin_port);
}

static bool accepts(uint16_t port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int rc = connect(fd, (struct sockaddr *)&address, sizeof(address));
    close(fd);
    return rc == 0;
}

/* Starts a server of n replicas and returns once it listens; its model may not be loaded yet. */
static void start_replicas(struct running *r, uint16_t port, uint32_t n) {
    char text[8], number[8];
    char *argv[] = {"--port",         text, "--max-model-len",      "9999",
                    "--step-timeout", "1",  "--data-parallel-size", number};
    char *no_variables[] = {NULL};
    snprintf(text, sizeof(text), "%u", port);
    snprintf(number, sizeof(number), "%u", n);
    atomic_store(&breaks, NULL);
    assert_int_equal(options_load(&r->options, &(struct options_command){"serve", 1, NULL},
                                  COUNT(argv), argv, no_variables, &r->err),
                     0);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(cpu_backend_create(&r->backends[i], &(struct cpu_config){0}, &r->err), 0);
    r->ops = *r->backends[0]->ops;
    real_collect = r->ops.collect;
    real_weight_load = r->ops.weight_load;
    r->ops.collect = failing_collect;
    r->ops.weight_load = holding_weight_load;
    for (uint32_t i = 0; i < n; i++) r->backends[i]->ops = &r->ops;
    assert_int_equal(pthread_create(&r->thread, NULL, run_server, r), 0);
    for (int i = 0; i < 5000; i++, poll(NULL, 0, 2))
        if (accepts(port)) return;
    fail_msg("the server does not listen: %s", r->err.text);
}

static void start_server(struct running *r, uint16_t port) {
    start_replicas(r, port, 1);
}

static void stop_server(struct running *r) {
    pthread_join(r->thread, NULL);
    for (int i = 0; i < MOST_REPLICAS; i++)
        if (r->backends[i]) r->backends[i]->ops->destroy(r->backends[i]);
    options_fini(&r->options);
}

static void send_completion(struct client *client, const char *body) {
    char text[512];
    snprintf(
        text, sizeof(text),
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: %zu\r\n\r\n%s",
        strlen(body), body);
    client_send(client, text);
}

/* Until a token has come: the head alone leaves before the request runs. */
static void wait_for_token(struct client *client) {
    char bytes[4096];
    for (int i = 0; i < 5000; i++) {
        const ssize_t n = recv(client->fd, bytes, sizeof(bytes) - 1, MSG_PEEK | MSG_DONTWAIT);
        bytes[n > 0 ? n : 0] = 0;
        if (strstr(bytes, "data: ")) return;
        poll(NULL, 0, 2);
    }
    fail_msg("no token came for 10 s");
}

static void expect(struct client *client, unsigned status, const char *text) {
    struct answer answer;
    client_read(client, &answer, true);
    assert_int_equal(answer.status, status);
    assert_true(answer.complete);
    if (!strstr(answer.body, text)) fail_msg("no '%s' in: %s", text, answer.body);
    answer_fini(&answer);
}

/* Asks until the answer has this status. */
static void wait_for_status(const struct rig *rig, const char *path, unsigned status,
                            const char *text) {
    struct answer answer = {0};
    for (int i = 0; i < 5000 && answer.status != status; i++, poll(NULL, 0, 2)) {
        struct client client;
        client_open(&client, rig);
        client_get(&client, path);
        answer_fini(&answer);
        client_read(&client, &answer, true);
        client_close(&client);
    }
    assert_int_equal(answer.status, status);
    assert_non_null(strstr(answer.body, text));
    answer_fini(&answer);
}

static void get(const struct rig *rig, const char *path, struct answer *answer) {
    struct client client;
    client_open(&client, rig);
    client_get(&client, path);
    client_read(&client, answer, true);
    client_close(&client);
}

TEST(a_hung_or_failed_device_is_told_to_everyone) {
    struct running running = {0};
    struct client stream, whole;
    const uint16_t port = free_port();
    const struct rig rig = {.config.port = port};
    atomic_store(&broken, false);
    start_server(&running, port);
    wait_for_status(&rig, "/ready", 200, "ok");
    client_open(&stream, &rig);
    client_open(&whole, &rig);
    send_completion(&whole, "{\"prompt\":\"a\",\"max_tokens\":9000,\"ignore_eos\":true}");
    send_completion(&stream, "{\"prompt\":\"b\",\"max_tokens\":9000,\"ignore_eos\":true,"
                             "\"stream\":true}");
    /* It waits behind the stream, so it is the first thing asked after the failure. */
    client_get(&stream, "/health");
    wait_for_token(&stream);
    atomic_store(&hung, true);
    wait_for_status(&rig, "/live", 503, "engine_stuck");
    wait_for_status(&rig, "/ready", 503, "engine_stuck");
    atomic_store(&hung, false);
    wait_for_status(&rig, "/live", 200, "ok");
    atomic_store(&broken, true);
    expect(&stream, 200, "pulled the plug");
    expect(&stream, 503, "the engine has failed");
    expect(&whole, 503, "engine_failed"); /* the cause itself only if it had begun to run */
    client_close(&stream);
    client_close(&whole);
    stop_server(&running);
    assert_int_equal(running.rc, ERR_DEVICE);
    assert_string_equal(running.err.text, "the engine has failed: pulled the plug");
    assert_false(accepts(port));
}

TEST(a_replica_that_fails_leaves_the_others) {
    static const char body[] = "{\"prompt\":\"%s\",\"max_tokens\":9000,\"ignore_eos\":true,"
                               "\"stream\":true}";
    struct running running = {0};
    struct client first, second;
    struct answer answer;
    const uint16_t port = free_port();
    const struct rig rig = {.config.port = port};
    char text[128];
    atomic_store(&broken, false);
    start_replicas(&running, port, 2);
    wait_for_status(&rig, "/ready", 200, "ok");
    client_open(&first, &rig);
    client_open(&second, &rig);
    snprintf(text, sizeof(text), body, "a");
    send_completion(&first, text);
    wait_for_token(&first);
    snprintf(text, sizeof(text), body, "b");
    send_completion(&second, text);
    wait_for_token(&second);
    atomic_store(&breaks, running.backends[1]);
    atomic_store(&broken, true);
    expect(&second, 200, "replica 1: pulled the plug");
    wait_for_status(&rig, "/ready", 200, "ok");
    get(&rig, "/metrics", &answer);
    assert_non_null(strstr(answer.body, "quire_replica_healthy{replica=\"0\"} 1\n"));
    assert_non_null(strstr(answer.body, "quire_replica_healthy{replica=\"1\"} 0\n"));
    answer_fini(&answer);
    for (int i = 0; i < 3; i++) { /* each goes to the replica that is left */
        send_completion(&second, "{\"prompt\":\"c\",\"max_tokens\":2}");
        expect(&second, 200, "\"completion_tokens\":2");
    }
    atomic_store(&breaks, NULL);
    expect(&first, 200, "replica 0: pulled the plug");
    client_close(&first);
    client_close(&second);
    stop_server(&running);
    assert_int_equal(running.rc, ERR_DEVICE);
    assert_string_equal(running.err.text, "the engine has failed: pulled the plug");
}

static void start_held(struct running *running, struct rig *rig) {
    atomic_store(&broken, false);
    atomic_store(&held, true);
    atomic_store(&n_loads, 0);
    rig->config.port = free_port();
    start_server(running, rig->config.port);
}

static void expect_get(const struct rig *rig, const char *path, unsigned status, const char *text) {
    struct answer answer;
    get(rig, path, &answer);
    assert_int_equal(answer.status, status);
    if (!strstr(answer.body, text)) fail_msg("%s: no '%s' in: %s", path, text, answer.body);
    answer_fini(&answer);
}

TEST(what_needs_no_model_answers_while_it_is_loaded) {
    struct running running = {0};
    struct rig rig = {0};
    struct answer answer;
    struct client client;
    start_held(&running, &rig);
    expect_get(&rig, "/live", 200, "ok");
    expect_get(&rig, "/ready", 503, "\"code\":\"loading\"");
    expect_get(&rig, "/health", 503, "\"code\":\"loading\"");
    expect_get(&rig, "/state", 200, "\"state\":\"loading\"");
    expect_get(&rig, "/version", 200, "backends");
    expect_get(&rig, "/openapi.json", 200, "/v1/completions");
    expect_get(&rig, "/", 200, "<!doctype html>");
    expect_get(&rig, "/metrics", 200, "\nquire_ready 0\n");
    get(&rig, "/metrics", &answer);
    assert_null(strstr(answer.body, "vllm:")); /* nothing that looks like an idle engine */
    answer_fini(&answer);
    expect_get(&rig, "/v1/models", 503, "the model is being loaded");
    expect_get(&rig, "/no/such/path", 404, "not_found");
    client_open(&client, &rig);
    send_completion(&client, "{\"prompt\":\"a\"}");
    client_read(&client, &answer, true);
    assert_int_equal(answer.status, 503);
    assert_non_null(strstr(answer.head, "Retry-After: 2\r\n"));
    answer_fini(&answer);
    atomic_store(&held, false);
    wait_for_status(&rig, "/ready", 200, "ok");
    expect_get(&rig, "/metrics", 200, "\nquire_ready 1\n");
    client_close(&client);
    client_open(&client, &rig);
    send_completion(&client, "{\"prompt\":\"a\",\"max_tokens\":1}");
    expect(&client, 200, "choices");
    client_close(&client);
    kill(getpid(), SIGTERM);
    stop_server(&running);
    assert_int_equal(running.rc, 0);
}

TEST(a_signal_ends_the_loading) {
    struct running running = {0};
    struct rig rig = {0};
    start_held(&running, &rig);
    while (atomic_load(&n_loads) == 0) poll(NULL, 0, 2);
    kill(getpid(), SIGTERM);
    while (accepts(rig.config.port)) poll(NULL, 0, 2);
    atomic_store(&held, false);
    stop_server(&running);
    assert_int_equal(running.rc, 0);
    assert_int_equal(atomic_load(&n_loads), 1); /* of many weights */
}

TEST(a_model_that_cannot_be_loaded_ends_the_server) {
    struct running running = {0};
    struct rig rig = {0};
    start_held(&running, &rig);
    expect_get(&rig, "/live", 200, "ok");
    atomic_store(&broken, true);
    atomic_store(&held, false);
    stop_server(&running);
    assert_int_equal(running.rc, ERR_DEVICE);
    assert_string_equal(running.err.text, "tensor 'model.embed_tokens.weight': no such device");
    assert_false(accepts(rig.config.port));
}

int main(int argc, char **argv) {
    if (argc < 2) return 1;
    log_set_level(LOG_ERROR);
    model_dir = argv[1];
    return tests_run("tests", NULL, NULL);
}
