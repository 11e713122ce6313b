/* cgroup.c - see cgroup.h. */
#include "engine/base/cgroup.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The path of a group, and of a file of it.  A longer one is not read. */
enum { PATH_BYTES = 256, LINE_BYTES = 512 };
/* Version 1 writes a number near 2^63 where there is no limit. */
static const uint64_t UNLIMITED = 1ull << 60;

/* A hierarchy: where it is mounted, and which line of /proc/self/cgroup has the group's path. */
struct hierarchy {
    const char *mount;
    const char *controller; /* "": version 2 */
};

typedef void (*group_reader)(const char *folder, void *ctx);

/* Tells whether the list "cpu,cpuacct" has the controller. */
static bool lists(const char *list, size_t length, const char *controller) {
    const size_t n = strlen(controller);
    if (n == 0) return length == 0;
    for (const char *at = list; at < list + length; at += strcspn(at, ",:") + 1)
        if (strncmp(at, controller, n) == 0 && (at[n] == ',' || at[n] == ':')) return true;
    return false;
}

/* Reads the group's path of a line "ID:controllers:path"; returns whether it is the hierarchy's. */
static bool read_path(char out[PATH_BYTES], char *line, const char *controller) {
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path || !lists(list + 1, (size_t)(path - list - 1), controller)) return false;
    path++;
    path[strcspn(path, "\n")] = '\0';
    /* Above the root of the group namespace, which is what is mounted, nothing can be read. */
    const bool is_usable = path[0] == '/' && !strstr(path, "/..") && strlen(path) < PATH_BYTES;
    snprintf(out, PATH_BYTES, "%s", is_usable ? path : "");
    return true;
}

static void find_path(char out[PATH_BYTES], const char *root, const char *controller) {
    char name[PATH_BYTES], line[LINE_BYTES];
    out[0] = '\0';
    snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "r");
    if (!file) return;
    while (fgets(line, sizeof(line), file) && !read_path(out, line, controller)) {
    }
    fclose(file);
}

/* Calls read() with the folders of the process's group and of all groups above it. */
static void visit(const char *root, const struct hierarchy *hierarchy, group_reader read,
                  void *ctx) {
    char path[PATH_BYTES], folder[CGROUP_FILE_BYTES];
    find_path(path, root, hierarchy->controller);
    for (;;) {
        const size_t length = strlen(path);
        if (length > 0 && path[length - 1] == '/') path[length - 1] = '\0';
        const int n = snprintf(folder, sizeof(folder), "%s%s%s", root, hierarchy->mount, path);
        if (n > 0 && (size_t)n < sizeof(folder)) read(folder, ctx);
        char *slash = strrchr(path, '/');
        if (!slash) return;
        *slash = '\0';
    }
}

