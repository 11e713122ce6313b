/* page_list.h - a list of page numbers, or of host blocks, that grows.
 *
 * Thread: engine.  Memory: grows geometrically and is never shortened; the owner frees `pages`. */
#ifndef ENGINE_KV_PAGE_LIST_H
#define ENGINE_KV_PAGE_LIST_H

#include <stdint.h>

struct page_pool;

/* A place in a list for which there is no page, or host block, yet. */
#define KV_NO_PAGE UINT32_MAX

/* Zeroed: an empty list. */
struct page_list {
    uint32_t *pages;      /* numbers, in the order of the slots */
    uint32_t n, capacity; /* pages in the list; for which there is memory */
};

/* Returns how many elements an array should be enlarged to hold: the larger of twice its capacity
 * and `need`.  Twice a capacity that overflows is UINT32_MAX. */
uint32_t kv_grown(uint32_t capacity, uint32_t need);
/* Makes capacity for n_pages pages in all; n does not change.  ERR_NOMEM: the list is as it was. */
int kv_list_grow(struct page_list *list, uint32_t n_pages);
/* Shortens the list to at most n_pages pages, and releases the others to the pool.  Entries that
 * are KV_NO_PAGE are only removed. */
void kv_list_trim(struct page_list *list, struct page_pool *pool, uint32_t n_pages);

#endif
