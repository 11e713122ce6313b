/* log.c - see log.h. */
#include "server/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* The one global of the server: every room below would otherwise carry a pointer for nothing
 * else. */
static _Atomic(enum log_level) threshold = LOG_INFO;

void log_set_level(enum log_level level) {
    atomic_store(&threshold, level);
}

static int write_head(char *line, size_t size, enum log_level level) {
    static const char *const names[] = {"error", "warn ", "info ", "debug"};
    struct timespec now;
    struct tm utc;
    char date[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
    return snprintf(line, size, "%s.%03ldZ %s ", date, now.tv_nsec / 1000000, names[level]);
}

void log_event(enum log_level level, const char *format, ...) {
    if (level > atomic_load(&threshold)) return;
    char line[1024];
    const size_t head = (size_t)write_head(line, sizeof(line), level);
    va_list args;
    va_start(args, format);
    const int written = vsnprintf(line + head, sizeof(line) - head - 1, format, args);
    va_end(args);
    size_t length = head + (written > 0 ? (size_t)written : 0);
    if (length > sizeof(line) - 2) length = sizeof(line) - 2; /* vsnprintf cut it */
    for (size_t i = head; i < length; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7F) line[i] = '?';
    line[length] = '\n';
    /* A log that cannot be written is no reason to stop serving. */
    if (write(STDERR_FILENO, line, length + 1) < 0) return;
}
