/* kv_account.h - what became of the text of a request's sequences, for usage.kv.
 *
 * Counts are sums over the sequences, as those of generated tokens are; attention is their mean.
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
    double retained_attention;                         /* sum over n_tracked sequences */
    uint32_t n_tracked;
};

/* event: a sequence's last. */
void kv_account_add(struct kv_account *account, const struct kv_policy *policy,
                    const struct engine_event *event);
/* {"policy":...}; once every sequence has been added.  What the policy does not have is null.
 * Of the rules, what a fetched token has. */
void kv_account_write(const struct kv_account *account, const struct kv_policy *policy,
                      const struct offload_rules *rules, struct buffer *out);

#endif
