/* host_pool_memory.h - which memory of the machine the device reads, and what of it has offloaded
 * experts.
 *
 * Thread: engine.  Memory: none of its own. */
#ifndef CUDA_KV_HOST_POOL_MEMORY_H
#define CUDA_KV_HOST_POOL_MEMORY_H

#include <stdint.h>

struct cuda_backend;

/* Returns the memory of host_pool_ops.alloc() that has this address; NULL: none. */
void *host_pool_find(struct cuda_backend *cuda, const void *at);
/* Returns the bytes of the largest matrix of offloaded experts, with its scales; 0: there is
 * none. */
uint64_t host_pool_most_offloaded(struct cuda_backend *cuda);

#endif
