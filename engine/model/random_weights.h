/* random_weights.h - random weights of any shape, to measure a model that need not exist.
 *
 * Matrices are bf16, near normal with deviation 0.02 as models are initialised, so that logits are
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

struct error;
struct random_weights;
struct weight;

int random_weights_create(struct random_weights **out, struct error *err);
void random_weights_destroy(struct random_weights *random); /* NULL is allowed */

/* Fills in data and format of a weight that has rows and cols; is_norm: a vector of ones. */
int random_weights_get(struct random_weights *random, bool is_norm, struct weight *weight,
                       struct error *err);
/* Takes back the memory of the last weight of get(), which was copied. */
void random_weights_take_back(struct random_weights *random);

#endif
