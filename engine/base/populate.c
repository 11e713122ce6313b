/* populate.c - see populate.h.  Linux has MADV_POPULATE_WRITE since 5.14. */
#define _GNU_SOURCE /* madvise */

#include "engine/base/populate.h"

#include <stdint.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    LEAST = 64 * 1024, /* less is likely to have pages, and costs few faults */
};

void populate(void *bytes, size_t size) {
#ifdef MADV_POPULATE_WRITE
    const uintptr_t first = ((uintptr_t)bytes + PAGE - 1) / PAGE * PAGE,
                    end = ((uintptr_t)bytes + size) / PAGE * PAGE;
    if (size >= LEAST) (void)madvise((void *)first, end - first, MADV_POPULATE_WRITE);
#else
    (void)bytes, (void)size;
#endif
}
