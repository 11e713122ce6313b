/* kv_rules.c - see kv_rules.h. */
#include "server/settings/kv_rules.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/engine.h"
#include "engine/model/model.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"

static int read_initial(struct kv_policy *out, const char *text, struct error *err) {
    json_error_t why = {0};
    struct api_error refusal = {0};
    json_t *value = NULL;
    int rc = json_arena_load(&value, text, strlen(text), JSON_REJECT_DUPLICATES, &why);
    if (rc == ERR_NOMEM) return error_set(err, rc, "--kv-policy: no memory to parse it");
    if (rc)
        return error_set(err, rc, "--kv-policy must be JSON such as {\"type\": \"full\"}: %.160s",
                         why.text);
    rc = kv_policy_read(out, value, &refusal);
    json_decref(value);
    return rc ? error_set(err, ERR_INVALID, "--kv-policy: %.300s", refusal.message) : 0;
}

static int allow(struct kv_rules *rules, const char *name, size_t length, struct error *err) {
    char names[KV_NAMES_SIZE];
    const unsigned type = kv_policies_find(name, length);
    if (type < kv_policies_count()) {
        rules->allowed[type] = true;
        return 0;
    }
    kv_type_names(names, NULL, ", ");
    return error_set(err, ERR_INVALID, "--allowed-kv-policies: '%.*s' is not %s or all",
                     (int)(length > 64 ? 64 : length), name, names);
}

static int allow_listed(struct kv_rules *rules, const char *allowed, struct error *err) {
    if (strcmp(allowed, "all") == 0) {
        for (unsigned i = 0; i < kv_policies_count(); i++) rules->allowed[i] = true;
        return 0;
    }
    for (const char *at = allowed;; at++) {
        const size_t length = strcspn(at, ",");
        const int rc = allow(rules, at, length, err);
        if (rc) return rc;
        at += length;
        if (!*at) return 0;
    }
}

int kv_rules_read(struct kv_rules *out, const char *policy, const char *allowed,
                  struct error *err) {
    struct kv_rules rules = {0};
    int rc = read_initial(&rules.initial, policy, err);
    if (!rc) rc = allow_listed(&rules, allowed, err);
    if (rc) return rc;
    const unsigned type = rules.initial.tokens.type;
    if (!rules.allowed[type])
        return error_set(err, ERR_INVALID,
                         "--kv-policy is %s, which --allowed-kv-policies must list",
                         kv_type_name(type));
    *out = rules;
    return 0;
}

static bool has_mechanism(unsigned type, enum kv_mechanism mechanism) {
    return kv_policies_row(type)->defaults.mechanism == mechanism;
}

bool kv_rules_allow(const struct kv_rules *rules, enum kv_mechanism mechanism) {
    for (unsigned i = 0; i < kv_policies_count(); i++)
        if (rules->allowed[i] && has_mechanism(i, mechanism)) return true;
    return false;
}

bool kv_rules_allow_whole_texts(const struct kv_rules *rules) {
    return kv_rules_allow(rules, KV_WHOLE) || kv_rules_allow(rules, KV_SELECTING);
}

static void forbid(struct kv_rules *rules, enum kv_mechanism mechanism) {
    for (unsigned i = 0; i < kv_policies_count(); i++)
        if (has_mechanism(i, mechanism)) rules->allowed[i] = false;
}

/* Checks that the model can count positions in the cache, and that they stay within its context.
 * Fractions count as 0 here, because only the prompt resolves them. */
static int check_context(const struct kv_choice *initial, const struct engine_info *info,
                         struct error *err) {
    const struct model_config *model = info->model;
    const uint32_t context = model->max_position;
    const bool has_budget = info->budget_tokens < UINT64_MAX;
    if (initial->cache_positions && model->positions == POSITIONS_LEARNED)
        return error_set(err, ERR_INVALID,
                         "--kv-policy: positions must be text, because this model's are learned, "
                         "and part of what is cached");
    if (!initial->cache_positions || !has_budget || kv_choice_slots(initial, 1) <= context)
        return 0;
    return error_set(err, ERR_INVALID,
                     "--kv-policy with cache positions: budget, chunk and one token more are "
                     "%" PRIu64 " tokens; the model's context is %" PRIu32,
                     kv_choice_slots(initial, 1), context);
}

