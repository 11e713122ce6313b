/* random_elements.h - random elements and scales of a format of weights.
 *
 * Values are near normal with deviation RANDOM_DEVIATION.  In packed blocks every code is equally
 * probable, and the scale of a block makes the deviation.
 *
 * Thread: any.  Memory: none; callers own what is filled. */
#ifndef ENGINE_MODEL_RANDOM_ELEMENTS_H
#define ENGINE_MODEL_RANDOM_ELEMENTS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/device/weight.h"

#define RANDOM_DEVIATION 0.02f

/* Returns the next of a sequence of random numbers, and moves its state on. */
uint64_t random_next(uint64_t *state);

/* Returns the bytes that elements can be repeated by: a packed block, or one or two elements. */
size_t random_element_bytes(enum element element);

/* Writes n times random_element_bytes() of elements to out. */
void random_elements_fill(const struct weight_format *format, uint64_t *state, size_t n,
                          uint8_t *out);

/* Writes n scales, and as many minimums of a format that has them: each of scale_bytes(). */
void random_scales_fill(const struct weight_format *format, uint64_t *state, size_t n,
                        uint8_t *scales, uint8_t *mins);

#endif
