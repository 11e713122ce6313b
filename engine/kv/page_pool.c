/* page_pool.c - free pages are a stack of numbers, and holders are counted beside it.  The page
 * freed last (still warm in a cache) is handed out first.
 *
 * Thread: engine.  Memory: two arrays of n_pages numbers, made at create. */
#include "engine/kv/page_pool.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/error.h"

struct page_pool {
    uint32_t n_pages, n_free;
    uint32_t *free;    /* [n_pages], the first n_free are free */
    uint32_t *holders; /* [n_pages] */
};

int page_pool_create(struct page_pool **out, uint32_t n_pages, struct error *err) {
    struct page_pool *pool = calloc(1, sizeof(*pool));
    if (!pool) goto fail;
    pool->free = calloc((size_t)n_pages + 1, sizeof(*pool->free));
    pool->holders = calloc((size_t)n_pages + 1, sizeof(*pool->holders));
    if (!pool->free || !pool->holders) goto fail;
    pool->n_pages = pool->n_free = n_pages;
    /* Low numbers on top: an idle server touches only the beginning of the pool's memory. */
    for (uint32_t i = 0; i < n_pages; i++) pool->free[i] = n_pages - 1 - i;
    *out = pool;
    return 0;

fail:
    page_pool_destroy(pool);
    return error_set(err, ERR_NOMEM, "no memory to count %" PRIu32 " KV pages", n_pages);
}

void page_pool_destroy(struct page_pool *pool) {
    if (!pool) return;
    free(pool->free);
    free(pool->holders);
    free(pool);
}

int page_pool_take(struct page_pool *pool, uint32_t *pages, uint32_t n) {
    if (n > pool->n_free) return ERR_FULL;
    for (uint32_t i = 0; i < n; i++) {
        pages[i] = pool->free[--pool->n_free];
        pool->holders[pages[i]] = 1;
    }
    return 0;
}

void page_pool_take_sure(struct page_pool *pool, uint32_t *pages, uint32_t n) {
    const int code = page_pool_take(pool, pages, n);
    assert(code == 0);
    (void)code;
}

void page_pool_share(struct page_pool *pool, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        assert(pages[i] < pool->n_pages && pool->holders[pages[i]] > 0);
        pool->holders[pages[i]]++;
    }
}

void page_pool_release(struct page_pool *pool, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        assert(pages[i] < pool->n_pages && pool->holders[pages[i]] > 0);
        if (--pool->holders[pages[i]] == 0) pool->free[pool->n_free++] = pages[i];
    }
}

uint32_t page_pool_n_pages(const struct page_pool *pool) {
    return pool->n_pages;
}

uint32_t page_pool_n_free(const struct page_pool *pool) {
    return pool->n_free;
}

uint32_t page_pool_n_holders(const struct page_pool *pool, uint32_t page) {
    assert(page < pool->n_pages);
    return pool->holders[page];
}
