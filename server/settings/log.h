/* log.h - one line per event on stderr: time, level, words.
 *
 *   2026-11-21T07:21:39.120Z info  request id=7f3a method=GET path=/v1/models status=200
 *
 * Between log_start() and log_stop() a line goes into a ring, and a thread of the log's own writes
 * it: a reader of stderr that stands still delays nobody.  Before and after, it is written at once.
 * Lines are written whole, so those of several threads do not mix.
 *
 *   log_event ──► ring, LOG_RING_BYTES ──► writer thread ──► stderr
 *                   └► full: dropped, until half of the ring is free; then a line says how many
 *
 * Thread: any, once log_set_level() has been called at start; log_start() and log_stop() are
 * main's.  Memory: the ring, fixed. */
#ifndef SERVER_SETTINGS_LOG_H
#define SERVER_SETTINGS_LOG_H

#include <stddef.h>
#include <stdint.h>

struct error;

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* About 2,500 requests.  log_stop() waits so long for a reader. */
enum { LOG_RING_BYTES = 256 * 1024, LOG_FLUSH_MS = 2000 };

int log_start(struct error *err);
/* Writes what is left, within LOG_FLUSH_MS; without log_start() it does nothing.  A writer that is
 * still blocked then is left behind with what it has, and whatever is logged later is dropped. */
void log_stop(void);

void log_set_level(enum log_level level);
void log_event(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns how many lines were lost: dropped from the ring, or refused by stderr. */
uint64_t log_n_lost(void);

/* Writes text that a client chose as one value of a line, and returns out: as it is where it is
 * plain, else in quotes, with \" \\ and \xNN for all that is not printable ASCII, so that it can
 * neither look like another field nor move a terminal's cursor.  A value too long for out ends in
 * "...", outside the quotes. */
const char *log_quote(char *out, size_t size, const char *text);

#endif
