/* asked_server.c - see asked_server.h. */
#include "server/terminal/asked_server.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/error.h"

/* A wait is looked at so often; a connection may take so long; a server that is being loaded is
 * asked so often. */
enum { WAIT_S = 1, OPEN_S = 15, HTTP_PORT = 80, HTTPS_PORT = 443, ASK_MS = 20 };

/* So many answers in a row may break off, which they do while the server ends. */
enum { MAX_BROKEN = 50, STATUS_READY = 200, STATUS_LOADING = 503 };

static void drop_end(char *path, const char *end) {
    const size_t n = strlen(path), n_end = strlen(end);
    if (n >= n_end && strcmp(path + n - n_end, end) == 0) path[n - n_end] = 0;
}

int asked_server_at(struct asked_server *out, const char *url, struct error *err) {
    *out = (struct asked_server){.own.feed = -1, .is_remote = true};
    const uint16_t port = strncmp(url, "https:", 6) == 0 ? HTTPS_PORT : HTTP_PORT;
    if (!http_address_read(&out->address, url, port))
        return error_set(err, ERR_INVALID,
                         "--url: '%.200s' is neither http://HOST:PORT nor https://HOST:PORT, such "
                         "as http://localhost:8000",
                         url);
    drop_end(out->address.path, "/");
    drop_end(out->address.path, "/v1"); /* a base URL of clients; the paths asked for have it */
    return out->address.with_tls ? http_client_trust_create(&out->trust, NULL, err) : 0;
}

/* Fills what each request to the server has. */
static int begin(struct http_client_request *request, struct asked_server *server,
                 const volatile sig_atomic_t *stop, struct error *err) {
    *request = (struct http_client_request){.host = server->address.host,
                                            .port = server->address.port,
                                            .authority = server->address.authority,
                                            .trust = server->trust,
                                            .key = server->key,
                                            .wait_s = WAIT_S,
                                            .open_s = OPEN_S,
                                            .stop = stop};
    return server->is_remote ? 0 : private_server_connect(&request->fd, &server->own, err);
}

static void pause_ms(long ms) {
    const struct timespec pause = {.tv_nsec = ms * 1000000};
    nanosleep(&pause, NULL);
}

static bool drop(void *ctx, const char *data, size_t n) {
    (void)ctx, (void)data, (void)n;
    return true;
}

/* Waits until the model is loaded. */
static int await(struct asked_server *server, const volatile sig_atomic_t *stop,
                 struct error *err) {
    for (int n_broken = 0;;) {
        struct http_client_request request;
        unsigned status = 0;
        int rc = begin(&request, server, stop, err);
        if (rc) return rc;
        request.path = "/ready";
        rc = http_client_read(&status, &request, drop, NULL, err);
        if (*stop) return error_set(err, ERR_STOPPED, "stopped");
        /* A server that ends breaks the answer off; begin() tells that then. */
        n_broken = rc ? n_broken + 1 : 0;
        if (n_broken > MAX_BROKEN) return rc;
        if (!rc && status == STATUS_READY) return 0;
        if (!rc && status != STATUS_LOADING)
            return error_set(err, ERR_IO, "the server answers /ready with status %u", status);
        pause_ms(ASK_MS);
    }
}

int asked_server_start(struct asked_server *out, private_server_run run, void *ctx,
                       const volatile sig_atomic_t *stop, struct error *err) {
    *out = (struct asked_server){.own.feed = -1};
    snprintf(out->address.host, sizeof(out->address.host), "the server");
    snprintf(out->address.authority, sizeof(out->address.authority), "localhost");
    const int rc = private_server_start(&out->own, run, ctx, err);
    return rc ? rc : await(out, stop, err);
}

int asked_server_post(unsigned *status, struct asked_server *server, const char *path,
                      const char *body, const volatile sig_atomic_t *stop, http_client_take take,
                      void *ctx, struct error *err) {
    char whole[2 * ADDRESS_PATH_BYTES];
    struct http_client_request request;
    const int rc = begin(&request, server, stop, err);
    if (rc) return rc;
    snprintf(whole, sizeof(whole), "%s%s", server->address.path, path);
    request.path = whole;
    request.body = body;
    request.n_body = strlen(body);
    return http_client_read(status, &request, take, ctx, err);
}

void asked_server_fini(struct asked_server *server) {
    private_server_stop(&server->own);
    http_client_trust_destroy(server->trust);
    *server = (struct asked_server){.own.feed = -1};
}
