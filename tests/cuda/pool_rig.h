/* pool_rig.h - a tracked pool of random bytes on the device, and what its bytes should become.
 *
 * Pages are random, so a byte from a wrong place shows.  Their numbers are in a random order, too.
 *
 * Thread: main.  Memory: the rig's, freed by rig_free(). */
#ifndef TESTS_CUDA_POOL_RIG_H
#define TESTS_CUDA_POOL_RIG_H

#include <stddef.h>

#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/device/step.h"
#include "tests/cuda/cuda_test.h"

struct pool_rig {
    struct kv_pool kv;
    char *host, *expected; /* the pool's bytes: before and after, and as they should be after */
    uint32_t *pages;       /* [kv.n_pages] */
};

static inline size_t rig_bytes(const struct pool_rig *r) {
    return r->kv.n_pages * r->kv.page_bytes;
}

static inline void rig_make(struct pool_rig *r, enum page_format format, uint32_t head_dim,
                            uint32_t n_kv_heads, uint32_t n_pages) {
    r->kv = (struct kv_pool){.format = format,
                             .n_kv_heads = n_kv_heads,
                             .head_dim = head_dim,
                             .tracked = true,
                             .n_pages = n_pages};
    r->kv.page_bytes = kv_page_bytes(&r->kv);
    r->kv.base = gpu_alloc(rig_bytes(r));
    r->host = malloc(rig_bytes(r)), r->expected = malloc(rig_bytes(r));
    r->pages = malloc(n_pages * sizeof(*r->pages));
    assert_true(r->host && r->expected && r->pages);
    for (size_t i = 0; i < rig_bytes(r); i++) r->host[i] = (char)random_u32();
    for (uint32_t i = 0; i < n_pages; i++) {
        const uint32_t other = random_below(i + 1);
        r->pages[i] = r->pages[other];
        r->pages[other] = i;
    }
}

static inline void rig_free(struct pool_rig *r) {
    free(r->host), free(r->expected), free(r->pages);
    gpu_free(r->kv.base);
}

static inline void rig_upload(const struct pool_rig *r) {
    struct error err = {0};
    must(gpu->ops->upload(gpu, r->kv.base, r->host, rig_bytes(r), &err), &err);
}

static inline void rig_download(const struct pool_rig *r) {
    struct error err = {0};
    must(gpu->ops->download(gpu, r->host, r->kv.base, rig_bytes(r), &err), &err);
    must(gpu->ops->sync(gpu, &err), &err);
}

/* Fails unless the pages of a sequence's layer are as expected. */
static inline void rig_compare(const struct pool_rig *r, const struct kv_view *view, uint32_t seq,
                               uint32_t layer) {
    for (uint32_t i = 0; i < kv_n_pages(view->n_slots); i++) {
        const size_t at = view->pages[i] * r->kv.page_bytes;
        for (size_t k = 0; k < r->kv.page_bytes; k++)
            if (r->host[at + k] != r->expected[at + k])
                fail_msg("format %d, dim %u, sequence %u, layer %u, %u slots, page %u: byte %zu",
                         (int)r->kv.format, r->kv.head_dim, seq, layer, view->n_slots, i, k);
    }
}

/* ---- a KV head of a sequence's layer ---- */

struct pool_head {
    const struct kv_pool *kv;
    const uint32_t *pages;
    uint32_t kv_head;
};

static inline char *head_page(const struct pool_head *h, char *pool, uint32_t slot) {
    return pool + h->pages[slot / PAGE_TOKENS] * h->kv->page_bytes;
}

static inline struct kv_page_state *head_state(const struct pool_head *h, char *pool,
                                               uint32_t slot) {
    return (void *)(head_page(h, pool, slot) + kv_state_offset(h->kv, h->kv_head));
}

static inline uint32_t *head_rank(const struct pool_head *h, char *pool, uint32_t slot) {
    return &head_state(h, pool, slot)->rank[slot % PAGE_TOKENS];
}

/* Copies all that a page holds of a slot: rows and their scales, then entries of the state. */
static inline void head_copy(const struct pool_head *h, char *to_pool, uint32_t to, char *from_pool,
                             uint32_t from) {
    const size_t row = h->kv->head_dim * page_row_bytes(h->kv->format, 1),
                 scale = h->kv->format == PAGE_FP8 ? 1 : 0,
                 scales = page_layout_of(h->kv).scales_at, keys = (size_t)h->kv_head * PAGE_TOKENS,
                 values = keys + (size_t)h->kv->n_kv_heads * PAGE_TOKENS,
                 state = kv_state_offset(h->kv, h->kv_head);
    const struct {
        size_t offset, size;
    } arrays[] = {{keys * row, row},
                  {values * row, row},
                  {scales + keys, scale},
                  {scales + values, scale},
                  {state + offsetof(struct kv_page_state, position), sizeof(uint32_t)},
                  {state + offsetof(struct kv_page_state, rank), sizeof(uint32_t)},
                  {state + offsetof(struct kv_page_state, score), sizeof(float)}};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(arrays[0]); i++)
        memcpy(
            head_page(h, to_pool, to) + arrays[i].offset + to % PAGE_TOKENS * arrays[i].size,
            head_page(h, from_pool, from) + arrays[i].offset + from % PAGE_TOKENS * arrays[i].size,
            arrays[i].size);
}

#endif
