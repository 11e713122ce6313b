/* test_cgroup.c - limits of control groups, read from folders that look like /proc and /sys. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/cgroup.h"
#include "tests/test.h"

static const uint64_t MIB = 1 << 20;
static char root[64];

static int make_root(void **state) {
    snprintf(root, sizeof(root), "/tmp/test_cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int drop_root(void **state) {
    char command[96];
    snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

/* Writes a file below the root, and makes its folders. */
static void put(const char *name, const char *text) {
    char path[512];
    const int n = snprintf(path, sizeof(path), "%s%s", root, name);
    assert_true(n > 0 && (size_t)n < sizeof(path));
    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        mkdir(path, 0755);
        *at = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void put_mib(const char *name, uint64_t mib) {
    char text[32];
    snprintf(text, sizeof(text), "%llu\n", (unsigned long long)(mib * MIB));
    put(name, text);
}

static void check_memory(uint64_t limit_mib, uint64_t left_mib, const char *file) {
    struct cgroup_memory memory;
    cgroup_memory(&memory, root);
    assert_int_equal(memory.limit, limit_mib ? limit_mib * MIB : UINT64_MAX);
    assert_int_equal(memory.left, limit_mib ? left_mib * MIB : UINT64_MAX);
    if (file) assert_string_equal(memory.file + strlen(root), file);
}

TEST_WITH(nothing_limits_without_files, make_root, drop_root) {
    check_memory(0, 0, NULL);
    assert_true(cgroup_cpus(root) == 0);
    put("/proc/self/cgroup", "garbage\n::\n0::\n7:memory\n:::::\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    check_memory(0, 0, NULL);
    assert_true(cgroup_cpus(root) == 0);
}

TEST_WITH(a_container_sees_its_group_at_the_root, make_root, drop_root) {
    put("/proc/self/cgroup", "0::/\n");
    put_mib("/sys/fs/cgroup/memory.max", 2048);
    put_mib("/sys/fs/cgroup/memory.current", 1950);
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    check_memory(2048, 98, "/sys/fs/cgroup/memory.max");
    assert_true(cgroup_cpus(root) == 1.5);
    /* Cached files can be dropped; what else is in the file does not count. */
    put("/sys/fs/cgroup/memory.stat", "anon 20971520\nfile 1992294400\ninactive_file 1468006400\n"
                                      "active_file 524288000\ninactive_anon 5\nshmem 7\n");
    check_memory(2048, 1998, NULL);
    put_mib("/sys/fs/cgroup/memory.high", 1024);
    check_memory(1024, 974, "/sys/fs/cgroup/memory.high");
    put("/sys/fs/cgroup/memory.high", "max\n");
    put_mib("/sys/fs/cgroup/memory.current", 4096);
    put("/sys/fs/cgroup/memory.stat", "");
    check_memory(2048, 0, NULL);
}

TEST_WITH(a_service_is_limited_by_every_group_above, make_root, drop_root) {
    put("/proc/self/cgroup", "0::/system.slice/quire.service\n");
    put("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    put_mib("/sys/fs/cgroup/system.slice/quire.service/memory.max", 900);
    put_mib("/sys/fs/cgroup/system.slice/quire.service/memory.current", 100);
    put("/sys/fs/cgroup/system.slice/quire.service/cpu.max", "max 100000\n");
    check_memory(900, 800, "/sys/fs/cgroup/system.slice/quire.service/memory.max");
    /* The slice has more, but others use most of it. */
    put_mib("/sys/fs/cgroup/system.slice/memory.max", 1000);
    put_mib("/sys/fs/cgroup/system.slice/memory.current", 950);
    put("/sys/fs/cgroup/system.slice/cpu.max", "300000 100000\n");
    check_memory(900, 50, "/sys/fs/cgroup/system.slice/quire.service/memory.max");
    assert_true(cgroup_cpus(root) == 3);
    put("/sys/fs/cgroup/system.slice/quire.service/cpu.max", "50000 200000\n");
    assert_true(cgroup_cpus(root) == 0.25);
}

TEST_WITH(version_1_has_a_hierarchy_for_each, make_root, drop_root) {
    put("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/a/b\n2:cpu,cpuacct:/a\n0::/\n");
    put_mib("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", 500);
    put_mib("/sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", 400);
    put("/sys/fs/cgroup/memory/a/b/memory.stat",
        "cache 1\ninactive_file 1\ntotal_inactive_file 314572800\ntotal_active_file 0\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    check_memory(500, 400, "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes");
    assert_true(cgroup_cpus(root) == 2);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_true(cgroup_cpus(root) == 1);
}

/* Docker shows the host's path, but mounts the container's own group. */
TEST_WITH(a_path_that_is_not_mounted_is_passed_over, make_root, drop_root) {
    put("/proc/self/cgroup", "4:memory:/docker/0123456789abcdef\n2:cpu:/docker/0123456789abcdef\n");
    put_mib("/sys/fs/cgroup/memory/memory.limit_in_bytes", 300);
    put_mib("/sys/fs/cgroup/memory/memory.usage_in_bytes", 100);
    check_memory(300, 200, NULL);
    put("/proc/self/cgroup", "0::/../../kubepods/pod1\n");
    put_mib("/sys/fs/cgroup/memory.max", 200);
    put_mib("/sys/fs/cgroup/memory.current", 150);
    check_memory(200, 50, NULL);
    /* Beside version 1 version 2 may have the memory: systemd's hybrid hierarchy. */
    put("/proc/self/cgroup", "0::/s\n");
    put_mib("/sys/fs/cgroup/unified/s/memory.max", 90);
    put_mib("/sys/fs/cgroup/unified/s/memory.current", 50);
    check_memory(90, 40, NULL);
}

TEST_WITH(long_lines_are_survived, make_root, drop_root) {
    char *line = malloc(8192);
    assert_non_null(line);
    memset(line, 'x', 8191);
    memcpy(line, "0::/", 4);
    line[8191] = '\0';
    put("/proc/self/cgroup", line);
    free(line);
    put_mib("/sys/fs/cgroup/memory.max", 64);
    put_mib("/sys/fs/cgroup/memory.current", 1);
    put("/sys/fs/cgroup/memory.stat", "inactive_file\nactive_file x\n");
    put("/sys/fs/cgroup/cpu.max", "100000\n");
    check_memory(64, 63, NULL);
    assert_true(cgroup_cpus(root) == 0);
}
