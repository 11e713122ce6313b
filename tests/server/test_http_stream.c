/* test_http_stream.c - streamed answers: whole, at once, to slow readers and to readers that leave.
 *
 * Thread: the test's; the transport has its own (http_rig.h).  Memory: none kept. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/server/http_rig.h"
#include "tests/test.h"

static const char EVENT[] = "data: {\"n\":1}\n\n";
enum { EVENT_BYTES = sizeof(EVENT) - 1 };

static void assert_events(const struct answer *answer) {
    assert_true(answer->complete);
    assert_int_equal(answer->status, 200);
    assert_non_null(strstr(answer->head, "\r\nContent-Type: text/event-stream\r\n"));
    assert_int_equal(answer->length, N_TICKS * EVENT_BYTES);
    for (int i = 0; i < N_TICKS; i++)
        assert_memory_equal(answer->body + i * EVENT_BYTES, EVENT, EVENT_BYTES);
}

TEST(streams_arrive_whole_and_keep_the_connection) {
    static const char *const paths[] = {"/ticks", "/burst", "/ticks", "/burst"};
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    client_open(&client, &rig);
    for (int i = 0; i < 4; i++) {
        client_get(&client, paths[i]);
        client_read(&client, &answer, true);
        assert_non_null(strstr(answer.head, "\r\nTransfer-Encoding: chunked\r\n"));
        assert_events(&answer);
        answer_fini(&answer);
    }
    client_close(&client);
    rig_stop(&rig);
    assert_int_equal(atomic_load(&rig.n_gone), 0);
}

TEST(http_1_0_readers_get_the_bare_bytes_and_a_close) {
    static const char *const texts[] = {
        "GET /ticks HTTP/1.0\r\n\r\n",
        "GET /burst HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    };
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    for (int i = 0; i < 2; i++) {
        client_open(&client, &rig);
        client_ask(&client, texts[i], &answer);
        assert_null(strstr(answer.head, "chunked"));
        assert_events(&answer);
        client_close(&client);
        answer_fini(&answer);
    }
    rig_stop(&rig);
    assert_int_equal(atomic_load(&rig.n_gone), 0);
}

/* Corked bytes would leave after 200 ms. The best of several is not disturbed by a busy machine. */
TEST(the_head_of_a_silent_stream_leaves_at_once) {
    struct rig rig;
    struct client client;
    struct answer answer;
    uint64_t best = 1000;
    rig_open(&rig);
    for (unsigned i = 0; i < 10; i++) {
        const uint64_t start = now_ms();
        client_open_and_get(&client, &rig, "/silent");
        client_read(&client, &answer, false);
        assert_int_equal(answer.status, 200);
        if (now_ms() - start < best) best = now_ms() - start;
        client_reset(&client);
        answer_fini(&answer);
        assert_true(rig_wait(&rig.n_gone, i + 1));
    }
    assert_true(best < 100);
    rig_stop(&rig);
}

TEST(events_leave_one_by_one) {
    struct rig rig;
    unsigned most = 0;
    rig_open(&rig);
    for (int i = 0; i < 5; i++) {
        char bytes[8192];
        struct client client;
        unsigned n_received = 0;
        size_t length = 0;
        ssize_t n;
        client_open(&client, &rig);
        client_send(&client, "GET /ticks HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        while ((n = recv(client.fd, bytes, sizeof(bytes), 0)) > 0) {
            n_received++;
            length += (size_t)n;
        }
        assert_true(length > N_TICKS * EVENT_BYTES);
        if (n_received > most) most = n_received;
        client_close(&client);
    }
    assert_true(most >=
                N_TICKS * 3 / 4); /* held back by Nagle or a cork they would be two or three */
    rig_stop(&rig);
}

TEST(readers_that_leave_are_noticed) {
    static const char *const paths[] = {"/silent", "/ticks", "/lump", "/fill"};
    struct rig rig;
    struct client client;
    struct answer answer;
    unsigned n_gone = 0;
    rig_open(&rig);
    for (int i = 0; i < 8; i++) {
        client_open_and_get(&client, &rig, paths[i % 4]);
        client_read(&client, &answer, false);
        assert_int_equal(answer.status, 200);
        answer_fini(&answer);
        /* Soon behind the request this could be half a close, and only writing would tell. */
        if (i == 0) usleep(1100000);
        if (i < 4) client_close(&client);
        else client_reset(&client);
        assert_true(rig_wait(&rig.n_gone, ++n_gone));
        assert_true(rig_wait(&rig.n_open, 0));
    }
    rig_stop(&rig);
    assert_int_equal(atomic_load(&rig.n_gone), n_gone);
}

/* Reads to the end of the connection; true when the server cut it instead of finishing. */
static bool was_cut(struct client *client) {
    static char bytes[1 << 16];
    ssize_t n;
    do {
        n = recv(client->fd, bytes, sizeof(bytes), 0);
    } while (n > 0);
    return n < 0;
}

TEST(a_reader_too_far_behind_is_dropped) {
    struct rig rig;
    struct client client;
    rig_init(&rig);
    rig.config.max_stream_backlog = 1 << 20;
    rig_start(&rig);
    client_open_and_get(&client, &rig, "/lump");
    assert_true(rig_wait(&rig.n_gone, 1));
    assert_true(rig_wait(&rig.n_open, 0));
    assert_true(was_cut(&client));
    client_close(&client);
    client_open_and_get(&client, &rig, "/fill"); /* too much in a single write */
    assert_true(rig_wait(&rig.n_gone, 2));
    client_close(&client);
    rig_stop(&rig);
}

