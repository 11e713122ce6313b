/* prefill_choice.c - see prefill_choice.h: the table of what goes with sparse prompts. */
#include "engine/request/prefill_choice.h"

#include <stddef.h>

/* Tells whether a cache is reduced before the prompt's end.  Patterns are lines and places of a
 * whole text, not of what is left of one. */
static bool is_cut(const struct kv_choice *kv, bool scores_prompt) {
    (void)scores_prompt;
    return kv_choice_is_bounded(kv) && !kv->whole;
}

/* Tells whether keys are rotated when they are read, which the operations that choose and visit
 * keys do not do. */
static bool is_rotated(const struct kv_choice *kv, bool scores_prompt) {
    (void)scores_prompt;
    return kv_choice_is_bounded(kv) && kv->cache_positions;
}

/* Tells whether tokens are kept by the attention of all rows, from which sparse ones leave pairs
 * out.  The score `window` is of the last rows only, and these are dense. */
static bool is_summed(const struct kv_choice *kv, bool scores_prompt) {
    (void)scores_prompt;
    return kv_choice_is_bounded(kv) && kv->score != KV_SCORE_NONE && kv->score != KV_SCORE_WINDOW;
}

/* Tells whether tokens are selected by the attention of all rows. */
static bool is_accumulated(const struct kv_choice *kv, bool scores_prompt) {
    (void)scores_prompt;
    return kv_choice_selects(kv) && kv->selector == KV_SELECTOR_ACCUMULATED;
}

/* Tells whether the prompt's own log-probabilities are asked for.  Those of a sparse prompt are its
 * sparse rows', which auto must not decide for a request. */
static bool is_scored(const struct kv_choice *kv, bool scores_prompt) {
    (void)kv;
    return scores_prompt;
}

/* Rules that refuse come first, so that a prompt to which another one applies, too, is refused. */
static const struct dense_rule rules[] = {
    {is_cut, "kv_policy.prompt whole, or a kv_policy that evicts nothing"},
    {is_rotated, "kv_policy.positions text, or a kv_policy that evicts nothing"},
    {is_summed, "the kv_policy.score window, or a kv_policy without scores"},
    {is_accumulated, "another kv_policy.selector than accumulated"},
    {is_scored, NULL},
};

const struct dense_rule *prefill_dense_rule(const struct kv_choice *kv,
                                            const struct kv_override *override,
                                            bool scores_prompt) {
    const bool has_override = override && !layer_set_is_empty(&override->layers);
    for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++)
        if (rules[i].applies(kv, scores_prompt) ||
            (has_override && rules[i].applies(&override->choice, scores_prompt)))
            return &rules[i];
    return NULL;
}

enum dense_reason prefill_why_dense(const struct dense_rule *rule, enum prefill_mode mode) {
    if (mode == PREFILL_DENSE) return DENSE_ASKED;
    if (rule && rule->needs) return DENSE_KV_POLICY;
    return rule && mode == PREFILL_AUTO ? DENSE_SCORED : DENSE_NOT;
}
