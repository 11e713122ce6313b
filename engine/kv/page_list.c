/* page_list.c - see page_list.h. */
#include "engine/kv/page_list.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/kv/page_pool.h"

uint32_t kv_grown(uint32_t capacity, uint32_t need) {
    return max_u32(capacity < UINT32_MAX / 2 ? 2 * capacity : UINT32_MAX, need);
}

int kv_list_grow(struct page_list *list, uint32_t n_pages) {
    if (n_pages <= list->capacity) return 0;
    const uint32_t capacity = kv_grown(list->capacity, n_pages);
    uint32_t *pages = realloc(list->pages, capacity * sizeof(*pages));
    if (!pages) return ERR_NOMEM;
    list->pages = pages;
    list->capacity = capacity;
    return 0;
}

void kv_list_trim(struct page_list *list, struct page_pool *pool, uint32_t n_pages) {
    if (list->n <= n_pages) return;
    for (uint32_t i = n_pages; i < list->n; i++)
        if (list->pages[i] != KV_NO_PAGE) page_pool_release(pool, &list->pages[i], 1);
    list->n = n_pages;
}
