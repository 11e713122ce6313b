/* tune_fit.c - see tune_fit.h. */
#include "engine/tune/tune_fit.h"

#include <string.h>

#include "engine/base/sizes.h"
#include "engine/device/pages.h"

enum { STEP_KEYS = 50 };

void tune_fit_starts(struct attn_pattern out[TUNE_N_STARTS]) {
    static const struct attn_pattern starts[TUNE_N_STARTS] = {
        {PATTERN_A_SHAPE, 1024, 4096},       {PATTERN_VERTICAL_SLASH, 30, 2048},
        {PATTERN_VERTICAL_SLASH, 100, 1800}, {PATTERN_VERTICAL_SLASH, 500, 1500},
        {PATTERN_VERTICAL_SLASH, 3000, 200}, {PATTERN_BLOCK_SPARSE, 100, 0},
    };
    memcpy(out, starts, sizeof(starts));
}

/* Returns the steps at which the pattern is as large as the prompt, or has the most columns or
 * pages allowed. */
static uint32_t most_steps(const struct attn_pattern *start, uint32_t n_tokens) {
    if (start->kind == PATTERN_BLOCK_SPARSE)
        return min_u32((uint32_t)kv_n_pages(n_tokens), SPARSE_MAX_PAGES);
    uint64_t most = n_tokens;
    if (start->kind == PATTERN_VERTICAL_SLASH)
        most =
            min_u64(most, (uint64_t)SPARSE_MAX_COLUMNS * max_u32(start->p1, start->p2) / start->p1);
    return max_u32((uint32_t)most / STEP_KEYS, 1);
}

static struct attn_pattern at_step(const struct tune_fit *fit, uint32_t step) {
    struct attn_pattern p = fit->start;
    if (p.kind == PATTERN_BLOCK_SPARSE) {
        p.p1 = step;
        return p;
    }
    const uint64_t larger = max_u32(p.p1, p.p2), keys = (uint64_t)step * STEP_KEYS;
    p.p1 = (uint32_t)((p.p1 * keys + larger / 2) / larger);
    p.p2 = (uint32_t)((p.p2 * keys + larger / 2) / larger);
    return p;
}

static uint32_t tried_step(const struct tune_fit *fit) {
    return fit->fits + (fit->exceeds - fit->fits) / 2;
}

void tune_fit_begin(struct tune_fit *fit, const struct attn_pattern *start, uint32_t n_tokens) {
    *fit = (struct tune_fit){.start = *start, .exceeds = most_steps(start, n_tokens) + 1};
}

bool tune_fit_is_done(const struct tune_fit *fit) {
    return fit->exceeds - fit->fits == 1;
}

struct attn_pattern tune_fit_next(const struct tune_fit *fit) {
    const uint32_t step = tried_step(fit); /* equals fit->fits once the fit is done */
    return step ? at_step(fit, step) : (struct attn_pattern){.kind = PATTERN_DENSE};
}

void tune_fit_add(struct tune_fit *fit, bool is_within_budget) {
    if (tune_fit_is_done(fit)) return;
    if (is_within_budget) fit->fits = tried_step(fit);
    else fit->exceeds = tried_step(fit);
}
