/* rng.h - random numbers by counter: draw number `index` of `seed`, whatever was drawn before.
 *
 * A request's tokens must not depend on its neighbours in the batch or on being preempted and
 * computed again, so there is no generator state to disturb.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_RNG_H
#define ENGINE_BASE_RNG_H

#include <stdint.h>

double rng_uniform(uint64_t seed, uint64_t index); /* in [0, 1), 53 random bits */
uint64_t rng_fresh_seed(void);                     /* from the operating system */

#endif
