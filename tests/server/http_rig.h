/* http_rig.h - a transport on its own loop thread with a handler per path, and a raw client, for
 * tests.
 *
 *   /echo     answers at once: "METHOD PATH BODY"
 *   /size     answers at once: the length and a checksum of the body
 *   /late     answers after 20 ms
 *   /hold     never answers
 *   /big      answers with BIG_BYTES
 *   /some     answers with SOME_BYTES: more than a small window, less than a socket's buffer
 *   /silent   begins a stream and writes nothing
 *   /ticks    a stream of N_TICKS events, one each 5 ms
 *   /burst    a stream of N_TICKS events written at once, and its end
 *   /lump     a stream of 64 KiB lumps, one each millisecond, without end
 *   /fill     a stream of LUMP_BYTES written once, then silence
 *
 * Thread: the rig's functions belong to the test, the handlers to the loop; they share atomics.
 * Memory: the rig is the test's; jobs live with their exchange. */
#ifndef TESTS_SERVER_HTTP_RIG_H
#define TESTS_SERVER_HTTP_RIG_H

#include <pthread.h>
#include <stdatomic.h>

#include "server/http/http.h"

enum {
    N_TICKS = 20,
    SOME_BYTES = 64 * 1024,
    BIG_BYTES = 32 * 1024 * 1024,
    LUMP_BYTES = 12 * 1024 * 1024,
};

struct rig {
    struct http_config config;
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t sample;
    struct http *http;
    pthread_t thread;
    atomic_bool stop, stop_accepting;
    atomic_uint n_handled, n_refused, n_gone, n_open, n_buffered, n_iterations;
    uint64_t cpu_us; /* of the loop thread, after rig_stop */
};

/* Defaults that no test meets by accident; change rig->config between the two. */
void rig_init(struct rig *rig);
void rig_start(struct rig *rig);
void rig_open(struct rig *rig); /* both, with the defaults */
/* Closes and asserts that nothing is left: no handle on the loop, no open exchange. */
void rig_stop(struct rig *rig);
bool rig_wait(atomic_uint *value, unsigned expected); /* up to 5 s */
uint64_t now_ms(void);

struct client {
    int fd;
    size_t n_buffered;
    char buffer[65536]; /* received, not yet consumed */
};

struct answer {
    unsigned status;
    char head[4096];
    char *body; /* freed by answer_fini */
    size_t length;
    bool complete; /* as its framing says; false: the connection ended before */
};

void client_open(struct client *client, const struct rig *rig);
/* Its socket takes no more than about so many bytes before they are read. */
void client_open_with_window(struct client *client, const struct rig *rig, int window);
void client_open_from(struct client *client, const struct rig *rig, const char *address);
void client_close(struct client *client);
void client_reset(struct client *client); /* closes with a reset */
void client_send(struct client *client, const char *text);
/* Sends and closes the sending side, in one packet. */
void client_send_last(struct client *client, const char *text);
/* False: the peer hung up. */
bool client_send_bytes(struct client *client, const void *data, size_t length);
void client_get(struct client *client, const char *path);
/* Reads one answer; has_body is false for HEAD.  Fails the test after 10 s. */
void client_read(struct client *client, struct answer *answer, bool has_body);
/* Sends a request and reads its answer. */
void client_ask(struct client *client, const char *text, struct answer *answer);
bool client_at_end(struct client *client); /* the peer closes, without sending anything more */
void answer_fini(struct answer *answer);

void client_open_and_get(struct client *client, const struct rig *rig, const char *path);
/* One request on a connection of its own; returns the status, 0 when closed without one. */
unsigned ask(const struct rig *rig, const char *request);

#endif
