/* cgroup.h - what the control groups of this process allow: memory and CPUs, in both versions.
 *
 * A limit of any group above counts as one of the process's own group does.  A container sees its
 * own group at the root of the hierarchy; a service of systemd sees the whole tree, and its place
 * in it is in /proc/self/cgroup.  So for each place where a hierarchy is mounted by convention, the
 * group's folder and all folders above it are read, as far as they exist:
 *
 *   version 2   /sys/fs/cgroup, /sys/fs/cgroup/unified   memory.max, memory.high, cpu.max
 *   version 1   /sys/fs/cgroup/memory, .../cpu, ...      memory.limit_in_bytes, cpu.cfs_quota_us
 *
 * Every function takes a root, which is "" but in tests.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_CGROUP_H
#define ENGINE_BASE_CGROUP_H

#include <stdint.h>

enum { CGROUP_FILE_BYTES = 512 };

struct cgroup_memory {
    uint64_t limit;               /* bytes of the lowest limit; UINT64_MAX: there is none */
    char file[CGROUP_FILE_BYTES]; /* that has it */
    /* What is left within all limits.  Cached files are not counted as used: the kernel drops them
     * when memory is asked for.  UINT64_MAX: there is no limit. */
    uint64_t left;
};

void cgroup_memory(struct cgroup_memory *out, const char *root);

/* Returns how many CPUs the lowest quota allows, such as 1.5.  0: there is none. */
double cgroup_cpus(const char *root);

#endif
