/* log.h - one line per event on stderr: time, level, words.
 *
 *   2026-11-21T07:21:39.120Z info  request id=7f3a method=GET path=/v1/models status=200
 *
 * A line is written in one call, so lines of several threads do not mix; bytes that a client chose
 * are made printable.
 *
 * Thread: any, once log_set_level() has been called at start.  Memory: none. */
#ifndef SERVER_LOG_H
#define SERVER_LOG_H

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

void log_set_level(enum log_level level);
void log_event(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
