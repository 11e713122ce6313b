/* test_numa.c - where memory is asked for: what the kernel remembers of it, and what /sys says. */

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda/host/numa.h"
#include "tests/test.h"

enum { BYTES = 1 << 20 };

static int node_of_text(const char *text) {
    char path[] = "/tmp/quire-numa-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && dprintf(fd, "%s", text) >= 0);
    close(fd);
    const int node = numa_read_node(path);
    unlink(path);
    return node;
}

TEST(a_node_is_read) {
    assert_int_equal(node_of_text("0\n"), 0);
    assert_int_equal(node_of_text("13\n"), 13);
    assert_int_equal(node_of_text("-1\n"), NUMA_ANY);
    assert_int_equal(node_of_text(""), NUMA_ANY);
    assert_int_equal(node_of_text("none\n"), NUMA_ANY);
    assert_int_equal(numa_read_node("/nowhere/numa_node"), NUMA_ANY);
}

/* Node 0 is everywhere.  A kernel or a container without policies says so. */
TEST(the_kernel_remembers_what_is_preferred) {
    void *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    const int code = numa_prefer(base, BYTES, 0);
    assert_int_equal(numa_try(0), code == 0);
    if (code) assert_true(code == ENOSYS || code == EPERM);
    int mode = -1;
    if (!code && syscall(SYS_get_mempolicy, &mode, NULL, 0, base, MPOL_F_ADDR) == 0)
        assert_int_equal(mode, MPOL_PREFERRED);
    *(volatile char *)base = 1; /* it can be used, whatever was answered */
    munmap(base, BYTES);
}

TEST(what_cannot_be_is_refused) {
    void *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(base != MAP_FAILED);
    assert_int_equal(numa_prefer(base, BYTES, NUMA_ANY), EINVAL);
    assert_int_equal(numa_prefer(base, BYTES, 1 << 20), EINVAL);
    assert_int_not_equal(numa_prefer(base, BYTES, 1023), 0); /* no machine has it */
    assert_false(numa_try(1023));
    munmap(base, BYTES);
}
