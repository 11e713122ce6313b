/* faulty_backend.h - plants a fault in a backend: it computes something else than the step says.
 *
 *   drop-first-page   a query in slot 64 or later does not see slots 0..63, in any layer
 *   shift-positions   RoPE turns the queries and keys of position 4,096 and later one further
 *
 * Either is what a real mistake would do (a page table that begins one page late; a position
 * counted twice where a chunk begins), and neither stops the model from answering: finding them is
 * the evaluation's business.
 *
 * Thread: plant before an engine uses the backend.  Memory: a copy of a step, freed by destroy. */
#ifndef TESTS_EVALUATION_FAULTY_BACKEND_H
#define TESTS_EVALUATION_FAULTY_BACKEND_H

#include "engine/device/backend.h"

enum fault { FAULT_NONE, FAULT_DROP_FIRST_PAGE, FAULT_SHIFT_POSITIONS };

enum { FAULT_SHIFT_FROM = 4096 };

/* "none", "drop-first-page" or "shift-positions"; otherwise ERR_INVALID, and err lists them. */
int fault_of_name(enum fault *out, const char *name, struct error *err);

/* One backend at a time, which reads the description of a step where it lies, as the CPU's does. */
void faulty_backend_plant(struct backend *be, enum fault fault);

#endif
