/* full.h - the operations of the policy `full`, for policies that extend it.
 *
 * Thread: engine.  Memory: see policy.h. */
#ifndef ENGINE_KV_FULL_H
#define ENGINE_KV_FULL_H

#include "engine/kv/lists.h"
#include "engine/kv/policy.h"

/* Returns how many first pages of layers with windows no row behind n_tokens tokens needs. */
uint32_t kv_full_n_behind(const struct kv_space *space, uint32_t n_tokens);
/* Returns the most pages that a layer with a window has for a text of n_tokens tokens. */
uint64_t kv_windowed_pages(uint32_t window, uint32_t step_rows, uint32_t n_tokens);

/* Does what struct kv_policy_ops says; so do the others below without a comment. */
struct kv_amount kv_full_most(const struct kv_space *space, const struct kv_plan *plan);
/* Returns the lists' lengths for n_tokens tokens in all.  n_before of them are there, or come
 * without pages of these lists. */
struct kv_lengths kv_full_lengths(const struct kv_sequence *kv, uint32_t n_before,
                                  uint64_t n_tokens);
struct kv_amount kv_full_missing(const struct kv_sequence *kv, uint64_t n_tokens);
int kv_full_prepare(struct kv_sequence *kv, const uint32_t *prompt);
bool kv_full_worth_waiting(const struct kv_sequence *kv, const struct kv_sequence *other);
uint32_t kv_full_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max);
int kv_full_reserve(struct kv_sequence *kv, uint32_t n_tokens);
uint32_t kv_full_max_rows(const struct kv_sequence *kv);
void kv_full_view(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq);
void kv_full_commit(struct kv_sequence *kv, uint32_t n_rows);
int kv_full_submitted(struct kv_sequence *kv, const struct layer_slice *slice, struct error *err);
void kv_full_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens);
void kv_full_on_done(struct kv_sequence *kv, uint32_t n_tokens);
/* Does the same where at most the first n_inserted tokens will be inserted into the prefix
 * cache. */
void kv_full_give_back(struct kv_sequence *kv, uint32_t n_tokens, uint32_t n_inserted);
uint32_t kv_full_n_resident(const struct kv_sequence *kv, uint32_t n_tokens);
int kv_full_resume(struct kv_sequence *kv, struct error *err);
/* Gives every page back, and does nothing more. */
void kv_full_let_go(struct kv_sequence *kv);
void kv_full_release(struct kv_sequence *kv);

#endif
