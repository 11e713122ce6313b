/* rate_limit.c - see rate_limit.h. */
#include "server/api/rate_limit.h"

static const double ms_per_minute = 60e3;

uint32_t rate_limit_wait(struct rate_limit *rate, uint64_t per_minute, uint64_t now_ms) {
    if (per_minute == 0) return 0;
    const double per_ms = (double)per_minute / ms_per_minute;
    rate->used -= (double)(now_ms - rate->at_ms) * per_ms;
    if (rate->used < 0) rate->used = 0;
    rate->at_ms = now_ms;
    const double missing = rate->used + 1 - (double)per_minute;
    return missing <= 0 ? 0 : (uint32_t)(missing / per_ms / 1e3) + 1;
}

void rate_limit_take(struct rate_limit *rate, uint64_t n_tokens) {
    rate->used += (double)n_tokens;
}
