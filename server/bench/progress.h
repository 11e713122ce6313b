/* progress.h - how far a long search or measurement is, on standard error: on a terminal a bar that
 * is drawn again and again, elsewhere a line at every tenth of the way.
 *
 * Thread: any one.  Memory: none. */
#ifndef SERVER_BENCH_PROGRESS_H
#define SERVER_BENCH_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct progress {
    const char *name; /* of the command, at the beginning of each line */
    double total, done; /* in any unit that takes about the same time everywhere */
    double shown;       /* the largest share of the total so far: the total may grow */
    double given;       /* of what is done: by an earlier run */
    double begun_s;     /* by clock_seconds() */
    int tenth;          /* the last one told of */
    bool is_terminal, is_open; /* is_open: the line on the terminal has no end yet */
};

void progress_begin(struct progress *progress, const char *name, double total, double given);
/* There is more to do than was foreseen; nothing that is shown goes back. */
void progress_expect(struct progress *progress, double amount);
/* Something was done; what comes next has this name. */
void progress_add(struct progress *progress, double amount, const char *next);
/* Before anything else is written to standard error. */
void progress_end(struct progress *progress);

/* "12 s", "3 min 05 s", "2 h 10 min". */
void progress_duration(double seconds, char *out, size_t size);

/* One line without its end, cut to size.  At `now_s` of the clock; what is left takes as long, for
 * each unit, as what this run has done.  It never says 100 %: until the end more may be found to
 * do. */
void progress_line(const struct progress *progress, double now_s, const char *next,
                   char *line, size_t size);

#endif
