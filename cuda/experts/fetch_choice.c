/* fetch_choice.c - see fetch.h: whether experts are read in place or copied whole. */
#include "cuda/experts/fetch.h"

#include <math.h>

/* Reading in place is about as fast as copying, but nothing is computed meanwhile. */
static const double WHOLE_FROM = 0.75; /* of the experts that rows use, if they choose at random */

bool expert_fetch_is_whole(uint32_t n_rows, uint32_t n_used, uint32_t n_experts) {
    const double missed = pow(1 - (double)n_used / n_experts, n_rows);
    return 1 - missed >= WHOLE_FROM;
}
