/* random_weights.h - random weights of any shape and format, to measure a model without its files.
 *
 * Matrices are near normal with deviation 0.02 as models are initialised, so that logits are
 * finite; norms are 1.  Zeros would not do: they need less power, and a GPU that draws less power
 * runs faster than it ever will with a model.
 *
 * Thread: any one.  Memory: owns what get() returned.  A backend that copies gives the memory back
 * (take_back), and the next tensor reuses it.  Then sixteen gigabytes of weights need the memory of
 * the largest tensor only. */
#ifndef ENGINE_MODEL_RANDOM_WEIGHTS_H
#define ENGINE_MODEL_RANDOM_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/weight.h"

struct error;
struct random_weights;

/* The formats by their names in settings, in the order of random_formats. */
#define RANDOM_FORMAT_NAMES                                                                        \
    "bf16", "fp8", "fp8-block", "int8", "int4", "int4-zero", "mxfp4", "q4_0", "q4_1", "q5_0",      \
        "q5_1", "q8_0", "iq4_nl", "mxfp4-gguf", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs"
extern const struct weight_format random_formats[];

/* Makes what tensors are filled with.  format: what get() is asked for besides bf16, or NULL. */
int random_weights_create(struct random_weights **out, const struct weight_format *format,
                          struct error *err);
void random_weights_destroy(struct random_weights *random); /* NULL is allowed */

/* Fills in data, scales and mins of a weight that has its sides and its format: bf16, or the one
 * of create().  is_norm: a vector of ones, in bf16.  ERR_NOMEM. */
int random_weights_get(struct random_weights *random, bool is_norm, struct weight *weight,
                       struct error *err);
/* Takes back the memory of the last weight of get(), which was copied.  Without one it does
 * nothing. */
void random_weights_take_back(struct random_weights *random);

#endif
