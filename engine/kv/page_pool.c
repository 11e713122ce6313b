/* page_pool.c - free pages are a stack of numbers, and holders are counted beside it.  The page
 * freed last (still warm in a cache) is handed out first.
 *
 * Thread: engine.  Memory: arrays of n_pages numbers, made at create. */
#include "engine/kv/page_pool.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/base/error.h"

struct page_pool {
    uint32_t n_pages, n_free, n_offered[PAGE_N_OFFERS];
    uint32_t *free;                  /* [n_pages], the first n_free are free */
    uint32_t *holders;               /* [n_pages] */
    uint32_t *offers[PAGE_N_OFFERS]; /* [n_pages]: how many of them offer it */
};

int page_pool_create(struct page_pool **out, uint32_t n_pages, struct error *err) {
    struct page_pool *pool = calloc(1, sizeof(*pool));
    if (!pool) goto fail;
    pool->free = calloc((size_t)n_pages + 1, sizeof(*pool->free));
    pool->holders = calloc((size_t)n_pages + 1, sizeof(*pool->holders));
    if (!pool->free || !pool->holders) goto fail;
    for (unsigned by = 0; by < PAGE_N_OFFERS; by++) {
        pool->offers[by] = calloc((size_t)n_pages + 1, sizeof(*pool->offers[by]));
        if (!pool->offers[by]) goto fail;
    }
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
    for (unsigned by = 0; by < PAGE_N_OFFERS; by++) free(pool->offers[by]);
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

/* Counts the page among those that are offered, before (-1) and after (1) its holders or offers
 * change. */
static void count_offered(struct page_pool *pool, uint32_t page, int sign) {
    uint32_t n = 0;
    for (unsigned by = 0; by < PAGE_N_OFFERS; by++) {
        n += pool->offers[by][page];
        assert(n <= pool->holders[page]);
        if (pool->holders[page] > 0 && n == pool->holders[page])
            pool->n_offered[by] += (uint32_t)sign;
    }
}

void page_pool_share(struct page_pool *pool, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        assert(pages[i] < pool->n_pages && pool->holders[pages[i]] > 0);
        count_offered(pool, pages[i], -1);
        pool->holders[pages[i]]++;
        count_offered(pool, pages[i], 1);
    }
}

void page_pool_release(struct page_pool *pool, const uint32_t *pages, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        assert(pages[i] < pool->n_pages && pool->holders[pages[i]] > 0);
        count_offered(pool, pages[i], -1);
        if (--pool->holders[pages[i]] == 0) pool->free[pool->n_free++] = pages[i];
        count_offered(pool, pages[i], 1);
    }
}

static void change_offers(struct page_pool *pool, enum page_offer by, const uint32_t *pages,
                          uint32_t n, int by_one) {
    for (uint32_t i = 0; i < n; i++) {
        count_offered(pool, pages[i], -1);
        pool->offers[by][pages[i]] += (uint32_t)by_one;
        count_offered(pool, pages[i], 1);
    }
}

void page_pool_offer(struct page_pool *pool, enum page_offer by, const uint32_t *pages,
                     uint32_t n) {
    change_offers(pool, by, pages, n, 1);
}

void page_pool_withdraw(struct page_pool *pool, enum page_offer by, const uint32_t *pages,
                        uint32_t n) {
    change_offers(pool, by, pages, n, -1);
}

uint32_t page_pool_n_offered(const struct page_pool *pool, enum page_offer by) {
    return pool->n_offered[by];
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
