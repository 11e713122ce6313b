/* kv_account.c - see kv_account.h. */
#include "server/api/kv_account.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "engine/request/event.h"
#include "server/json/buffer.h"
#include "server/settings/kv_policy.h"
#include "server/settings/offload_rules.h"

/* What follows from several numbers: part / whole, or null where whole is 0. */
struct derived {
    const char *name;
    uint32_t mechanisms; /* as in struct kv_number_info */
    double (*part)(const struct kv_account *account, const struct offload_rules *rules);
    double (*whole)(const struct kv_account *account);
};

static double bytes_fetched(const struct kv_account *account, const struct offload_rules *rules) {
    return (double)offload_rules_copied_bytes(rules, (uint64_t)account->sums[KV_FETCHED_COPIES],
                                              (uint64_t)account->sums[KV_MOVED_COPIES]);
}

static double tokens_generated(const struct kv_account *account) {
    return (double)account->n_generated;
}

static double tokens_hit(const struct kv_account *account, const struct offload_rules *rules) {
    (void)rules;
    return account->sums[KV_SELECTED_TOKENS] - account->sums[KV_FETCHED_TOKENS];
}

static double tokens_selected(const struct kv_account *account) {
    return account->sums[KV_SELECTED_TOKENS];
}

static const struct derived derived[] = {
    {"bytes_fetched_per_token", 1 << KV_SELECTING, bytes_fetched, tokens_generated},
    {"hit_rate", 1 << KV_SELECTING, tokens_hit, tokens_selected},
};

void kv_account_add(struct kv_account *account, const struct engine_event *event) {
    for (unsigned i = 0; i < KV_N_NUMBERS; i++) {
        if (isnan(event->kv.values[i])) continue;
        account->sums[i] += event->kv.values[i];
        account->n_known[i]++;
    }
    account->n_generated += event->n_generated;
}

static void write_ratio(struct buffer *out, double part, double whole) {
    if (whole > 0) buffer_json_double(out, part / whole);
    else buffer_puts(out, "null");
}

void kv_account_write(const struct kv_account *account, const struct kv_policy *policy,
                      const struct offload_rules *rules, struct buffer *out) {
    const bool is_divided = !layer_set_is_empty(&policy->override.layers);
    const uint32_t mechanisms =
        1u << policy->tokens.mechanism | (is_divided ? 1u << policy->override.choice.mechanism : 0);
    buffer_printf(out, "{\"policy\":\"%s\"", kv_type_name(policy->tokens.type));
    for (unsigned i = 0; i < KV_N_NUMBERS; i++) {
        const struct kv_number_info *number = &kv_numbers[i];
        if (!number->mechanisms) continue;
        buffer_printf(out, ",\"%s\":", number->name);
        if (!(number->mechanisms & mechanisms)) buffer_puts(out, "null");
        else if (number->adding == KV_ADD_MEAN)
            write_ratio(out, account->sums[i], account->n_known[i]);
        else buffer_printf(out, "%" PRIu64, (uint64_t)account->sums[i]);
    }
    for (unsigned i = 0; i < sizeof(derived) / sizeof(*derived); i++) {
        const bool has = derived[i].mechanisms & mechanisms;
        buffer_printf(out, ",\"%s\":", derived[i].name);
        write_ratio(out, derived[i].part(account, rules), has ? derived[i].whole(account) : 0);
    }
    buffer_puts(out, "}");
}
