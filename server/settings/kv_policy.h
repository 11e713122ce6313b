/* kv_policy.h - how much of its text a request keeps in the KV cache, as it is asked for: the
 * member `kv_policy` of a body, and the setting of that name.
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
 * Shown are the defaults; that of `offload` is true where the server has memory for it.  `recent`,
 * `heavy` and `selected` may be fractions of the prompt's tokens.  Members that the type does not
 * have are refused: a budget with a mistyped name would keep something else than was asked for, and
 * nothing in the text would show it.
 *
 * Thread: any.  Memory: none; names are constants. */
#ifndef SERVER_SETTINGS_KV_POLICY_H
#define SERVER_SETTINGS_KV_POLICY_H

#include <jansson.h>

#include "engine/engine.h"

struct api_error;
struct buffer;

enum { KV_POLICY_MAX_TOKENS = 1 << 28 }; /* of each member: their sum fits 32 bits */
enum { KV_POLICY_MAX_KERNEL = 63 };      /* a token's score is read so many times */

struct kv_policy {
    struct kv_choice tokens; /* what is given as a fraction is 0 here */
    double recent, heavy, selected; /* fractions of the prompt, (0, 1); 0: given in tokens */
    bool placed;                    /* tokens.on_device is decided */
};

/* The type with nothing else given. */
struct kv_policy kv_policy_default(enum kv_type type);
/* The error's param names the member: "kv_policy.recent".  *out is written on success only. */
int kv_policy_read(struct kv_policy *out, const json_t *value, struct api_error *err);
/* Fractions are rounded to the nearest token, and to one at least; `selected` to the sinks. */
struct kv_choice kv_policy_resolve(const struct kv_policy *policy, uint32_t n_prompt);
void kv_policy_write(const struct kv_policy *policy, struct buffer *out); /* a JSON object */

const char *kv_type_name(enum kv_type type);

#endif
