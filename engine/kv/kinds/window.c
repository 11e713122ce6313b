/* window.c - the kind that keeps what the next row's window sees.
 *
 *   pages:  [ . ][ . ][ 9 ][ 3 ][ 8 ]    n_expired is 2
 *
 * A layer has pages from the first one that the next row sees to those of the next step.  These are
 * at most the window and a step's rows.  The sequence needs the window pages of its blocks in the
 * prefix cache from that page on.  If layers' windows differ, the largest counts.
 *
 * A page expires only behind rows that are known to be right (done), so rows may be taken back.
 *
 * A text that may be longer than the model's context is shown without what is far behind the
 * window, so that block tables do not grow with it.  Slots are then counted from there.
 *
 * Window pages that expire before their block is inserted cannot be shared.  While there are pages
 * for another sequence like this one they are kept until then; later the cache keeps them.
 *
 * Thread: see kind.h.  Memory: none. */
#include "engine/base/sizes.h"
#include "engine/device/step.h"
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"
#include "engine/kv/lists.h"
#include "engine/kv/reclaim.h"
#include "engine/kv/sequence_prefix.h"

static uint64_t window_most(const struct kv_space *space, const struct kv_plan *plan,
                            enum kv_phase phase, uint32_t n_tokens, uint32_t n_layers) {
    const uint32_t step_rows = phase == KV_PHASE_TEXT ? plan->step_rows : 1;
    return n_layers * kv_window_n_pages(space->window, step_rows, n_tokens);
}

/* Leaves pages for another step beyond the stored rows, and at the text's beginning for a whole
 * window.  A layer-major prompt reaches these lists only at its end, so they are sized for all of
 * it at once.  Where sparse layers have left the text a step has one row, however many tokens are
 * to be computed again: a plan counts no more pages then. */
static struct kv_need window_ask(const struct kv_sequence *kv, uint64_t n_tokens) {
    const uint32_t n_together = kv->plan.layer_major ? kv_plan_together(&kv->plan) : 0,
                   n_before = max_u32(kv->n_tokens, n_together),
                   n_rows = selection_left_text(kv) ? 1 : kv->plan.step_rows;
    const uint64_t end = (uint64_t)max_u32(n_before, kv->space->window) + n_rows;
    return (struct kv_need){
        .n_rows = UINT32_MAX,
        .n_listed = (uint32_t)kv_n_pages(min_u64(selection_n_listed(kv, n_tokens), end))};
}

static void window_done(struct kv_sequence *kv, uint32_t n_tokens) {
    uint32_t n = kv_window_n_behind(kv->space, n_tokens);
    if (n <= kv->n_expired) return;
    if (sequence_prefix_is_growing(kv) &&
        kv_n_available(kv->space) >= kv_most(kv->space, &kv->plan).pages)
        n = min_u32(n, sequence_prefix_n_blocks(kv));
    if (n <= kv->n_expired) return;
    sequence_prefix_expire(kv, n);
    kv_lists_expire(kv, n);
}

/* Pages that views leave out are a multiple of this: what backends read at a time begins there,
 * too, so that a row has the same bits. */
enum { LEFT_OUT_TOGETHER = 8 };

uint32_t kv_window_n_left_out(const struct kv_sequence *kv) {
    const uint32_t n_behind = kv_window_n_behind(kv->space, kv->n_tokens);
    return kv->plan.outgrows ? n_behind - n_behind % LEFT_OUT_TOGETHER : 0;
}

static void window_describe(struct kv_sequence *kv, uint32_t n_rows, struct step_seq *seq) {
    (void)n_rows, (void)seq;
    const uint32_t n = kv_window_n_left_out(kv);
    for (uint32_t l = 0; n > 0 && l < kv->space->n_layers; l++) {
        if (!kv_list_is_windowed(kv, l)) continue;
        kv->views[l].pages += n;
        kv->views[l].n_slots -= n * PAGE_TOKENS;
        kv->views[l].append_slot -= n * PAGE_TOKENS;
    }
}

static struct kv_range window_state_pages(const struct kv_sequence *kv, uint32_t n_tokens) {
    return kv_window_range(kv->space, n_tokens);
}

static const struct kv_state_ops window_states = {.pages = window_state_pages};

const struct kv_kind kv_kind_window = {
    .sharing = KV_SHARES_TEXT,
    .states = &window_states,
    .grows = true,
    .can_undo_rows = true,
    .most = window_most,
    .ask = window_ask,
    .describe = window_describe,
    .done = window_done,
};
