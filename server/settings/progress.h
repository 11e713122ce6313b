/* progress.h - shows on standard error how far a long search, measurement or download is.  On a
 * terminal it is a bar that is redrawn, elsewhere a line at every tenth of the way.
 *
 * Thread: any one.  Memory: none. */
#ifndef SERVER_SETTINGS_PROGRESS_H
#define SERVER_SETTINGS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct progress {
    const char *name;          /* the command's, at the beginning of each line */
    double total, done;        /* in any unit that takes about the same time everywhere */
    double shown;              /* the largest share of the total since it was estimated last */
    double given;              /* part of done: by an earlier run */
    double begun_s;            /* by clock_seconds() */
    int tenth;                 /* the last one shown */
    bool is_terminal, is_open; /* is_open: the line on the terminal has no end yet */
    /* Gets the lines that are not for a terminal; NULL: standard error does. */
    void (*say)(void *ctx, const char *line);
    void *ctx;
};

void progress_begin(struct progress *progress, const char *name, double total, double given);
/* Adds work that was not foreseen; the share shown does not decrease by it. */
void progress_expect(struct progress *progress, double amount);
/* Estimates anew: so many seconds are left.  From now on work is given in seconds.  The share shown
 * may decrease: what was shown before was wrong. */
void progress_estimate(struct progress *progress, double seconds_left);
/* Adds work that was done; next: the name of what follows. */
void progress_add(struct progress *progress, double amount, const char *next);
/* Ends the line; call it before other output to standard error. */
void progress_end(struct progress *progress);

/* Writes "12 s", "3 min 05 s" or "2 h 10 min". */
void progress_duration(double seconds, char *out, size_t size);

/* Writes one line without its end, cut to size, as of the clock's now_s.  The time left assumes
 * that each unit takes as long as this run's units so far.  It never shows 100 %: until the end
 * there may be more to do. */
void progress_line(const struct progress *progress, double now_s, const char *next, char *line,
                   size_t size);

#endif
