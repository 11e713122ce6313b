/* demand.h - what a sequence lacks, and what it would find, for this folder.  Others ask by
 * kv_ask() (kv_sequence.h).
 *
 * Thread: engine.  Memory: none. */
#ifndef ENGINE_KV_DEMAND_H
#define ENGINE_KV_DEMAND_H

#include "engine/kv/kind.h"
#include "engine/kv/kv_space.h"

struct kv_plan;
struct kv_sequence;

/* Returns what kv_reserve() would take for n_tokens tokens in all. */
struct kv_amount kv_missing(const struct kv_sequence *kv, uint64_t n_tokens);
/* Returns how many of the missing pages and host blocks are not available beside what must be left
 * for other sequences.  No host block lacks if none is missing. */
struct kv_amount kv_unavailable(const struct kv_space *space, struct kv_amount missing,
                                struct kv_amount left);
/* Tells whether nothing lacks. */
bool kv_is_available(const struct kv_space *space, struct kv_amount missing, struct kv_amount left);
/* Tells whether kv_reserve() could take what n_tokens tokens need. */
bool kv_fits(const struct kv_sequence *kv, uint64_t n_tokens);
/* Returns how many of the text's first n_max tokens kv_match() would find. */
uint32_t kv_n_matchable(const struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max);

/* Returns the most pages in this phase of a text of up to n_tokens tokens, but for buffers of a
 * layer-major prompt. */
uint64_t kv_phase_pages(const struct kv_space *space, const struct kv_plan *plan,
                        enum kv_phase phase, uint32_t n_tokens);

#endif
