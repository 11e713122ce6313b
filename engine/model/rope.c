/* rope.c - see rope.h.
 *
 * default: theta^(-2i / d), d = 2 * n_freqs (RoFormer, arXiv:2104.09864, section 3.2.2).
 * linear:  every frequency divided by the factor (Position Interpolation, arXiv:2306.15595).
 * llama3:  by wavelength 2 pi / f against the original context L (Llama 3.1's model release):
 *          shorter than L / high_freq_factor: unchanged; longer than L / low_freq_factor: divided
 *          by the factor; between: a blend, linear in L / wavelength. */
#include "engine/model/rope.h"

#include <math.h>

static double scale_llama3(const struct rope_params *p, double freq) {
    const double turns =
        p->original_max_position * freq / (2.0 * M_PI); /* within the original context */
    if (turns > p->high_freq_factor) return freq;
    if (turns < p->low_freq_factor) return freq / p->factor;
    const double keep = (turns - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
    return (1.0 - keep) * freq / p->factor + keep * freq;
}

void rope_frequencies(const struct rope_params *params, double *inv_freq, uint32_t n_freqs) {
    for (uint32_t i = 0; i < n_freqs; i++) {
        double freq = pow(params->theta, -(double)i / n_freqs);
        if (params->kind == ROPE_LINEAR) freq /= params->factor;
        if (params->kind == ROPE_LLAMA3) freq = scale_llama3(params, freq);
        inv_freq[i] = freq;
    }
}