/* Opens a file of the group.  NULL: it has none. */
static FILE *open_file(const char *folder, const char *name) {
    char path[CGROUP_FILE_BYTES + 64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return fopen(path, "r");
}

/* Reads one number; UINT64_MAX: there is none, as for "max". */
static uint64_t read_number(const char *folder, const char *name) {
    FILE *file = open_file(folder, name);
    uint64_t value;
    if (!file) return UINT64_MAX;
    if (fscanf(file, "%" SCNu64, &value) != 1) value = UINT64_MAX;
    fclose(file);
    return value;
}

/* Adds up the lines "NAME VALUE" of memory.stat that tell of cached files. */
static uint64_t read_cached(const char *folder, const char *const names[2]) {
    FILE *file = open_file(folder, "memory.stat");
    char name[64];
    uint64_t value, sum = 0;
    if (!file) return 0;
    while (fscanf(file, "%63s %" SCNu64, name, &value) == 2)
        if (strcmp(name, names[0]) == 0 || strcmp(name, names[1]) == 0) sum += value;
    fclose(file);
    return sum;
}

/* ---- memory ---- */

struct memory_files {
    const char *limits[2]; /* NULL: one is all */
    const char *used;
    const char *cached[2];
};

static void read_memory(const char *folder, const struct memory_files *files,
                        struct cgroup_memory *out) {
    uint64_t limit = UINT64_MAX;
    for (unsigned i = 0; i < 2 && files->limits[i]; i++) {
        const uint64_t one = read_number(folder, files->limits[i]);
        if (one >= limit || one >= UNLIMITED) continue;
        limit = one;
        if (limit >= out->limit) continue;
        out->limit = limit;
        snprintf(out->file, sizeof(out->file), "%.400s/%s", folder, files->limits[i]);
    }
    const uint64_t current = read_number(folder, files->used);
    if (limit == UINT64_MAX || current == UINT64_MAX) return;
    const uint64_t cached = read_cached(folder, files->cached),
                   used = current > cached ? current - cached : 0,
                   left = limit > used ? limit - used : 0;
    if (left < out->left) out->left = left;
}

static void read_memory_v2(const char *folder, void *ctx) {
    static const struct memory_files files = {.limits = {"memory.max", "memory.high"},
                                              .used = "memory.current",
                                              .cached = {"inactive_file", "active_file"}};
    read_memory(folder, &files, ctx);
}

/* Reads a group of version 1.  Its numbers with "total_" are of the group and those below it, which
 * is what the limit counts. */
static void read_memory_v1(const char *folder, void *ctx) {
    static const struct memory_files files = {
        .limits = {"memory.limit_in_bytes"},
        .used = "memory.usage_in_bytes",
        .cached = {"total_inactive_file", "total_active_file"}};
    read_memory(folder, &files, ctx);
}

void cgroup_memory(struct cgroup_memory *out, const char *root) {
    *out = (struct cgroup_memory){.limit = UINT64_MAX, .left = UINT64_MAX};
    visit(root, &(struct hierarchy){"/sys/fs/cgroup", ""}, read_memory_v2, out);
    visit(root, &(struct hierarchy){"/sys/fs/cgroup/unified", ""}, read_memory_v2, out);
    visit(root, &(struct hierarchy){"/sys/fs/cgroup/memory", "memory"}, read_memory_v1, out);
}

/* ---- CPUs ---- */

static void take_quota(double *out, double quota, double period) {
    if (quota > 0 && period > 0 && (*out == 0 || quota / period < *out)) *out = quota / period;
}

static void read_cpus_v2(const char *folder, void *ctx) {
    FILE *file = open_file(folder, "cpu.max");
    uint64_t quota, period;
    if (!file) return;
    if (fscanf(file, "%" SCNu64 " %" SCNu64, &quota, &period) == 2)
        take_quota(ctx, (double)quota, (double)period);
    fclose(file);
}

/* Reads a group of version 1, where a quota of -1 is none. */
static void read_cpus_v1(const char *folder, void *ctx) {
    FILE *file = open_file(folder, "cpu.cfs_quota_us");
    int64_t quota = -1;
    if (!file) return;
    const uint64_t period = read_number(folder, "cpu.cfs_period_us");
    if (fscanf(file, "%" SCNd64, &quota) == 1 && period != UINT64_MAX)
        take_quota(ctx, (double)quota, (double)period);
    fclose(file);
}

double cgroup_cpus(const char *root) {
    double cpus = 0;
    visit(root, &(struct hierarchy){"/sys/fs/cgroup", ""}, read_cpus_v2, &cpus);
    visit(root, &(struct hierarchy){"/sys/fs/cgroup/unified", ""}, read_cpus_v2, &cpus);
    visit(root, &(struct hierarchy){"/sys/fs/cgroup/cpu", "cpu"}, read_cpus_v1, &cpus);
    visit(root, &(struct hierarchy){"/sys/fs/cgroup/cpu,cpuacct", "cpu"}, read_cpus_v1, &cpus);
    return cpus;
}
