/* log.h - one line per event on stderr: time, level, words.
 *
 *   2026-11-21T07:21:39.120Z info  request id=7f3a method=GET path=/v1/models status=200
 *
 * Between log_start() and log_stop() a line goes into a ring, and the log's own thread writes it.
 * A reader of stderr that stalls therefore delays no other thread.  Before and after, lines are
 * written at once.  Lines are written whole, so those of several threads do not mix.
 *
 *   log_event ──► ring, LOG_RING_BYTES ──► writer thread ──► stderr
 *                   └► full: dropped, until half of the ring is free; then a line says how many
 *
 * Thread: any, once level and format have been set at start; log_start() and log_stop() are
 * main's.  Memory: the ring, fixed. */
#ifndef SERVER_SETTINGS_LOG_H
#define SERVER_SETTINGS_LOG_H

#include <stddef.h>
#include <stdint.h>

struct error;

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_TEXT, LOG_JSON }; /* JSON: log_json.h */

/* The ring holds about 1,200 completions, or 2,500 requests that generate nothing.  log_stop()
 * waits at most LOG_FLUSH_MS for a reader. */
enum { LOG_RING_BYTES = 256 * 1024, LOG_FLUSH_MS = 2000 };

int log_start(struct error *err);
/* Writes the remaining lines within LOG_FLUSH_MS; does nothing without log_start().  A writer that
 * is still blocked then is abandoned with its lines, and later lines are dropped. */
void log_stop(void);

void log_set_level(enum log_level level);
void log_set_format(enum log_format format);
void log_event(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns how many lines were lost: dropped from the ring, or refused by stderr. */
uint64_t log_n_lost(void);

/* Writes text that a client chose as one value of a line, and returns out.  Plain text is written
 * as it is.  Other text is quoted, with \" \\ and \xNN for all that is not printable ASCII.  It can
 * then neither look like another field nor move a terminal's cursor.  A value too long for out ends
 * in "...", outside the quotes. */
const char *log_quote(char *out, size_t size, const char *text);

#endif
