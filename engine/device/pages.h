/* pages.h - the KV pool and the layout of its pages.
 *
 * A page holds the keys and values of PAGE_TOKENS slots of one layer, and is named by its number in
 * one pool.  Keys are stored after RoPE, or before it with cache positions (evict.h).  The layout
 * is private to the backend: only operations read or write it.  The arithmetic is here; rows are
 * read and written in engine/cpu/pages.h and by CUDA's kernels (cuda/common/pages.cuh).  Each layer
 * of each sequence has its own list of pages.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_PAGES_H
#define ENGINE_DEVICE_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/sizes.h"
#include "engine/device/dtype.h"
#include "engine/device/weight.h"

enum { PAGE_TOKENS = 64, PAGE_ALIGN = 128 };

/* How pages store elements.  The first three formats are the types of activations, by the same
 * numbers.  Files contain the numbers, and settings and metrics the names, which are in the order
 * of the numbers. */
enum page_format { PAGE_F32, PAGE_F16, PAGE_BF16, PAGE_FP8 };
#define PAGE_FORMAT_NAMES "float32", "float16", "bfloat16", "fp8"

/* The KV heads of a layer. */
struct kv_shape {
    uint32_t n_heads, head_dim;
};

/* The KV pool and the shape of its pages.  Where layers have KV heads of several shapes each sees
 * the pool with its own, and page_bytes is that of the largest page.  A page holds:
 *
 *   keys and values   2 * n_kv_heads * PAGE_TOKENS * head_dim elements
 *   scales            if page_is_scaled(), u8 [K, V][n_kv_heads][PAGE_TOKENS]: one for each row,
 *                     that is each head's key or value of a slot
 *   states            if the pool is `tracked`, a struct kv_page_state for each KV head
 *
 * FP8 elements and scales are as in struct host_pool: an element's value is
 * element * 2^(scale - 127).  Attention reads the step's own tokens as they are stored, too, so no
 * result depends on the step in which a token was computed. */
struct kv_pool {
    void *base; /* [n_pages][page_bytes] */
    enum page_format format;
    uint32_t n_pages;
    uint32_t n_kv_heads, head_dim;
    size_t page_bytes; /* kv_page_bytes(), of the shape that takes most */
    bool tracked;      /* sequences may have budgets */
};

/* Attention that evicted tokens would still get, by the rate at which it fades: kv_page_state. */
enum { KV_LOST_TERMS = 21 };

/* A KV head's state of a page's slots.  The last four fields describe the whole list of pages, and
 * are valid in its first page; the first token of a text (position 0) sets them to capacity and 0.
 *
 * Lost attention is counted in units of the attention that kept tokens get.  Suppose a token is
 * evicted at age a (in tokens of the text).  The newest query gives it r times the attention that
 * all kept tokens get.  At age A it would get r * a / A: attention of trained models fades about
 * like that.  1 / A is a sum of exponentials, and one number for each of them serves all evicted
 * tokens:
 *
 *   rate(k) = 2^-k        1 / A ~ ln 2 * sum over k of rate(k) * exp(-rate(k) * A)
 *   lost[k] = sum over evicted tokens of r * a * exp(-rate(k) * A)
 *   loss    = ln 2 * sum over k of rate(k) * lost[k]
 *
 * The kept tokens then get the share 1 / (1 + loss) of a query's attention to the whole text. */
struct kv_page_state {
    uint32_t position[PAGE_TOKENS]; /* in the text */
    uint32_t rank[PAGE_TOKENS];     /* how many of the kept tokens are older */
    float score[PAGE_TOKENS];       /* attention received, as kv_budget.score says */
    uint32_t free_slot;             /* the next token's slot, once the cache is full */
    uint32_t n_evictions;           /* a compression that evicts tokens counts as one */
    uint32_t lost_at;               /* tokens of the text at the last eviction */
    float lost[KV_LOST_TERMS];
};

/* ---- the layout of pages ----
 *
 * A row is one head's key or value of a slot.  Row number i, kv_row(), of a page has its elements
 * at i * row_bytes, and its scale at scales_at + i * scale_bytes.  The CPU turns keys: a head's
 * PAGE_TOKENS rows are columns there, in the same bytes.
 *
 * These functions know what a format takes, and all other code asks them.  Kernels call
 * them, too (cuda/common/pages.cuh); format and shape are often constants there. */

