/* plan.c - see plan.h.
 *
 * Thread: any.  Memory: none. */
#include "engine/kv/plan.h"

#include <inttypes.h>

#include "engine/error.h"
#include "engine/kv/policy.h"

static uint32_t chunk_of(const struct kv_choice *choice) {
    return choice->chunk ? choice->chunk : KV_DEFAULT_CHUNK;
}

/* Slots that the sequence needs at most: while the last chunk of its prompt is computed. */
static uint64_t room_of(const struct kv_choice *choice) {
    return kv_choice_capacity(choice) + chunk_of(choice) + 1;
}

static bool outgrows(uint32_t n_prompt, uint32_t max_tokens, uint32_t trained_context) {
    return (uint64_t)n_prompt + max_tokens > trained_context;
}

static int check_heavy(const struct kv_choice *choice, struct error *err) {
    const bool heavy = choice->type == KV_HEAVY_HITTER;
    if (heavy != (choice->n_heavy > 0))
        return error_set(err, ERR_INVALID,
                         heavy ? "the KV policy keeps no heavy tokens: `streaming` does without"
                               : "the KV policy `streaming` keeps no heavy tokens");
    if (heavy != (choice->score != KV_SCORE_NONE))
        return error_set(err, ERR_INVALID,
                         heavy ? "the KV policy has no score to choose heavy tokens by"
                               : "the KV policy `streaming` has no scores");
    if (choice->score == KV_SCORE_DECAY && !(choice->decay > 0 && choice->decay < 1))
        return error_set(err, ERR_INVALID, "the KV policy's decay must lie between 0 and 1");
    return 0;
}

static int check_length(uint32_t n_prompt, uint32_t max_tokens, uint32_t limit,
                        struct error *err) {
    if (n_prompt <= limit && max_tokens <= limit - n_prompt) return 0;
    return error_set(err, ERR_TOO_LONG,
                     "the context is %" PRIu32 " tokens at most; the prompt has %" PRIu32
                     " and %" PRIu32 " more are asked for",
                     limit, n_prompt, max_tokens);
}

static int check_positions(const struct kv_choice *choice, uint32_t trained_context,
                           struct error *err) {
    if (room_of(choice) <= trained_context) return 0;
    return error_set(err, ERR_INVALID,
                     "the text may outgrow the model's trained context (%" PRIu32
                     " tokens), so the KV budget (%" PRIu64 ") and a chunk of the prompt (%" PRIu32
                     ") with one token more must fit it",
                     trained_context, kv_choice_capacity(choice), chunk_of(choice));
}

int kv_choice_check(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens,
                    const struct kv_limits *limits, struct error *err) {
    if (choice->type == KV_FULL)
        return check_length(n_prompt, max_tokens, limits->max_model_len, err);
    if (!limits->bounded_caches)
        return error_set(err, ERR_INVALID, "bounded KV caches are not available here");
    if (choice->n_recent == 0)
        return error_set(err, ERR_INVALID, "the KV policy must keep at least 1 recent token");
    int code = check_heavy(choice, err);
    if (code) return code;
    if (room_of(choice) > KV_MAX_TEXT || n_prompt > KV_MAX_TEXT)
        return error_set(err, ERR_INVALID, "prompts and KV budgets end at %" PRIu32 " tokens",
                         KV_MAX_TEXT);
    if (!outgrows(n_prompt, max_tokens, limits->trained_context)) return 0;
    return check_positions(choice, limits->trained_context, err);
}

struct kv_plan kv_plan_make(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens,
                            uint32_t trained_context) {
    const uint64_t n_most = (uint64_t)n_prompt + max_tokens;
    struct kv_plan plan = {.policy = &kv_policy_full,
                           .type = choice->type,
                           .n_prompt = n_prompt,
                           .n_most = n_most < KV_MAX_TEXT ? (uint32_t)n_most : KV_MAX_TEXT};
    if (choice->type == KV_FULL) return plan;
    plan.policy = &kv_policy_bounded;
    plan.chunk = chunk_of(choice);
    plan.budget = (struct kv_budget){
        .capacity = (uint32_t)kv_choice_capacity(choice),
        .n_sink = choice->n_sink,
        .n_recent = choice->n_recent,
        .score = choice->score,
        .decay = choice->decay,
        .cache_positions = outgrows(n_prompt, max_tokens, trained_context)};
    return plan;
}
