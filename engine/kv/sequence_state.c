/* sequence_state.c - see sequence_state.h. */
#include "engine/kv/sequence_state.h"

#include <assert.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/backend.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/page_io.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/state_cache.h"

static const struct kv_kind *kind_in(const struct kv_sequence *kv, uint32_t layer) {
    return kv->plan.kinds->of[kv_role_of(kv->space, &kv->plan, layer)];
}

/* Finds the kind that decides what the sequence's states are.  Each layer must be of it, or else of
 * a kind that can be part of a state.  A layer-major prompt is read from its beginning, and has no
 * state before its last token. */
void sequence_state_init(struct kv_sequence *kv) {
    const struct kv_kind *stateful = NULL;
    if (!kv->space->states || kv->plan.layer_major) return;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const struct kv_kind *kind = kind_in(kv, l);
        if (!kind->states) return;
        if (kind->sharing == KV_SHARES_STATES) stateful = kind;
    }
    kv->state.kind = stateful;
}

/* Returns the kind that decides what the sequence's states are, or NULL if they are not cached. */
static const struct kv_kind *kind_of(const struct kv_sequence *kv) {
    return kv->state.kind;
}

/* Returns the most pages that a state has in a layer. */
static uint64_t most_pages(const struct kv_sequence *kv) {
    uint64_t most = 0;
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        most = max_u64(
            most, kind_in(kv, l)->most(kv->space, &kv->plan, KV_PHASE_TEXT, kv->plan.n_most, 1));
    return most;
}

/* Returns how many pages a state of the first n_tokens tokens has in all. */
static uint32_t count_pages(const struct kv_sequence *kv, uint32_t n_tokens) {
    uint32_t n = 0;
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        n += kind_in(kv, l)->states->pages(kv, n_tokens).n;
    return n;
}

int sequence_state_prepare(struct kv_sequence *kv) {
    const struct kv_space *space = kv->space;
    const uint32_t n_prompt = kv->plan.n_prompt;
    if (!kind_of(kv)) return 0;
    const struct kv_state_key key = kv_state_key(&kv->plan, kv->salt);
    const uint64_t n_pages = most_pages(kv);
    if (!space->batch_invariant) {
        kv->state.ending = kv_state_create(space, &key, NULL, 0, n_pages, false);
        if (!kv->state.ending) return ERR_NOMEM;
    }
    if (n_prompt <= STATE_MIN_ROWS) return 0;
    kv->state.coming = kv_state_create(space, &key, NULL, n_prompt - 1, n_pages, true);
    return kv->state.coming ? 0 : ERR_NOMEM;
}

/* ---- going on ---- */

static bool suits(const void *ctx, const struct kv_state *state) {
    const struct kv_sequence *kv = ctx;
    return kind_of(kv)->states->phase(kv, state->turn, state->n_tokens) == state->state_phase;
}

bool sequence_state_key(const struct kv_sequence *kv, uint32_t n_max, struct kv_state_key *key,
                        uint32_t *n_most) {
    if (!kind_of(kv)) return false;
    *key = kv_state_key(&kv->plan, kv->salt);
    *n_most = min_u32(n_max, kv->plan.n_prompt - 1);
    return true;
}

struct kv_state *sequence_state_find(const struct kv_sequence *kv, const uint32_t *tokens,
                                     uint32_t n_max) {
    struct kv_state_key key;
    uint32_t n_most;
    if (!sequence_state_key(kv, n_max, &key, &n_most)) return NULL;
    return state_cache_find(kv->space->states, &key, tokens, n_most, suits, kv);
}

void sequence_state_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    struct kv_state *state = sequence_state_find(kv, tokens, n_max);
    if (!state) return;
    state_cache_take(kv->space->states, state);
    kv->state.matched = state;
    kv->n_tokens = kv->n_found = state->n_tokens;
    kv->turn = state->turn;
    kv_lists_begin(kv, kv_window_n_behind(kv->space, state->n_tokens));
}

/* Forgets the state before the prompt's last token if few rows before it are left to compute. */
static void forget_if_short(struct kv_sequence *kv) {
    if (!kv->state.coming || kv->state.coming->n_tokens >= kv->n_found + STATE_MIN_ROWS) return;
    kv_state_destroy(kv->space, kv->state.coming);
    kv->state.coming = NULL;
}