#ifdef __cplusplus
#define PAGE_FUNCTION static inline constexpr __attribute__((always_inline))
#else
#define PAGE_FUNCTION static inline
#endif

/* Tells whether rows are codes, a byte each, that have a scale.  Attention of prompts on a GPU
 * reads copies of these in 16 bits. */
PAGE_FUNCTION bool page_is_scaled(enum page_format format) {
    return format >= PAGE_FP8;
}

/* Returns the type of a row's elements. */
PAGE_FUNCTION enum element page_element(enum page_format format) {
    return format == PAGE_FP8 ? ELEMENT_E4M3 : (enum element)format;
}

/* Returns the bytes of a row's elements. */
PAGE_FUNCTION uint32_t page_row_bytes(enum page_format format, uint32_t head_dim) {
    return head_dim * (format == PAGE_F32 ? 4 : page_is_scaled(format) ? 1 : 2);
}

/* Returns the bytes of a row's scale; 0: rows have none. */
PAGE_FUNCTION uint32_t page_scale_bytes(enum page_format format) {
    return page_is_scaled(format) ? 1 : 0;
}

/* Returns where the scales begin, and the states of KV heads. */
PAGE_FUNCTION size_t page_scales_at(enum page_format format, uint32_t n_kv_heads,
                                    uint32_t head_dim) {
    return (size_t)n_kv_heads * 2 * PAGE_TOKENS * page_row_bytes(format, head_dim);
}
PAGE_FUNCTION size_t page_states_at(enum page_format format, uint32_t n_kv_heads,
                                    uint32_t head_dim) {
    const uint32_t row_bytes = page_row_bytes(format, head_dim) + page_scale_bytes(format);
    return (size_t)n_kv_heads * 2 * PAGE_TOKENS * row_bytes;
}

/* The same of a pool's pages. */
struct page_layout {
    uint32_t row_bytes, scale_bytes;
    size_t scales_at, states_at;
};

static inline struct page_layout page_layout_of(const struct kv_pool *kv) {
    const struct page_layout layout = {page_row_bytes(kv->format, kv->head_dim),
                                       page_scale_bytes(kv->format),
                                       page_scales_at(kv->format, kv->n_kv_heads, kv->head_dim),
                                       page_states_at(kv->format, kv->n_kv_heads, kv->head_dim)};
    return layout;
}

/* Returns the address of a page. */
static inline char *kv_page_at(const struct kv_pool *kv, size_t page) {
    return (char *)kv->base + page * kv->page_bytes;
}

/* Returns where a KV head's state begins in a page of a tracked pool. */
static inline size_t kv_state_offset(const struct kv_pool *kv, uint32_t kv_head) {
    return page_layout_of(kv).states_at + kv_head * sizeof(struct kv_page_state);
}

/* Returns the number in a page of the row of a KV head's key, or value, in a slot. */
PAGE_FUNCTION uint32_t kv_row(const struct kv_pool *kv, uint32_t is_value, uint32_t kv_head,
                              uint32_t slot) {
    return (is_value * kv->n_kv_heads + kv_head) * PAGE_TOKENS + slot;
}

/* Returns the bytes of a page, rounded up so that every page begins a cache line of any device. */
static inline size_t kv_page_bytes(const struct kv_pool *kv) {
    const size_t bytes = kv_state_offset(kv, kv->tracked ? kv->n_kv_heads : 0);
    return round_up(bytes, PAGE_ALIGN);
}

/* Returns the pool as a layer with these heads sees it. */
static inline struct kv_pool kv_pool_of(const struct kv_pool *kv, struct kv_shape shape) {
    struct kv_pool pool = *kv;
    pool.n_kv_heads = shape.n_heads;
    pool.head_dim = shape.head_dim;
    return pool;
}

/* Returns how many pages a layer needs for n_slots slots. */
static inline uint64_t kv_n_pages(uint64_t n_slots) {
    return div_up(n_slots, PAGE_TOKENS);
}

#endif
