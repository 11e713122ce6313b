/* select_pack.h - the selections of a step's sequences as words for the device, part of its block.
 *
 *   struct device_select [n_decode]
 *   lists, sequence after sequence:
 *     state pages   [n_groups][pages of n_selected slots]
 *     blocks        [n_candidates / PAGE_TOKENS], or, where the store is pages,
 *     where         [n_layers]: each sparse layer's pages begin among the lists; -1: not sparse
 *     pages         [n_candidates / PAGE_TOKENS] of each sparse layer
 *
 * A layer is sparse if a sequence has fewer slots there than in layer 0, which never is.
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_KV_SELECT_PACK_H
#define CUDA_KV_SELECT_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/host/kernels.h"
#include "engine/device/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What of the server's shape the lists depend on. */
struct select_shape {
    uint32_t n_groups;
    uint32_t state_slots; /* kv_state_slots() */
};

enum { SELECT_WORDS = sizeof(struct device_select) / sizeof(int32_t) };

bool step_has_selects(const struct step *step);
/* Words that select_pack() writes. */
size_t select_pack_words(const struct step *step, const struct select_shape *shape);
/* No step that selects has more: its sequences' lists of blocks, or pages for max_slots slots. */
size_t select_pack_most_words(const struct step_limits *limits, const struct select_shape *shape);
/* scores_at: the first slot among the traces' scores that no budget has. */
void select_pack(const struct step *step, const struct select_shape *shape, int32_t scores_at,
                 int32_t *words);

#ifdef __cplusplus
}
#endif

#endif
