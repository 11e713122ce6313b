/* pages.h - the KV pool and the layout of its pages.
 *
 * A page holds the keys and values of PAGE_TOKENS slots of one layer, and is named by its number in
 * one pool.  Keys are stored after RoPE, or before it with cache positions (evict.h).  The layout
 * is private to the backend: only operations read or write it.  The CPU's is in engine/cpu/tile.h
 * (copy_token() follows it), CUDA's at the top of cuda/kv/select_fetch.cu.  Each layer of each
 * sequence has its own list of pages.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_DEVICE_PAGES_H
#define ENGINE_DEVICE_PAGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/sizes.h"
#include "engine/device/dtype.h"

enum { PAGE_TOKENS = 64, PAGE_ALIGN = 128 };

/* The KV pool and the shape of its pages.  A page holds:
 *
 *   keys and values   2 * n_kv_heads * PAGE_TOKENS * head_dim elements
 *   scales            with DTYPE_FP8 only, u8 [K, V][n_kv_heads][PAGE_TOKENS]: one for each row,
 *                     that is each head's key or value of a slot
 *   states            if the pool is `tracked`, a struct kv_page_state for each KV head
 *
 * FP8 elements and scales are as in struct host_pool: an element's value is
 * element * 2^(scale - 127).  Attention reads the step's own tokens as they are stored, too, so no
 * result depends on the step in which a token was computed. */
struct kv_pool {
    void *base; /* [n_pages][page_bytes] */
    enum dtype dtype;
    uint32_t n_pages;
    uint32_t n_kv_heads, head_dim;
    size_t page_bytes; /* kv_page_bytes() */
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

/* Returns the bytes of a page's elements, which the scales follow. */
static inline size_t kv_elements_bytes(const struct kv_pool *kv) {
    return kv->n_kv_heads * 2 * PAGE_TOKENS * kv->head_dim * dtype_size(kv->dtype);
}

/* Returns where a KV head's state begins in a page of a tracked pool. */
static inline size_t kv_state_offset(const struct kv_pool *kv, uint32_t kv_head) {
    const size_t n_scales = kv->dtype == DTYPE_FP8 ? kv->n_kv_heads * 2 * PAGE_TOKENS : 0;
    return kv_elements_bytes(kv) + n_scales + kv_head * sizeof(struct kv_page_state);
}

/* Returns the bytes of a page, rounded up so that every page begins a cache line of any device. */
static inline size_t kv_page_bytes(const struct kv_pool *kv) {
    const size_t bytes = kv_state_offset(kv, kv->tracked ? kv->n_kv_heads : 0);
    return round_up(bytes, PAGE_ALIGN);
}

/* Returns how many pages a layer needs for n_slots slots. */
static inline uint64_t kv_n_pages(uint64_t n_slots) {
    return div_up(n_slots, PAGE_TOKENS);
}

#endif
