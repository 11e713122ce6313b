/* test_http.c - requests against the HTTP transport: legal, illegal, late, many, abandoned.
 *
 * Thread: the test's; the transport has its own (http_rig.h).  Memory: none kept. */
#define _GNU_SOURCE /* strcasestr */

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "tests/server/http_rig.h"
#include "tests/test.h"

static unsigned n_descriptors(void) {
    unsigned n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

TEST(methods_reach_the_handler_on_one_connection) {
    static const char *const methods[] = {"GET", "POST", "HEAD", "OPTIONS", "DELETE", "PUT"};
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    client_open(&client, &rig);
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        const bool has_body = strcmp(methods[i], "HEAD") != 0;
        char text[256], expected[64];
        snprintf(text, sizeof(text),
                 "%s /echo?a=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody", methods[i]);
        snprintf(expected, sizeof(expected), "%s /echo body", methods[i]);
        client_send(&client, text);
        client_read(&client, &answer, has_body);
        assert_int_equal(answer.status, 200);
        assert_true(answer.complete);
        assert_non_null(strstr(answer.head, "\r\nX-Extra: yes\r\n"));
        assert_non_null(strstr(answer.head, "\r\nContent-Type: text/plain\r\n"));
        assert_null(strcasestr(answer.head, "\r\nServer:"));
        if (has_body) assert_string_equal(answer.body, expected);
        answer_fini(&answer);
    }
    client_close(&client);
    assert_int_equal(ask(&rig, "GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n"), 404);
    assert_int_equal(ask(&rig, "GET /echo HTTP/1.0\r\n\r\n"), 200);
    rig_stop(&rig);
}

/* The body of /nowhere is the request id. */
static void ask_id(const struct rig *rig, const char *id, char out[256]) {
    struct client client;
    struct answer answer;
    char text[512], line[300];
    snprintf(text, sizeof(text), "GET /nowhere HTTP/1.1\r\nHost: a\r\nx-request-id: %s\r\n\r\n",
             id);
    client_open(&client, rig);
    client_ask(&client, text, &answer);
    snprintf(out, 256, "%s", answer.body);
    snprintf(line, sizeof(line), "\r\nX-Request-Id: %s\r\n", out);
    assert_non_null(strstr(answer.head, line));
    client_close(&client);
    answer_fini(&answer);
}

TEST(request_ids_are_taken_if_sane_or_made) {
    struct rig rig;
    char got[256], other[256], longest[130];
    rig_open(&rig);
    memset(longest, 'x', sizeof(longest));
    longest[129] = '\0';
    ask_id(&rig, "Abc-1.2_3", got);
    assert_string_equal(got, "Abc-1.2_3");
    ask_id(&rig, longest + 1, got);
    assert_string_equal(got, longest + 1);
    ask_id(&rig, longest, got);
    assert_int_equal(strlen(got), 32);
    ask_id(&rig, "two words", other);
    assert_int_equal(strlen(other), 32);
    assert_string_not_equal(got, other);
    rig_stop(&rig);
}

/* One refusal: our shape, one head, a name, and the end of the connection. */
static void check_refusal(const struct rig *rig, const char *bytes, size_t size, unsigned status) {
    const unsigned n_before = atomic_load(&rig->n_refused);
    struct client client;
    struct answer answer;
    client_open(&client, rig);
    assert_true(client_send_bytes(&client, bytes, size));
    client_read(&client, &answer, true);
    if (answer.status != status) fail_msg("%.300s: %u", bytes, answer.status);
    assert_int_equal(atomic_load(&rig->n_refused), n_before + 1);
    assert_non_null(strstr(answer.head, "\r\nX-Request-Id: "));
    assert_true(answer.complete);
    assert_non_null(
        strstr(answer.body, "\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}"));
    assert_true(client_at_end(&client));
    client_close(&client);
    answer_fini(&answer);
}

