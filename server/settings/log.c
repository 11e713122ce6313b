/* log.c - see log.h.
 *
 * The ring holds text, line after line.  The writer copies as many whole lines as fit one write
 * that a pipe takes as a unit.  It writes them without the lock, so no thread waits for stderr
 * while holding it. */
#define _GNU_SOURCE /* memrchr */

#include "server/settings/log.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "server/settings/log_json.h"

/* Of a line as text, and of any line. */
enum { TEXT_BYTES = 1024, LINE_BYTES = 4 * TEXT_BYTES };
static_assert(LINE_BYTES <= PIPE_BUF && 2 * LINE_BYTES <= LOG_RING_BYTES / 2, "lines fit");
enum { HEAD_BYTES = 48 };

enum writer_state {
    WRITER_NONE, /* the thread that logs a line writes it */
    WRITER_RUNNING,
    WRITER_STOPPING, /* the writer ends when the ring is empty */
    WRITER_DONE,
    WRITER_ABANDONED, /* the writer did not end in time */
};

/* This is global because every module would otherwise need a pointer just for the log. */
static struct {
    _Atomic(enum log_level) threshold;
    _Atomic(enum log_format) format;
    atomic_uint_least64_t n_lost;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t changed;
    enum writer_state state;
    char ring[LOG_RING_BYTES];
    size_t first, n;    /* the text is ring[first, first + n), wrapped around */
    uint64_t n_dropped; /* since the last line that was stored */
} shared = {.threshold = LOG_INFO, .lock = PTHREAD_MUTEX_INITIALIZER};

void log_set_level(enum log_level level) {
    atomic_store(&shared.threshold, level);
}

void log_set_format(enum log_format format) {
    atomic_store(&shared.format, format);
}

uint64_t log_n_lost(void) {
    return atomic_load(&shared.n_lost);
}

/* ---- lines ---- */

static void write_time(char out[HEAD_BYTES]) {
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out, HEAD_BYTES, "%s.%03ldZ", date, now.tv_nsec / 1000000);
}

/* Writes a line with this text, which has at most TEXT_BYTES - HEAD_BYTES bytes; returns its length
 * with the line end. */
static size_t write_line(char line[LINE_BYTES], enum log_level level, const char *text) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    char time[HEAD_BYTES];
    write_time(time);
    size_t length;
    if (atomic_load(&shared.format) == LOG_JSON)
        length = log_json_write(line, LINE_BYTES - 1, time, names[level], text);
    else length = (size_t)snprintf(line, LINE_BYTES - 1, "%s %-5s %s", time, names[level], text);
    line[length] = '\n';
    return length + 1;
}

/* Formats a line and returns its length with the line end. */
static size_t format_line(char line[LINE_BYTES], enum log_level level, const char *format,
                          va_list args) {
    char text[TEXT_BYTES - HEAD_BYTES] = "";
    vsnprintf(text, sizeof(text), format, args);
    for (char *at = text; *at; at++)
        if ((unsigned char)*at < 0x20 || *at == 0x7F) *at = '?';
    return write_line(line, level, text);
}

/* Writes lines to stderr.  A log that cannot be written is no reason to stop serving, so refused
 * lines are only counted. */
static void write_lines(const char *text, size_t length) {
    while (length > 0) {
        const ssize_t n = write(STDERR_FILENO, text, length);
        if (n >= 0) {
            text += n;
            length -= (size_t)n;
        } else if (errno == EAGAIN) {
            /* Another program that shares stderr may have made it non-blocking. */
            poll(&(struct pollfd){.fd = STDERR_FILENO, .events = POLLOUT}, 1, -1);
        } else if (errno != EINTR) {
            for (size_t i = 0; i < length; i++) shared.n_lost += text[i] == '\n';
            return;
        }
    }
}

/* ---- the ring, under the lock ---- */

static void ring_put(const char *text, size_t length) {
    const size_t at = (shared.first + shared.n) % LOG_RING_BYTES;
    const size_t before_end = length < LOG_RING_BYTES - at ? length : LOG_RING_BYTES - at;
    memcpy(shared.ring + at, text, before_end);
    memcpy(shared.ring, text + before_end, length - before_end);
    shared.n += length;
}

/* Takes as many whole lines as fit; returns their bytes. */
static size_t ring_take(char *out, size_t size) {
    size_t n = shared.n < size ? shared.n : size;
    const size_t before_end = n < LOG_RING_BYTES - shared.first ? n : LOG_RING_BYTES - shared.first;
    memcpy(out, shared.ring + shared.first, before_end);
    memcpy(out + before_end, shared.ring, n - before_end);
    if (n > 0) n = (size_t)((char *)memrchr(out, '\n', n) - out) + 1;
    shared.first = (shared.first + n) % LOG_RING_BYTES;
    shared.n -= n;
    return n;
}