static int resolve_bounded(struct kv_rules *rules, const struct engine_info *info,
                           struct error *err) {
    const struct kv_choice *initial = &rules->initial.tokens;
    const bool bounded = kv_choice_is_bounded(initial);
    if (!info->bounded_caches) {
        forbid(rules, KV_BOUNDED);
        if (bounded)
            return error_set(err, ERR_UNSUPPORTED,
                             "--kv-policy: this backend has no bounded KV caches");
    }
    if (bounded && kv_choice_capacity(initial) > info->budget_tokens)
        return error_set(err, ERR_INVALID,
                         "--kv-policy keeps %" PRIu64 " tokens; the KV cache holds %" PRIu64,
                         kv_choice_capacity(initial), info->budget_tokens);
    return bounded ? check_context(initial, info, err) : 0;
}

static int resolve_offload(struct kv_rules *rules, const struct engine_info *info,
                           struct error *err) {
    struct api_error refusal = {0};
    rules->offload.host_pool_bytes = info->host_pool_bytes;
    if (!kv_rules_allow(rules, KV_SELECTING)) {
        rules->offload.why_not = NULL; /* not being allowed is the reason */
        return 0;
    }
    if (!info->selections && !rules->offload.why_not)
        rules->offload.why_not = "the backend cannot select tokens";
    if (rules->offload.why_not) forbid(rules, KV_SELECTING);
    if (!kv_choice_selects(&rules->initial.tokens)) return 0;
    if (kv_rules_apply(rules, &rules->initial, &refusal) == 0) return 0;
    return error_set(err, ERR_UNSUPPORTED, "--kv-policy: %s", refusal.message);
}

int kv_rules_resolve(struct kv_rules *rules, const struct engine_info *info, struct error *err) {
    const int rc = resolve_bounded(rules, info, err);
    return rc ? rc : resolve_offload(rules, info, err);
}

static int refuse_type(const struct kv_rules *rules, const struct kv_choice *choice,
                       struct api_error *err) {
    const char *name = kv_type_name(choice->type);
    char allowed[KV_NAMES_SIZE];
    if (kv_choice_selects(choice) && rules->offload.why_not)
        return api_error_set(err, 400, "unsupported", "kv_policy.type", "kv_policy.type %s: %s",
                             name, rules->offload.why_not);
    kv_type_names(allowed, rules->allowed, ", ");
    return api_error_set(err, 400, "unsupported", "kv_policy.type",
                         "kv_policy.type %s is not allowed on this server; allowed are %s", name,
                         allowed);
}

int kv_rules_apply(const struct kv_rules *rules, struct kv_policy *policy, struct api_error *err) {
    const struct kv_choice *choice = &policy->tokens;
    const bool is_divided = !layer_set_is_empty(&policy->override.layers);
    if (!rules->allowed[choice->type]) return refuse_type(rules, choice, err);
    if (is_divided && !rules->allowed[policy->override.choice.type])
        return refuse_type(rules, &policy->override.choice, err);
    return kv_choice_selects(choice) ? offload_rules_apply(&rules->offload, policy, err) : 0;
}

void kv_rules_write(const struct kv_rules *rules, struct buffer *out) {
    bool listed = false;
    buffer_puts(out, "\"kv_policy\":");
    kv_policy_write(&rules->initial, out);
    buffer_puts(out, ",\"kv_policies\":[");
    for (unsigned i = 0; i < kv_policies_count(); i++) {
        if (!rules->allowed[i]) continue;
        struct kv_policy policy = kv_policy_default(i);
        if (kv_choice_selects(&policy.tokens)) offload_rules_place(&rules->offload, &policy);
        if (listed) buffer_puts(out, ",");
        listed = true;
        kv_policy_write(&policy, out);
    }
    buffer_puts(out, "],\"offload\":");
    if (kv_rules_allow(rules, KV_SELECTING)) offload_rules_write(&rules->offload, out);
    else buffer_puts(out, "null");
}