TEST(illegal_requests_are_refused_and_the_connection_closed) {
#define HEAD "POST /size HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED HEAD "Transfer-Encoding: chunked\r\n\r\n"
#define CASE(text) text, sizeof(text) - 1
    static const struct {
        const char *bytes;
        size_t size;
        unsigned status;
    } cases[] = {
        {CASE(HEAD "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"), 400},
        {CASE(HEAD "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"), 400},
        {CASE(HEAD "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
        {CASE(HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
         400},
        {CASE(HEAD "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"), 400},
        {CASE(HEAD "Transfer-Encoding: identity\r\n\r\nhello"), 400},
        {CASE("POST /size HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
        {CASE(HEAD "Content-Length : 5\r\n\r\nhello"), 400},
        {CASE(HEAD "Content\tLength: 5\r\n\r\nhello"), 400},
        {CASE("GET /echo HTTP/1.1\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400},
        {CASE("GET /echo%00more HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {CASE(HEAD "Content-Length: 1000000000000000000\r\n\r\n"), 400},
        {CASE(HEAD "Content-Length: five\r\n\r\nhello"), 400},
        {CASE(HEAD "Content-Length: 5, 5\r\n\r\nhello"), 400},
        {CASE(HEAD "Content-Length: -5\r\n\r\nhello"), 400},
        {CASE(HEAD "Content-Length: 0x5\r\n\r\nhello"), 400},
        {CASE(HEAD "Content-Length: 5 5\r\n\r\nhello"), 400},
        {CASE(HEAD "Transfer-Encoding: chunked ,\r\n\r\n0\r\n\r\n"), 400},
        {CASE("GET http:///echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {CASE("GET http://me@a/echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {CASE("GET http://a%2Fb/echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {CASE("GET http://a/echo HTTP/1.1\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\nHost: a\r\nno colon here\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/3.0\r\nHost: a\r\n\r\n"), 505},
        {CASE("GARBAGE\r\n\r\n"), 400},
        {CASE("GET /echo\r\n\r\n"), 400},
        {CASE("GET  /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        /* What libmicrohttpd would let through. */
        {CASE(HEAD "X: a\0b\r\n\r\n"), 400},
        {CASE(HEAD "Content-Length: 5\0\r\n\r\nhello"), 400},
        {CASE(HEAD "Transfer-Encoding: chunked\0\r\n\r\n0\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\nHost: a\rX: b\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\nHost: a\r\nX: b\r\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\nHost: a\n\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\nHost: a\r\nX: b\r\n folded\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\n folded\r\nHost: a\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\nHost: a\r\n: nameless\r\n\r\n"), 400},
        {CASE("GET /ec\1ho HTTP/1.1\r\nHost: a\r\n\r\n"), 400},
        {CASE("GET /echo HTTP/1.1\r\nHost: a\r\nCookie: a\"b=1; c=\"\r\n\r\n"), 400},
        {CASE(CHUNKED "zz\r\n"), 400},
        {CASE(CHUNKED "5\nhello\r\n0\r\n\r\n"), 400},
        {CASE(CHUNKED "5\r\nhello\n0\r\n\r\n"), 400},
        {CASE(CHUNKED "5\r\nhello!\r\n0\r\n\r\n"), 400},
        {CASE(CHUNKED "5 \r\nhello\r\n0\r\n\r\n"), 400},
        {CASE(CHUNKED "5\r\nhello\r\n0\n\r\n"), 400},
        {CASE(CHUNKED "5\r\nhello\r\n0\r\n\n"), 400},
        {CASE(CHUNKED "5\r\nhello\r\n0\r\nX: a\nb: c\r\n\r\n"), 400},
        {CASE(CHUNKED "5\r\nhello\r\n0\r\nContent-Length: 7\r\n\r\n"), 400},
        {CASE(CHUNKED "5;a=\0\r\nhello\r\n0\r\n\r\n"), 400},
        {CASE(CHUNKED "fffffffffffffffff\r\n"), 400},
    };
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_refusal(&rig, cases[i].bytes, cases[i].size, cases[i].status);
    assert_int_equal(atomic_load(&rig.n_handled), 0);
    rig_stop(&rig);
#undef HEAD
#undef CHUNKED
#undef CASE
}

/* "GET /echo" and a head in which `text` stands `n` times between `before` and `after`. */
static size_t repeat(char *out, const char *before, const char *text, unsigned n,
                     const char *after) {
    char *at = stpcpy(out, before);
    for (unsigned i = 0; i < n; i++) at = stpcpy(at, text);
    return (size_t)(stpcpy(at, after) - out);
}

TEST(heads_of_too_many_parts_are_refused) {
#define START "GET /echo HTTP/1.1\r\nHost: a\r\n"
    static const struct {
        const char *before, *text;
        unsigned n;
        const char *after;
        unsigned status;
    } cases[] = {
        {"GET /echo?x", "&a=b", 450, " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
        {"GET /echo?", "&", 65, " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
        {"GET /", "a", 9000, " HTTP/1.1\r\nHost: a\r\n\r\n", 414},
        {START, "A: b\r\n", 100, "\r\n", 431},
        {START "X: ", "b", 40000, "\r\n\r\n", 431},
        {START "X: b", " ", 257, "\r\n\r\n", 400},
        {START "X: b", " ", 257, "c\r\n\r\n", 400},
        {START "Cookie: a=b", "; a=b", 70, "\r\n\r\n", 431},
        {START "Cookie: ", "a", 9000, "\r\n\r\n", 431},
        {"POST /size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "A: b\r\n",
         100, "\r\n", 431},
        {"POST /size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;", "a", 300,
         "\r\nhello\r\n0\r\n\r\n", 400},
    };
    static char text[65536];
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const size_t size =
            repeat(text, cases[i].before, cases[i].text, cases[i].n, cases[i].after);
        check_refusal(&rig, text, size, cases[i].status);
    }
    assert_int_equal(atomic_load(&rig.n_handled), 0);
    rig_stop(&rig);
#undef START
}

/* Asks for /echo and compares what the handler saw.  The request arrives in pieces of this size. */
static void check_echo(const struct rig *rig, const char *text, size_t piece,
                       const char *expected) {
    struct client client;
    struct answer answer;
    const size_t n = strlen(text);
    client_open(&client, rig);
    for (size_t at = 0; at < n; at += piece) {
        assert_true(client_send_bytes(&client, text + at, piece < n - at ? piece : n - at));
        if (piece < n) usleep(500);
    }
    client_read(&client, &answer, true);
    if (answer.status != 200 || strcmp(answer.body, expected) != 0)
        fail_msg("%s: %u %s", text, answer.status, answer.body);
    client_close(&client);
    answer_fini(&answer);
}

/* Also where libmicrohttpd itself reads the field, and where the white space and what follows it
 * arrive apart. */
TEST(white_space_behind_a_value_is_no_part_of_it) {
#define POST "POST /echo HTTP/1.1\r\nHost: a\r\n"
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {POST "Content-Length: 4 \r\n\r\nbody", "POST /echo body"},
        {POST "Content-Length: 4\t \t\r\n\r\nbody", "POST /echo body"},
        {POST "content-length:4 \r\nX:  \r\n\r\nbody", "POST /echo body"},
        {POST "Transfer-Encoding: chunked \r\n\r\n4\r\nbody\r\n0\r\nT: v \r\n\r\n",
         "POST /echo body"},
        {"GET /echo HTTP/1.1\r\nHost: a \t\r\nX: b   c  \r\nCookie: a=b; \r\n\r\n", "GET /echo "},
        {"GET /echo HTTP/1.1\r\nConnection: close \r\nHost: a\r\n\r\n", "GET /echo "},
    };
#undef POST
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t piece = 1; piece < 200; piece = 3 * piece)
            check_echo(&rig, cases[i].text, piece, cases[i].expected);
    rig_stop(&rig);
}

/* The scanner is in the trailer already when libmicrohttpd has read the head. */
TEST(a_trailer_that_is_cut_does_not_hide_the_end_of_the_head) {
    static const char text[] =
        "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "4\r\nbody\r\n0\r\nT: v\r\n\r\n";
    struct rig rig;
    rig_open(&rig);
    for (size_t n = 1; n < 10; n++) check_echo(&rig, text, strlen(text) - n, "POST /echo body");
    rig_stop(&rig);
}

TEST(a_closing_client_is_heard_with_white_space_behind_the_word) {
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    client_open(&client, &rig);
    client_ask(&client, "GET /echo HTTP/1.1\r\nHost: a\r\nConnection: close \r\n\r\n", &answer);
    assert_int_equal(answer.status, 200);
    assert_true(client_at_end(&client));
    client_close(&client);
    answer_fini(&answer);
    rig_stop(&rig);
}

TEST(targets_are_read_in_every_form) {
    static const struct {
        const char *target, *path;
    } cases[] = {
        {"http://a/echo", "/echo"},
        {"HTTP://A:80/echo?x=1", "/echo"},
        {"https://[::1]:8/echo", "/echo"},
        {"http://a//echo/", "/echo"},
        {"//echo", "/echo"},
        {"/echo/", "/echo"},
        {"///echo///?a=//", "/echo"},
        {"/%2Fech%6F", "/echo"},
    };
    struct rig rig;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[256], expected[64];
        snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", cases[i].target);
        snprintf(expected, sizeof(expected), "GET %s ", cases[i].path);
        check_echo(&rig, text, sizeof(text), expected);
    }
    assert_int_equal(ask(&rig, "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n"), 404);
    assert_int_equal(ask(&rig, "GET ftp://a/echo HTTP/1.1\r\nHost: a\r\n\r\n"), 404);
    assert_int_equal(ask(&rig, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"), 404);
    rig_stop(&rig);
}

/* What the scanner lets through libmicrohttpd can hold: all limits at once. */
TEST(the_largest_legal_head_is_answered) {
    static char text[65536], line[400];
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    size_t n = repeat(text, "POST /echo?", "a=b&", 63, "c");
    n += repeat(text + n, "", "d", 7900, " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n");
    n += repeat(text + n, "Cookie: ", "a=b; ", 63, "c=");
    n += repeat(text + n, "", "d", 7800, "\r\n");
    repeat(line, "X: ", "e", 160, "\r\n");
    n += repeat(text + n, "", line, 95, "\r\n");
    assert_in_range(n, 31000, 32 * 1024);
    n += repeat(text + n, "4\r\nbody\r\n0\r\n", "T: v\r\n", 1, "\r\n");
    client_open(&client, &rig);
    for (int i = 0; i < 3; i++) {
        assert_true(client_send_bytes(&client, text, n));
        client_read(&client, &answer, true);
        assert_int_equal(answer.status, 200);
        assert_string_equal(answer.body, "POST /echo body");
        answer_fini(&answer);
    }
    client_close(&client);
    rig_stop(&rig);
}

TEST(bodies_arrive_whole) {
    struct rig rig;
    struct client client;
    struct answer answer;
    char expected[64];
    const size_t length = 1 << 20; /* the limit itself */
    rig_open(&rig);
    char *body = malloc(length);
    uint32_t sum = 0;
    assert_non_null(body);
    for (size_t i = 0; i < length; i++) body[i] = (char)(i * 7 + i / 251);
    for (size_t i = 0; i < length; i++) sum = sum * 31 + (unsigned char)body[i];
    snprintf(expected, sizeof(expected), "%zu %u 0", length, sum);

    client_open(&client, &rig);
    client_send(&client, "POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n");
    assert_true(client_send_bytes(&client, body, length));
    client_read(&client, &answer, true);
    assert_string_equal(answer.body, expected);
    answer_fini(&answer);

    client_send(&client, "POST /size HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (size_t at = 0, n; at < length; at += n) {
        char line[32];
        n = at % 9973 + 1 < length - at ? at % 9973 + 1 : length - at;
        snprintf(line, sizeof(line), "%zx\r\n", n);
        client_send(&client, line);
        assert_true(client_send_bytes(&client, body + at, n));
        client_send(&client, "\r\n");
    }
    client_ask(&client, "0\r\n\r\n", &answer);
    assert_string_equal(answer.body, expected);
    answer_fini(&answer);
    client_close(&client);
    free(body);
    assert_int_equal(ask(&rig, "POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"), 200);
    rig_stop(&rig);
}

/* The pages of one body wait for the next: it has none of the other's bytes, and they do not
 * count. */
TEST(bodies_follow_one_another_in_the_same_pages) {
    enum { N_FIRST = 8000 };
    static const size_t lengths[] = {100000, 700000, 65537, 699999, 1000000, 80000, 700000};
    static char body[1000000];
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    for (size_t i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
        char head[128], expected[64];
        uint32_t sum = 0;
        for (size_t at = 0; at < lengths[i]; at++) {
            body[at] = (char)(at * (7 + 2 * i) + at / 251);
            sum = sum * 31 + (unsigned char)body[at];
        }
        snprintf(head, sizeof(head),
                 "POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", lengths[i]);
        snprintf(expected, sizeof(expected), "%zu %u 0", lengths[i], sum);
        client_open(&client, &rig);
        client_send(&client, head);
        assert_true(client_send_bytes(&client, body, N_FIRST));
        usleep(20000); /* these arrive alone, and move to the pages later */
        assert_true(client_send_bytes(&client, body + N_FIRST, lengths[i] - N_FIRST));
        client_read(&client, &answer, true);
        assert_string_equal(answer.body, expected);
        answer_fini(&answer);
        client_close(&client);
        assert_true(rig_wait(&rig.n_buffered, 0));
    }
    rig_stop(&rig);
}

/* Most clients send all of the body before they look for an answer, and give up when sending fails:
 * what is too much must be swallowed, not met with a reset. */
static void send_too_much(const struct rig *rig, const char *head, bool chunked) {
    static char piece[65536];
    struct client client;
    struct answer answer;
    client_open(&client, rig);
    client_send(&client, head);
    for (int i = 0; i < 64; i++) {
        if (chunked) client_send(&client, "10000\r\n");
        assert_true(client_send_bytes(&client, piece, sizeof(piece)));
        if (chunked) client_send(&client, "\r\n");
    }
    client_read(&client, &answer, true);
    assert_int_equal(answer.status, 413);
    assert_true(answer.complete);
    assert_non_null(strstr(answer.body, "too large"));
    assert_non_null(strstr(answer.head, "\r\nX-Request-Id: mine\r\n"));
    client_close(&client);
    answer_fini(&answer);
}

TEST(bodies_over_the_limit_are_refused_early) {
    struct rig rig;
    rig_open(&rig);
    assert_int_equal(ask(&rig, "POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n\r\n"),
                     413);
    assert_int_equal(ask(&rig, "POST /size HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\n"
                               "Expect: 100-continue\r\n\r\n"),
                     413);
#define HEAD "POST /size HTTP/1.1\r\nHost: a\r\nX-Request-Id: mine\r\n"
    send_too_much(&rig, HEAD "Content-Length: 4194304\r\n\r\n", false);
    send_too_much(&rig, HEAD "Transfer-Encoding: chunked\r\n\r\n", true);
#undef HEAD
    assert_int_equal(atomic_load(&rig.n_handled), 0);
    assert_int_equal(atomic_load(&rig.n_refused), 4);
    rig_stop(&rig);
}

TEST(expect_100_continue_is_answered_before_the_body) {
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    client_open(&client, &rig);
    client_send(
        &client,
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n");
    client_read(&client, &answer, true);
    assert_int_equal(answer.status, 100);
    answer_fini(&answer);
    client_ask(&client, "body", &answer);
    assert_string_equal(answer.body, "POST /echo body");
    answer_fini(&answer);
    client_close(&client);
    rig_stop(&rig);
}

/* Sends start, then the bytes of drip one by one until the server answers or hangs up. */
static unsigned drip(const struct rig *rig, const char *start, const char *drip) {
    struct client client;
    struct answer answer;
    client_open(&client, rig);
    client_send(&client, start);
    const bool dripping = *drip;
    for (; *drip; drip++) {
        char byte;
        usleep(20000);
        if (recv(client.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN) break;
        if (!client_send_bytes(&client, drip, 1)) break;
    }
    assert_int_equal(dripping, *drip != '\0'); /* the end came before the last byte */
    client_read(&client, &answer, true);
    const unsigned status = answer.status;
    if (status) assert_true(answer.complete);
    if (status) assert_non_null(strstr(answer.head, "\r\nX-Request-Id: "));
    assert_true(client_at_end(&client));
    client_close(&client);
    answer_fini(&answer);
    return status;
}

TEST(requests_that_do_not_arrive_in_time_end) {
    char slow[401], slow_line[401];
    struct rig rig;
    memset(slow, 'x', sizeof(slow));
    slow[400] = '\0';
    memcpy(slow_line, slow, sizeof(slow));
    memcpy(slow_line, "GET /", 5); /* x alone would soon be too long for a method */
    rig_init(&rig);
    rig.config.request_timeout_ms = 600;
    rig.config.idle_timeout_ms = 500;
    rig_start(&rig);
    assert_int_equal(drip(&rig, "", ""), 0);
    assert_int_equal(drip(&rig, "GE", ""), 0);
    assert_int_equal(drip(&rig, "", slow_line), 0);
    assert_int_equal(drip(&rig, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Le", ""), 408);
    assert_int_equal(drip(&rig, "POST /echo HTTP/1.1\r\nHost: a\r\nX: ", slow), 408);
    assert_int_equal(
        drip(&rig, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nxx", ""), 408);
    assert_int_equal(
        drip(&rig, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n", slow), 408);
    assert_int_equal(
        drip(&rig, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nfff\r\n",
             slow),
        408);
    assert_int_equal(atomic_load(&rig.n_handled), 0);
    rig_stop(&rig);
}

TEST(idle_connections_are_closed_in_silence_but_not_waiting_ones) {
    struct rig rig;
    struct client idle, waiting;
    struct answer answer;
    rig_init(&rig);
    rig.config.request_timeout_ms = 300;
    rig.config.idle_timeout_ms = 300;
    rig.config.stream_stall_timeout_ms = 300;
    rig_start(&rig);
    client_open(&idle, &rig);
    client_open_and_get(&waiting, &rig, "/hold");
    client_get(&idle, "/echo");
    client_read(&idle, &answer, true);
    assert_int_equal(answer.status, 200);
    answer_fini(&answer);
    assert_true(client_at_end(&idle));
    usleep(1000000);
    assert_int_equal(atomic_load(&rig.n_open), 1); /* still held */
    assert_int_equal(atomic_load(&rig.n_gone), 0);
    client_close(&idle);
    client_close(&waiting);
    assert_true(rig_wait(&rig.n_gone, 1));
    rig_stop(&rig);
}

TEST(connections_over_the_limit_get_503) {
    enum { LIMIT = 4 };
    struct rig rig;
    struct client clients[LIMIT];
    struct answer answer;
    rig_init(&rig);
    rig.config.max_connections = LIMIT;
    rig_start(&rig);
    for (int i = 0; i < LIMIT; i++) {
        client_open_and_get(&clients[i], &rig, "/hold");
    }
    assert_true(rig_wait(&rig.n_open, LIMIT));
    for (int i = 0; i < 100; i++) {
        assert_int_equal(ask(&rig, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 503);
    }
    client_close(&clients[0]);
    assert_true(rig_wait(&rig.n_gone, 1));
    client_open_and_get(&clients[0], &rig, "/echo");
    client_read(&clients[0], &answer, true);
    assert_int_equal(answer.status, 200);
    answer_fini(&answer);
    for (int i = 0; i < LIMIT; i++) client_close(&clients[i]);
    rig_stop(&rig);
}

TEST(pipelined_requests_are_answered_in_order) {
    static const char *const paths[] = {"/echo", "/late", "/burst", "/nowhere", "/size", "/ticks"};
    enum { N_PATHS = 6, N_REQUESTS = 60 };
    static char text[N_REQUESTS * 128];
    for (size_t step = 1; step < 100000;
         step *= 17) { /* bytes a send: every split of the heads, and none */
        struct rig rig;
        struct client client;
        struct answer answer;
        size_t length = 0;
        for (int i = 0; i < N_REQUESTS; i++) {
            length +=
                (size_t)snprintf(text + length, sizeof(text) - length,
                                 "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n%05d",
                                 paths[i % N_PATHS], i);
        }
        rig_open(&rig);
        client_open(&client, &rig);
        for (size_t at = 0; at < length; at += step) {
            assert_true(
                client_send_bytes(&client, text + at, step < length - at ? step : length - at));
        }
        for (int i = 0; i < N_REQUESTS; i++) {
            char expected[32];
            client_read(&client, &answer, true);
            assert_true(answer.complete);
            snprintf(expected, sizeof(expected), "POST /echo %05d", i);
            if (i % N_PATHS == 0) assert_string_equal(answer.body, expected);
            if (i % N_PATHS == 1) assert_string_equal(answer.body, "late");
            if (i % N_PATHS == 2) assert_int_equal(answer.length, N_TICKS * 15);
            if (i % N_PATHS == 3) assert_int_equal(answer.status, 404);
            if (i % N_PATHS == 5) assert_int_equal(answer.length, N_TICKS * 15);
            answer_fini(&answer);
        }
        client_close(&client);
        rig_stop(&rig);
    }
}

TEST(clients_that_leave_before_the_answer_are_noticed) {
    static const char hold[] = "POST /hold HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi";
    struct rig rig;
    struct client client;
    rig_open(&rig);
    for (unsigned i = 0; i < 4; i++) {
        client_open(&client, &rig);
        client_send(&client, hold);
        assert_true(rig_wait(&rig.n_open, 1));
        if (i & 1) client_send(&client, hold); /* unread input before the end */
        if (i & 2) client_reset(&client);
        else client_close(&client);
        assert_true(rig_wait(&rig.n_gone, i + 1));
        assert_true(rig_wait(&rig.n_open, 0));
    }
    assert_int_equal(atomic_load(&rig.n_handled), 4);
    rig_stop(&rig);
}

TEST(waiting_costs_nothing) {
    static const char text[] =
        "GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /hold HTTP/1.1\r\nHost: a\r\n\r\n";
    enum { N = 32 };
    struct rig rig;
    struct client clients[N];
    rig_open(&rig);
    for (int i = 0; i < N; i++) {
        client_open(&clients[i], &rig);
        if (i % 2) client_send(&clients[i], text); /* with pipelined input that is not read yet */
        else client_send(&clients[i], "GET /silent HTTP/1.1\r\nHost: a\r\n\r\nGET ");
    }
    assert_true(rig_wait(&rig.n_open, N));
    usleep(100000);
    const unsigned before = atomic_load(&rig.n_iterations);
    usleep(300000);
    /* The rig's own 5 ms timer turns the loop 60 times; a spin would turn it ten thousands of
     * times. */
    assert_true(atomic_load(&rig.n_iterations) - before < 1000);
    for (int i = 0; i < N; i++) client_close(&clients[i]);
    assert_true(rig_wait(&rig.n_gone, N));
    rig_stop(&rig);
}

TEST(ten_thousand_requests_leave_nothing_behind) {
    enum { N_CLIENTS = 20, N_EACH = 500 };
    struct rig rig;
    const unsigned n_before = n_descriptors();
    rig_open(&rig);
    const unsigned n_started = n_descriptors();
    for (int i = 0; i < N_CLIENTS; i++) {
        struct client client;
        struct answer answer;
        client_open(&client, &rig);
        for (int j = 0; j < N_EACH; j++) {
            client_ask(&client, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody",
                       &answer);
            assert_string_equal(answer.body, "POST /echo body");
            answer_fini(&answer);
        }
        client_close(&client);
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(ask(&rig, "GET /echo HTTP/1.0\r\n\r\n"), 200);
    for (int i = 0; i < 1000 && n_descriptors() != n_started; i++) usleep(2000);
    assert_int_equal(n_descriptors(), n_started);
    assert_int_equal(atomic_load(&rig.n_open), 0);
    rig_stop(&rig);
    assert_int_equal(n_descriptors(), n_before);
}

TEST(closing_ends_everything_under_way) {
    static const char *const texts[] = {
        "GET /hold HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /silent HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /fill HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /big HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /lump HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n",
        "GET /ec",
        "",
    };
    enum { N = 10, N_HANDLED = 6, N_UNANSWERED = 4 };
    struct rig rig;
    struct client clients[N];
    const unsigned n_before = n_descriptors();
    rig_open(&rig);
    for (int i = 0; i < N; i++) {
        client_open(&clients[i], &rig);
        client_send(&clients[i], texts[i]);
    }
    assert_true(rig_wait(&rig.n_handled, N_HANDLED));
    usleep(50000);
    rig_stop(&rig);
    assert_int_equal(atomic_load(&rig.n_gone), N_UNANSWERED);
    for (int i = 0; i < N; i++) client_close(&clients[i]);
    assert_int_equal(n_descriptors(), n_before);
}

/* What the handler has answered is in the socket's buffer: a reset would throw it away. */
TEST(closing_leaves_answers_to_slow_readers) {
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    client_open_with_window(&client, &rig, 4096);
    client_get(&client, "/some");
    assert_true(rig_wait(&rig.n_handled, 1));
    usleep(50000); /* n_open is sampled */
    assert_true(rig_wait(&rig.n_open, 0));
    rig_stop(&rig);
    client_read(&client, &answer, true);
    assert_true(answer.complete);
    assert_int_equal(answer.length, SOME_BYTES);
    answer_fini(&answer);
    client_close(&client);
}

TEST(after_stop_accepting_only_old_connections_are_served) {
    struct rig rig;
    struct client client, late;
    struct answer answer;
    rig_open(&rig);
    client_open_and_get(&client, &rig, "/echo");
    client_read(&client, &answer, true);
    assert_null(strstr(answer.head, "Connection: close"));
    answer_fini(&answer);
    client_open(&late, &rig);
    atomic_store(&rig.stop_accepting, true);
    uv_async_send(&rig.wake);
    usleep(100000);
    client_get(&client, "/echo");
    client_read(&client, &answer, true);
    assert_int_equal(answer.status, 200);
    assert_non_null(strstr(answer.head, "Connection: close"));
    answer_fini(&answer);
    assert_true(client_at_end(&client));

    struct sockaddr_in address;
    socklen_t size = sizeof(address);
    assert_int_equal(getpeername(late.fd, (struct sockaddr *)&address, &size), 0);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, size), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    client_close(&client);
    client_close(&late);
    rig_stop(&rig);
}

TEST(a_taken_port_is_an_error_that_names_it) {
    struct rig rig;
    struct http *second = NULL;
    struct error err = {0};
    char port[8];
    uv_loop_t loop;
    rig_open(&rig);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(http_create(&second, &loop, &rig.config, &err), ERR_IO);
    snprintf(port, sizeof(port), "%u", rig.config.port);
    assert_non_null(strstr(err.text, port));
    rig.config.host = "not a host";
    assert_int_equal(http_create(&second, &loop, &rig.config, &err), ERR_INVALID);
    assert_null(second);
    assert_int_equal(uv_loop_close(&loop), 0);
    rig_stop(&rig);
}
