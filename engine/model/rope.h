/* rope.h - the rotary frequencies of a model, with the scaling that stretches its context.
 *
 * Thread: any.  Memory: none of its own. */
#ifndef ENGINE_MODEL_ROPE_H
#define ENGINE_MODEL_ROPE_H

#include <stdint.h>

enum rope_kind { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3 };

struct rope_params {
    enum rope_kind kind;
    double theta;
    double factor;                           /* linear, llama3 */
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position;            /* llama3 */
};

/* inv_freq[i], i in [0, n_freqs): radians per position of the pair (i, i + n_freqs). */
void rope_frequencies(const struct rope_params *params, double *inv_freq, uint32_t n_freqs);

#endif
