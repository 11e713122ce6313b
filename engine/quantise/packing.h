/* packing.h - floats to packed elements (packed.h), each block with the scale that loses least.
 *
 *   Q8_0         scale = the largest / 127
 *   Q5_0, Q4_0   scale searched around the largest, of either sign: the code range is not symmetric
 *   Q4_K         scale and minimum of each 32 elements searched, then rounded to 6 bits
 *
 * Codes are chosen for the scales as they are stored.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_QUANTISE_PACKING_H
#define ENGINE_QUANTISE_PACKING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/weight.h"

struct rounding_error;

struct packing {
    const char *name; /* of the setting */
    enum element element;
    enum element otherwise; /* of rows that are not whole blocks of it, but are of 32 */
    uint32_t file_type;     /* general.file_type of files in which most tensors have it */
};

/* Ends with a row without name. */
extern const struct packing packings[];

/* Packs n values, whole blocks of one of the elements above, to out [packed_bytes()], and adds what
 * that loses to *sum.  Returns false if a value is NaN, or not below 65504 in size. */
bool packing_row(enum element element, const float *values, size_t n, void *out,
                 struct rounding_error *sum);

#endif
