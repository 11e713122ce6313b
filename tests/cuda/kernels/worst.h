/* worst.h - the largest of many errors, one of which may be NaN.
 *
 * Thread: any.  Memory: none. */
#ifndef TESTS_CUDA_KERNELS_WORST_H
#define TESTS_CUDA_KERNELS_WORST_H

#include <math.h>
#include <stdbool.h>

/* Says whether `error` replaces `worst`, the largest so far.  NaN is larger than any number, and
 * stays. */
static inline bool is_worse(double error, double worst) {
    return !isnan(worst) && !(error <= worst);
}

#endif
