/* prefill_rules.h - how prompts are computed: what requests may ask for, and what they get that ask
 * for nothing.
 *
 *   "prefill": "auto" | "dense" | "sparse"
 *   "prefill": {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 1024, "recent": 4096}}
 *                                            {"type": "vertical_slash", "columns": 1000,
 *                                             "diagonals": 6096}
 *                                            {"type": "block_sparse", "pages": 100}
 *   "prefill": {"mode": "sparse" | "auto", "reuse": true}
 *
 * Shown are the defaults of the members; a pattern takes the place of the pattern file, for every
 * head.  Without reuse no sparse blocks are taken that other requests have left.
 *
 * Thread: any; the rules are written at start-up only.  Memory: a request owns its patterns. */
#ifndef SERVER_SETTINGS_PREFILL_RULES_H
#define SERVER_SETTINGS_PREFILL_RULES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/request/prefill_choice.h"

struct api_error;
struct buffer;

/* Where neither the settings nor the pattern file say from where on sparse is faster with the
 * backend that runs. */
enum { PREFILL_MIN_SPARSE_TOKENS = 32768 };

/* Zeroed: prompts are dense, and requests may ask for nothing else. */
struct prefill_rules {
    enum prefill_mode initial; /* of requests that name none */
    bool sparse;               /* may be asked for */
    const char *why_dense;     /* !sparse: the reason, for people */
    const char *pattern_file;  /* its name, borrowed; NULL: there is none, and auto is dense */
    const struct attn_pattern *fallback; /* without it, [n_heads] for those that ask for sparse */
    uint32_t n_heads;          /* of all layers */
    uint32_t min_sparse_tokens, dense_tail;
    uint32_t synthetic; /* as in struct attn_sparse */
    const char *measured_on; /* the backend that min_sparse_tokens was measured with, borrowed;
                                NULL: it is set, or the default */
};

/* Zeroed: the request names nothing. */
struct prefill_request {
    bool named;
    enum prefill_mode mode;
    bool no_reuse;
    struct attn_pattern *patterns; /* owned, [n_heads]; NULL: the server's */
};

const char *prefill_mode_name(enum prefill_mode mode);
const char *prefill_pattern_name(enum attn_pattern_kind kind);

/* The member `prefill` of a body.  The error's param names what is wrong: "prefill.pattern.sink".
 * *out is written on success only. */
int prefill_rules_read(struct prefill_request *out, const json_t *value,
                       const struct prefill_rules *rules, struct api_error *err);
void prefill_request_fini(struct prefill_request *request);
/* exact: what else is asked for needs every key, and sparse was not.  The choice borrows the
 * request's patterns. */
struct prefill_choice prefill_rules_resolve(const struct prefill_rules *rules,
                                            const struct prefill_request *request, bool exact);
/* A member of a JSON object: "prefill". */
void prefill_rules_write(const struct prefill_rules *rules, struct buffer *out);

#endif
