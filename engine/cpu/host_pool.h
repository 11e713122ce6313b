/* host_pool.h - a token's keys and values of one layer: in a page, and in the host pool.
 *
 * Thread: the engine's, and workers on tokens of their own.  Memory: none. */
#ifndef ENGINE_CPU_HOST_POOL_H
#define ENGINE_CPU_HOST_POOL_H

#include <stdint.h>

struct kv_pool;
struct host_pool;

/* A token's place in the host pool; `at` is the token within the block. */
struct host_token {
    uint32_t block, host_layer, at;
};

/* Writes a token's keys and values from the host pool into slot `at` of a page. */
void token_from_block(const struct kv_pool *kv, uint32_t page, uint32_t at,
                      const struct host_pool *host, struct host_token from);

#endif
