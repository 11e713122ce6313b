/* kv_account.h - sums up what a request's sequences did with their KV cache, for usage.kv.
 *
 * Counts are sums over the sequences, like the count of generated tokens; attention is the mean.
 *
 * Thread: loop.  Memory: fixed. */
#ifndef SERVER_API_KV_ACCOUNT_H
#define SERVER_API_KV_ACCOUNT_H

#include <stdint.h>

struct buffer;
struct engine_event;
struct kv_policy;
struct offload_rules;

struct kv_account {
    uint64_t n_budget, n_resident, n_evicted, n_offloaded; /* tokens */
    uint64_t n_chosen, n_fetched, n_copies, n_generated;
    double retained_attention; /* sum over n_tracked sequences */
    uint32_t n_tracked;
};

/* Adds a sequence.  event: the sequence's final event. */
void kv_account_add(struct kv_account *account, const struct kv_policy *policy,
                    const struct engine_event *event);
/* Writes {"policy":...}; call it once every sequence has been added.  Members that the policy does
 * not have are null.  rules: tell how many bytes a fetched token takes. */
void kv_account_write(const struct kv_account *account, const struct kv_policy *policy,
                      const struct offload_rules *rules, struct buffer *out);

#endif
