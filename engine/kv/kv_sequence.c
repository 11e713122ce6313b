/* kv_sequence.c - a sequence's life in the KV cache: asks each kind that its plan assigns, and adds
 * up what they say.
 *
 * Thread: engine (init, kv_most: any).  Memory: see kv_sequence.h. */
#include "engine/kv/kv_sequence.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"
#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/kv/demand.h"
#include "engine/kv/kind.h"
#include "engine/kv/lists.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/saved.h"
#include "engine/kv/sequence_prefix.h"
#include "engine/kv/sequence_state.h"
#include "engine/kv/state_cache.h"
#include "engine/request/kept.h"

static void release(struct kv_sequence *kv);

int kv_sequence_init(struct kv_sequence *kv, const struct kv_space *space,
                     const struct kv_plan *plan, uint64_t salt) {
    *kv = (struct kv_sequence){.space = space, .plan = *plan, .salt = salt};
    kv->counted.values[KV_RETAINED_ATTENTION] = NAN;
    kv->layers = calloc(space->n_layers, sizeof(*kv->layers));
    kv->views = calloc(space->n_layers, sizeof(*kv->views));
    sequence_state_init(kv);
    sequence_recurrent_init(kv);
    if (kv->layers && kv->views) return 0;
    kv_sequence_fini(kv);
    return ERR_NOMEM;
}

void kv_sequence_fini(struct kv_sequence *kv) {
    if (kv->layers && kv->views) release(kv);
    else if (kv->views) sequence_state_release(kv); /* kv_leave_state() has taken the rest */
    for (uint32_t i = 0; kv->layers && i < kv->space->n_layers; i++) free(kv->layers[i].pages);
    free(kv->layers);
    free(kv->views);
    sequence_prefix_fini(kv);
    selection_fini(kv);
    free(kv->buffers.pages);
    kv_swap_fini(kv);
    sequence_recurrent_fini(kv);
    *kv = (struct kv_sequence){0};
}

/* Returns the kinds that the sequence's plan assigns, up to a NULL. */
static const struct kv_kind *const *kinds_of(const struct kv_sequence *kv) {
    return kv->plan.kinds->all;
}

/* ---- questions ---- */

struct kv_amount kv_most(const struct kv_space *space, const struct kv_plan *plan) {
    const uint64_t reading = kv_phase_pages(space, plan, KV_PHASE_TEXT, kv_plan_n_read(plan)),
                   selecting = kv_phase_pages(space, plan, KV_PHASE_SELECTION, plan->n_most);
    return (struct kv_amount){
        .pages = max_u64(reading, selecting) + KV_N_BUFFERS * plan->n_buffer_pages,
        .blocks = kv_plan_moves(plan) ? plan->n_most / PAGE_TOKENS : 0};
}

/* Returns how many rows the next step may have; under a budget no step crosses the end of a
 * chunk. */
static uint32_t max_rows(const struct kv_sequence *kv) {
    const uint32_t most = min_u32(sequence_state_max_rows(kv), sequence_recurrent_max_rows(kv));
    return min_u32(most, kv_needs(kv, kv->n_tokens).n_rows);
}

/* Returns how many of the first n_tokens tokens are not evicted once they are stored. */
static uint32_t n_resident(const struct kv_sequence *kv, uint32_t n_tokens) {
    uint32_t n = n_tokens;
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->n_resident) n = min_u32(n, (*kind)->n_resident(kv, n_tokens));
    return n;
}

/* Returns the most slots that a layer shows the next row. */
static uint32_t n_shown(const struct kv_sequence *kv) {
    const uint32_t n_in_window = kv->n_tokens - kv_window_n_left_out(kv) * PAGE_TOKENS,
                   n = n_resident(kv, kv->n_tokens);
    return layer_set_is_empty(&kv->plan.budgeted) ? min_u32(n, n_in_window)
                                                  : max_u32(n, n_in_window);
}

/* Returns what is available beside what must be left. */
static struct kv_refusal refusal_of(const struct kv_space *space, struct kv_amount left) {
    return (struct kv_refusal){
        .is_set = true,
        .pages = (int64_t)kv_n_available(space) - (int64_t)left.pages,
        .blocks = (int64_t)kv_n_available_blocks(space) - (int64_t)left.blocks,
        .states = (int64_t)kv_n_available_states(space) - (int64_t)left.states};
}

/* Tells whether the sequence found too little the last time, and no more is available now. */
static bool is_refused(const struct kv_sequence *kv, struct kv_amount left) {
    if (!kv->refusal.is_set) return false;
    const struct kv_refusal now = refusal_of(kv->space, left);
    return now.pages <= kv->refusal.pages && now.blocks <= kv->refusal.blocks &&
           now.states <= kv->refusal.states;
}

