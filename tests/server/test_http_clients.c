/* test_http_clients.c - clients that hang up, half or whole, and what one address may hold.
 *
 * Thread: the test's; the transport has its own (http_rig.h).  Memory: none kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <microhttpd.h>

#include "tests/server/http_rig.h"
#include "tests/test.h"

#define HEAD(method, path) method " " path " HTTP/1.1\r\nHost: a\r\n"

static const char GET_ECHO[] = HEAD("GET", "/echo") "\r\n";

/* A part of a request and the end in one packet, which an edge-triggered epoll reports once. */
TEST(leaving_before_the_request_is_whole_ends_the_connection) {
    static const char *const parts[] = {
        "G",
        "\r\n",
        HEAD("POST", "/size"),
        HEAD("POST", "/size") "Content-Length: 1000\r\n\r\n",
        HEAD("POST", "/size") "Content-Length: 1000\r\n\r\nsome",
        HEAD("POST", "/size") "Transfer-Encoding: chunked\r\n\r\n5\r\nhe",
        HEAD("POST", "/size") "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
        HEAD("GET", "/echo") "\r\nGET /ec",
    };
    enum { N_EACH = 20 };
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig); /* its timeouts are a minute */
    for (size_t i = 0; i < N_EACH * sizeof(parts) / sizeof(parts[0]); i++) {
        client_open(&client, &rig);
        client_send_last(&client, parts[i / N_EACH]);
        if (i / N_EACH == 7) { /* what was whole is answered first */
            client_read(&client, &answer, true);
            assert_int_equal(answer.status, 200);
            answer_fini(&answer);
        }
        assert_true(client_at_end(&client));
        client_close(&client);
    }
    assert_int_equal(atomic_load(&rig.n_handled), N_EACH);
    rig_stop(&rig);
}

TEST(half_closed_clients_get_their_answers) {
    static const struct {
        const char *text;
        unsigned n_answers;
        size_t length; /* of the last */
    } cases[] = {
        {HEAD("GET", "/echo") "\r\n", 1, 10},
        {HEAD("GET", "/late") "\r\n", 1, 4},
        {HEAD("GET", "/ticks") "\r\n", 1, N_TICKS * 15},
        {HEAD("GET", "/some") "\r\n", 1, SOME_BYTES},
        {HEAD("POST", "/echo") "Content-Length: 2\r\n\r\nhi", 1, 13},
        {HEAD("POST", "/echo") "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", 1, 13},
        {HEAD("GET", "/late") "\r\n" HEAD("GET", "/ticks") "\r\n" HEAD("GET", "/echo") "\r\n", 3,
         10},
        {"GET /late HTTP/1.0\r\n\r\n", 1, 4},
    };
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    for (size_t i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        client_open(&client, &rig);
        if (i % 2) {
            client_send(&client, cases[i / 2].text);
            shutdown(client.fd, SHUT_WR);
        } else {
            client_send_last(&client, cases[i / 2].text);
        }
        for (unsigned n = cases[i / 2].n_answers; n; n--) {
            client_read(&client, &answer, true);
            assert_int_equal(answer.status, 200);
            assert_true(answer.complete);
            if (n == 1) assert_int_equal(answer.length, cases[i / 2].length);
            answer_fini(&answer);
        }
        assert_true(client_at_end(&client));
        client_close(&client);
    }
    assert_int_equal(atomic_load(&rig.n_gone), 0);
    rig_stop(&rig);
}

/* Both have closed their side just behind the request; only one still reads. */
TEST(a_client_that_left_is_told_from_one_that_waits) {
    struct rig rig;
    struct client left, waits;
    struct answer answer;
    rig_open(&rig);
    client_open(&left, &rig);
    client_open(&waits, &rig);
    client_send_last(&left, HEAD("GET", "/hold") "\r\n");
    client_send_last(&waits, HEAD("GET", "/hold") "\r\n");
    client_close(&left);
    assert_true(rig_wait(&rig.n_handled, 2));
    assert_true(rig_wait(&rig.n_gone, 1));
    client_read(&waits, &answer, true);
    assert_int_equal(answer.status, 100); /* what it was asked with */
    answer_fini(&answer);
    usleep(300000);
    assert_int_equal(atomic_load(&rig.n_gone), 1);
    client_reset(&waits);
    assert_true(rig_wait(&rig.n_gone, 2));
    rig_stop(&rig);
}

/* Long behind the request no client half closes: this client has left, and at once it is known. */
TEST(a_client_that_leaves_later_is_noticed_at_once) {
    struct rig rig;
    struct client client;
    char byte;
    rig_open(&rig);
    client_open_and_get(&client, &rig, "/hold");
    assert_true(rig_wait(&rig.n_handled, 1));
    usleep(1200000);
    shutdown(client.fd, SHUT_WR);
    assert_true(rig_wait(&rig.n_gone, 1));
    assert_int_equal(recv(client.fd, &byte, 1, 0), 0); /* without a question before */
    client_close(&client);
    rig_stop(&rig);
}

