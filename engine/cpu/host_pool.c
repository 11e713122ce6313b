/* host_pool.c - the host pool, tokens in the system's memory: how a token lies there, and copies of
 * pages to it and back (the contract is in engine/device/host_pool.h).
 *
 * A row is one head's key or value of a token: head_dim elements.  In a page, elements of a value
 * are adjacent and those of a key PAGE_TOKENS apart.  Where pages are of DTYPE_FP8, a row is copied
 * as it is, with its scale. */
#include "engine/cpu/host_pool.h"

#include "engine/cpu/fp8.h"
#include "engine/cpu/tile.h"
#include "engine/device/backend.h"
#include "engine/device/dtype.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

struct row {
    char *first;
    uint32_t stride;
};

static struct row row_in_page(const struct kv_pool *kv, uint32_t page, uint32_t at, uint32_t row) {
    const size_t size = dtype_size(kv->dtype);
    char *of_head = page_of_head(kv, page, row);
    if (row < kv->n_kv_heads) return (struct row){of_head + at * size, PAGE_TOKENS};
    return (struct row){of_head + at * kv->head_dim * size, 1};
}

static char *token_in_store(const struct host_pool *store, struct stored place) {
    return (char *)store->base + place.block * host_pool_block_bytes(store) +
           ((size_t)place.host_layer * PAGE_TOKENS + place.at) * host_pool_token_bytes(store);
}

void token_from_store(const struct kv_pool *kv, uint32_t page, uint32_t at,
                      const struct host_pool *store, struct stored place) {
    const uint32_t n_rows = 2 * kv->n_kv_heads, dim = kv->head_dim;
    const char *from = token_in_store(store, place);
    const uint8_t *scales = (const uint8_t *)from + (size_t)n_rows * dim;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct row row = row_in_page(kv, page, at, i);
        if (kv->dtype == DTYPE_FP8) page_scales(kv, page, i)[at] = scales[i];
        if (store->fp8 && kv->dtype != DTYPE_FP8)
            fp8_unpack(row.first, row.stride, (const uint8_t *)from + (size_t)i * dim, scales[i],
                       dim, page_element(kv));
        else
            copy_elements(row.first, row.stride, from + (size_t)i * dim * dtype_size(kv->dtype), 1,
                          dim, kv->dtype);
    }
}

static void token_to_store(const struct kv_pool *kv, uint32_t page, uint32_t at,
                           const struct host_pool *store, struct stored place) {
    const uint32_t n_rows = 2 * kv->n_kv_heads, dim = kv->head_dim;
    char *to = token_in_store(store, place);
    uint8_t *scales = (uint8_t *)to + (size_t)n_rows * dim;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct row row = row_in_page(kv, page, at, i);
        if (kv->dtype == DTYPE_FP8) scales[i] = page_scales(kv, page, i)[at];
        if (store->fp8 && kv->dtype != DTYPE_FP8)
            scales[i] = fp8_pack((uint8_t *)to + (size_t)i * dim, 1, row.first, row.stride, dim,
                                 page_element(kv));
        else
            copy_elements(to + (size_t)i * dim * dtype_size(kv->dtype), 1, row.first, row.stride,
                          dim, kv->dtype);
    }
}

static void store_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct offload_args *args = ctx;
    for (uint32_t at = 0; at < PAGE_TOKENS; at++)
        token_to_store(args->kv, args->pages[task], at, args->store,
                       (struct stored){args->blocks[task], args->host_layer, at});
}

static int offload(struct backend *be, const struct offload_args *args, struct error *err) {
    (void)err;
    struct offload_args job = *args;
    pool_run(((struct cpu_backend *)be)->pool, store_task, &job, args->n);
    return 0;
}

static void reload_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct offload_args *args = ctx;
    for (uint32_t at = 0; at < PAGE_TOKENS; at++)
        token_from_store(args->kv, args->pages[task], at, args->store,
                         (struct stored){args->blocks[task], args->host_layer, at});
}

static int reload(struct backend *be, const struct offload_args *args, struct error *err) {
    (void)err;
    struct offload_args job = *args;
    pool_run(((struct cpu_backend *)be)->pool, reload_task, &job, args->n);
    return 0;
}

const struct host_pool_ops cpu_host_pool_ops = {
    .alloc = cpu_alloc,
    .free = cpu_free,
    .offload = offload,
    .reload = reload,
};
