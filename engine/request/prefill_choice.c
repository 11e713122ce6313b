/* prefill_choice.c - see prefill_choice.h: the table of what goes with sparse prompts. */
#include "engine/request/prefill_choice.h"

#include <stddef.h>

static bool is_bounded(const struct kv_choice *kv, bool scores_prompt) {
    (void)scores_prompt;
    return kv_choice_is_bounded(kv);
}

/* Tells whether the prompt's own log-probabilities are asked for.  Those of a sparse prompt are its
 * sparse rows', which auto must not decide for a request. */
static bool is_scored(const struct kv_choice *kv, bool scores_prompt) {
    (void)kv;
    return scores_prompt;
}

/* Rules that refuse come first, so that a prompt to which another one applies, too, is refused. */
static const struct dense_rule rules[] = {
    {is_bounded, "a kv_policy that evicts nothing"},
    {is_scored, NULL},
};

const struct dense_rule *prefill_dense_rule(const struct kv_choice *kv, bool scores_prompt) {
    for (size_t i = 0; i < sizeof(rules) / sizeof(*rules); i++)
        if (rules[i].applies(kv, scores_prompt)) return &rules[i];
    return NULL;
}

bool prefill_stays_dense(const struct dense_rule *rule, enum prefill_mode mode) {
    return mode == PREFILL_DENSE || (rule && (rule->needs || mode == PREFILL_AUTO));
}
