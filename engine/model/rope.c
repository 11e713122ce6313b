/* rope.c - see rope.h.
 *
 * default:  theta^(-2i / d), d = 2 * n_freqs (RoFormer, arXiv:2104.09864, section 3.2.2).
 * linear:   every frequency divided by the factor (Position Interpolation, arXiv:2306.15595).
 * llama3:   by wavelength 2 pi / f against the original context L (Llama 3.1's model release):
 *           shorter than L / high_freq_factor: unchanged; longer than L / low_freq_factor: divided
 *           by the factor; between: a blend, linear in L / wavelength.
 * dynamic:  theta grows with the text, so that the slowest pair rotates as far as in training
 *           and the fastest as before (NTK-aware scaling; YaRN, arXiv:2309.00071, section 3.1).
 * yarn:     pairs that rotate more than beta_fast times within L: unchanged; less than beta_slow
 *           times: divided by the factor; between: a blend, linear in i (YaRN, section 3.2).
 * longrope: every frequency divided by its own number (LongRoPE, arXiv:2402.13753).
 * proportional: the first n_rotated pairs as by default, divided by the factor; the others 0. */
#include "engine/model/rope.h"

#include <math.h>

static double scale_llama3(const struct rope_params *p, double freq) {
    const double rotations =
        p->original_max_position * freq / (2.0 * M_PI); /* within the original context */
    if (rotations > p->high_freq_factor) return freq;
    if (rotations < p->low_freq_factor) return freq / p->factor;
    const double keep =
        (rotations - p->low_freq_factor) / (p->high_freq_factor - p->low_freq_factor);
    return (1.0 - keep) * freq / p->factor + keep * freq;
}

/* Returns the pair, a fraction, that rotates `rotations` times within the original context. */
static double pair_of_rotations(const struct rope_params *p, double rotations, uint32_t n_freqs) {
    return n_freqs * log(p->original_max_position / (2.0 * M_PI * rotations)) / log(p->theta);
}

static double scale_yarn(const struct rope_params *p, double freq, uint32_t i, uint32_t n_freqs) {
    double low = pair_of_rotations(p, p->beta_fast, n_freqs),
           high = pair_of_rotations(p, p->beta_slow, n_freqs);
    if (p->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0.0);
    high = fmin(high, 2.0 * n_freqs - 1.0);
    if (low == high) high += 0.001; /* a step in place of a ramp */
    const double blend = fmin(fmax((i - low) / (high - low), 0.0), 1.0);
    return freq / p->factor * blend + freq * (1.0 - blend);
}

static double base_of(const struct rope_params *p, uint32_t n_freqs) {
    if (p->kind != ROPE_DYNAMIC) return p->theta;
    return p->theta * pow(p->factor * p->stretch - (p->factor - 1.0), n_freqs / (n_freqs - 1.0));
}

static double scale(const struct rope_params *p, double freq, uint32_t i, uint32_t n_freqs) {
    switch (p->kind) {
    case ROPE_LINEAR: return freq / p->factor;
    case ROPE_LLAMA3: return scale_llama3(p, freq);
    case ROPE_YARN: return scale_yarn(p, freq, i, n_freqs);
    case ROPE_LONGROPE: return freq / p->divisors[i];
    case ROPE_PROPORTIONAL: return i < p->n_rotated ? freq / p->factor : 0;
    case ROPE_DEFAULT:
    case ROPE_DYNAMIC:
    case ROPE_N_KINDS: break;
    }
    return freq;
}

void rope_frequencies(const struct rope_params *params, double *inv_freq, uint32_t n_freqs) {
    const double base = base_of(params, n_freqs);
    for (uint32_t i = 0; i < n_freqs; i++)
        inv_freq[i] = scale(params, pow(base, -(double)i / n_freqs), i, n_freqs);
}
