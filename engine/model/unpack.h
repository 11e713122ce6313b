/* unpack.h - weights in other formats than their files have.
 *
 * Thread: any; it starts threads of its own, which have ended when it returns.
 * Memory: a row of floats for each of them, until it returns. */
#ifndef ENGINE_MODEL_UNPACK_H
#define ENGINE_MODEL_UNPACK_H

#include "engine/device/weight.h"

struct error;

/* Writes the values of a weight, or of a stack of them, to the memory of `to`.  That has the same
 * sides.  Its format is plain, and values are rounded to the nearest; or it is the canonical one of
 * packed elements (canonical.h).  ERR_INVALID: a value is NaN or infinite; ERR_NOMEM. */
int weight_convert(const struct weight *w, const struct weight *to, struct error *err);

/* Returns the smallest plain element that holds every value of a format. */
enum element weight_exact_element(const struct weight_format *format);

#endif
