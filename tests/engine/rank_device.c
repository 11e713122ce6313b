/* rank_device.c - see rank_device.h: CPUs. */
#include "tests/engine/rank_device.h"

#include "engine/cpu/cpu.h"

static bool is_there(void) {
    return true;
}

/* Of a CPU's batches, all are invariant. */
static int take(struct backend **out, uint32_t n_ranks, bool batch_invariant, struct error *err) {
    (void)batch_invariant;
    const struct cpu_config config = {.n_threads = 1, .n_ranks = n_ranks};
    return cpu_backend_create(out, &config, err);
}

static void give_back(struct backend *be, bool has_failed) {
    (void)has_failed;
    be->ops->destroy(be);
}

/* Pages of 8 bits round keys and values that differ in their last bit to neighbours. */
const struct rank_device rank_device = {.format = PAGE_F32,
                                        .bounds = {2e-3f, 2e-3f, 0},
                                        .fp8_bounds = {0.1f, 0.1f, 0},
                                        .row_bounds = {0, 0, 0},
                                        .shares_heads = true,
                                        .selects = true,
                                        .is_there = is_there,
                                        .take = take,
                                        .give_back = give_back};
