/* alibi.c - see alibi.h. */
#include "engine/model/alibi.h"

#include <math.h>

void alibi_slopes(float *slopes, uint32_t n_heads, double most, double scale) {
    uint32_t n_even = 1;
    while (2 * n_even <= n_heads) n_even *= 2;
    for (uint32_t i = 0; i < n_heads; i++) {
        const double exponent = i < n_even ? (i + 1.0) / n_even : (i - n_even + 0.5) / n_even;
        slopes[i] = (float)(exp2(-most * exponent) * scale);
    }
}
