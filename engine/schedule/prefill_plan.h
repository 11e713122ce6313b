/* prefill_plan.h - works out a request's choice of prefill: which rows of its prompt are computed
 * sparsely, in which order, and under which salt the prefix cache files its blocks.
 *
 *   PREFILL_LAYER_MAJOR      rows [cached, n_together) are indexed together (model/decoder.h), if
 *                            the workspace for long prompts has that many; a last token that is not
 *                            one of them is an ordinary row
 *   PREFILL_SPARSE_CHUNKED   each chunk is indexed by itself; sparse chunks begin at whole pages,
 *                            so a few rows before one may be dense
 *                            (where filters choose, always)
 *   PREFILL_CHUNKED          dense: the prompt is not sparse, or few rows are left
 *
 * A prompt whose pages do not fit (kv_plan.layer_major) is layer-major in any case, sparse or
 * dense.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_SCHEDULE_PREFILL_PLAN_H
#define ENGINE_SCHEDULE_PREFILL_PLAN_H

#include "engine/device/sparse.h"
#include "engine/request/kv_choice.h"
#include "engine/request/prefill_choice.h"

struct kv_plan;

/* In which order a prompt, or the rest of it, is computed: see above. */
enum prefill_order { PREFILL_CHUNKED, PREFILL_SPARSE_CHUNKED, PREFILL_LAYER_MAJOR };

/* What an engine can do and prefers. */
struct prefill_support {
    bool available; /* the backend can choose keys, and memory was planned for it */
    const struct attn_pattern *patterns; /* or NULL */
    uint32_t n_heads_in_all;             /* over all layers: the number of patterns */
    uint32_t max_tokens;                 /* of a sparse prompt */
    uint32_t min_sparse_tokens;
    const struct layer_group *groups; /* host [n_groups]: the filters */
    uint32_t n_groups;
    /* Random, the same as long as a tier on disk.  Clients choose salts, and must not guess those
     * of sparse blocks. */
    uint64_t key[2];
};

/* A request's choice, worked out. */
struct prefill_plan {
    bool is_sparse;              /* sparse if at least min_rows rows are left to compute */
    enum dense_reason why_dense; /* !is_sparse */
    uint32_t min_rows;           /* of n_together */
    uint32_t n_together;         /* tokens of a sparse or layer-major prompt that are computed
                                  together: all of them if its end decides what is kept
                                  (kv_plan_ends_prompt), else all but the last */
    bool no_reuse;             /* the prompt is sparse and takes no blocks from the prefix cache */
    uint32_t chunk;            /* the most rows of a sparse chunk; UINT32_MAX: any number */
    struct attn_sparse sparse; /* its first_slot and n_rows are not set */
};

/* Returns the plan of a request's choice for a prompt with this KV plan.  dense: the rule that
 * makes the prompt dense in mode PREFILL_AUTO or always (prefill_dense_rule()); NULL: none does. */
struct prefill_plan prefill_plan_make(const struct prefill_choice *choice,
                                      const struct prefill_support *support,
                                      const struct dense_rule *dense, const struct kv_plan *kv);
/* Returns the salt of the request's blocks in the prefix cache.  That is cache_salt if the prompt
 * is dense, else a hash of that and of all that decides which keys are chosen.  owner: not 0 for a
 * request that shares no sparse blocks; it makes the salt unique and private (KV_SALT_PRIVATE). */
uint64_t prefill_salt(const struct prefill_plan *plan, const struct prefill_support *support,
                      uint64_t cache_salt, uint64_t owner);

/* Returns in which order to compute the rest of a prompt whose first n_stored tokens are stored, if
 * only sparsity matters.  Dense is PREFILL_CHUNKED.  max_long_rows: the rows of the workspace for
 * layer-major prompts. */
enum prefill_order prefill_order(const struct prefill_plan *plan, uint32_t n_stored,
                                 uint32_t max_long_rows);

/* Adds the totals of one step to *to. */
void sparse_totals_add(struct sparse_totals *to, const struct sparse_totals *step);
/* Returns the share of causal pairs of queries and keys that were visited; 0 without any pair. */
double sparse_density(const struct sparse_totals *totals);
/* Returns the report of how a prompt was computed.  was_sparse: it had sparse steps, with these
 * totals.  n_cached: tokens of it that the caches had. */
struct prefill_usage prefill_usage(const struct prefill_plan *plan, bool was_sparse,
                                   const struct sparse_totals *visited, uint32_t n_cached);

#endif
