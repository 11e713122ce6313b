/* demand.c - see demand.h. */
#include "engine/kv/demand.h"

#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/state_cache.h"

uint64_t kv_phase_pages(const struct kv_space *space, const struct kv_plan *plan,
                        enum kv_phase phase, uint32_t n_tokens) {
    uint32_t n_layers[KV_N_ROLES] = {0};
    uint64_t n_pages = 0;
    for (uint32_t l = 0; l < space->n_layers; l++) n_layers[kv_role_of(space, plan, l)]++;
    for (const struct kv_kind *const *kind = plan->kinds->all; *kind; kind++) {
        uint32_t n = 0;
        for (unsigned r = 0; r < KV_N_ROLES; r++)
            if (plan->kinds->of[r] == *kind) n += n_layers[r];
        n_pages += (*kind)->most(space, plan, phase, n_tokens, n);
    }
    return n_pages;
}

struct kv_amount kv_missing(const struct kv_sequence *kv, uint64_t n_tokens) {
    const struct kv_needs needs = kv_needs(kv, n_tokens);
    struct kv_amount missing = needs.beside;
    missing.pages += kv_lists_missing(kv, needs.lengths);
    missing.states = sequence_recurrent_missing(kv);
    return missing;
}

static uint64_t beyond(uint64_t wanted, uint64_t available) {
    return wanted > available ? wanted - available : 0;
}

struct kv_amount kv_unavailable(const struct kv_space *space, struct kv_amount missing,
                                struct kv_amount left) {
    struct kv_amount out = {.pages = beyond(missing.pages + left.pages, kv_n_available(space))};
    if (missing.blocks > 0)
        out.blocks = beyond(missing.blocks + left.blocks, kv_n_available_blocks(space));
    if (missing.states > 0)
        out.states = beyond(missing.states + left.states, kv_n_available_states(space));
    return out;
}

bool kv_is_available(const struct kv_space *space, struct kv_amount missing,
                     struct kv_amount left) {
    const struct kv_amount out = kv_unavailable(space, missing, left);
    return out.pages == 0 && out.blocks == 0 && out.states == 0;
}

uint32_t kv_n_matchable(const struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    if (kv->saved) return kv->n_tokens;
    const struct kv_state *state = sequence_state_find(kv, tokens, n_max);
    return state ? state->n_tokens : sequence_prefix_find(kv, tokens, n_max).n_tokens;
}
