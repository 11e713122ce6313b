/* kv_account.c - see kv_account.h. */
#include "server/kv_account.h"

#include <inttypes.h>
#include <math.h>

#include "server/buffer.h"
#include "server/kv_policy.h"

void kv_account_add(struct kv_account *account, const struct kv_policy *policy,
                    const struct engine_event *event) {
    const struct kv_choice choice = kv_policy_resolve(policy, event->n_prompt);
    account->n_budget += kv_choice_capacity(&choice);
    account->n_resident += event->kv.n_resident;
    account->n_evicted += event->kv.n_evicted;
    if (isnan(event->kv.kept_mass)) return;
    account->kept_mass += event->kv.kept_mass;
    account->n_tracked++;
}

void kv_account_write(const struct kv_account *account, const struct kv_policy *policy,
                      struct buffer *out) {
    const enum kv_type type = policy->tokens.type;
    buffer_printf(out, "{\"policy\":\"%s\",\"budget_tokens\":", kv_type_name(type));
    if (type == KV_FULL) {
        buffer_puts(out, "null");
    } else {
        buffer_printf(out, "%" PRIu64, account->n_budget);
    }
    buffer_printf(out, ",\"resident_tokens\":%" PRIu64 ",\"evicted_tokens\":%" PRIu64
                  ",\"retained_attention\":", account->n_resident, account->n_evicted);
    if (type == KV_FULL || account->n_tracked == 0) {
        buffer_puts(out, "null");
    } else {
        buffer_json_double(out, account->kept_mass / account->n_tracked);
    }
    buffer_puts(out, "}");
}
