/* unpack.h - weights of formats that a device does not take, as plain elements.
 *
 * Thread: any; it starts threads of its own, which have ended when it returns.
 * Memory: a row of floats for each of them, until it returns. */
#ifndef ENGINE_MODEL_UNPACK_H
#define ENGINE_MODEL_UNPACK_H

#include "engine/device/weight.h"

struct error;

/* Writes the values of a weight, or of a stack of them, to out [n_stacked, rows, cols] as plain
 * elements, rounded to the nearest.  ERR_INVALID: a value is NaN or infinite; ERR_NOMEM. */
int weight_unpack(const struct weight *w, enum element element, void *out, struct error *err);

#endif
