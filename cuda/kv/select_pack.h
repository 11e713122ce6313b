/* select_pack.h - packs the selections and observations of a step's sequences as words for the
 * device, part of the step block.
 *
 *   struct device_select [n_decode]
 *   struct device_observation [n_seqs], if some sequence is observed
 *   lists, sequence after sequence:
 *     state pages   [n_groups][pages of n_selected slots]
 *     blocks        [n_candidates / PAGE_TOKENS] host blocks; or, without a host pool,
 *     where         [n_layers]: where each sparse layer's pages begin in the lists; -1: not sparse
 *     pages         [n_candidates / PAGE_TOKENS] of each sparse layer
 *   lists of those that are observed: pages of token scores, [n_groups][n_pages]
 *
 * A layer is sparse if a sequence has fewer slots there than its text, and no budget.
 *
 * Thread: engine.  Memory: the caller's. */
#ifndef CUDA_KV_SELECT_PACK_H
#define CUDA_KV_SELECT_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/host/kernels.h"

struct step;
struct step_limits;
struct step_seq;

#ifdef __cplusplus
extern "C" {
#endif

/* The part of the server's shape on which the lists depend. */
struct select_shape {
    uint32_t n_groups;
    uint32_t state_slots; /* kv_state_slots() */
};

enum {
    SELECT_WORDS = sizeof(struct device_select) / sizeof(int32_t),
    OBSERVATION_WORDS = sizeof(struct device_observation) / sizeof(int32_t)
};

bool step_has_selects(const struct step *step);
bool step_has_observations(const struct step *step);
/* Returns how many words select_pack() writes. */
size_t select_pack_words(const struct step *step, const struct select_shape *shape);
/* Returns the most words that a step may need: its sequences' lists of blocks, or pages for
 * max_slots slots. */
size_t select_pack_most_words(const struct step_limits *limits, const struct select_shape *shape);
/* Returns how many slots of struct attn_stats' scores a sequence of the step has.  A layer writes
 * those of the budget or those of a selection, so they have one place. */
uint32_t score_slots(const struct step_seq *seq);
/* Returns how many words of a step come before its lists. */
size_t select_pack_lists_at(const struct step *step);
/* Writes the words. */
void select_pack(const struct step *step, const struct select_shape *shape, int32_t *words);

#ifdef __cplusplus
}
#endif

#endif
