/* plan.c - see plan.h. */
#include "engine/kv/plan.h"

#include <inttypes.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/pages.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_pool.h"
#include "engine/request/kv_policies.h"

static uint32_t window_of(const struct kv_choice *choice) {
    if (choice->score != KV_SCORE_WINDOW) return 0;
    return choice->window ? choice->window : KV_DEFAULT_WINDOW;
}

static int check_heavy(const struct kv_choice *choice, struct error *err) {
    const bool has_score = choice->score != KV_SCORE_NONE;
    if (has_score != (choice->n_heavy > 0))
        return error_set(err, ERR_INVALID,
                         has_score ? "the KV policy has a score, but keeps no heavy tokens"
                                   : "the KV policy needs a score to choose heavy tokens");
    if (choice->score == KV_SCORE_DECAY && !(choice->decay > 0 && choice->decay < 1))
        return error_set(err, ERR_INVALID, "the KV policy's decay must be between 0 and 1");
    return 0;
}

static int check_window_score(const struct kv_choice *choice, struct error *err) {
    const uint32_t window = window_of(choice);
    if (window == 0 && (choice->window > 0 || choice->pooling != KV_POOLING_NONE))
        return error_set(err, ERR_INVALID,
                         "an observation window and pooling need the score `window`");
    if (choice->pooling == KV_POOLING_NONE) return 0;
    if (choice->kernel % 2 == 0)
        return error_set(err, ERR_INVALID, "the pooling kernel must be an odd number of tokens");
    if (choice->n_recent >= window) return 0;
    return error_set(err, ERR_INVALID,
                     "with pooling, recent must be at least the window, %" PRIu32
                     " tokens, not %" PRIu32,
                     window, choice->n_recent);
}

static int check_length(uint32_t n_prompt, uint32_t max_tokens, uint32_t limit, struct error *err) {
    if (n_prompt <= limit && max_tokens <= limit - n_prompt) return 0;
    return error_set(err, ERR_TOO_LONG,
                     "the context is at most %" PRIu32 " tokens; the prompt has %" PRIu32
                     " and %" PRIu32 " more are asked for",
                     limit, n_prompt, max_tokens);
}

/* Checks that a prompt that is read whole needs at most `limit` slots; `why` begins a sentence. */
static int check_whole(const struct kv_choice *choice, uint32_t n_prompt, uint32_t limit,
                       const char *why, struct error *err) {
    if (kv_choice_slots(choice, n_prompt) <= limit) return 0;
    return error_set(err, ERR_INVALID,
                     "%s %" PRIu32 " tokens: a prompt that is read whole (%" PRIu32
                     ") must fit that, and so must the KV budget (%" PRIu64 ") and one token more",
                     why, limit, n_prompt, kv_choice_capacity(choice));
}

/* Checks that positions stay within the trained context.  If they are counted inside the cache,
 * max_tokens does not matter: it must not decide what a text means. */
static int check_positions(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens,
                           const struct kv_limits *limits, struct error *err) {
    const uint32_t trained_context = limits->trained_context;
    if (choice->cache_positions && limits->learned_positions)
        return error_set(err, ERR_INVALID,
                         "the model's positions are learned, and part of what is cached: they can "
                         "only be counted in the text");
    if (!choice->cache_positions) return check_length(n_prompt, max_tokens, trained_context, err);
    if (limits->all_windowed) return 0; /* no layer has the budget */
    if (choice->whole)
        return check_whole(choice, n_prompt, trained_context,
                           "with cache positions the model's trained context is the limit,", err);
    if (kv_choice_slots(choice, n_prompt) <= trained_context) return 0;
    return error_set(
        err, ERR_INVALID,
        "with cache positions the KV budget (%" PRIu64 "), a prompt chunk (%" PRIu32
        ") and one token more must fit the model's trained context (%" PRIu32 " tokens)",
        kv_choice_capacity(choice), kv_choice_chunk(choice, n_prompt), trained_context);
}

