/* host_pool.h - tokens in system memory that the device can access, and its operations.
 *
 * It holds tokens of sequences that select (select.h), and pages of sequences that wait.
 *
 * Thread: engine.  Memory: the pool, from alloc() to free(). */
#ifndef ENGINE_DEVICE_HOST_POOL_H
#define ENGINE_DEVICE_HOST_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/sizes.h"
#include "engine/device/pages.h"

struct backend;
struct error;

/* The host pool: system memory for tokens of sparse layers that are not in the KV pool.  It is
 * [n_blocks][n_host_layers][PAGE_TOKENS] tokens, each [K, V][n_kv_heads][head_dim] and one
 * contiguous read.  A host block is PAGE_TOKENS tokens of one sequence.  A host layer is a block's
 * part for one sparse layer, in the order of the layers.
 *
 * With fp8 each element is a byte.  The scales follow, a byte for each head's key and value: they
 * are powers of two, so that scaling loses no bit, and values that 4 bits can hold return
 * unchanged.
 *
 *   token     u8 [K, V][n_kv_heads][head_dim], u8 [K, V][n_kv_heads], up to a multiple of 16
 *   element   (e4m3) * 2^(scale - 127), rounded to nearest even: finite elements are off by at most
 *             a 16th, or those below 2^(scale - 133) by 2^(scale - 137); NaN stays NaN
 *   scale     the least of 1 … FP8_MOST_SCALE with which 448, e4m3's largest, covers every element;
 *             elements that the largest scale does not cover, and infinity, become 448 times it */
struct host_pool {
    void *base;              /* from host_pool_ops.alloc() */
    enum page_format format; /* of the KV pool */
    uint32_t n_blocks, n_host_layers, n_kv_heads, head_dim;
    bool fp8; /* true if page_is_scaled(), and then nothing is converted */
};

/* 448 times the largest scale is finite in f32 and bf16, and in f16. */
enum { FP8_MOST_SCALE = 246, FP8_MOST_SCALE_F16 = 134 };

/* Returns how the host pool stores elements. */
PAGE_FUNCTION enum page_format host_pool_format(const struct host_pool *store) {
    return store->fp8 && !page_is_scaled(store->format) ? PAGE_FP8 : store->format;
}

/* Returns the bytes of a token. */
PAGE_FUNCTION size_t host_pool_token_bytes(const struct host_pool *store) {
    const enum page_format format = host_pool_format(store);
    const uint32_t row_bytes = page_row_bytes(format, store->head_dim) + page_scale_bytes(format);
    const uint32_t bytes = 2 * store->n_kv_heads * row_bytes;
    return page_is_scaled(format) ? (bytes + 15) / 16 * 16 : bytes;
}

static inline size_t host_pool_block_bytes(const struct host_pool *store) {
    return store->n_host_layers * PAGE_TOKENS * host_pool_token_bytes(store);
}

/* Returns true if a token that has been in the host pool has the bits that it had before. */
static inline bool host_pool_is_exact(const struct host_pool *store) {
    return host_pool_format(store) == store->format;
}

/* Copies n pages of a layer of the pool to one host layer of n host blocks, or back, after all
 * operations submitted before.  Operations after the next step_begin() may overwrite what was read,
 * and read what was written. */
struct offload_args {
    const struct kv_pool *kv;
    const struct host_pool *store;
    uint32_t host_layer, n;
    const uint32_t *pages, *blocks; /* host [n] */
};

/* NULL in backend_ops: this backend has no host pool. */
struct host_pool_ops {
    /* Allocates system memory that the device can access, for host_pool.base; not cleared. */
    int (*alloc)(struct backend *be, size_t bytes, void **out, struct error *err);
    void (*free)(struct backend *be, void *memory);
    /* Copies pages to the host pool, as struct offload_args says; called between steps. */
    int (*offload)(struct backend *be, const struct offload_args *args, struct error *err);
    /* Copies them back, from an exact host pool; called between steps, too.  May follow offload()
     * to the same blocks directly. */
    int (*reload)(struct backend *be, const struct offload_args *args, struct error *err);
};

#endif
