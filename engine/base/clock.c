/* clock.c - see clock.h. */
#include "engine/base/clock.h"

#include <time.h>

uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

struct timespec clock_at(double seconds) {
    const time_t whole = (time_t)seconds;
    return (struct timespec){.tv_sec = whole, .tv_nsec = (long)((seconds - (double)whole) * 1e9)};
}

double clock_seconds(void) {
    return 1e-9 * (double)clock_ns();
}
