/* report.h - what benchmarks give: rows of results on standard output, CSV
 * for programs or columns for people.
 *
 * Thread: main.  Memory: borrows the names. */
#ifndef SERVER_BENCH_REPORT_H
#define SERVER_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>

enum { REPORT_CELL = 48 };

struct report {
    bool columns; /* for people */
    const char *const *names;
    size_t n;
};

void report_begin(const struct report *report);
/* [report->n] cells; an empty one is not known. */
void report_row(const struct report *report, const char (*cells)[REPORT_CELL]);

/* The middle, the least and the greatest of n >= 1 values, which are sorted. */
struct spread {
    double median, least, greatest;
};
struct spread report_spread(double *values, size_t n);

#endif