TEST(expecting_a_bodiless_request_keeps_the_next_one) {
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    client_open(&client, &rig);
    client_send(&client,
                HEAD("GET", "/echo") "Expect: 100-continue\r\n\r\n" HEAD(
                    "GET", "/late") "\r\n" HEAD("POST", "/echo") "Content-Length: 2\r\n\r\nhi");
    static const char *const bodies[] = {"GET /echo ", "late", "POST /echo hi"};
    for (int i = 0; i < 3; i++) {
        client_read(&client, &answer, true);
        if (answer.status == 100) {
            answer_fini(&answer);
            client_read(&client, &answer, true);
        }
        assert_int_equal(answer.status, 200);
        assert_string_equal(answer.body, bodies[i]);
        answer_fini(&answer);
    }
    client_close(&client);
    rig_stop(&rig);
}

/* ---- what an address may hold ---- */

static unsigned ask_from(const struct rig *rig, const char *address, const char *text) {
    struct client client;
    struct answer answer;
    client_open_from(&client, rig, address);
    client_ask(&client, text, &answer);
    client_close(&client);
    answer_fini(&answer);
    return answer.status;
}

TEST(half_sent_requests_do_not_lock_others_out) {
    enum { LIMIT = 64, N_STREAMS = 8, N_HALF = 300 };
    static struct client streams[N_STREAMS], halves[N_HALF];
    struct rig rig;
    struct answer answer;
    rig_init(&rig);
    rig.config.max_connections = LIMIT;
    rig_start(&rig);
    for (int i = 0; i < N_STREAMS; i++) {
        client_open_and_get(&streams[i], &rig, "/silent");
        client_read(&streams[i], &answer, false);
        assert_int_equal(answer.status, 200);
        answer_fini(&answer);
    }
    for (int i = 0; i < N_HALF; i++) {
        client_open(&halves[i], &rig);
        (void)client_send_bytes(&halves[i], "POST /size HTTP/1.1\r\n", 21);
        if (i % 10 == 0) assert_int_equal(ask_from(&rig, "127.0.0.2", GET_ECHO), 200);
    }
    /* A client that comes too late is told so, and so is one that lost its place. */
    client_read(&halves[N_HALF - 1], &answer, true);
    assert_int_equal(answer.status, 503);
    assert_non_null(strstr(answer.head, "\r\nRetry-After: "));
    answer_fini(&answer);
    client_read(&halves[0], &answer, true);
    assert_int_equal(answer.status, 503);
    answer_fini(&answer);
    assert_int_equal(atomic_load(&rig.n_gone), 0);
    assert_int_equal(atomic_load(&rig.n_open), N_STREAMS);
    for (int i = 0; i < N_HALF; i++) client_close(&halves[i]);
    for (int i = 0; i < N_STREAMS; i++) client_reset(&streams[i]);
    assert_true(rig_wait(&rig.n_gone, N_STREAMS));
    rig_stop(&rig);
}

/* Among equals a place is kept for a while, and then given up. */
TEST(an_address_gets_its_own_places_back) {
    enum { LIMIT = 4 };
    struct rig rig;
    struct client halves[LIMIT];
    rig_init(&rig);
    rig.config.max_connections = LIMIT;
    rig.config.request_timeout_ms = 3000; /* a sixth of it */
    rig_start(&rig);
    for (int i = 0; i < LIMIT; i++) {
        client_open(&halves[i], &rig);
        client_send(&halves[i], "GET /ec");
    }
    usleep(600000);
    for (int i = 0; i < LIMIT; i++) assert_int_equal(ask(&rig, GET_ECHO), 200);
    for (int i = 0; i < LIMIT; i++) client_close(&halves[i]);
    rig_stop(&rig);
}

enum { BODY = 1000000 }; /* with its end, 1003520 bytes of pages */

static void send_body(struct client *client, const struct rig *rig, const char *address,
                      const char *path, size_t length) {
    static char body[BODY], head[128];
    client_open_from(client, rig, address);
    snprintf(head, sizeof(head), "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", path,
             BODY);
    client_send(client, head);
    (void)client_send_bytes(client, body, length); /* a refused one may be cut */
}

static void expect_no_room(struct client *client) {
    struct answer answer;
    client_read(client, &answer, true);
    assert_int_equal(answer.status, 503);
    assert_non_null(strstr(answer.head, "\r\nRetry-After: "));
    assert_non_null(strstr(answer.body, "try again later"));
    client_close(client);
    answer_fini(&answer);
}

