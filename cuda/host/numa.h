/* numa.h - finds the NUMA node near a device, and requests memory there: data that crosses to
 * another processor on its way to the bus arrives more slowly.
 *
 * No CUDA.  Thread: any.  Memory: none. */
#ifndef CUDA_HOST_NUMA_H
#define CUDA_HOST_NUMA_H

#include <stdbool.h>
#include <stddef.h>

enum { NUMA_ANY = -1 };

/* Returns the node whose number the file holds; NUMA_ANY if there is no such file, or it says
 * so. */
int numa_read_node(const char *path);

/* Makes pages of the mapping that are touched from now on come from the node as long as it has any,
 * then from others.  Returns 0, or the errno with which the kernel refuses: pages then come from
 * any node. */
int numa_prefer(void *base, size_t bytes, int node);

/* Says whether numa_prefer() would work for the node: containers may forbid it. */
bool numa_try(int node);

#endif
