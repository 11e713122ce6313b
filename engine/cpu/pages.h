/* pages.h - rows of pages on the CPU: where they are, and how they are written, read and copied.
 *
 * A page is laid out as engine/device/pages.h says, but the keys of a head are columns:
 *
 *   keys     [n_kv_heads][head_dim][PAGE_TOKENS]   scores of all slots are computed at once
 *   values   [n_kv_heads][PAGE_TOKENS][head_dim]
 *
 * Heads from n_kv_heads on are values here: head n_kv_heads + h has those of KV head h.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_CPU_PAGES_H
#define ENGINE_CPU_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/pages.h"
#include "engine/device/weight.h"

struct cpu_kernels;

/* Returns a head's rows in a page. */
static inline char *page_of_head(const struct kv_pool *kv, uint32_t page, uint32_t head) {
    const size_t head_bytes = (size_t)PAGE_TOKENS * page_row_bytes(kv->format, kv->head_dim);
    return kv_page_at(kv, page) + head * head_bytes;
}

/* A row's first element; the others follow, each `stride` elements behind the previous one. */
struct page_row {
    char *first;
    uint32_t stride;
};

static inline struct page_row page_row(const struct kv_pool *kv, uint32_t page, uint32_t head,
                                       uint32_t at) {
    char *of_head = page_of_head(kv, page, head);
    if (head < kv->n_kv_heads)
        return (struct page_row){of_head + at * page_row_bytes(kv->format, 1), PAGE_TOKENS};
    return (struct page_row){of_head + (size_t)at * page_row_bytes(kv->format, kv->head_dim), 1};
}

/* Returns the scales of a head's rows in a page that has any, one for each slot. */
static inline uint8_t *page_scales(const struct kv_pool *kv, uint32_t page, uint32_t head) {
    const struct page_layout layout = page_layout_of(kv);
    return (uint8_t *)kv_page_at(kv, page) + layout.scales_at +
           (size_t)head * PAGE_TOKENS * layout.scale_bytes;
}

static inline struct kv_page_state *page_state(const struct kv_pool *kv, uint32_t page,
                                               uint32_t kv_head) {
    return (void *)(kv_page_at(kv, page) + kv_state_offset(kv, kv_head));
}

/* A head's rows in a page as kernels take them. */
struct page_rows {
    const void *data;
    enum element element;
};

/* Returns the rows in place; or where they have scales, a dequantised copy in `workspace`, which
 * has PAGE_TOKENS * head_dim floats. */
struct page_rows page_rows(const struct cpu_kernels *kernels, const struct kv_pool *kv,
                           uint32_t page, uint32_t head, float *workspace);
/* Writes a row, from [head_dim], to a slot of a page; its scale, too. */
void page_write_row(const struct kv_pool *kv, uint32_t page, uint32_t head, uint32_t at,
                    const float *from);

/* Writes n elements; the two strides count elements. */
void copy_elements(char *to, uint32_t to_stride, const char *from, uint32_t from_stride, uint32_t n,
                   enum page_format format);
/* Writes a token's key and value for one KV head from a slot of one page to a slot of another. */
void copy_token(const struct kv_pool *kv, uint32_t kv_head, uint32_t to_page, uint32_t to_at,
                uint32_t from_page, uint32_t from_at);

#endif
