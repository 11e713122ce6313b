/* rope.h - the rotary frequencies of a model, with the scaling that stretches its context.
 *
 * Thread: any.  Memory: none of its own. */
#ifndef ENGINE_MODEL_ROPE_H
#define ENGINE_MODEL_ROPE_H

#include <stdbool.h>
#include <stdint.h>

enum { ROPE_MAX_FREQS = 256 };

enum rope_kind {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_LLAMA3,
    ROPE_DYNAMIC,
    ROPE_YARN,
    ROPE_LONGROPE,
    ROPE_PROPORTIONAL,
    ROPE_N_KINDS
};

struct rope_params {
    enum rope_kind kind;
    double theta;
    double factor;                            /* linear, llama3, dynamic, yarn, proportional */
    double original_max_position;             /* llama3, yarn */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double stretch;                  /* dynamic: longest text / trained context, at least 1 */
    double beta_fast, beta_slow;     /* yarn: rotations within the original context, */
    bool truncate;                   /* and whether the pairs found by them are whole numbers */
    double divisors[ROPE_MAX_FREQS]; /* longrope */
    uint32_t n_rotated;              /* proportional: pairs from this one on do not rotate */
    double local_theta; /* the base of layers with a window, unscaled; 0: `theta`, scaled */
};

/* Computes inv_freq[i], i in [0, n_freqs): radians per position of the pair (i, i + n_freqs). */
void rope_frequencies(const struct rope_params *params, double *inv_freq, uint32_t n_freqs);

#endif
