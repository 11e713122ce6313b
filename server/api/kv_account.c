/* kv_account.c - see kv_account.h. */
#include "server/api/kv_account.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "engine/request/event.h"
#include "server/json/buffer.h"
#include "server/settings/kv_policy.h"
#include "server/settings/offload_rules.h"

void kv_account_add(struct kv_account *account, const struct kv_policy *policy,
                    const struct engine_event *event) {
    const struct kv_choice choice = kv_policy_resolve(policy, event->n_prompt);
    if (kv_choice_is_bounded(&choice)) account->n_budget += kv_choice_capacity(&choice);
    account->n_resident += event->kv.n_resident;
    account->n_evicted += event->kv.n_evicted;
    account->n_offloaded += event->kv.n_offloaded;
    account->n_chosen += event->kv.n_chosen;
    account->n_fetched += event->kv.n_fetched;
    account->n_copies += event->kv.n_copies;
    account->n_generated += event->n_generated;
    if (isnan(event->kv.retained_attention)) return;
    account->retained_attention += event->kv.retained_attention;
    account->n_tracked++;
}

static void write_count(struct buffer *out, const char *name, bool known, uint64_t n) {
    if (known) buffer_printf(out, ",\"%s\":%" PRIu64, name, n);
    else buffer_printf(out, ",\"%s\":null", name);
}

static void write_ratio(struct buffer *out, const char *name, double part, uint64_t whole) {
    buffer_printf(out, ",\"%s\":", name);
    if (whole) buffer_json_double(out, part / (double)whole);
    else buffer_puts(out, "null");
}

void kv_account_write(const struct kv_account *account, const struct kv_policy *policy,
                      const struct offload_rules *rules, struct buffer *out) {
    const struct kv_account *a = account;
    const struct kv_choice *choice = &policy->tokens;
    const bool selects = kv_choice_selects(choice), bounded = kv_choice_is_bounded(choice);
    const uint64_t bytes =
        offload_rules_copied_bytes(rules, a->n_copies, choice->on_device ? 0 : a->n_copies);
    buffer_printf(out, "{\"policy\":\"%s\"", kv_type_name(choice->type));
    write_count(out, "budget_tokens", bounded, a->n_budget);
    write_count(out, "resident_tokens", true, a->n_resident);
    write_count(out, "evicted_tokens", true, a->n_evicted);
    write_ratio(out, "retained_attention", a->retained_attention, bounded ? a->n_tracked : 0);
    write_count(out, "offloaded_tokens", selects, a->n_offloaded);
    write_count(out, "selected_tokens", selects, a->n_chosen);
    write_ratio(out, "bytes_fetched_per_token", (double)bytes, selects ? a->n_generated : 0);
    write_ratio(out, "hit_rate", (double)(a->n_chosen - a->n_fetched), selects ? a->n_chosen : 0);
    buffer_puts(out, "}");
}