TEST(a_reader_that_takes_nothing_is_dropped) {
    struct rig rig;
    struct client stream, reply;
    rig_init(&rig);
    rig.config.stream_stall_timeout_ms = 300;
    rig_start(&rig);
    client_open_and_get(&stream, &rig, "/fill");
    client_open_and_get(&reply, &rig, "/big");
    assert_true(rig_wait(&rig.n_handled, 2));
    assert_true(rig_wait(&rig.n_gone, 1)); /* the reply was answered: only the stream hears of it */
    assert_true(rig_wait(&rig.n_open, 0));
    assert_true(was_cut(&stream));
    assert_true(was_cut(&reply));
    client_close(&stream);
    client_close(&reply);
    rig_stop(&rig);
    assert_int_equal(atomic_load(&rig.n_gone), 1);
}

/* The reader's clock starts with the answer: a check between the handler's answer and the run that
 * sends it finds no stalled client.  The ticks come each 10 ms, so some answers meet one. */
TEST(a_fresh_answer_is_not_taken_for_a_stalled_one) {
    struct rig rig;
    rig_init(&rig);
    rig.config.stream_stall_timeout_ms = 40;
    rig_start(&rig);
    for (int i = 0; i < 150; i++)
        assert_int_equal(ask(&rig, "GET /late HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
                         200);
    rig_stop(&rig);
    assert_int_equal(atomic_load(&rig.n_gone), 0);
}

/* Takes about 2 s for what the stall timeout would cut after 1 s without progress. */
TEST(a_slow_reader_is_not_dropped) {
    struct rig rig;
    struct client client;
    rig_init(&rig);
    rig.config.stream_stall_timeout_ms = 1000;
    rig_start(&rig);
    for (int i = 0; i < 2; i++) {
        static char bytes[256 * 1024];
        const int small = 64 * 1024;
        const size_t expected = i ? BIG_BYTES : LUMP_BYTES;
        size_t length = 0;
        client_open_and_get(&client, &rig, i ? "/big" : "/fill");
        setsockopt(client.fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
        while (length < expected) {
            usleep(i ? 15000 : 40000);
            const ssize_t n = recv(client.fd, bytes, sizeof(bytes), MSG_WAITALL);
            if (n <= 0) break;
            length += (size_t)n;
        }
        assert_true(length >= expected);
        assert_int_equal(atomic_load(&rig.n_gone), i); /* the first stream has no end of its own */
        client_close(&client);
        assert_true(rig_wait(&rig.n_gone, 1));
    }
    rig_stop(&rig);
}

TEST(a_stream_for_head_ends_with_its_head) {
    struct rig rig;
    struct client client;
    struct answer answer;
    rig_open(&rig);
    client_open(&client, &rig);
    client_send(&client,
                "HEAD /ticks HTTP/1.1\r\nHost: a\r\n\r\nGET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    client_read(&client, &answer, false);
    assert_int_equal(answer.status, 200);
    answer_fini(&answer);
    client_read(&client, &answer, true);
    assert_string_equal(answer.body, "GET /echo ");
    answer_fini(&answer);
    assert_int_equal(atomic_load(&rig.n_gone),
                     1); /* no client would read what the handler had to say */
    client_close(&client);
    rig_stop(&rig);
}

TEST(many_streams_run_at_once) {
    enum { N = 256, N_ROUNDS = 4 };
    struct rig rig;
    struct answer answer;
    struct client *clients = malloc(N * sizeof(*clients));
    assert_non_null(clients);
    rig_open(&rig);
    for (int i = 0; i < N; i++) client_open(&clients[i], &rig);
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N; i++) client_get(&clients[i], "/ticks");
        for (int i = 0; i < N; i++) {
            client_read(&clients[i], &answer, true);
            assert_events(&answer);
            answer_fini(&answer);
        }
    }
    for (int i = 0; i < N; i++) client_close(&clients[i]);
    free(clients);
    rig_stop(&rig);
    print_message("%d events: %.2f us of the loop thread each\n", N * N_ROUNDS * N_TICKS,
                  (double)rig.cpu_us / (N * N_ROUNDS * N_TICKS));
    assert_int_equal(atomic_load(&rig.n_gone), 0);
    assert_int_equal(atomic_load(&rig.n_handled), N * N_ROUNDS);
}

/* Clients leave at every moment of an answer's life, and what is left over is nothing. */
TEST(leaving_at_any_moment_leaves_nothing_behind) {
    static const char *const paths[] = {"/late", "/ticks", "/echo",  "/burst",
                                        "/hold", "/lump",  "/silent"};
    struct rig rig;
    unsigned seed = 4711;
    rig_open(&rig);
    for (int i = 0; i < 1000; i++) {
        struct client client;
        client_open_and_get(&client, &rig, paths[i % 7]);
        if (rand_r(&seed) % 2)
            client_send(&client, "GET /ticks HTTP/1.1\r\nHost: a\r\n\r\nGET /la");
        usleep((unsigned)rand_r(&seed) % 3000);
        if (rand_r(&seed) % 2) client_reset(&client);
        else client_close(&client);
    }
    usleep(100000);
    assert_true(rig_wait(&rig.n_open, 0));
    assert_int_equal(ask(&rig, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"), 200);
    rig_stop(&rig);
}