/* Refuses scores of a KV head whose queries are on several ranks: each has a part of the sum. */
static int check_ranks(const struct kv_choice *choice, const struct kv_limits *limits,
                       struct error *err) {
    if (choice->score == KV_SCORE_NONE || !limits->repeats_heads) return 0;
    return error_set(err, ERR_INVALID,
                     "with %s %" PRIu32
                     " the model has fewer KV heads than ranks: a KV policy must evict without "
                     "scores on the device %s",
                     ranks_setting(limits->ranks_share), limits->n_ranks, limits->device);
}

static int check_bounded(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens,
                         const struct kv_limits *limits, struct error *err) {
    if (!limits->bounded_caches)
        return error_set(err, ERR_INVALID, "this server has no bounded KV caches");
    if (choice->n_recent == 0)
        return error_set(err, ERR_INVALID, "the KV policy must keep at least 1 recent token");
    int code = check_heavy(choice, err);
    if (!code) code = check_window_score(choice, err);
    if (!code) code = check_ranks(choice, limits, err);
    if (code) return code;
    if (kv_choice_slots(choice, n_prompt) > KV_MAX_TEXT || n_prompt > KV_MAX_TEXT)
        return error_set(err, ERR_INVALID,
                         "prompts and KV budgets must not be more than %" PRIu32 " tokens",
                         KV_MAX_TEXT);
    return check_positions(choice, n_prompt, max_tokens, limits, err);
}

static int check_selection(const struct kv_choice *choice, const struct kv_limits *limits,
                           struct error *err) {
    if (!limits->selections && limits->n_ranks > 1)
        return error_set(err, ERR_INVALID,
                         "KV policies that select do not go with %s %" PRIu32
                         " on this device, or without filter layers",
                         ranks_setting(limits->ranks_share), limits->n_ranks);
    if (!limits->selections)
        return error_set(err, ERR_INVALID,
                         "KV policies that select need filter layers and a backend that selects");
    if (choice->n_selected == 0 || choice->n_selected > limits->max_selected)
        return error_set(err, ERR_INVALID,
                         "the KV policy must select 1 to %" PRIu32 " tokens, not %" PRIu32,
                         limits->max_selected, choice->n_selected);
    if (choice->n_tail == 0 || choice->n_tail > KV_MAX_TEXT)
        return error_set(err, ERR_INVALID, "the KV policy's tail must be 1 to %" PRIu32 " tokens",
                         KV_MAX_TEXT);
    if (!choice->on_device && !limits->has_host_pool)
        return error_set(err, ERR_INVALID,
                         "there is no host pool (--kv-offload-size): tokens can be selected on the "
                         "device only");
    return 0;
}

/* Checks the rules that the server knows, too. */
static int check_conflict(const struct kv_choice *choice, struct error *err) {
    const struct kv_conflict *conflict = kv_choice_conflict(choice);
    if (!conflict) return 0;
    return error_set(err, ERR_INVALID, "%s %s", kv_members[conflict->member].name, conflict->rule);
}

static int refuse_override(struct error *err, const char *rule) {
    return error_set(err, ERR_INVALID, "kv_policy.layers: %s", rule);
}

/* Checks which layers the override has. */
static int check_layers(const struct kv_override *override, const struct kv_choice *rest,
                        const struct kv_limits *limits, struct error *err) {
    if (layer_set_next(&override->layers, limits->n_layers) < LAYER_SET_MAX)
        return error_set(err, ERR_INVALID,
                         "kv_policy.layers: the model's layers are numbered 0 to %" PRIu32,
                         limits->n_layers - 1);
    for (uint32_t i = 0; kv_choice_selects(rest) && i < limits->n_groups; i++)
        if (layer_set_has(&override->layers, limits->groups[i].filter))
            return error_set(err, ERR_INVALID,
                             "kv_policy.layers: layer %" PRIu32
                             " is a filter, which must see the whole text",
                             limits->groups[i].filter);
    return 0;
}

