/* sparse_test.h - for tests: what the last index() of the CUDA backend has chosen.
 *
 * Thread: the test's.  Memory: each call allocates and frees it, and waits for the device. */
#ifndef CUDA_ATTENTION_SPARSE_SPARSE_TEST_H
#define CUDA_ATTENTION_SPARSE_SPARSE_TEST_H

#include <stdint.h>

struct backend;
struct error;

/* Writes the slots that (head, half) visits, ascending, and their number *n.  `slots` has space for
 * first_slot + n_rows of them. */
int cuda_sparse_visited(struct backend *be, uint32_t head, uint32_t half, uint32_t *slots,
                        uint32_t *n, struct error *err);

#endif
