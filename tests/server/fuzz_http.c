/* fuzz_http.c - malformed requests from a seed, against the transport, over raw sockets.
 *
 * fuzz_http [CASES [SEED]]: each case is one connection that sends some requests from a corpus,
 * broken at random places, in random pieces, and leaves at a random moment. The transport must
 * survive, answer a plain request every now and then, never with a page that is libmicrohttpd's
 * own, and have nothing left at the end. Run it built with sanitizers.
 *
 * Thread: the fuzzer's; the transport has its own (http_rig.h).  Memory: none kept. */
#define _GNU_SOURCE /* memmem */

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/server/http_rig.h"
#include "tests/test.h"

enum { CASE_BYTES = 8192 };

static const char *const corpus[] = {
    "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /echo?x=%41&y=%zz&z HTTP/1.1\r\nHost: a\r\nCookie: a=b; c=\"d\"\r\n\r\n",
    "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    "POST /size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
    "chunked\r\n\r\n5\r\nhello\r\n3;x=y\r\nabc\r\n0\r\nT: v\r\n\r\n",
    "POST /late HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    "GET /ticks HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc\r\n\r\n",
    "GET /burst HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "HEAD /burst HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /silent HTTP/1.1\r\nHost: a\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: a\r\n folded\r\n\tagain\r\n\r\n",
    "GET http://a/echo HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
};

/* What breaks parsers, put in at random places. */
static const char *const shards[] = {
    "\r\n",
    "\n",
    "\r",
    "\r\n\r\n",
    " ",
    "\t",
    ":",
    ": ",
    "%00",
    "%",
    "%2",
    "?",
    "HTTP/1.1",
    "HTTP/1.",
    "chunked",
    "0\r\n\r\n",
    "ffffffffffffffff\r\n",
    "-1",
    "18446744073709551616",
    "Content-Length: 3\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: b\r\n",
    "Expect: 100-continue\r\n",
    "Connection: close\r\n",
    "\xff\xfe",
    "Content-Length: \r\n",
    "Cookie: =;;=\"\r\n",
    " \r\n",
    ",",
    ";",
};

static unsigned pick(unsigned *seed, unsigned n) {
    return (unsigned)rand_r(seed) % n;
}

static size_t insert(char *text, size_t length, size_t at, const char *bytes, size_t n) {
    if (length + n > CASE_BYTES) return length;
    memmove(text + at + n, text + at, length - at);
    memcpy(text + at, bytes, n);
    return length + n;
}

static size_t break_something(unsigned *seed, char *text, size_t length) {
    const size_t at = pick(seed, (unsigned)length + 1);
    const char *shard = shards[pick(seed, sizeof(shards) / sizeof(shards[0]))];
    char byte;
    size_t n;
    switch (pick(seed, 6)) {
    case 0: /* drop a run */
        n = pick(seed, 12);
        if (n > length - at) n = length - at;
        memmove(text + at, text + at + n, length - at - n);
        return length - n;
    case 1: /* change a byte */
        if (at < length) text[at] = (char)pick(seed, 256);
        return length;
    case 2: /* double a run */
        n = pick(seed, 64);
        return insert(text, length, at, text + at, n < length - at ? n : length - at);
    case 3: /* much of one byte */
        byte = (char)pick(seed, 256);
        for (n = pick(seed, 3) ? 10 : 3000; n; n--) length = insert(text, length, at, &byte, 1);
        return length;
    default: return insert(text, length, at, shard, strlen(shard));
    }
}

static size_t make_case(unsigned *seed, char text[CASE_BYTES]) {
    size_t length = 0;
    for (unsigned n = 1 + pick(seed, 4); n; n--) {
        const char *request = corpus[pick(seed, sizeof(corpus) / sizeof(corpus[0]))];
        length = insert(text, length, length, request, strlen(request));
    }
    for (unsigned n = pick(seed, 6); n; n--) length = break_something(seed, text, length);
    return length;
}

/* What libmicrohttpd refuses by itself it answers in HTML: then the scanner before it let something
 * through. */
static void check_answers(struct client *client, const char *text, size_t length) {
    struct pollfd waiting = {.fd = client->fd, .events = POLLIN};
    static char answers[1 << 20];
    size_t n_answers = 0;
    while (n_answers < sizeof(answers) && poll(&waiting, 1, 20) == 1) {
        const ssize_t n =
            recv(client->fd, answers + n_answers, sizeof(answers) - n_answers, MSG_DONTWAIT);
        if (n <= 0) break;
        n_answers += (size_t)n;
    }
    if (!memmem(answers, n_answers, "<html", 5)) return;
    printf("libmicrohttpd answers by itself: %.*s\n", (int)n_answers, answers);
    printf("to: %.*s\n", (int)length, text);
    exit(1);
}

static void run_case(unsigned *seed, const struct rig *rig) {
    char text[CASE_BYTES], sink[4096];
    struct client client;
    const size_t length = make_case(seed, text);
    size_t piece = pick(seed, 2) ? length + 1 : 1 + pick(seed, 200);
    client_open(&client, rig);
    for (size_t at = 0; at < length; at += piece) {
        if (!client_send_bytes(&client, text + at, piece < length - at ? piece : length - at))
            break;
    }
    const unsigned how = pick(seed, 8);
    if (how < 3) usleep(pick(seed, 2000));
    if (how < 2) shutdown(client.fd, SHUT_WR);
    if (how < 4) (void)!recv(client.fd, sink, sizeof(sink), MSG_DONTWAIT);
    if (how > 5) check_answers(&client, text, length);
    if (how % 2) client_reset(&client);
    else client_close(&client);
}

int main(int argc, char **argv) {
    const unsigned n_cases = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 2000;
    unsigned seed = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1;
    struct rig rig;
    printf("%u cases, seed %u\n", n_cases, seed);
    rig_init(&rig);
    rig.config.request_timeout_ms = 400;
    rig.config.idle_timeout_ms = 400;
    rig.config.stream_stall_timeout_ms = 400;
    rig.config.max_body_bytes = 4096;
    rig_start(&rig);
    for (unsigned i = 0; i < n_cases; i++) {
        run_case(&seed, &rig);
        if (i % 100 == 0) {
            const unsigned status = ask(&rig, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
            if (status != 200 && status != 503) return 1;
        }
    }
    if (!rig_wait(&rig.n_open, 0)) return 1;
    usleep(1000000); /* longer than any timeout above: what is left now would stay */
    const unsigned before = atomic_load(&rig.n_iterations);
    usleep(200000);
    const unsigned n_iterations = atomic_load(&rig.n_iterations) - before;
    printf("%u loop iterations in 200 ms of silence\n", n_iterations);
    rig_stop(&rig);
    return n_iterations < 1000 ? 0 : 1; /* the rig's timer makes 40; a spin makes many thousands */
}
