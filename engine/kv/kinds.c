/* kinds.c - the kinds that a plan may assign to a layer's roles.  kv_plan_make() chooses.
 *
 * Thread: any.  Memory: constants. */
#include "engine/kv/kind.h"

const struct kv_kinds kv_kinds_full = {
    .of =
        {[KV_PLAIN] = &kv_kind_full, [KV_WINDOWED] = &kv_kind_window, [KV_SPARSE] = &kv_kind_full},
    .all = {&kv_kind_full, &kv_kind_window}};
const struct kv_kinds kv_kinds_bounded = {
    .of = {&kv_kind_bounded, &kv_kind_bounded, &kv_kind_bounded}, .all = {&kv_kind_bounded}};
const struct kv_kinds kv_kinds_selected = {
    .of = {[KV_PLAIN] = &kv_kind_full,
           [KV_WINDOWED] = &kv_kind_window,
           [KV_SPARSE] = &kv_kind_selected},
    .all = {&kv_kind_full, &kv_kind_window, &kv_kind_selected}};
const struct kv_kinds kv_kinds_moved = {
    .of =
        {[KV_PLAIN] = &kv_kind_full, [KV_WINDOWED] = &kv_kind_window, [KV_SPARSE] = &kv_kind_moved},
    .all = {&kv_kind_full, &kv_kind_window, &kv_kind_moved}};
