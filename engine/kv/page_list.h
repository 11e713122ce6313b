/* page_list.h - a list of page numbers, or of host blocks, that grows.
 *
 * Thread: engine.  Memory: grows geometrically and is never shortened; the owner frees `pages`. */
#ifndef ENGINE_KV_PAGE_LIST_H
#define ENGINE_KV_PAGE_LIST_H

#include <stdint.h>

struct page_pool;

/* A place in a list for which there is no page, or host block, yet. */
#define KV_NO_PAGE UINT32_MAX

struct page_list {
    uint32_t *pages; /* in slot order */
    uint32_t n, capacity;
};

/* Returns the larger of twice the capacity and `need`. */
uint32_t kv_grown(uint32_t capacity, uint32_t need);
/* Makes capacity for n_pages pages in a list.  ERR_NOMEM: the list is as it was. */
int kv_list_grow(struct page_list *list, uint32_t n_pages);
/* Gives all but the list's first n_pages pages back to the pool, and skips places without a
 * page. */
void kv_list_trim(struct page_list *list, struct page_pool *pool, uint32_t n_pages);

#endif
