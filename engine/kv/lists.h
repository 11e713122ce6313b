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

/* The lengths in pages that the layers' lists should have, by the layer's role. */
struct kv_lengths {
    uint32_t of[KV_N_ROLES];
};

/* What all kinds of a sequence need together: struct kv_need of each (kind.h). */
struct kv_needs {
    uint32_t n_rows;           /* the least of all */
    struct kv_lengths lengths; /* n_listed of each role's kind */
    struct kv_amount beside;   /* the sum */
};

/* Returns what the sequence's kinds need now to have n_tokens tokens in all. */
struct kv_needs kv_needs(const struct kv_sequence *kv, uint64_t n_tokens);

/* Returns true if the layer's list holds the text, false if only selected tokens and the tail. */
bool kv_list_is_text(const struct kv_sequence *kv, uint32_t layer);
/* Returns true if the layer's list holds only what its window sees of the text. */
bool kv_list_is_windowed(const struct kv_sequence *kv, uint32_t layer);

/* Makes capacity for n_pages pages in all in every list, and takes none.  ERR_NOMEM: some may have
 * grown. */
int kv_lists_grow(struct kv_sequence *kv, uint32_t n_pages);
/* Makes capacity in every list for the length of its layer's role, and takes no pages.  ERR_NOMEM:
 * some may have grown. */
int kv_lists_grow_to(struct kv_sequence *kv, struct kv_lengths lengths);
/* Returns how many pages kv_lists_take() would take, those for holes (n_holes) among them. */
uint64_t kv_lists_missing(const struct kv_sequence *kv, struct kv_lengths lengths);
/* Takes pages for holes and to make every list at least this long, all or none.  Evicts what is
 * cached if need be.  ERR_FULL, ERR_NOMEM. */
int kv_lists_take(struct kv_sequence *kv, struct kv_lengths lengths);
/* Shortens every layer's list to at most n_pages pages, and gives the others back to the pool. */
void kv_lists_trim(struct kv_sequence *kv, uint32_t n_pages);
/* Gives back the pages between the last expired one and page n_pages, in layers with a window.
 * n_pages is not less than before.  That page, which the lists must have, takes their place: a
 * kernel that reads pages in pairs reads no other sequence's.  Entries that expired earlier are not
 * set again, and must not be read. */
void kv_lists_expire(struct kv_sequence *kv, uint32_t n_pages);
/* Begins the empty lists of layers with a window as if their first n_pages pages had expired.  The
 * entries of these are not set before kv_lists_cover(). */
void kv_lists_begin(struct kv_sequence *kv, uint32_t n_pages);
/* Sets the expired entries of the lists of layers with a window to page n_expired, which the lists
 * must have.  Does nothing while pages of a layer-major prompt's buffers are there. */
void kv_lists_cover(struct kv_sequence *kv);

#endif
