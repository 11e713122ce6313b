/* test_log.c - lines come whole and in order from many threads, a reader that stands still delays
 * no thread, and a quoted value can be read back.
 *
 * Standard error is a pipe of the test's while a server would log. */
#define _GNU_SOURCE /* pipe2, F_SETPIPE_SZ */
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/settings/log.h"
#include "tests/test.h"

enum { N_THREADS = 4, N_LINES = 2000, TEXT_BYTES = 4 << 20 };

struct rig {
    int saved, reader;
    char *text; /* [TEXT_BYTES], what was read */
    size_t n;
};

/* flags: of both ends, O_NONBLOCK or 0. */
static void open_rig(struct rig *rig, int flags) {
    int ends[2];
    *rig = (struct rig){.saved = dup(STDERR_FILENO), .text = calloc(1, TEXT_BYTES)};
    assert_non_null(rig->text);
    assert_int_equal(pipe2(ends, O_CLOEXEC | flags), 0);
    assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) > 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    close(ends[1]);
    rig->reader = ends[0];
}

/* The pipe's last writer goes, so that its reader finds the end. */
static void restore_stderr(struct rig *rig) {
    assert_true(dup2(rig->saved, STDERR_FILENO) >= 0);
    close(rig->saved);
}

static void close_rig(struct rig *rig) {
    close(rig->reader);
    free(rig->text);
}

static bool read_some(struct rig *rig) {
    const ssize_t n = read(rig->reader, rig->text + rig->n, TEXT_BYTES - 1 - rig->n);
    if (n <= 0) return false;
    rig->n += (size_t)n;
    rig->text[rig->n] = 0;
    return true;
}

static void *read_all(void *arg) {
    struct rig *rig = arg;
    fcntl(rig->reader, F_SETFL, 0);
    while (read_some(rig)) {
    }
    return NULL;
}

static void start(void) {
    struct error err = {0};
    if (log_start(&err)) fail_msg("%s", err.text);
}

static void *log_lines(void *arg) {
    for (int i = 0; i < N_LINES; i++) log_event(LOG_INFO, "from=%d line=%d", *(int *)arg, i);
    return NULL;
}

