/* rank_device.c - see tests/engine/rank_device.h: ranks that share the first GPU. */
#include "tests/engine/rank_device.h"

#include <stdio.h>

#include "cuda/cuda.h"
#include "cuda/ranks/ranks.h"
#include "engine/base/error.h"

static bool is_there(void) {
    struct backend *be = NULL;
    struct error err = {0};
    const bool is = cuda_backend_create(&be, &(struct cuda_config){0}, &err) == 0;
    if (is) be->ops->destroy(be);
    else printf("SKIPPED, NOTHING WAS TESTED: %s\n", err.text);
    return is;
}

/* The backends so far, by whether they are invariant and by their ranks: to create one takes longer
 * than most requests. */
enum { MOST_RANKS = 8 };
static struct backend *made[2][MOST_RANKS];

static int take(struct backend **out, uint32_t n_ranks, bool batch_invariant, struct error *err) {
    struct backend **be = &made[batch_invariant][n_ranks];
    const uint32_t devices[CUDA_MOST_RANKS] = {0};
    const struct rank_options together = {0};
    const struct cuda_config config = {.batch_invariant = batch_invariant};
    int rc = 0;
    if (!*be && n_ranks > 1) rc = cuda_ranks_create(be, &config, devices, n_ranks, &together, err);
    else if (!*be) rc = cuda_backend_create(be, &config, err);
    *out = *be;
    return rc;
}

static void give_back(struct backend *be, bool has_failed) {
    struct backend **first = &made[0][0];
    for (int i = 0; i < 2 * MOST_RANKS; i++)
        if (first[i] == be && has_failed) first[i] = NULL;
    if (has_failed) be->ops->destroy(be);
}

/* Activations have 16 bits, which sums in another order round to neighbours. */
const struct rank_device rank_device = {.format = PAGE_BF16,
                                        .bounds = {1.2f, 0.15f, 0.03f},
                                        .fp8_bounds = {1.5f, 0.25f, 0.03f},
                                        .row_bounds = {1.5f, 0.25f, 0.03f},
                                        .refuses = "(the square of a ReLU)",
                                        .is_there = is_there,
                                        .take = take,
                                        .give_back = give_back};
