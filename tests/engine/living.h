/* living.h - one text with a bounded cache that really lives on, turn after turn, in the same
 * pages: the oracle of conversations.
 *
 * It drives a decoder by itself, without scheduler, sequences or caches, as docs/kv-policies.md
 * says that turns are appended.  Any failure fails the calling cmocka test.
 *
 * Thread: the test's.  Memory: its own, until living_end(). */
#ifndef TESTS_ENGINE_LIVING_H
#define TESTS_ENGINE_LIVING_H

#include "engine/device/evict.h"
#include "engine/device/pages.h"
#include "engine/request/kv_choice.h"
#include "engine/request/request.h"

struct backend;
struct decoder;
struct model;

enum { LIVING_MAX_LAYERS = 64 };

struct living {
    struct backend *be;
    struct model *model;
    struct decoder *decoder;
    struct kv_pool kv;
    uint32_t *pages[LIVING_MAX_LAYERS];
    struct kv_choice choice;
    struct kv_budget budget;
    uint32_t n_tokens, n_kept; /* stored so far, and still there */
    double retained_attention; /* of the newest step */
};

struct living_token {
    uint32_t token;
    float logprob;
};

/* max_slots: that a turn's chunks, the budget and one token more may take. */
void living_begin(struct living *living, const char *model_dir, const struct kv_choice *choice,
                  uint32_t max_slots);
void living_end(struct living *living);

/* Appends what of the prompt is not stored yet, in chunks that are cut into pieces at random, and
 * draws params->max_tokens tokens behind it.  All but the last one of these are stored then. */
void living_turn(struct living *living, const uint32_t *prompt, uint32_t n_prompt,
                 const struct sampling_params *params, struct living_token *drawn);

#endif