struct kv_grant kv_ask(struct kv_sequence *kv, const struct kv_wish *wish) {
    struct kv_grant grant = {.n_rows = max_rows(kv),
                             .n_resident = n_resident(kv, kv->n_tokens),
                             .n_shown = n_shown(kv),
                             .n_token_blocks = selection_token_blocks(kv)->n};
    if (wish->n_tokens > 0) {
        grant.missing = kv_missing(kv, wish->n_tokens);
        grant.unavailable = kv_unavailable(kv->space, grant.missing, wish->left);
    }
    if (!wish->tokens) return grant;
    if (wish->n_tokens == 0) grant.n_found = kv_n_matchable(kv, wish->tokens, wish->n_max);
    else if (!is_refused(kv, wish->left))
        grant.waits_for_disk = kv_read_ahead(kv, wish->tokens, wish->n_max, grant.missing);
    return grant;
}

bool kv_should_wait(struct kv_sequence *kv, const uint32_t *tokens, struct kv_sequence *other,
                    const uint32_t *others) {
    return sequence_prefix_is_coming(kv, other) ||
           sequence_state_is_coming(kv, tokens, other, others);
}

bool kv_plan_can_undo_rows(const struct kv_plan *plan) {
    for (const struct kv_kind *const *kind = plan->kinds->all; *kind; kind++)
        if (!(*kind)->can_undo_rows) return false;
    return true;
}

struct kv_amount kv_growth(const struct kv_sequence *kv, uint32_t n_tokens) {
    const uint64_t n_next = (uint64_t)n_tokens + PAGE_TOKENS;
    struct kv_amount growth = {.blocks = kv_needs(kv, n_next).beside.blocks};
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->grows) growth.pages = kv->space->n_layers;
    return growth;
}

uint32_t kv_n_used(const struct kv_sequence *kv) {
    uint32_t n = selection_n_pages(kv) + kv->buffers.n;
    for (uint32_t l = 0; l < kv->space->n_layers; l++) {
        const bool has_holes = kv->n_expired > 0 && kv_list_is_windowed(kv, l);
        n += kv->layers[l].n - (has_holes ? min_u32(kv->n_expired, kv->layers[l].n) : 0);
    }
    return n;
}

struct kv_usage kv_report(const struct kv_sequence *kv, uint32_t n_tokens) {
    const uint32_t n = n_resident(kv, n_tokens);
    struct kv_usage usage = kv->counted;
    usage.values[KV_BUDGET_TOKENS] = kv->plan.budget.capacity;
    usage.values[KV_RESIDENT_TOKENS] = n;
    usage.values[KV_EVICTED_TOKENS] = (double)n_tokens - n;
    usage.values[KV_OFFLOADED_TOKENS] = selection_n_offloaded(kv);
    return usage;
}

/* Returns how many of n_tokens tokens the next row sees in a layer that keeps them. */
static uint32_t n_seen(const struct kv_space *space, uint32_t layer, uint32_t n_tokens) {
    if (!layer_has_window(space->windows, layer)) return n_tokens;
    return min_u32(n_tokens, space->windows[layer] - 1);
}

int kv_list_kept(const struct kv_sequence *kv, uint32_t n_tokens, struct kv_kept *kept,
                 struct error *err) {
    const struct kv_space *space = kv->space;
    const uint32_t n_heads = page_io_n_kv_heads(&space->io);
    int code = 0;
    kv_kept_begin(kept, n_tokens, n_heads * space->n_layers);
    for (uint32_t l = 0; l < space->n_layers && !code; l++) {
        const struct kv_kind *kind = kv->plan.kinds->of[kv_role_of(space, &kv->plan, l)];
        if (kind->add_kept) code = kind->add_kept(kv, l, n_tokens, kept, err);
        else kv_kept_add(kept, n_tokens - n_seen(space, l, n_tokens), n_tokens, n_heads);
    }
    return code;
}

/* ---- its life ---- */

/* Begins with nothing stored.  Of a layer-major prompt layers with a window keep only its end. */
static void begin(struct kv_sequence *kv) {
    const struct kv_plan *plan = &kv->plan;
    kv->turn = 0;
    kv_lists_begin(kv,
                   plan->layer_major ? kv_window_n_behind(kv->space, kv_plan_together(plan)) : 0);
}

static void release_kinds(struct kv_sequence *kv) {
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->release) (*kind)->release(kv);
}

