/* demand.h - what a sequence needs and would find, for files of this folder.  Others call kv_ask()
 * (kv_sequence.h).  No function changes anything.
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_KV_DEMAND_H
#define ENGINE_KV_DEMAND_H

#include "engine/kv/kind.h"
#include "engine/kv/kv_space.h"

struct kv_plan;
struct kv_sequence;

/* Returns the pages and host blocks that kv_reserve() would take for n_tokens tokens in all, beyond
 * what the sequence has. */
struct kv_amount kv_missing(const struct kv_sequence *kv, uint64_t n_tokens);
/* Returns how much of what is missing cannot be had if `left` must stay available for other
 * sequences.  Free and cached pages and host blocks can be had, and host blocks that only waiting
 * sequences have.  blocks is 0 if no host block is missing. */
struct kv_amount kv_unavailable(const struct kv_space *space, struct kv_amount missing,
                                struct kv_amount left);
/* Tells whether kv_unavailable() returns zeros. */
bool kv_is_available(const struct kv_space *space, struct kv_amount missing, struct kv_amount left);
/* Returns how many of the text's first n_max tokens kv_match() would find in the caches, or in what
 * the sequence has swapped or saved. */
uint32_t kv_n_matchable(const struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max);

/* Returns the most pages that a sequence of this plan holds in all layers together in this phase.
 * Its text has at most n_tokens tokens.  Buffers of a layer-major prompt are not counted. */
uint64_t kv_phase_pages(const struct kv_space *space, const struct kv_plan *plan,
                        enum kv_phase phase, uint32_t n_tokens);

#endif
