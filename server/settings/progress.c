/* progress.c - see progress.h. */
#include "server/settings/progress.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"

enum { BAR_WIDTH = 24, LINE_BYTES = 160 };

void progress_duration(double seconds, char *out, size_t size) {
    const long s = (long)(seconds + 0.5);
    if (s >= 3600) snprintf(out, size, "%ld h %02ld min", s / 3600, s % 3600 / 60);
    else if (s >= 60) snprintf(out, size, "%ld min %02ld s", s / 60, s % 60);
    else snprintf(out, size, "%ld s", s);
}

void progress_line(const struct progress *p, double now_s, const char *next, char *line,
                   size_t size) {
    char bar[BAR_WIDTH + 1], left[48] = "";
    const double share = fmin(p->shown, 0.99), here = p->done - p->given;
    const int n = (int)(share * BAR_WIDTH);
    memset(bar, '-', BAR_WIDTH);
    memset(bar, '#', (size_t)n);
    bar[BAR_WIDTH] = 0;
    if (here > 0)
        progress_duration((now_s - p->begun_s) / here * fmax(p->total - p->done, 0), left,
                          sizeof(left));
    snprintf(line, size, "%s: [%s] %3d %%, %s%s%s", p->name, bar, (int)(100 * share), left,
             here > 0 ? " left: " : "", next);
}

void progress_begin(struct progress *progress, const char *name, double total, double given) {
    *progress = (struct progress){.name = name,
                                  .total = total,
                                  .done = given,
                                  .given = given,
                                  .shown = given / total,
                                  .begun_s = clock_seconds(),
                                  .tenth = -1,
                                  .is_terminal = isatty(STDERR_FILENO)};
}

void progress_expect(struct progress *progress, double amount) {
    progress->total += amount;
}

void progress_estimate(struct progress *p, double seconds_left) {
    p->done = fmax(clock_seconds() - p->begun_s, 1e-3);
    p->given = 0;
    p->total = p->done + fmax(seconds_left, 0);
    p->shown = p->done / p->total;
}

void progress_add(struct progress *p, double amount, const char *next) {
    char line[LINE_BYTES];
    p->done += amount;
    p->shown = fmax(p->shown, p->done / p->total);
    const int tenth = (int)(10 * p->shown);
    if (!p->is_terminal && (tenth == p->tenth || p->done <= p->given)) return;
    p->tenth = tenth;
    progress_line(p, clock_seconds(), next, line, sizeof(line));
    /* Spaces cover the rest of a longer line before. */
    if (p->is_terminal) fprintf(stderr, "\r%-100s", line);
    else if (p->say) p->say(p->ctx, line);
    else fprintf(stderr, "%s\n", line);
    p->is_open = p->is_terminal;
}

void progress_end(struct progress *p) {
    if (p->is_open) fputc('\n', stderr);
    p->is_open = false;
}
