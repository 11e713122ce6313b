/* clock.h - reads a monotonic clock.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_CLOCK_H
#define ENGINE_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Counts from an unspecified time, the same for both functions. */
uint64_t clock_ns(void);
double clock_seconds(void);
/* Returns a time of clock_seconds() for pthread_cond_timedwait() with CLOCK_MONOTONIC. */
struct timespec clock_at(double seconds);

#endif