int kv_override_check(const struct kv_override *override, const struct kv_choice *rest,
                      uint32_t n_prompt, const struct kv_limits *limits, struct error *err) {
    if (layer_set_is_empty(&override->layers)) return 0;
    if (!kv_choice_is_bounded(&override->choice))
        return refuse_override(err, "these layers need a policy that keeps a budget");
    if (kv_choice_is_bounded(rest))
        return refuse_override(err, "the other layers must keep everything, or select");
    if (kv_choice_selects(rest) && !rest->on_device)
        return refuse_override(err,
                               "the other layers' tokens must stay on the device (offload false)");
    if (override->choice.cache_positions)
        return refuse_override(err, "positions must be text, as in the other layers");
    const int code = check_layers(override, rest, limits, err);
    if (code || check_conflict(&override->choice, err)) return ERR_INVALID;
    return check_bounded(&override->choice, n_prompt, 0, limits, err);
}

int kv_choice_check(const struct kv_choice *choice, uint32_t n_prompt, uint32_t max_tokens,
                    const struct kv_limits *limits, struct error *err) {
    if (check_conflict(choice, err)) return ERR_INVALID;
    if (kv_choice_is_bounded(choice))
        return check_bounded(choice, n_prompt, max_tokens, limits, err);
    const int code = kv_choice_selects(choice) ? check_selection(choice, limits, err) : 0;
    return code ? code : check_length(n_prompt, max_tokens, limits->max_model_len, err);
}

static uint32_t whole_pages(uint32_t n_tokens) {
    return (uint32_t)kv_n_pages(n_tokens) * PAGE_TOKENS;
}

uint32_t kv_plan_candidates(const struct kv_plan *plan, uint32_t n_tokens) {
    const uint32_t n_slots = n_tokens + 1;
    return n_slots > plan->n_tail ? (n_slots - plan->n_tail) / PAGE_TOKENS * PAGE_TOKENS : 0;
}

uint32_t kv_plan_n_observed(const struct kv_plan *plan) {
    if (plan->selector == KV_SELECTOR_ACCUMULATED) return UINT32_MAX;
    return plan->selector == KV_SELECTOR_LAST ? 1 : KV_OBSERVED;
}

bool kv_plan_moves(const struct kv_plan *plan) {
    return plan->kinds->of[KV_SPARSE]->moves;
}

uint32_t kv_plan_n_read(const struct kv_plan *plan) {
    if (plan->layer_major) return 0;
    if (!kv_plan_moves(plan)) return plan->n_most;
    const uint32_t n_before =
        max_u32(kv_plan_together(plan), plan->n_selected + plan->n_tail + PAGE_TOKENS - 1);
    return min_u32(n_before + 1, plan->n_most);
}

/* Returns the pages that the prompt takes with the first generated token, if it is not
 * layer-major. */
static uint64_t prompt_pages(const struct kv_plan *plan, const struct kv_space *space) {
    struct kv_plan prompt = *plan;
    prompt.n_most = plan->n_prompt + 1;
    return kv_most(space, &prompt).pages;
}

/* Makes buffers that have all of the prompt's rows, if the prompt goes layer by layer. */
static void move_by_layers(struct kv_plan *plan, const struct kv_space *space,
                           uint32_t max_long_rows) {
    const uint32_t n_rows = plan->n_prompt - 1;
    plan->layer_major = n_rows <= max_long_rows &&
                        kv_plan_candidates(plan, n_rows) > plan->n_selected &&
                        prompt_pages(plan, space) > page_pool_n_pages(space->pool);
    if (!plan->layer_major) return;
    plan->step_rows = 1;
    plan->n_buffer_pages = (uint32_t)kv_n_pages(n_rows);
}

/* Makes buffers for the rows that do not fit a layer's own pages.  A prompt that is cut down before
 * its end cannot be layer-major. */
