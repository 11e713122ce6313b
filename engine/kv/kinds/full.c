/* full.c - the kind that keeps everything: slot = position.
 *
 *   pages:   [ 7 ][ 4 ][ 9 ][ 3 ][ 8 ]    of a layer: 8 is filling
 *
 * Thread: see kind.h.  Memory: none. */
#include "engine/kv/kind.h"
#include "engine/kv/kv_sequence.h"

static uint64_t full_most(const struct kv_space *space, const struct kv_plan *plan,
                          enum kv_phase phase, uint32_t n_tokens, uint32_t n_layers) {
    (void)space, (void)plan, (void)phase;
    return n_layers * kv_n_pages(n_tokens);
}

static struct kv_need full_ask(const struct kv_sequence *kv, uint64_t n_tokens) {
    return (struct kv_need){.n_rows = UINT32_MAX,
                            .n_listed = (uint32_t)kv_n_pages(selection_n_listed(kv, n_tokens))};
}

const struct kv_kind kv_kind_full = {
    .sharing = KV_SHARES_TEXT,
    .grows = true,
    .can_undo_rows = true,
    .most = full_most,
    .ask = full_ask,
};

const struct kv_kinds kv_kinds_divided = {
    .of = {[KV_PLAIN] = &kv_kind_full,
           [KV_WINDOWED] = &kv_kind_window,
           [KV_SPARSE] = &kv_kind_full,
           [KV_BUDGETED] = &kv_kind_bounded},
    .all = {&kv_kind_full, &kv_kind_window, &kv_kind_bounded}};

const struct kv_kinds kv_kinds_full = {.of = {[KV_PLAIN] = &kv_kind_full,
                                              [KV_WINDOWED] = &kv_kind_window,
                                              [KV_SPARSE] = &kv_kind_full,
                                              [KV_BUDGETED] = &kv_kind_full},
                                       .all = {&kv_kind_full, &kv_kind_window},
                                       .divided = &kv_kinds_divided};
