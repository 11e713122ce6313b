/* host_pool.c - the host pool, tokens in the system's memory: how a token lies there, and copies of
 * pages to it and back (the contract is in engine/device/host_pool.h).
 *
 * Where the host pool and pages have the same type of elements, a row is copied as it is, with its
 * scale. */
#include "engine/cpu/host_pool.h"

#include "engine/cpu/backend.h"
#include "engine/cpu/fp8.h"
#include "engine/cpu/pages.h"
#include "engine/device/backend.h"
#include "engine/device/host_pool.h"
#include "engine/device/pages.h"

static char *token_in_block(const struct host_pool *host, struct host_token place) {
    return (char *)host->base + place.block * host_pool_block_bytes(host) +
           ((size_t)place.host_layer * PAGE_TOKENS + place.at) * host_pool_token_bytes(host);
}

void token_from_block(const struct kv_pool *kv, uint32_t page, uint32_t at,
                      const struct host_pool *host, struct host_token place) {
    const uint32_t n_rows = 2 * kv->n_kv_heads, dim = kv->head_dim;
    const char *from = token_in_block(host, place);
    const size_t bytes = page_row_bytes(host_pool_format(host), dim);
    const uint8_t *scales = (const uint8_t *)from + n_rows * bytes;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct page_row row = page_row(kv, page, i, at);
        if (page_is_scaled(kv->format)) page_scales(kv, page, i)[at] = scales[i];
        if (!host_pool_is_exact(host))
            fp8_unpack(row.first, row.stride, (const uint8_t *)from + i * bytes, scales[i], dim,
                       page_element(kv->format));
        else copy_elements(row.first, row.stride, from + i * bytes, 1, dim, kv->format);
    }
}

static void token_to_block(const struct kv_pool *kv, uint32_t page, uint32_t at,
                           const struct host_pool *host, struct host_token place) {
    const uint32_t n_rows = 2 * kv->n_kv_heads, dim = kv->head_dim;
    char *to = token_in_block(host, place);
    const size_t bytes = page_row_bytes(host_pool_format(host), dim);
    uint8_t *scales = (uint8_t *)to + n_rows * bytes;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct page_row row = page_row(kv, page, i, at);
        if (page_is_scaled(kv->format)) scales[i] = page_scales(kv, page, i)[at];
        if (!host_pool_is_exact(host))
            scales[i] = fp8_pack((uint8_t *)to + i * bytes, 1, row.first, row.stride, dim,
                                 page_element(kv->format));
        else copy_elements(to + i * bytes, 1, row.first, row.stride, dim, kv->format);
    }
}

static void store_task(void *ctx, uint32_t task, uint32_t worker) {
    (void)worker;
    const struct offload_args *args = ctx;
    for (uint32_t at = 0; at < PAGE_TOKENS; at++)
        token_to_block(args->kv, args->pages[task], at, args->store,
                       (struct host_token){args->blocks[task], args->host_layer, at});
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
        token_from_block(args->kv, args->pages[task], at, args->store,
                         (struct host_token){args->blocks[task], args->host_layer, at});
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
