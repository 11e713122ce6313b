/* numa.h - which of the system's memory is near a device, and asking for that: what crosses to
 * another processor on its way to the bus arrives more slowly.
 *
 * No CUDA.  Thread: any.  Memory: none. */
#ifndef CUDA_HOST_NUMA_H
#define CUDA_HOST_NUMA_H

#include <stdbool.h>
#include <stddef.h>

enum { NUMA_ANY = -1 };

/* The node whose number the file holds; NUMA_ANY where there is no such file, or it says so. */
int numa_read_node(const char *path);

/* Pages of the mapping that are touched from now on come from the node as long as it has any, then
 * from others.  0, or the errno with which the kernel refuses: pages then come from anywhere. */
int numa_prefer(void *base, size_t bytes, int node);

/* Whether it would be taken: containers may forbid it. */
bool numa_try(int node);

#endif
