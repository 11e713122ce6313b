/* tune_progress.h - how far a long search is, on standard error: on a terminal a bar that is drawn
 * again and again, elsewhere a line at every tenth of the way.
 *
 * Thread: any one.  Memory: none. */
#ifndef SERVER_TUNE_PROGRESS_H
#define SERVER_TUNE_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>

struct tune_progress {
    double total, done; /* in any unit that takes about the same time everywhere */
    double shown;       /* the largest share of the total so far: the total may grow */
    double given;       /* of what is done: by an earlier run */
    double begun_s;     /* by report_seconds_now() */
    int tenth;          /* the last one told of */
    bool is_terminal, is_open; /* is_open: the line on the terminal has no end yet */
};

void tune_progress_begin(struct tune_progress *progress, double total, double given);
/* There is more to do than was foreseen; nothing that is shown goes back. */
void tune_progress_expect(struct tune_progress *progress, double amount);
/* Something was done; what comes next has this name. */
void tune_progress_add(struct tune_progress *progress, double amount, const char *next);
/* Before anything else is written to standard error. */
void tune_progress_end(struct tune_progress *progress);

/* One line without its end, cut to size.  At `now_s` of the clock; what is left takes as long, for
 * each unit, as what this run has done.  It never says 100 %: until the end more may be found to
 * do. */
void tune_progress_line(const struct tune_progress *progress, double now_s, const char *next,
                        char *line, size_t size);

#endif
