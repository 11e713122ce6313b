/* report.c - see report.h. */
#include "server/bench/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Column widths: of the first two, which are names or shapes, and of numbers. */
enum { NAME_WIDTH = 16, NUMBER_WIDTH = 9 };

/* Prints the first cell left-aligned, the others right-aligned. */
static void print_cell(const struct report *report, size_t i, const char *text) {
    const int length = (int)strlen(report->names[i]), least = i < 2 ? NAME_WIDTH : NUMBER_WIDTH,
              width = length < least ? least : length;
    if (!report->columns) printf("%s%s", i ? "," : "", text);
    else if (i == 0) printf("%-*s", width, text);
    else printf("  %*s", width, text);
}

void report_begin(const struct report *report) {
    for (size_t i = 0; i < report->n; i++) print_cell(report, i, report->names[i]);
    putchar('\n');
}

void report_row(const struct report *report, const char (*cells)[REPORT_CELL]) {
    for (size_t i = 0; i < report->n; i++) print_cell(report, i, cells[i]);
    putchar('\n');
    fflush(stdout);
}

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

struct spread report_spread(double *values, size_t n) {
    qsort(values, n, sizeof(*values), compare_doubles);
    return (struct spread){values[n / 2], values[0], values[n - 1]};
}
