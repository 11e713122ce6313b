/* kv_layers.h - layers that keep a budget while the others keep everything, or select: the member
 * `layers` of a policy.
 *
 *   [{"first": 4, "last": 11, "kv_policy": {"type": "streaming", "recent": 512}}, ...]
 *
 * Both numbers are those of layers, the first one is 0.  The policies of all ranges must be the
 * same, and their positions are those of the text, as in the other layers.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_SETTINGS_KV_LAYERS_H
#define SERVER_SETTINGS_KV_LAYERS_H

#include <jansson.h>

struct api_error;
struct buffer;
struct kv_policy;

/* Reads the member into policy->override; the policy's other members have been read. */
int kv_layers_read(struct kv_policy *policy, const json_t *value, struct api_error *err);
/* Writes ,"layers":[...] if the policy has such layers. */
void kv_layers_write(const struct kv_policy *policy, struct buffer *out);

#endif
