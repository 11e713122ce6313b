/* lists.h - the lists of pages of a sequence, for the policies.
 *
 * Thread: engine.  Memory: lists grow geometrically and are never shortened. */
#ifndef ENGINE_KV_LISTS_H
#define ENGINE_KV_LISTS_H

#include <stdint.h>

#include "engine/backend.h"

struct kv_sequence;

/* The larger of twice the capacity and what is needed. */
uint32_t kv_grown(uint32_t capacity, uint32_t need);
/* Room for n_pages pages in every layer's list.  ERR_NOMEM. */
int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages);
/* n_pages pages in every layer's list, all or none; evicts cached blocks that nobody uses when
 * pages are short.  ERR_FULL, ERR_NOMEM. */
int kv_lists_take(struct kv_sequence *kv, uint32_t n_pages);
/* Gives back all but the first n_pages pages of every layer's list. */
void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages);

#endif
