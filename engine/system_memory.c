/* system_memory.c - see system_memory.h. */
#include "engine/system_memory.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"

static void read_machine(struct system_memory *out) {
    FILE *file = fopen("/proc/meminfo", "r");
    uint64_t kib;
    char line[128];
    if (!file) return;
    while (fgets(line, sizeof(line), file)) {
        if (sscanf(line, "MemTotal: %" SCNu64, &kib) == 1) out->total = kib * 1024;
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) out->available = kib * 1024;
    }
    fclose(file);
}

void system_memory_read(struct system_memory *out) {
    struct cgroup_memory group;
    *out = (struct system_memory){0};
    read_machine(out);
    cgroup_memory(&group, "");
    if (group.limit != UINT64_MAX && (out->total == 0 || group.limit < out->total)) {
        out->total = group.limit;
        snprintf(out->limit, sizeof(out->limit), "%s", group.file);
    }
    if (group.left == UINT64_MAX) return;
    /* 0 would say that it is unknown. */
    const uint64_t left = group.left ? group.left : 1;
    out->available = out->available ? min_u64(left, out->available) : left;
}

int system_memory_check(const struct system_memory *memory, const char *setting, uint64_t bytes,
                        uint64_t others, struct error *err) {
    const double gib = 1 << 30;
    if (memory->total == 0 || (bytes <= memory->total && others <= memory->total - bytes)) return 0;
    return error_set(err, ERR_NOMEM,
                     "%s takes %.2f GiB, and weights and other pools %.2f GiB, but %s%s %.2f GiB",
                     setting, (double)bytes / gib, (double)others / gib,
                     *memory->limit ? memory->limit : "the machine",
                     *memory->limit ? " allows" : " has", (double)memory->total / gib);
}
