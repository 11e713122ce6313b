/* system_memory.h - how much of the machine's memory this process may have, and how much is left.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_SYSTEM_MEMORY_H
#define ENGINE_SYSTEM_MEMORY_H

#include <stdint.h>

#include "engine/base/cgroup.h"

struct error;

struct system_memory {
    uint64_t
        total; /* bytes of the machine, or of the lowest limit of a control group; 0: unknown */
    uint64_t available;            /* that could be allocated now, within every limit; 0: unknown */
    char limit[CGROUP_FILE_BYTES]; /* the file with the limit; "": there is none */
};

void system_memory_read(struct system_memory *out);

/* Refuses what a setting asks for if, beside `others` bytes, it is more than there is in all:
 * ERR_NOMEM.  Unknown memory refuses nothing. */
int system_memory_check(const struct system_memory *memory, const char *setting, uint64_t bytes,
                        uint64_t others, struct error *err);

#endif
