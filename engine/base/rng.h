/* rng.h - random numbers by counter: number `index` of `seed`, whatever numbers came before.
 *
 * There is no generator state.  So a request's tokens do not depend on its neighbours in the batch,
 * or on being preempted and computed again.
 *
 * Thread: any.  Memory: none. */
#ifndef ENGINE_BASE_RNG_H
#define ENGINE_BASE_RNG_H

#include <stdint.h>

double rng_uniform(uint64_t seed, uint64_t index); /* in [0, 1), 53 random bits */
uint64_t rng_fresh_seed(void);                     /* from the operating system */

#endif
