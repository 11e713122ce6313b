/* kv_account.h - sums up what a request's sequences did with their KV cache, for usage.kv.
 *
 * Numbers are added over the sequences as the table of engine/request/usage.h says.
 *
 * Thread: loop.  Memory: fixed. */
#ifndef SERVER_API_KV_ACCOUNT_H
#define SERVER_API_KV_ACCOUNT_H

#include <stdint.h>

#include "engine/request/usage.h"

struct buffer;
struct engine_event;
struct kv_policy;
struct offload_rules;

struct kv_account {
    double sums[KV_N_NUMBERS];      /* by kv_number, */
    uint32_t n_known[KV_N_NUMBERS]; /* over so many sequences that know it */
    uint64_t n_generated;
};

/* Adds a sequence.  event: the sequence's final event. */
void kv_account_add(struct kv_account *account, const struct engine_event *event);
/* Writes {"policy":...}; call it once every sequence has been added.  Members that the policy does
 * not have are null.  rules: tell how many bytes a fetched token takes. */
void kv_account_write(const struct kv_account *account, const struct kv_policy *policy,
                      const struct offload_rules *rules, struct buffer *out);

#endif
