/* kv_rules.h - the server's rules for KV policies: the policy of requests that name none, and the
 * policies that requests may name.
 *
 * Thread: any; written at start-up only.  Memory: none. */
#ifndef SERVER_SETTINGS_KV_RULES_H
#define SERVER_SETTINGS_KV_RULES_H

#include <stdbool.h>

#include "server/settings/kv_policy.h"
#include "server/settings/offload_rules.h"

struct engine_info;
struct error;

/* Zeroed: full, and requests may not choose. */
struct kv_rules {
    struct kv_policy initial;
    bool allowed[KV_MAX_POLICIES]; /* by type */
    struct offload_rules offload;  /* for policies that select, if one is allowed */
};

/* Reads the settings.  policy: a kv_policy as JSON text; allowed: "all", or names of types,
 * separated by commas, the policy's among them.  ERR_INVALID names the setting. */
int kv_rules_read(struct kv_rules *out, const char *policy, const char *allowed, struct error *err);
bool kv_rules_allow(const struct kv_rules *rules, enum kv_mechanism mechanism);
bool kv_rules_allow_whole_texts(const struct kv_rules *rules); /* some type evicts nothing */
/* Removes the types that this engine cannot do.  Fails when the initial policy is not possible. */
int kv_rules_resolve(struct kv_rules *rules, const struct engine_info *info, struct error *err);
/* Decides what a request's policy leaves to the server, or refuses the policy. */
int kv_rules_apply(const struct kv_rules *rules, struct kv_policy *policy, struct api_error *err);
/* Writes three members of a JSON object: "kv_policy", the initial one; "kv_policies", those
 * allowed, each with the defaults of its parameters; "offload", what policies that select do here,
 * or null. */
void kv_rules_write(const struct kv_rules *rules, struct buffer *out);

#endif
