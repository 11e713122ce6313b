/* clock.h - the time of a clock that is never set.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_CLOCK_H
#define ENGINE_BASE_CLOCK_H

#include <stdint.h>

/* Both count from the same unspecified moment. */
uint64_t clock_ns(void);
double clock_seconds(void);

#endif