void sequence_state_take_over(struct kv_sequence *kv, uint64_t n_lacking) {
    struct kv_state *state = kv->state.matched;
    if (!state || state->is_offloaded || n_lacking > state->n_pages) return;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        struct page_list *to = &kv->layers[l], *from = &state->layers[l];
        assert(to->n + from->n <= to->capacity); /* to->n: the pages behind a window */
        for (uint32_t i = 0; i < from->n; i++) to->pages[to->n++] = from->pages[i];
        from->n = 0;
    }
    kv->state.matched = NULL;
    kv_state_destroy(kv->space, state);
    forget_if_short(kv);
}

static int copy_from_blocks(struct kv_sequence *kv, const struct kv_state *state,
                            struct error *err) {
    const struct kv_space *space = kv->space;
    size_t place = 0;
    int code = 0;
    for (uint32_t l = 0; l < space->n_layers && !code; l++) {
        const struct kv_range range = kv_state_range(space, state->n_tokens, state->n_pages, l);
        assert(range.first + range.n <= kv->layers[l].n);
        code = page_io_read_blocks(&space->io, kv->layers[l].pages + range.first, range.n,
                                   state->blocks.pages, place, err);
        place += range.n;
    }
    space->swaps->n_in += state->n_pages;
    return code;
}

/* Exchanges the state's pages for as many of the sequence's. */
static void exchange_pages(struct kv_sequence *kv, struct kv_state *state) {
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const struct kv_range range = kv_state_range(kv->space, state->n_tokens, state->n_pages, l);
        uint32_t *mine = kv->layers[l].pages + range.first, *its = state->layers[l].pages;
        assert(range.n == state->layers[l].n && range.first + range.n <= kv->layers[l].n);
        for (uint32_t i = 0; i < range.n; i++) {
            const uint32_t page = mine[i];
            mine[i] = its[i];
            its[i] = page;
        }
    }
}

static void borrow(struct kv_sequence *kv, struct kv_state *state) {
    exchange_pages(kv, state);
    state->pending_copy_from = kv->layers;
    state->owner = &kv->state.borrowed;
    kv->state.borrowed = state;
}

int sequence_state_resume(struct kv_sequence *kv, struct error *err) {
    struct kv_state *state = kv->state.matched;
    int code = 0;
    if (state->is_offloaded) code = copy_from_blocks(kv, state, err);
    else if (kind_of(kv)->states->cuts(kv)) borrow(kv, state);
    else code = kv_state_copy(kv->space, state, kv->layers, true, err);
    kv_lists_cover(kv);
    sequence_state_unmatch(kv);
    forget_if_short(kv);
    return code;
}

bool sequence_state_is_matched(const struct kv_sequence *kv) {
    return kv->state.matched;
}

void sequence_state_unmatch(struct kv_sequence *kv) {
    if (!kv->state.matched) return;
    state_cache_insert(kv->space->states, kv->state.matched);
    kv->state.matched = NULL;
}

int sequence_state_return(struct kv_sequence *kv, struct error *err) {
    return kv->state.borrowed ? kv_state_return(kv->space, kv->state.borrowed, err) : 0;
}

/* ---- the state before the prompt's last token ---- */

uint32_t sequence_state_max_rows(const struct kv_sequence *kv) {
    const struct kv_state *state = kv->state.coming;
    if (!state || kv->n_tokens >= state->n_tokens || kind_of(kv)->states->cuts(kv))
        return UINT32_MAX;
    return state->n_tokens - kv->n_tokens;
}

/* Tells whether the state can be copied after the step whose tokens have been committed. */
static bool is_due(const struct kv_sequence *kv, const struct kv_state *state) {
    return kind_of(kv)->states->cuts(kv) ? kv->n_tokens > state->n_tokens
                                         : kv->n_tokens == state->n_tokens;
}

static void forget_coming(struct kv_sequence *kv) {
    struct kv_state *state = kv->state.coming;
    if (state && state->is_cached) state_cache_take(kv->space->states, state);
    kv_state_destroy(kv->space, state);
    kv->state.coming = NULL;
}

/* Takes pages for the state, which are evicted for it if need be; false: there are too few. */
static bool take_pages(struct kv_sequence *kv, struct kv_state *state) {
    const struct kv_space *space = kv->space;
    state->n_pages = count_pages(kv, state->n_tokens);
    if (kv_make_free(space, state->n_pages)) return false;
    for (uint32_t l = 0; l < space->n_layers; l++) {
        struct page_list *list = &state->layers[l];
        list->n = kind_in(kv, l)->states->pages(kv, state->n_tokens).n;
        assert(list->n <= list->capacity);
        page_pool_take_sure(space->pool, list->pages, list->n);
    }
    return true;
}