static void log_from_threads(void) {
    pthread_t threads[N_THREADS];
    int numbers[N_THREADS];
    for (int i = 0; i < N_THREADS; i++) {
        numbers[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, log_lines, &numbers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) pthread_join(threads[i], NULL);
}

/* Each thread's lines are whole and in order; counts them, and what was dropped. */
static void count_lines(const char *text, unsigned *n_lines, unsigned *n_dropped) {
    int next[N_THREADS] = {0}, from, line;
    unsigned n;
    char *copy = strdup(text), *rest = NULL;
    *n_lines = *n_dropped = 0;
    for (char *at = strtok_r(copy, "\n", &rest); at; at = strtok_r(NULL, "\n", &rest)) {
        if (sscanf(at, "%*s info from=%d line=%d", &from, &line) == 2) {
            assert_true(from >= 0 && from < N_THREADS && line >= next[from]);
            next[from] = line + 1;
            ++*n_lines;
        } else if (sscanf(at, "%*s warn log: %u lines dropped", &n) == 1) {
            *n_dropped += n;
        } else {
            fail_msg("not a line of the log: %s", at);
        }
    }
    free(copy);
}

static void run_with_reader(int flags) {
    struct rig rig;
    pthread_t reader;
    unsigned n_lines, n_dropped;
    const uint64_t n_lost = log_n_lost();
    open_rig(&rig, flags);
    start();
    assert_int_equal(pthread_create(&reader, NULL, read_all, &rig), 0);
    log_from_threads();
    log_stop();
    restore_stderr(&rig);
    pthread_join(reader, NULL);
    count_lines(rig.text, &n_lines, &n_dropped);
    assert_int_equal(n_lines + n_dropped, N_THREADS * N_LINES);
    assert_int_equal(n_dropped, log_n_lost() - n_lost);
    close_rig(&rig);
}

TEST(lines_of_many_threads_come_whole_and_in_order) {
    run_with_reader(0);
}

/* Another process that shares standard error may have made it so. */
TEST(a_pipe_that_does_not_block_is_waited_for) {
    run_with_reader(O_NONBLOCK);
}

TEST(what_a_late_reader_missed_is_said_once) {
    struct rig rig;
    pthread_t reader;
    unsigned n_lines, n_dropped;
    open_rig(&rig, 0);
    start();
    log_from_threads(); /* more than ring and pipe hold: this ends all the same */
    assert_int_equal(pthread_create(&reader, NULL, read_all, &rig), 0);
    log_stop();
    restore_stderr(&rig);
    pthread_join(reader, NULL);
    count_lines(rig.text, &n_lines, &n_dropped);
    assert_true(n_dropped > 0);
    assert_int_equal(n_lines + n_dropped, N_THREADS * N_LINES);
    const char *said = strstr(rig.text, "lines dropped");
    assert_non_null(said);
    assert_null(strstr(said + 1, "lines dropped"));
    close_rig(&rig);
}

/* Without log_start(): in a test, in `quire bench`, and behind log_stop(). */
TEST(a_line_without_a_writer_is_written_at_once) {
    struct rig rig;
    open_rig(&rig, 0);
    log_event(LOG_WARN, "a\tb %s", "c\n");
    log_event(LOG_DEBUG, "not this");
    restore_stderr(&rig);
    read_all(&rig);
    assert_non_null(strstr(rig.text, " warn  a?b c?\n"));
    assert_null(strstr(rig.text, "not this"));
    close_rig(&rig);
}

TEST(a_refused_line_is_counted) {
    struct rig rig;
    const uint64_t before = log_n_lost();
    open_rig(&rig, 0);
    start();
    close(rig.reader);
    for (int i = 0; i < 10; i++) log_event(LOG_WARN, "for no reader");
    log_stop();
    restore_stderr(&rig);
    free(rig.text);
    assert_int_equal(log_n_lost() - before, 10);
}

/* ---- values ---- */

/* The text that a value says, or NULL where it is no value; *cut: it says only the beginning. */
static char *unquote(const char *value, bool *cut) {
    char *text = calloc(1, strlen(value) + 1);
    size_t n = 0;
    unsigned c;
    *cut = false;
    if (*value != '"') {
        if (strpbrk(value, " =\"\\")) goto fail;
        return strcpy(text, value);
    }
    for (value++; *value && *value != '"'; n++) {
        if (*value != '\\') text[n] = *value++;
        else if (sscanf(value + 1, "x%2x", &c) == 1) text[n] = (char)c, value += 4;
        else if (value[1] == '"' || value[1] == '\\') text[n] = value[1], value += 2;
        else goto fail;
    }
    *cut = strcmp(value, "\"...") == 0;
    if (*cut || strcmp(value, "\"") == 0) return text;

fail:
    free(text);
    return NULL;
}

static uint32_t draw(uint64_t *state, uint32_t n) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

TEST(a_quoted_value_can_be_read_back) {
    static const char hurting[] = "\"\\= \n\x1b\x7f\xff"
                                  "ax.";
    char out[80], text[100];
    uint64_t random = 1;
    for (int round = 0; round < 20000; round++) {
        const size_t n = draw(&random, sizeof(text));
        for (size_t i = 0; i < n; i++)
            text[i] = draw(&random, 2) ? hurting[draw(&random, sizeof(hurting) - 1)]
                                       : (char)(1 + draw(&random, 255));
        text[n] = 0;
        bool cut;
        assert_ptr_equal(log_quote(out, sizeof(out), text), out);
        assert_true(strlen(out) < sizeof(out));
        for (const char *c = out; *c; c++) assert_true(*c >= 0x20 && *c < 0x7F);
        char *back = unquote(out, &cut);
        if (!back) fail_msg("round %d: not a value: %s", round, out);
        if (cut) assert_true(strncmp(back, text, strlen(back)) == 0 && strlen(back) < n);
        else assert_string_equal(back, text);
        free(back);
    }
}

TEST(plain_values_stay_as_they_are) {
    char out[32];
    assert_string_equal(log_quote(out, sizeof(out), "/v1/models/a-b_c.d~"), "/v1/models/a-b_c.d~");
    assert_string_equal(log_quote(out, sizeof(out), ""), "\"\"");
    assert_string_equal(log_quote(out, sizeof(out), "a b"), "\"a b\"");
    assert_string_equal(log_quote(out, sizeof(out), "a=b"), "\"a=b\"");
    assert_string_equal(log_quote(out, sizeof(out), "a\"\\\n"), "\"a\\\"\\\\\\x0a\"");
}

/* The last test: behind it nothing is logged any more. */
TEST(stopping_does_not_wait_for_a_reader) {
    struct rig rig;
    struct timespec begun, ended;
    open_rig(&rig, 0);
    start();
    log_from_threads();
    clock_gettime(CLOCK_MONOTONIC, &begun);
    log_stop();
    clock_gettime(CLOCK_MONOTONIC, &ended);
    assert_true(ended.tv_sec - begun.tv_sec <= LOG_FLUSH_MS / 1000 + 30);
    const uint64_t before = log_n_lost();
    log_event(LOG_ERROR, "too late");
    assert_int_equal(log_n_lost() - before, 1);
    /* The writer that was left behind goes on when it can; it must not meet the real stderr. */
    while (!strstr(rig.text, "lines dropped: ") && read_some(&rig)) {
    }
    restore_stderr(&rig);
    close_rig(&rig);
}