/* Makes capacity for the prompt, or for what lists have that never grow. */
static int make_lists(struct kv_sequence *kv) {
    const struct kv_kind *const *kinds = kinds_of(kv);
    const bool grow = kv->plan.layer_major || kinds[0]->grows || kinds[1];
    return grow ? kv_lists_grow(kv, (uint32_t)kv_n_pages(kv->plan.n_prompt))
                : kv_lists_grow_to(kv, kv_needs(kv, kv->plan.n_prompt).lengths);
}

int kv_prepare(struct kv_sequence *kv, const uint32_t *prompt) {
    int code = 0;
    begin(kv);
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind && !code; kind++)
        if ((*kind)->prepare) code = (*kind)->prepare(kv);
    if (!code) code = make_lists(kv);
    if (!code) code = sequence_prefix_prepare(kv, prompt);
    if (!code) code = sequence_recurrent_prepare(kv);
    return code ? code : sequence_state_prepare(kv);
}

uint32_t kv_match(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_max) {
    if (kv->saved) return kv->n_tokens;
    assert(kv->n_tokens == 0);
    const struct prefix_match match = sequence_prefix_match(kv, tokens, n_max);
    if (match.is_swapped) kv_swap_claim(kv);
    else {
        if (selection_token_blocks(kv)->n > 0) kv_swap_drop(kv); /* others take their place */
        release_kinds(kv);
        begin(kv);
    }
    sequence_prefix_use(kv, &match);
    kv->n_tokens = kv->n_found = match.n_tokens;
    sequence_recurrent_match(kv, match.n_cached);
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->matched) (*kind)->matched(kv);
    sequence_state_match(kv, tokens, n_max);
    return kv->n_tokens;
}

int kv_reserve(struct kv_sequence *kv, uint32_t n_tokens) {
    const struct kv_needs needs = kv_needs(kv, n_tokens);
    const uint64_t n_listed = kv_lists_missing(kv, needs.lengths);
    struct kv_amount missing = needs.beside;
    missing.pages += n_listed;
    missing.states = sequence_recurrent_missing(kv);
    if (!kv_is_available(kv->space, missing, (struct kv_amount){0})) return ERR_FULL;
    int code = n_listed > 0 ? kv_lists_grow_to(kv, needs.lengths) : 0;
    if (!code) code = sequence_prefix_grow(kv, n_tokens);
    if (!code) code = kv_make_free(kv->space, missing.pages);
    if (!code) code = kv_make_blocks(kv->space, (uint32_t)missing.blocks);
    if (code) return code;
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->take) (*kind)->take(kv, n_tokens);
    sequence_recurrent_take(kv);
    return kv_lists_take(kv, needs.lengths);
}

/* Describes all rows up to the last one as new, and takes those before a slice away again. */
void kv_view(struct kv_sequence *kv, uint32_t first_row, uint32_t n_rows, struct step_seq *seq) {
    const uint32_t n_new = first_row + n_rows;
    *seq = (struct step_seq){.n_rows = n_new, .layers = kv->views, .n_before = kv->n_tokens};
    for (uint32_t l = 0; l < kv->space->n_layers; l++)
        kv->views[l] = (struct kv_view){kv->layers[l].pages, kv->n_tokens + n_new, kv->n_tokens};
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->describe) (*kind)->describe(kv, n_new, seq);
    sequence_recurrent_describe(kv, first_row, n_rows, seq);
    assert(kv_n_pages(kv->views[0].n_slots) <= kv->layers[0].n + kv->plan.n_buffer_pages);
    for (uint32_t l = 0; l < kv->space->n_layers; l++) kv->views[l].append_slot += first_row;
    seq->n_rows = n_rows;
    seq->n_before += first_row;
    seq->begins_chunk &= first_row == 0;
    seq->score_row -= min_u32(seq->score_row, first_row);
}

void kv_commit(struct kv_sequence *kv, uint32_t n_rows) {
    kv->n_tokens += n_rows;
    sequence_recurrent_commit(kv, n_rows);
}

void kv_take_back(struct kv_sequence *kv, uint32_t n_tokens) {
    assert(kv_plan_can_undo_rows(&kv->plan) && n_tokens <= kv->n_tokens);
    kv->n_tokens = sequence_recurrent_take_back(kv, n_tokens);
}

int kv_reserve_guesses(struct kv_sequence *kv, uint32_t n_tokens) {
    const int code = kv_reserve(kv, n_tokens);
    return code ? code : sequence_recurrent_guess(kv);
}

void kv_forget_guesses(struct kv_sequence *kv) {
    sequence_recurrent_forget_guesses(kv);
}

