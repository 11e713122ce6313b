/* kv_policy.h - how many of its tokens a request retains in the KV cache: the member `kv_policy` of
 * a body, and the setting of that name.
 *
 *   {"type": "full"}
 *   {"type": "streaming", "sink": 4, "recent": 2044, "prompt": "chunks", "chunk": 512,
 *    "positions": "cache"}
 *   {"type": "heavy_hitter", "sink": 4, "recent": 1020, "heavy": 1024, "score": "sum",
 *    "prompt": "chunks", "chunk": 512, "positions": "text"}
 *      and "decay": 0.99 with "score": "decay"; "window": 64, "pooling": "none" with "score":
 *      "window"; "kernel": 7 with a pooling, which needs "prompt": "whole"
 *   {"type": "offload", "sink": 4, "selected": 2048, "tail": 512, "offload": true}
 *
 * The values shown are the defaults; `offload` is true by default if the server has a host pool.
 * `recent`, `heavy` and `selected` may be fractions of the prompt's tokens.  Members that the type
 * does not have are refused: a mistyped budget would retain other tokens than asked for, and the
 * text would not show it.
 *
 * Thread: any.  Memory: none; names are constants. */
#ifndef SERVER_SETTINGS_KV_POLICY_H
#define SERVER_SETTINGS_KV_POLICY_H

#include <jansson.h>

#include "engine/engine.h"

struct api_error;
struct buffer;

enum { KV_POLICY_MAX_TOKENS = 1 << 28 }; /* of each member: their sum fits 32 bits */
enum { KV_POLICY_MAX_KERNEL = 63 };      /* a token's score is read this many times */

struct kv_policy {
    struct kv_choice tokens;        /* amounts given as a fraction are 0 here */
    double recent, heavy, selected; /* fractions of the prompt, (0, 1); 0: given in tokens */
    bool placed;                    /* tokens.on_device is decided */
};

/* Returns the policy of this type with every other member at its default. */
struct kv_policy kv_policy_default(enum kv_type type);
/* Reads a policy; *out is written on success only.  The error's param names the member:
 * "kv_policy.recent". */
int kv_policy_read(struct kv_policy *out, const json_t *value, struct api_error *err);
/* Computes the amounts for a prompt.  Fractions are rounded to the nearest token, and to at least
 * one; `selected` is at least the sinks and, with pooling, `recent` at least the window. */
struct kv_choice kv_policy_resolve(const struct kv_policy *policy, uint32_t n_prompt);
void kv_policy_write(const struct kv_policy *policy, struct buffer *out); /* a JSON object */

const char *kv_type_name(enum kv_type type);

#endif
