/* admit.c - see admit.h. */
#include "engine/admit.h"

#include <inttypes.h>

#include "engine/base/error.h"
#include "engine/device/sparse.h"
#include "engine/model/model.h"
#include "engine/request/sampling.h"
#include "engine/schedule/request_plan.h"
#include "engine/schedule/sequence.h"
#include "engine/schedule/speculation_rules.h"

int admit_patterns(const struct model_config *model, const struct attn_pattern *patterns,
                   struct error *err) {
    const uint32_t n_heads = model->n_heads;
    for (uint32_t i = 0; i < model->n_attention * n_heads; i++) {
        const struct attn_pattern *p = &patterns[i];
        const bool fits = (p->kind != PATTERN_VERTICAL_SLASH || p->p1 <= SPARSE_MAX_COLUMNS) &&
                          (p->kind != PATTERN_BLOCK_SPARSE || p->p1 <= SPARSE_MAX_PAGES);
        const bool alike = (p->kind == PATTERN_FILTERS) == (patterns[0].kind == PATTERN_FILTERS);
        if ((uint32_t)p->kind < PATTERN_N_KINDS && fits && alike) continue;
        return error_set(err, ERR_INVALID,
                         "the pattern of layer %" PRIu32 ", head %" PRIu32
                         " is unknown, or has more than %d columns or %d pages",
                         i / n_heads, i % n_heads, SPARSE_MAX_COLUMNS, SPARSE_MAX_PAGES);
    }
    return 0;
}

/* Returns the parameter that limits what the sequence keeps. */
static const char *kept_by(const struct engine_request *r) {
    return r->kv.mechanism == KV_WHOLE ? "prompt" : "kv_policy";
}

/* Checks that filters may choose for the prompt: chunks go through all layers, one after the other,
 * and no chunk must depend on what else runs. */
static int check_filters(const struct admission *a, const struct engine_request *r,
                         const struct request_plan *plan, struct error *err) {
    if (r->prefill.patterns[0].kind != PATTERN_FILTERS) return 0;
    if (a->shared->prefill.n_groups == 0)
        return error_set(err, ERR_INVALID,
                         "prefill.pattern.type filters needs filter layers (--filters-file)");
    if (a->model->n_ranks > 1 && !a->kv.selections)
        return error_set(err, ERR_INVALID,
                         "prefill.pattern.type filters does not go with %s %" PRIu32
                         " on the device %.20s",
                         ranks_setting(a->kv.ranks_share), a->model->n_ranks, a->kv.device);
    if (r->kv.mechanism == KV_BOUNDED || !layer_set_is_empty(&r->kv_override.layers))
        return error_set(err, ERR_INVALID,
                         "prefill.pattern.type filters does not go with a kv_policy that evicts");
    if (r->prefill.no_reuse)
        return error_set(err, ERR_INVALID,
                         "prefill.reuse false does not go with the pattern filters: its chunks "
                         "depend on what else runs");
    if (plan->kv.layer_major)
        return error_set(
            err, ERR_INVALID,
            "the pattern filters needs a prompt that fits the KV cache with all of its pages");
    return 0;
}

static int check_prefill(const struct admission *a, const struct engine_request *r,
                         const struct request_plan *plan, struct error *err) {
    const struct prefill_choice *choice = &r->prefill;
    const struct prefill_support *support = &a->shared->prefill;
    if (!(choice->dense_above >= 0 && choice->dense_above <= 1))
        return error_set(err, ERR_INVALID,
                         "the density above which heads are dense must be between 0 and 1");
    if (choice->patterns && admit_patterns(a->model, choice->patterns, err)) return ERR_INVALID;
    if (choice->mode != PREFILL_SPARSE) return 0;
    if (!support->available)
        return error_set(err, ERR_INVALID, "this server computes prompts densely only");
    if (!choice->patterns && !support->patterns)
        return error_set(err, ERR_INVALID, "sparse prefill needs patterns for the model's heads");
    const struct dense_rule *rule =
        prefill_dense_rule(&r->kv, &r->kv_override, r->params.n_prompt_logprobs >= 0);
    if (rule && rule->needs)
        return error_set(err, ERR_INVALID, "sparse prefill needs %s", rule->needs);
    if (r->n_prompt > support->max_tokens)
        return error_set(err, ERR_TOO_LONG,
                         "a sparse prompt may have at most %" PRIu32 " tokens (--max-model-len)",
                         support->max_tokens);
    if (choice->patterns && check_filters(a, r, plan, err)) return ERR_INVALID;
    if (choice->no_reuse && plan->prefill.n_together > a->shared->max_long_rows)
        return error_set(err, ERR_TOO_LONG,
                         "a sparse prompt with reuse false may have at most %" PRIu32
                         " tokens that are computed together (--max-long-tokens)",
                         a->shared->max_long_rows);
    return 0;
}