/* Stores a line that tells how many lines are missing here; the ring must have space for it. */
static void note_gap(void) {
    char line[LINE_BYTES], text[96];
    snprintf(text, sizeof(text), "log: %" PRIu64 " lines dropped: stderr was blocked",
             shared.n_dropped);
    ring_put(line, write_line(line, LOG_WARN, text));
    shared.n_dropped = 0;
}

/* Stores the line or drops it.  Once a line is dropped, all others are until half of the ring is
 * free, so that they are one gap, reported once. */
static void put_or_drop(const char *line, size_t length) {
    const size_t limit = shared.n_dropped ? LOG_RING_BYTES / 2 : LOG_RING_BYTES - length;
    if (shared.state == WRITER_ABANDONED || shared.n > limit) {
        shared.n_dropped++;
        shared.n_lost++;
        return;
    }
    if (shared.n_dropped) note_gap();
    ring_put(line, length);
}

void log_event(enum log_level level, const char *format, ...) {
    if (level > atomic_load(&shared.threshold)) return;
    char line[LINE_BYTES];
    va_list args;
    va_start(args, format);
    const size_t length = format_line(line, level, format, args);
    va_end(args);
    pthread_mutex_lock(&shared.lock);
    const bool is_direct = shared.state == WRITER_NONE;
    if (!is_direct) {
        put_or_drop(line, length);
        pthread_cond_signal(&shared.changed);
    }
    pthread_mutex_unlock(&shared.lock);
    if (is_direct) write_lines(line, length);
}

/* ---- the writer ---- */

/* Waits until there is text, and takes some.  Returns 0 when the log is to end. */
static size_t next_lines(char *out, size_t size) {
    pthread_mutex_lock(&shared.lock);
    while (shared.n == 0 && shared.n_dropped == 0 && shared.state == WRITER_RUNNING)
        pthread_cond_wait(&shared.changed, &shared.lock);
    if (shared.n == 0 && shared.n_dropped > 0) note_gap();
    const size_t n = ring_take(out, size);
    if (n == 0) {
        shared.state = WRITER_DONE;
        pthread_cond_broadcast(&shared.changed);
    }
    pthread_mutex_unlock(&shared.lock);
    return n;
}

static void *run_writer(void *unused) {
    char lines[PIPE_BUF];
    size_t n;
    while ((n = next_lines(lines, sizeof(lines))) > 0) write_lines(lines, n);
    return unused;
}

int log_start(struct error *err) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&shared.changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    shared.state = WRITER_RUNNING;
    if (thread_start(&shared.thread, run_writer, NULL) == 0) return 0;
    shared.state = WRITER_NONE;
    return error_set(err, ERR_NOMEM, "cannot start the log thread");
}

/* Ends the writer.  A blocked write cannot be cancelled, so its thread is not waited for: it ends
 * with the process. */
void log_stop(void) {
    const struct timespec deadline = clock_at(clock_seconds() + LOG_FLUSH_MS / 1e3);
    pthread_mutex_lock(&shared.lock);
    if (shared.state != WRITER_RUNNING) {
        pthread_mutex_unlock(&shared.lock);
        return;
    }
    shared.state = WRITER_STOPPING;
    pthread_cond_broadcast(&shared.changed);
    while (shared.state == WRITER_STOPPING &&
           pthread_cond_timedwait(&shared.changed, &shared.lock, &deadline) == 0) {
    }
    const bool is_done = shared.state == WRITER_DONE;
    shared.state = is_done ? WRITER_NONE : WRITER_ABANDONED;
    pthread_mutex_unlock(&shared.lock);
    if (is_done) pthread_join(shared.thread, NULL);
    else pthread_detach(shared.thread);
}

/* ---- values ---- */

static bool is_plain(unsigned char c) {
    return c > ' ' && c < 0x7F && c != '"' && c != '\\' && c != '=';
}

/* Writes the character as it appears between quotes and returns its length. */
static size_t escape(char out[8], unsigned char c) {
    if (c == '"' || c == '\\') return (size_t)snprintf(out, 8, "\\%c", c);
    if (c < ' ' || c >= 0x7F) return (size_t)snprintf(out, 8, "\\x%02x", c);
    return (size_t)snprintf(out, 8, "%c", c);
}

const char *log_quote(char *out, size_t size, const char *text) {
    static const char end[] = "\"...";
    size_t n = 0;
    while (is_plain((unsigned char)text[n])) n++;
    if (n > 0 && !text[n] && n < size) return memcpy(out, text, n + 1);
    assert(size > sizeof(end) + 8);
    n = 0;
    out[n++] = '"';
    for (; *text; text++) {
        char escaped[8];
        const size_t length = escape(escaped, (unsigned char)*text);
        if (n + length + sizeof(end) > size) break;
        memcpy(out + n, escaped, length);
        n += length;
    }
    snprintf(out + n, size - n, "%s", *text ? end : "\"");
    return out;
}