static void evict_by_layers(struct kv_plan *plan, const struct kv_space *space,
                            uint32_t max_long_rows, bool is_by_layers) {
    const uint64_t n_pages = kv_n_pages(plan->n_prompt);
    if (plan->chunk < plan->n_prompt || plan->n_prompt > max_long_rows) return;
    plan->layer_major = is_by_layers || prompt_pages(plan, space) > page_pool_n_pages(space->pool);
    if (!plan->layer_major) return;
    const uint64_t n_own = kv_kind_bounded.most(space, plan, KV_PHASE_TEXT, plan->n_most, 1);
    plan->step_rows = 1;
    plan->n_buffer_pages = max_u32((uint32_t)(n_pages - min_u64(n_pages, n_own)),
                                   kv_window_n_behind(space, plan->n_prompt));
}

void kv_plan_by_layers(struct kv_plan *plan, const struct kv_space *space, uint32_t max_long_rows,
                       bool is_by_layers) {
    if (kv_plan_moves(plan)) move_by_layers(plan, space, max_long_rows);
    else if (kv_plan_ends_prompt(plan)) evict_by_layers(plan, space, max_long_rows, is_by_layers);
}

static void plan_selection(struct kv_plan *plan, const struct kv_choice *choice) {
    plan->n_selected = whole_pages(choice->n_selected);
    plan->n_tail = whole_pages(choice->n_tail);
    plan->n_sink = choice->n_sink;
    if (kv_plan_candidates(plan, plan->n_most - 1) <= plan->n_selected) return;
    plan->kinds = choice->on_device ? &kv_kinds_selected : &kv_kinds_moved;
    plan->selector = choice->selector;
}

static void plan_budget(struct kv_plan *plan, const struct kv_choice *choice) {
    plan->chunk = kv_choice_chunk(choice, plan->n_prompt);
    plan->is_whole = choice->whole;
    plan->budget = (struct kv_budget){.capacity = (uint32_t)kv_choice_capacity(choice),
                                      .n_sink = choice->n_sink,
                                      .n_recent = choice->n_recent,
                                      .score = choice->score,
                                      .decay = choice->decay,
                                      .window = window_of(choice),
                                      .pooling = choice->pooling,
                                      .kernel = choice->kernel,
                                      .cache_positions = choice->cache_positions};
}

struct kv_plan kv_plan_make(const struct kv_choice *choice, uint32_t n_prompt,
                            uint32_t max_tokens) {
    const uint64_t n_most = (uint64_t)n_prompt + max_tokens;
    struct kv_plan plan = {.kinds = &kv_kinds_full,
                           .type = choice->type,
                           .n_prompt = n_prompt,
                           .n_most = n_most < KV_MAX_TEXT ? (uint32_t)n_most : KV_MAX_TEXT};
    if (kv_choice_selects(choice)) plan_selection(&plan, choice);
    if (!kv_choice_is_bounded(choice)) return plan;
    plan.kinds = &kv_kinds_bounded;
    plan_budget(&plan, choice);
    return plan;
}

/* Tells whether the layers have the override's budget, or without an override that of the plan. */
static bool is_budgeted(const struct kv_override *override, uint32_t layer) {
    return layer_set_is_empty(&override->layers) || layer_set_has(&override->layers, layer);
}

/* Lists the layers that keep the budget: those without a window. */
static struct layer_set full_attention_layers(const struct kv_override *override,
                                              const struct kv_space *space) {
    struct layer_set layers = {0};
    for (uint32_t l = 0; l < space->n_layers; l++)
        if (is_budgeted(override, l) && !layer_has_window(space->windows, l))
            layer_set_add(&layers, l);
    return layers;
}

void kv_plan_divide(struct kv_plan *plan, const struct kv_override *override,
                    const struct kv_space *space) {
    const bool has_override = !layer_set_is_empty(&override->layers),
               is_bounded = plan->budget.capacity > 0;
    if (!has_override && !(is_bounded && space->windows)) return;
    plan->budgeted = full_attention_layers(override, space);
    plan->outgrows = is_bounded;
    if (layer_set_is_empty(&plan->budgeted)) {
        plan->budget = (struct kv_budget){0};
        plan->chunk = 0;
        plan->is_whole = false;
        if (is_bounded) plan->kinds = &kv_kinds_full;
        return;
    }
    if (has_override) plan_budget(plan, &override->choice);
    plan->kinds = plan->kinds->divided;
}
