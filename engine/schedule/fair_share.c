/* fair_share.c - see fair_share.h. */
#include "engine/schedule/fair_share.h"

#include <assert.h>

#include "engine/base/sizes.h"

/* What a tenant's first requests are expected to generate, in tokens, and how much of the average
 * each later one counts for. */
static const double first_guess = 256, newest_share = 0.125;

double fair_share_enter(struct fair_share *share, uint32_t tenant, uint32_t weight,
                        uint32_t n_prompt, uint32_t max_tokens) {
    assert(tenant < REQUEST_MAX_TENANTS);
    struct fair_tenant *t = &share->tenants[tenant];
    const double expected = t->n_expected > 0 ? t->n_expected : first_guess;
    const double tag = t->clock > share->now ? t->clock : share->now;
    const double cost = n_prompt + (max_tokens < expected ? max_tokens : expected);
    t->clock = tag + cost / max_u32(weight, 1);
    return tag;
}

void fair_share_admit(struct fair_share *share, double tag) {
    if (tag > share->now) share->now = tag;
}

void fair_share_end(struct fair_share *share, uint32_t tenant, uint32_t n_generated) {
    struct fair_tenant *t = &share->tenants[tenant];
    const double n = max_u32(n_generated, 1);
    t->n_expected = t->n_expected > 0 ? t->n_expected + newest_share * (n - t->n_expected) : n;
}
