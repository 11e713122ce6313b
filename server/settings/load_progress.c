/* load_progress.c - see load_progress.h. */
#include "server/settings/load_progress.h"

#include "engine/base/clock.h"
#include "server/settings/log.h"

/* Loading in less than MAPPED_NS is faster than any copy of a model: the backend has mapped the
 * files' pages. */
static const uint64_t SECOND_NS = 1000 * 1000 * 1000, MAPPED_NS = 2 * 1000 * 1000;
static const double GIB = 1 << 30;

bool load_progress_tell(void *ctx, uint64_t done, uint64_t total) {
    struct load_progress *progress = ctx;
    const uint64_t now = clock_ns();
    if (done == 0) progress->begun_ns = progress->told_ns = now;
    const double took_ns = (double)(now - progress->begun_ns);
    if (done == total && took_ns < (double)MAPPED_NS) {
        log_event(LOG_INFO, "weights: %.2f GiB, mapped", (double)total / GIB);
    } else if (done == total) {
        log_event(LOG_INFO, "weights: %.2f GiB in %.2f s (%.1f GB/s)", (double)total / GIB,
                  took_ns / (double)SECOND_NS, (double)total / took_ns);
    } else if (now - progress->told_ns >= SECOND_NS) {
        progress->told_ns = now;
        log_event(LOG_INFO, "weights: %.1f of %.1f GiB (%.0f %%), %.1f GB/s", (double)done / GIB,
                  (double)total / GIB, 100 * (double)done / (double)total, (double)done / took_ns);
    }
    return !progress->stops || !atomic_load(progress->stops);
}