TEST(bodies_have_a_bound_together_and_by_address) {
    enum { PAGES = 1003520 };
    struct rig rig;
    struct client unfinished, held, other, refused;
    struct answer answer;
    rig_init(&rig);
    rig.config.max_buffered_bytes = 3 << 20; /* half of it holds one body, all of it three */
    rig_start(&rig);
    send_body(&unfinished, &rig, "127.0.0.1", "/size", BODY - 1);
    assert_true(rig_wait(&rig.n_buffered, PAGES));
    send_body(&refused, &rig, "127.0.0.1", "/size", BODY);
    expect_no_room(&refused);
    send_body(&held, &rig, "127.0.0.2", "/hold", BODY);
    assert_true(rig_wait(&rig.n_buffered, 2 * PAGES));
    send_body(&other, &rig, "127.0.0.3", "/size", BODY - 1);
    assert_true(rig_wait(&rig.n_buffered, 3 * PAGES));
    send_body(&refused, &rig, "127.0.0.4", "/size", BODY);
    expect_no_room(&refused);
    assert_int_equal(ask_from(&rig, "127.0.0.4", GET_ECHO), 200); /* it needs none */

    client_ask(&unfinished, "\1", &answer); /* the last byte */
    assert_int_equal(answer.status, 200);
    answer_fini(&answer);
    client_reset(&held);
    assert_true(rig_wait(&rig.n_buffered, PAGES));
    client_close(&other);
    assert_true(rig_wait(&rig.n_buffered, 0));
    client_close(&unfinished);
    rig_stop(&rig);
}

/* Chunked bodies declare nothing, so they are stopped where they stand. */
TEST(bodies_of_unknown_length_are_bounded_too) {
    enum { N = 8, CHUNK = 65536 };
    static char chunk[CHUNK];
    struct rig rig;
    struct client clients[N];
    struct answer answer;
    unsigned n_refused = 0;
    rig_init(&rig);
    rig.config.max_buffered_bytes = 2 << 20;
    rig_start(&rig);
    for (int i = 0; i < N; i++) {
        client_open(&clients[i], &rig);
        client_send(&clients[i], HEAD("POST", "/size") "Transfer-Encoding: chunked\r\n\r\n");
    }
    for (int round = 0; round < 8; round++) {
        for (int i = 0; i < N; i++) {
            (void)client_send_bytes(&clients[i], "10000\r\n", 7);
            (void)client_send_bytes(&clients[i], chunk, CHUNK);
            (void)client_send_bytes(&clients[i], "\r\n", 2);
        }
    }
    for (int i = 0; i < N; i++) {
        (void)client_send_bytes(&clients[i], "0\r\n\r\n", 5);
        client_read(&clients[i], &answer, true);
        n_refused += answer.status == 503;
        assert_true(answer.status == 503 || answer.status == 200);
        client_close(&clients[i]);
        answer_fini(&answer);
    }
    assert_in_range(n_refused, 1, N - 1); /* 4 MiB into 1, and some always arrive */
    assert_true(rig_wait(&rig.n_buffered, 0));
    rig_stop(&rig);
}

/* ---- without memory ---- */

static atomic_bool headers_fail;

enum MHD_Result __real_MHD_add_response_header(struct MHD_Response *response, const char *name,
                                               const char *value);
enum MHD_Result __wrap_MHD_add_response_header(struct MHD_Response *response, const char *name,
                                               const char *value);

/* The linker has the transport call this one. */
enum MHD_Result __wrap_MHD_add_response_header(struct MHD_Response *response, const char *name,
                                               const char *value) {
    return atomic_load(&headers_fail) ? MHD_NO
                                      : __real_MHD_add_response_header(response, name, value);
}

TEST(answers_without_memory_for_their_headers_are_503) {
    static const char *const paths[] = {"/echo", "/late", "/ticks", "/burst", "/nowhere"};
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    for (size_t i = 0; i < 2 * sizeof(paths) / sizeof(paths[0]); i++) {
        atomic_store(&headers_fail, i % 2 == 0);
        client_open_and_get(&client, &rig, paths[i / 2]);
        client_read(&client, &answer, true);
        if (i % 2 == 0) {
            assert_int_equal(answer.status, 503);
            assert_non_null(strstr(answer.body, "no memory"));
            assert_true(client_at_end(&client));
        } else {
            assert_true(answer.status == 200 || answer.status == 404);
        }
        answer_fini(&answer);
        client_close(&client);
    }
    assert_int_equal(atomic_load(&rig.n_refused), 5);
    assert_true(rig_wait(&rig.n_open, 0));
    rig_stop(&rig);
}
