/* lists.h - the lists of pages of a sequence, for the policies.
 *
 * Thread: engine.  Memory: lists grow geometrically and are never shortened. */
#ifndef ENGINE_KV_LISTS_H
#define ENGINE_KV_LISTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/backend.h"

struct kv_sequence;
struct kv_space;
struct page_list;

/* The larger of twice the capacity and what is needed. */
uint32_t kv_grown(uint32_t capacity, uint32_t need);
/* Room for n_pages pages in a list.  ERR_NOMEM. */
int kv_list_grow(struct page_list *list, uint32_t n_pages);
/* Gives back all but its first n_pages pages. */
void kv_list_trim(struct page_list *list, const struct kv_space *space, uint32_t n_pages);

/* Pages that are free, or could be. */
uint64_t kv_n_available(const struct kv_space *space);
/* n_pages free pages in the pool: evicts cached blocks that nobody uses when there are fewer.
 * ERR_FULL: nothing is evicted in vain. */
int kv_make_free(const struct kv_space *space, uint64_t n_pages);

/* Sparse layers of all groups: planes, in the order of the store's. */
uint32_t kv_n_sparse(const struct kv_space *space);
bool kv_is_sparse(const struct kv_space *space, uint32_t layer);
uint32_t kv_host_layer_of(const struct kv_space *space, uint32_t layer); /* of a sparse one */
/* The first sparse layer from this one on; n_layers: there are no more. */
uint32_t kv_next_sparse(const struct kv_space *space, uint32_t layer);

/* The lists of a sequence. */

/* How long they are to be: of layers with a window, and of the others. */
struct kv_lengths {
    uint32_t windowed, others;
};

static inline struct kv_lengths kv_lengths_all(uint64_t n_pages) {
    return (struct kv_lengths){(uint32_t)n_pages, (uint32_t)n_pages};
}

/* The layer has a window, of which sequences keep the pages only.  False where pages are kept all
 * the same. */
bool kv_has_window(const struct kv_space *space, uint32_t layer);

/* The layer's list is the text's; else what the layer has selected of it, and the tail. */
bool kv_list_is_text(const struct kv_sequence *kv, uint32_t layer);

/* Room for n_pages pages in every list that grows.  ERR_NOMEM. */
int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages);
/* Pages that kv_lists_take() would take. */
uint64_t kv_lists_missing(const struct kv_sequence *kv, struct kv_lengths lengths);
/* So many pages in every list that grows, all or none; evicts as kv_make_free().  ERR_FULL,
 * ERR_NOMEM. */
int kv_lists_take(struct kv_sequence *kv, struct kv_lengths lengths);
/* Gives back all but the first n_pages pages of every layer's list. */
void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages);
/* Layers with a window give back their pages before page n_pages, which they have, and which takes
 * their place in the lists: a kernel that reads pages in pairs reads nobody else's. */
void kv_lists_expire(struct kv_sequence *kv, uint32_t n_pages);
/* Lists of these layers, empty so far, begin as if they had passed n_pages pages; once they have
 * that page it takes the place of those that they never had. */
void kv_lists_begin(struct kv_sequence *kv, uint32_t n_pages);
void kv_lists_cover(struct kv_sequence *kv);

#endif
