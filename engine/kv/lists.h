/* lists.h - the lists of pages of a sequence, for its kinds.
 *
 * Thread: engine.  Memory: see page_list.h. */
#ifndef ENGINE_KV_LISTS_H
#define ENGINE_KV_LISTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/kv_space.h"

struct error;
struct kv_sequence;

/* The lengths that lists should have, by role. */
struct kv_lengths {
    uint32_t of[KV_N_ROLES];
};

/* What all kinds of a sequence need together (kind.h). */
struct kv_needs {
    uint32_t n_rows; /* that the next step may have */
    struct kv_lengths lengths;
    struct kv_amount beside;
};

/* Returns what the sequence's kinds need for n_tokens tokens in all. */
struct kv_needs kv_needs(const struct kv_sequence *kv, uint64_t n_tokens);

/* Returns true if the layer's list holds the text, false if it holds what the layer has selected of
 * it, and the tail. */
bool kv_list_is_text(const struct kv_sequence *kv, uint32_t layer);
/* Returns true if the layer's list holds what its window sees of the text. */
bool kv_list_is_windowed(const struct kv_sequence *kv, uint32_t layer);

/* Makes capacity for n_pages pages in every list.  ERR_NOMEM. */
int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages);
/* Makes capacity in every list for the length of its role.  ERR_NOMEM. */
int kv_lists_grow_to(struct kv_sequence *kv, struct kv_lengths lengths);
/* Returns how many pages kv_lists_take() would take. */
uint64_t kv_lists_missing(const struct kv_sequence *kv, struct kv_lengths lengths);
/* Extends every list to these lengths, all or none; evicts as kv_make_free() does.
 * ERR_FULL, ERR_NOMEM. */
int kv_lists_take(struct kv_sequence *kv, struct kv_lengths lengths);
/* Gives back all but the first n_pages pages of every layer's list. */
void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages);
/* Gives back the pages before page n_pages in layers with a window.  The lists must have that page,
 * and it takes their place: a kernel that reads pages in pairs reads no other sequence's page. */
void kv_lists_expire(struct kv_sequence *kv, uint32_t n_pages);
/* Begins the empty lists of layers with a window as if their first n_pages pages had expired.
 * kv_lists_cover() puts page n_pages in the place of these, once the lists have it and buffers of a
 * layer-major prompt are not there. */
void kv_lists_begin(struct kv_sequence *kv, uint32_t n_pages);
/* Puts page n_expired of each list with a window in the places before it, which have none.  Does
 * nothing while there are buffers of a layer-major prompt. */
void kv_lists_cover(struct kv_sequence *kv);

#endif
