/* kv_rules.c - see kv_rules.h. */
#include "server/settings/kv_rules.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/model/model.h"
#include "server/json/api_error.h"
#include "server/json/buffer.h"

static int read_initial(struct kv_policy *out, const char *text, struct error *err) {
    json_error_t why = {0};
    struct api_error refusal = {0};
    json_t *value = NULL;
    int rc = json_arena_load(&value, text, strlen(text), JSON_REJECT_DUPLICATES, &why);
    if (rc == ERR_NOMEM) return error_set(err, rc, "--kv-policy: no memory to parse it");
    if (rc) return error_set(err, rc, "--kv-policy: not a JSON object: %.160s", why.text);
    rc = kv_policy_read(out, value, &refusal);
    json_decref(value);
    return rc ? error_set(err, ERR_INVALID, "--kv-policy: %.300s", refusal.message) : 0;
}

static int allow(struct kv_rules *rules, const char *name, size_t length, struct error *err) {
    for (unsigned i = 0; i < KV_N_TYPES; i++) {
        const char *type = kv_type_name((enum kv_type)i);
        if (strlen(type) != length || memcmp(type, name, length) != 0) continue;
        rules->allowed[i] = true;
        return 0;
    }
    return error_set(err, ERR_INVALID,
                     "--allowed-kv-policies: '%.*s' is not full, streaming, heavy_hitter or "
                     "offload",
                     (int)(length > 64 ? 64 : length), name);
}

int kv_rules_read(struct kv_rules *out, const char *policy, const char *allowed,
                  struct error *err) {
    struct kv_rules rules = {0};
    int rc = read_initial(&rules.initial, policy, err);
    for (const char *at = allowed; !rc;) {
        const size_t length = strcspn(at, ",");
        rc = allow(&rules, at, length, err);
        if (!at[length]) break;
        at += length + 1;
    }
    if (rc) return rc;
    const enum kv_type type = rules.initial.tokens.type;
    if (!rules.allowed[type])
        return error_set(err, ERR_INVALID, "--kv-policy is %s, which --allowed-kv-policies lacks",
                         kv_type_name(type));
    *out = rules;
    return 0;
}

bool kv_rules_allow_bounded(const struct kv_rules *rules) {
    return rules->allowed[KV_STREAMING] || rules->allowed[KV_HEAVY_HITTER];
}

bool kv_rules_allow_whole(const struct kv_rules *rules) {
    return rules->allowed[KV_FULL] || rules->allowed[KV_OFFLOAD];
}

/* Checks that cache positions stay within the model's context.  Fractions count as 0 here, because
 * only the prompt resolves them. */
static int check_context(const struct kv_choice *initial, uint32_t context, struct error *err) {
    if (!initial->cache_positions || kv_choice_slots(initial, 1) <= context) return 0;
    return error_set(err, ERR_INVALID,
                     "--kv-policy counts positions inside the cache: what it keeps, a chunk and "
                     "one token more are %" PRIu64 ", the model's context is %" PRIu32,
                     kv_choice_slots(initial, 1), context);
}

static int settle_bounded(struct kv_rules *rules, const struct engine_info *info,
                          struct error *err) {
    const struct kv_choice *initial = &rules->initial.tokens;
    const bool bounded = kv_choice_is_bounded(initial);
    if (!info->bounded_caches) {
        rules->allowed[KV_STREAMING] = rules->allowed[KV_HEAVY_HITTER] = false;
        if (bounded)
            return error_set(err, ERR_UNSUPPORTED, "--kv-policy: the backend keeps all or nothing");
    }
    if (bounded && kv_choice_capacity(initial) > info->kv_tokens)
        return error_set(err, ERR_INVALID,
                         "--kv-policy keeps %" PRIu64 " tokens, the KV cache holds %" PRIu64,
                         kv_choice_capacity(initial), info->kv_tokens);
    return bounded ? check_context(initial, info->model->max_position, err) : 0;
}

static int settle_offload(struct kv_rules *rules, const struct engine_info *info,
                          struct error *err) {
    struct api_error refusal = {0};
    rules->offload.host_pool_bytes = info->host_pool_bytes;
    if (!rules->allowed[KV_OFFLOAD]) {
        rules->offload.why_not = NULL; /* not being allowed is the reason */
        return 0;
    }
    if (!info->selections && !rules->offload.why_not)
        rules->offload.why_not = "the backend cannot select tokens";
    if (rules->offload.why_not) rules->allowed[KV_OFFLOAD] = false;
    if (rules->initial.tokens.type != KV_OFFLOAD) return 0;
    if (kv_rules_apply(rules, &rules->initial, &refusal) == 0) return 0;
    return error_set(err, ERR_UNSUPPORTED, "--kv-policy: %s", refusal.message);
}

int kv_rules_settle(struct kv_rules *rules, const struct engine_info *info, struct error *err) {
    const int rc = settle_bounded(rules, info, err);
    return rc ? rc : settle_offload(rules, info, err);
}

static int refuse_type(const struct kv_rules *rules, enum kv_type type, struct api_error *err) {
    char all[64] = "";
    size_t length = 0;
    if (type == KV_OFFLOAD && rules->offload.why_not)
        return api_error_set(err, 400, "unsupported", "kv_policy.type",
                             "kv_policy.type offload: %s", rules->offload.why_not);
    for (unsigned i = 0; i < KV_N_TYPES; i++) {
        if (!rules->allowed[i]) continue;
        length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s", length ? ", " : "",
                                   kv_type_name((enum kv_type)i));
    }
    return api_error_set(err, 400, "unsupported", "kv_policy.type",
                         "kv_policy.type %s is not allowed by this server, only %s",
                         kv_type_name(type), all);
}

int kv_rules_apply(const struct kv_rules *rules, struct kv_policy *policy, struct api_error *err) {
    const enum kv_type type = policy->tokens.type;
    if (!rules->allowed[type]) return refuse_type(rules, type, err);
    return type == KV_OFFLOAD ? offload_rules_apply(&rules->offload, policy, err) : 0;
}

void kv_rules_write(const struct kv_rules *rules, struct buffer *out) {
    bool listed = false;
    buffer_puts(out, "\"kv_policy\":");
    kv_policy_write(&rules->initial, out);
    buffer_puts(out, ",\"kv_policies\":[");
    for (unsigned i = 0; i < KV_N_TYPES; i++) {
        if (!rules->allowed[i]) continue;
        struct kv_policy policy = kv_policy_default((enum kv_type)i);
        if (i == KV_OFFLOAD) offload_rules_place(&rules->offload, &policy);
        if (listed) buffer_puts(out, ",");
        listed = true;
        kv_policy_write(&policy, out);
    }
    buffer_puts(out, "],\"offload\":");
    if (rules->allowed[KV_OFFLOAD]) offload_rules_write(&rules->offload, out);
    else buffer_puts(out, "null");
}
