/* canonical.h - packed elements of GGUF as the numbers of weight.h, for devices whose kernels read
 * these only.
 *
 *   Q8_0, Q5_0, IQ4_NL   I8, scales of 32       Q4_0          I4, scales of 32
 *   IQ4_XS               I8, scales of 32       Q4_1, Q4_K    I4, scales and mins of 32
 *   Q5_1, Q5_K           I8, scales and mins    Q2_K          I4, scales and mins of 16
 *   Q6_K                 I8, scales of 16       Q3_K          I4, scales of 16
 *   MXFP4                E2M1, E8M0 scales of 32
 *
 * Scales and mins are F16.  Those of types in blocks of 32 are exact, but for the mins of Q4_1.
 * Those of K types and IQ4_XS are products of two numbers, which F16 rounds to 11 bits.  That is
 * less than a bf16 weight loses: it has 8 bits.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_MODEL_CANONICAL_H
#define ENGINE_MODEL_CANONICAL_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/device/weight.h"

/* Returns the format that weights of a packed format have as numbers; any other as it is. */
struct weight_format canonical_format(const struct weight_format *format);

/* Converts a row of a matrix of packed elements to the same row of `to`, which has its sides and
 * its canonical format.  Returns false if a scale or a min is NaN or infinite in F16. */
bool canonical_row(const struct weight *packed, uint32_t row, const struct weight *to);

#endif