/* Checks that it can be told what is kept.  Where a backend runs ahead, the step behind the last
 * one may already have evicted or selected, so what the device holds is not what the answer saw. */
static int check_kept(const struct admission *a, const struct engine_request *r,
                      const struct request_plan *plan, struct error *err) {
    if (!r->kept || !a->runs_ahead || kv_plan_sees_all(&plan->kv)) return 0;
    return error_set(err, ERR_INVALID,
                     "the device %s cannot tell which tokens a budget or a selection has kept",
                     a->kv.device);
}

/* Checks that a request's next tokens can be guessed if it asks for that itself. */
static int check_speculation(const struct admission *a, const struct engine_request *r,
                             const struct request_plan *plan, struct error *err) {
    if (!r->speculation.is_asked || r->speculation.mode == SPECULATION_OFF || plan->speculates)
        return 0;
    return error_set(err, ERR_INVALID, "speculation does not go with %s",
                     speculation_refused(a->shared->space, r, &plan->kv));
}

/* Returns the place of the first token that is not in the vocabulary, or n.  Compilers turn the
 * loop over a block into vector instructions. */
static uint32_t find_outside(const uint32_t *tokens, uint32_t n, uint32_t n_vocab) {
    enum { BLOCK = 64 };
    uint32_t at = 0;
    for (uint32_t n_outside = 0; n - at >= BLOCK; at += BLOCK) {
        for (uint32_t i = 0; i < BLOCK; i++) n_outside += tokens[at + i] >= n_vocab;
        if (n_outside > 0) break;
    }
    while (at < n && tokens[at] < n_vocab) at++;
    return at;
}

static int check_prompt(const struct admission *a, const struct engine_request *r,
                        struct error *err) {
    const uint32_t n_vocab = a->model->n_vocab;
    const uint32_t at = find_outside(r->prompt, r->n_prompt, n_vocab);
    if (at == r->n_prompt) return 0;
    return error_set(err, ERR_INVALID, "the prompt has token %" PRIu32 "; ids end at %" PRIu32,
                     r->prompt[at], n_vocab - 1);
}

int admit(const struct admission *a, const struct engine_request *r, struct request_plan *plan,
          struct error *err) {
    if (r->n_prompt == 0)
        return error_about(err, "prompt", error_set(err, ERR_INVALID, "the prompt is empty"));
    int rc = kv_choice_check(&r->kv, r->n_prompt, r->params.max_tokens, &a->kv, err);
    if (rc) return error_about(err, kept_by(r), rc);
    rc = kv_override_check(&r->kv_override, &r->kv, r->n_prompt, &a->kv, err);
    if (rc) return error_about(err, "kv_policy", rc);
    *plan = request_plan_make(a->shared, r);
    rc = request_plan_check(plan, a->shared->space, err);
    if (rc) return error_about(err, kept_by(r), rc);
    rc = check_prefill(a, r, plan, err);
    if (rc) return error_about(err, rc == ERR_TOO_LONG ? "prompt" : "prefill", rc);
    rc = check_kept(a, r, plan, err);
    if (rc) return error_about(err, "return_kept_positions", rc);
    rc = check_speculation(a, r, plan, err);
    if (rc) return error_about(err, "speculation", rc);
    rc = check_prompt(a, r, err);
    if (rc) return error_about(err, "prompt", rc);
    return sampling_check(&r->params, a->model->n_vocab, err);
}
