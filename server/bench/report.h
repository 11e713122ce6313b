/* report.h - prints benchmark results as rows on standard output: CSV for programs, or columns for
 * people.
 *
 * Thread: main.  Memory: borrows the names. */
#ifndef SERVER_BENCH_REPORT_H
#define SERVER_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>

enum { REPORT_CELL = 48 };

struct report {
    bool columns; /* columns for people, not CSV */
    const char *const *names;
    size_t n;
};

void report_begin(const struct report *report);
/* Prints a row of [report->n] cells; an empty cell means unknown. */
void report_row(const struct report *report, const char (*cells)[REPORT_CELL]);

/* The median, least and greatest of n >= 1 values, which report_spread() sorts. */
struct spread {
    double median, least, greatest;
};
struct spread report_spread(double *values, size_t n);

#endif
