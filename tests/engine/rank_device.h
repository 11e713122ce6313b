/* rank_device.h - the device whose ranks test_team.c compares with one: CPUs here, or GPUs
 * (tests/cuda/rank_device.c).
 *
 * Thread: the test's.  Memory: backends are the device's. */
#ifndef TESTS_ENGINE_RANK_DEVICE_H
#define TESTS_ENGINE_RANK_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/pages.h"

struct backend;
struct error;

/* How far the log-probabilities of ranks may be off those of one: each, and their mean.  flips: the
 * share of tokens that may be further off in models with experts.  A near tie of the router's
 * scores ended otherwise there, and other experts computed them. */
struct rank_bounds {
    float worst, mean, flips;
};

struct rank_device {
    enum page_format format;               /* of pages, unless they have 8 bits */
    struct rank_bounds bounds, fp8_bounds; /* fp8: with pages of 8 bits */
    struct rank_bounds row_bounds;         /* of ranks that share rows, with any pages */
    bool shares_heads;                     /* ranks with the same KV head can evict by scores */
    bool selects;                          /* ranks can select tokens together */
    const char *refuses; /* of errors for models that it cannot serve; NULL: it serves all */
    /* Says that there is no such device, and returns false; or returns true. */
    bool (*is_there)(void);
    /* Takes a backend of n ranks, and gives it back. */
    int (*take)(struct backend **out, uint32_t n_ranks, bool batch_invariant, struct error *err);
    void (*give_back)(struct backend *be, bool has_failed);
};

extern const struct rank_device rank_device;

#endif
