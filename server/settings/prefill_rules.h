/* prefill_rules.h - how prompts are computed: what requests may ask for, and what requests get that
 * ask for nothing.
 *
 *   "prefill": "auto" | "dense" | "sparse"
 *   "prefill": {"mode": "sparse", "pattern": {"type": "a_shape", "sink": 1024, "recent": 4096}}
 *                                            {"type": "vertical_slash", "columns": 1000,
 *                                             "diagonals": 6096}
 *                                            {"type": "block_sparse", "pages": 100}
 *                                            {"type": "filters", "selected": 4096, "chunk": 2048}
 *   "prefill": {"mode": "sparse" | "auto", "reuse": true}
 *
 * The values shown are the members' defaults.  A pattern replaces the pattern file, for every head.
 * Without reuse the request uses no sparse blocks that other requests have inserted.
 *
 * Thread: any; the rules are written at start-up only.  Memory: a request owns its patterns. */
#ifndef SERVER_SETTINGS_PREFILL_RULES_H
#define SERVER_SETTINGS_PREFILL_RULES_H

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "engine/device/sparse.h"
#include "engine/request/prefill_choice.h"

struct api_error;
struct buffer;

/* The least length of sparse prompts under auto, if neither the settings nor the pattern file give
 * one for the backend that runs. */
enum { PREFILL_MIN_SPARSE_TOKENS = 32768 };

/* Zeroed: prompts are dense, and requests may ask for nothing else. */
struct prefill_rules {
    enum prefill_mode initial; /* for requests that name none */
    bool sparse;               /* requests may ask for sparse */
    const char *why_dense;     /* !sparse: the reason, for people */
    const char *pattern_file;  /* the file's name, borrowed; NULL: none, and auto is dense */
    /* [n_heads], without a file, for requests that ask for sparse. */
    const struct attn_pattern *fallback;
    uint32_t n_heads; /* of all layers */
    uint32_t min_sparse_tokens, dense_tail;
    uint32_t synthetic;      /* as in struct attn_sparse */
    const char *measured_on; /* the backend that min_sparse_tokens was measured with, borrowed;
                                NULL: it is set, or the default */
};

/* Zeroed: the request asks for nothing. */
struct prefill_request {
    bool named;
    enum prefill_mode mode;
    bool no_reuse;
    struct attn_pattern *patterns; /* owned, [n_heads]; NULL: the server's */
};

const char *prefill_mode_name(enum prefill_mode mode);
const char *prefill_pattern_name(enum attn_pattern_kind kind);

/* Reads the member `prefill` of a body; *out is written on success only.  The error's param names
 * the cause: "prefill.pattern.sink". */
int prefill_rules_read(struct prefill_request *out, const json_t *value,
                       const struct prefill_rules *rules, struct api_error *err);
void prefill_request_fini(struct prefill_request *request);
/* Resolves a request by the rules.  `dense` may keep its prompt dense (NULL: nothing does);
 * explicit sparse was refused before.  The choice borrows the request's patterns. */
struct prefill_choice prefill_rules_resolve(const struct prefill_rules *rules,
                                            const struct prefill_request *request,
                                            const struct dense_rule *dense);
/* Writes a member of a JSON object: "prefill". */
void prefill_rules_write(const struct prefill_rules *rules, struct buffer *out);

/* Writes what JSON a request's `prefill` may be, as a JSON Schema. */
void prefill_rules_write_schema(struct buffer *out);

#endif
