/* kv_policy.h - how many of its tokens a request retains in the KV cache: the member `kv_policy` of
 * a body, and the setting of that name.
 *
 *   {"type": NAME, MEMBER: VALUE, ..., "layers": [...]}          layers: see kv_layers.h
 *
 * engine/request/kv_policies.h has the names, and each one's members, defaults and limits.  This
 * reads and writes whatever is in that table.
 *
 * Members that the type does not have are refused: a mistyped budget would retain other tokens than
 * asked for, and the text would not show it.
 *
 * Thread: any.  Memory: none; names are constants. */
#ifndef SERVER_SETTINGS_KV_POLICY_H
#define SERVER_SETTINGS_KV_POLICY_H

#include <jansson.h>

#include "engine/request/kv_policies.h"

struct api_error;
struct buffer;

struct kv_policy {
    struct kv_choice tokens;        /* amounts given as a fraction are 0 here */
    double fractions[KV_N_MEMBERS]; /* of the prompt, (0, 1); 0: given in tokens */
    bool placed;                    /* tokens.on_device is decided */
    struct kv_override override;    /* kv_layers.h; its amounts likewise, */
    double override_fractions[KV_N_MEMBERS];
};

/* Returns the policy of this type, a row of the table, with every other member at its default. */
struct kv_policy kv_policy_default(unsigned type);
/* Reads a policy; *out is written on success only.  The error's param names the member:
 * "kv_policy.recent". */
int kv_policy_read(struct kv_policy *out, const json_t *value, struct api_error *err);
/* Computes the amounts for a prompt.  Fractions are rounded to the nearest token, and to no less
 * than the member's least. */
struct kv_choice kv_policy_resolve(const struct kv_policy *policy, uint32_t n_prompt);
struct kv_override kv_policy_resolve_part(const struct kv_policy *policy, uint32_t n_prompt);
void kv_policy_write(const struct kv_policy *policy, struct buffer *out); /* a JSON object */

/* Writes what JSON a policy may be, as a JSON Schema. */
void kv_policy_write_schema(struct buffer *out);

const char *kv_type_name(unsigned type);
/* Writes the names of the types that `wanted` holds, or of all if it is NULL: "a, b or c", with
 * `last` (" or ") before the last one. */
enum { KV_NAMES_SIZE = 512 };
void kv_type_names(char out[KV_NAMES_SIZE], const bool wanted[KV_MAX_POLICIES], const char *last);

#endif
