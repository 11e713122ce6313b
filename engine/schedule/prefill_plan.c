/* prefill_plan.c - see prefill_plan.h. */
#include "engine/schedule/prefill_plan.h"

#include <assert.h>
#include <string.h>

#include "engine/base/siphash.h"
#include "engine/base/sizes.h"
#include "engine/device/layer_group.h"
#include "engine/device/pages.h"
#include "engine/kv/kv_space.h"
#include "engine/kv/plan.h"

/* Returns why a prompt is dense; DENSE_NOT: it is sparse. */
static enum dense_reason why_dense(const struct prefill_choice *choice,
                                   const struct prefill_support *support,
                                   const struct dense_rule *dense, uint32_t n_prompt) {
    const enum dense_reason why = prefill_why_dense(dense, choice->mode);
    if (choice->mode == PREFILL_DENSE && choice->why_dense) return choice->why_dense;
    if (why) return why;
    if (!support->available) return DENSE_UNAVAILABLE;
    if (!choice->patterns && !support->patterns) return DENSE_NO_PATTERNS;
    if (n_prompt > support->max_tokens) return DENSE_LONG;
    const bool is_short = choice->mode == PREFILL_AUTO && n_prompt < support->min_sparse_tokens;
    return is_short ? DENSE_SHORT : DENSE_NOT;
}

/* Lets filters choose, for chunks of whole pages. */
static void plan_filters(struct prefill_plan *plan, const struct prefill_support *support) {
    plan->chunk = (uint32_t)round_up(plan->sparse.patterns[0].p2, PAGE_TOKENS);
    plan->sparse.groups = support->groups;
    plan->sparse.n_groups = support->n_groups;
}

struct prefill_plan prefill_plan_make(const struct prefill_choice *choice,
                                      const struct prefill_support *support,
                                      const struct dense_rule *dense, const struct kv_plan *kv) {
    const uint32_t n_prompt = kv->n_prompt,
                   n_dense = max_u32(choice->dense_tail, kv_plan_n_exact(kv));
    struct prefill_plan plan = {.n_together = n_prompt - !kv_plan_ends_prompt(kv),
                                .chunk = UINT32_MAX,
                                .why_dense = why_dense(choice, support, dense, n_prompt)};
    if (plan.why_dense) return plan;
    plan.is_sparse = true;
    plan.no_reuse = choice->no_reuse;
    plan.min_rows = choice->mode == PREFILL_SPARSE ? 1 : PREFILL_MIN_AUTO_ROWS;
    plan.sparse = (struct attn_sparse){
        .patterns = choice->patterns ? choice->patterns : support->patterns,
        .dense_from = n_prompt - min_u32(n_dense, n_prompt),
        .dense_above = choice->dense_above > 0 ? choice->dense_above : PREFILL_DENSE_ABOVE,
        .synthetic = choice->synthetic};
    if (plan.sparse.patterns[0].kind == PATTERN_FILTERS) plan_filters(&plan, support);
    return plan;
}

static uint32_t float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

uint64_t prefill_salt(const struct prefill_plan *plan, const struct prefill_support *support,
                      uint64_t cache_salt, uint64_t owner) {
    if (!plan->is_sparse) return cache_salt;
    const struct attn_sparse *sparse = &plan->sparse;
    struct siphash hash;
    siphash_init(&hash, support->key);
    siphash_absorb(&hash, cache_salt);
    siphash_absorb(&hash, owner);
    siphash_absorb(&hash, float_bits(sparse->dense_above) | (uint64_t)sparse->synthetic << 32);
    siphash_absorb(&hash, plan->n_together + 1 - sparse->dense_from);
    for (uint32_t i = 0; i < support->n_heads_in_all; i++) {
        const struct attn_pattern *pattern = &sparse->patterns[i];
        siphash_absorb(&hash, pattern->kind);
        siphash_absorb(&hash, pattern->p1 | (uint64_t)pattern->p2 << 32);
    }
    for (uint32_t i = 0; i < sparse->n_groups; i++) {
        const struct layer_group *group = &sparse->groups[i];
        siphash_absorb(&hash, group->filter);
        siphash_absorb(&hash, group->first | (uint64_t)group->end << 32);
    }
    const uint64_t salt = siphash_end(&hash);
    return owner ? salt | KV_SALT_PRIVATE : salt & ~KV_SALT_PRIVATE;
}

enum prefill_order prefill_order(const struct prefill_plan *plan, uint32_t n_stored,
                                 uint32_t max_long_rows) {
    const uint32_t n_together = plan->n_together;
    if (!plan->is_sparse || n_stored >= n_together || n_together - n_stored < plan->min_rows)
        return PREFILL_CHUNKED;
    if (plan->sparse.groups) return PREFILL_SPARSE_CHUNKED;
    return n_together - n_stored <= max_long_rows ? PREFILL_LAYER_MAJOR : PREFILL_SPARSE_CHUNKED;
}

void sparse_totals_add(struct sparse_totals *to, const struct sparse_totals *step) {
    for (int kind = 0; kind < PATTERN_N_KINDS; kind++) {
        to->visited[kind] += step->visited[kind];
        to->causal[kind] += step->causal[kind];
    }
    to->n_dense += step->n_dense;
    to->index_s += step->index_s;
    to->attention_s += step->attention_s;
}

double sparse_density(const struct sparse_totals *totals) {
    double n_visited = 0, n_causal = 0;
    for (int kind = 0; kind < PATTERN_N_KINDS; kind++) {
        n_visited += totals->visited[kind];
        n_causal += totals->causal[kind];
    }
    return n_causal > 0 ? n_visited / n_causal : 0;
}

struct prefill_usage prefill_usage(const struct prefill_plan *plan, bool was_sparse,
                                   const struct sparse_totals *visited, uint32_t n_cached) {
    const double density = sparse_density(visited);
    /* A sparse prompt whose rows are many is dense where it may be computed only as a whole. */
    const bool has_few_rows = n_cached + plan->min_rows > plan->n_together;
    const enum dense_reason why = !plan->is_sparse ? plan->why_dense
                                  : has_few_rows   ? DENSE_CACHED
                                                   : DENSE_LONG;
    struct prefill_usage usage = {.mode = was_sparse ? PREFILL_SPARSE : PREFILL_DENSE,
                                  .why_dense = was_sparse ? DENSE_NOT : why,
                                  .density = 1,
                                  .index_s = visited->index_s,
                                  .attention_s = visited->attention_s,
                                  .n_reused = plan->is_sparse ? n_cached : 0};
    if (density > 0) usage.density = density;
    return usage;
}
