/* load_progress.c - see load_progress.h. */
#include "server/settings/load_progress.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/clock.h"
#include "server/settings/log.h"

/* Loading in less than MAPPED_NS is faster than any copy of a model: the backend has mapped the
 * files' pages. */
static const uint64_t SECOND_NS = 1000 * 1000 * 1000, MAPPED_NS = 2 * 1000 * 1000;
static const double GIB = 1 << 30;

/* Logs what is said of the weights, and of which replica where there are several. */
static void tell(const struct load_progress *progress, const char *said) {
    if (progress->n_replicas > 1)
        log_event(LOG_INFO, "weights of replica %" PRIu32 ": %s", progress->n_begun - 1, said);
    else log_event(LOG_INFO, "weights: %s", said);
}

bool load_progress_tell(void *ctx, uint64_t done, uint64_t total) {
    struct load_progress *progress = ctx;
    const uint64_t now = clock_ns();
    char said[128];
    if (done == 0) progress->begun_ns = progress->told_ns = now;
    if (done == 0) progress->n_begun++;
    const double took_ns = (double)(now - progress->begun_ns), all = (double)total / GIB;
    if (done == total && took_ns < (double)MAPPED_NS) {
        snprintf(said, sizeof(said), "%.2f GiB, mapped", all);
        tell(progress, said);
    } else if (done == total) {
        snprintf(said, sizeof(said), "%.2f GiB in %.2f s (%.1f GB/s)", all,
                 took_ns / (double)SECOND_NS, (double)total / took_ns);
        tell(progress, said);
    } else if (now - progress->told_ns >= SECOND_NS) {
        progress->told_ns = now;
        snprintf(said, sizeof(said), "%.1f of %.1f GiB (%.0f %%), %.1f GB/s", (double)done / GIB,
                 all, 100 * (double)done / (double)total, (double)done / took_ns);
        tell(progress, said);
    }
    return !progress->stops || !atomic_load(progress->stops);
}
