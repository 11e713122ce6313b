/* numa.c - see numa.h.  It makes the system call itself: libnuma would be one more thing to
 * install. */
#include "cuda/host/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAX_NODES = 1024, WORD_BITS = 8 * sizeof(unsigned long) };

int numa_read_node(const char *path) {
    int node = NUMA_ANY;
    FILE *file = fopen(path, "r");
    if (!file) return NUMA_ANY;
    if (fscanf(file, "%d", &node) != 1 || node < 0) node = NUMA_ANY;
    fclose(file);
    return node;
}

int numa_prefer(void *base, size_t bytes, int node) {
    unsigned long nodes[MAX_NODES / WORD_BITS] = {0};
    if (node < 0 || node >= MAX_NODES) return EINVAL;
    nodes[node / WORD_BITS] |= 1UL << node % WORD_BITS;
    /* The kernel reads one bit less than the number that it is given. */
    return syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, nodes, MAX_NODES + 1, 0) ? errno : 0;
}

bool numa_try(int node) {
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return false;
    const bool taken = numa_prefer(page, bytes, node) == 0;
    munmap(page, bytes);
    return taken;
}