int kv_submitted(struct kv_sequence *kv, const uint32_t *tokens, const struct layer_slice *slice,
                 struct error *err) {
    int code = 0;
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind && !code; kind++)
        if ((*kind)->submitted) code = (*kind)->submitted(kv, slice, err);
    return code || slice ? code : sequence_state_submitted(kv, tokens, err);
}

void kv_insert(struct kv_sequence *kv, const uint32_t *tokens, uint32_t n_tokens) {
    sequence_prefix_insert(kv, tokens, n_tokens);
    sequence_recurrent_insert(kv, n_tokens);
    kv_mark_valid(kv, n_tokens);
}

void kv_mark_valid(struct kv_sequence *kv, uint32_t n_tokens) {
    sequence_state_publish(kv, n_tokens);
}

void kv_done(struct kv_sequence *kv, uint32_t n_tokens) {
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->done) (*kind)->done(kv, n_tokens);
}

void kv_count(struct kv_sequence *kv, const struct evict_total *evicted,
              const struct select_total *selected) {
    double *values = kv->counted.values;
    if (evicted) values[KV_RETAINED_ATTENTION] = evicted->retained_attention;
    if (!selected) return;
    values[KV_SELECTED_TOKENS] += selected->n_chosen;
    values[KV_FETCHED_TOKENS] += selected->n_fetched;
    values[KV_FETCHED_COPIES] += selected->n_copies;
    if (kv_plan_moves(&kv->plan)) values[KV_MOVED_COPIES] += selected->n_copies;
}

/* Takes what the sequence wishes: kv_match() and kv_reserve(). */
static int take(struct kv_sequence *kv, const struct kv_wish *wish) {
    kv_forget_reading(kv);
    kv_match(kv, wish->tokens, wish->n_max);
    const struct kv_amount missing = kv_missing(kv, wish->n_tokens);
    const bool fits = kv_is_available(kv->space, missing, wish->left);
    if (!fits) sequence_state_take_over(kv, kv_unavailable(kv->space, missing, wish->left).pages);
    if (!fits && !kv_is_available(kv->space, kv_missing(kv, wish->n_tokens), wish->left))
        return ERR_FULL;
    return kv_reserve(kv, (uint32_t)wish->n_tokens);
}

int kv_start(struct kv_sequence *kv, const struct kv_wish *wish, struct error *err) {
    static const char refused[] = "no memory for the request's pages";
    const struct kv_refusal before = refusal_of(kv->space, wish->left);
    if (is_refused(kv, wish->left)) return error_set(err, ERR_FULL, refused);
    const int code = take(kv, wish);
    kv->refusal = code ? before : (struct kv_refusal){0};
    if (code) {
        kv_suspend(kv, NULL); /* cannot fail: there is nothing new to swap out */
        return error_set(err, code, refused);
    }
    kv_reading_started(kv);
    return kv_resume(kv, err);
}

/* Gives every page back; what is swapped stays. */
static void give_back(struct kv_sequence *kv) {
    kv_forget_reading(kv);
    sequence_recurrent_release(kv);
    sequence_prefix_release(kv);
    kv_lists_trim(kv, 0);
    release_kinds(kv);
    kv->n_tokens = kv->n_found = 0;
    if (kv_swap_n_tokens(kv) == 0) begin(kv);
}

static bool is_unique(const struct kv_sequence *kv) {
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind; kind++)
        if ((*kind)->is_unique) return true;
    return false;
}

int kv_suspend(struct kv_sequence *kv, struct error *err) {
    const bool saves = is_unique(kv) && !sequence_state_is_matched(kv);
    sequence_state_unmatch(kv);
    int code = sequence_state_return(kv, err);
    if (!code) code = saves ? kv_save(kv, err) : kv_swap_out(kv, err);
    if (saves) kv_give_back_saved(kv);
    else give_back(kv);
    return code;
}

int kv_resume(struct kv_sequence *kv, struct error *err) {
    if (kv->saved) return kv_restore(kv, err);
    if (sequence_state_is_matched(kv)) return sequence_state_resume(kv, err);
    int code = sequence_prefix_resume(kv, err);
    if (!code) code = sequence_recurrent_resume(kv, err);
    kv_lists_cover(kv);
    for (const struct kv_kind *const *kind = kinds_of(kv); *kind && !code; kind++)
        if ((*kind)->resumed) code = (*kind)->resumed(kv, err);
    return code ? code : kv_swap_in(kv, err);
}

/* Gives every page back and forgets what is stored. */
static void release(struct kv_sequence *kv) {
    kv_swap_drop(kv);
    kv_forget_saved(kv);
    sequence_state_release(kv);
    give_back(kv);
    kv->prompt_done = false;
}