int sequence_state_submitted(struct kv_sequence *kv, const uint32_t *tokens, struct error *err) {
    struct kv_state *state = kv->state.coming;
    const struct kv_space *space = kv->space;
    int code = sequence_state_return(kv, err);
    if (code || !state || state->is_cached || !is_due(kv, state)) return code;
    if (!take_pages(kv, state)) {
        forget_coming(kv);
        return 0;
    }
    state->turn = kv->turn;
    state->state_phase = kind_of(kv)->states->phase(kv, kv->turn, state->n_tokens);
    code = kv_state_copy(space, state, kv->layers, false, err);
    kv_state_name(state, tokens);
    state->owner = &kv->state.coming;
    state_cache_insert(space->states, state);
    return code;
}

void sequence_state_publish(struct kv_sequence *kv, uint32_t n_tokens) {
    struct kv_state *state = kv->state.coming;
    kv->state.n_valid = n_tokens;
    if (!state || !state->is_cached || n_tokens <= state->n_tokens) return;
    state->is_valid = true;
    state->owner = NULL;
    kv->state.coming = NULL;
}

static uint64_t name_of(struct kv_sequence *kv, const uint32_t *prompt) {
    const struct kv_state_key key = kv_state_key(&kv->plan, kv->salt);
    if (kv->state.name == 0)
        kv->state.name = state_cache_hash(kv->space->states, &key, prompt, kv->plan.n_prompt);
    return kv->state.name;
}

/* Hashes a prompt only if another one of its length ends like it. */
bool sequence_state_is_coming(struct kv_sequence *kv, const uint32_t *tokens,
                              struct kv_sequence *other, const uint32_t *others) {
    const uint32_t n = kv->plan.n_prompt, n_first = n - min_u32(n, 32);
    if (!other->state.coming || kv->n_tokens > 0 || other->plan.n_prompt != n || !kind_of(kv))
        return false;
    return memcmp(tokens + n_first, others + n_first, (n - n_first) * sizeof(*tokens)) == 0 &&
           name_of(kv, tokens) == name_of(other, others);
}

/* ---- the state at the end ---- */

static bool may_leave_state(const struct kv_sequence *kv, uint32_t n_known) {
    return kv->state.ending && !kv->saved && !kv->state.matched && kv->layers[0].n > 0 &&
           kv->state.n_valid == kv->n_tokens &&
           kv->n_tokens >= max_u32(kv->plan.n_prompt, PAGE_TOKENS) &&
           kv->n_tokens <= min_u32(n_known, STATE_MAX_TOKENS);
}

/* Gives back what is not part of the state, and moves its pages to the front of each list. */
static void keep_lists(struct kv_sequence *kv) {
    const uint32_t n_behind = kv_window_n_behind(kv->space, kv->n_tokens);
    if (n_behind > kv->n_expired) kv_lists_expire(kv, n_behind);
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const struct kv_range range = kind_in(kv, l)->states->pages(kv, kv->n_tokens);
        struct page_list *list = &kv->layers[l];
        kv_list_trim(list, kv->space->pool, range.first + range.n);
        memmove(list->pages, list->pages + range.first, range.n * sizeof(*list->pages));
        list->n = range.n;
    }
}

bool kv_leave_state(struct kv_sequence *kv, uint32_t *tokens, uint32_t n_tokens) {
    struct kv_state *state = kv->state.ending;
    if (!may_leave_state(kv, n_tokens)) return false;
    assert(!kv->state.borrowed); /* a step has been submitted since */
    const struct kv_kind *kind = kind_of(kv);
    /* A device that fails will say so in the next step, too. */
    if (kind->states->finish(kv, NULL)) return false;
    state->n_pages = count_pages(kv, kv->n_tokens);
    keep_lists(kv);
    state->tokens = tokens;
    state->n_tokens = state->turn = kv->n_tokens;
    state->layers = kv->layers;
    state->is_valid = true;
    kv->layers = NULL;
    kv->state.ending = NULL;
    state_cache_insert(kv->space->states, state);
    return true;
}

void sequence_state_release(struct kv_sequence *kv) {
    (void)sequence_state_return(kv, NULL);
    sequence_state_unmatch(kv);
    forget_coming(kv);
    kv_state_destroy(kv->space, kv->state.ending);
    kv->state.ending = NULL;
}
