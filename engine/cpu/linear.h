/* linear.h - y = x W^T on the CPU: GEMV for a few rows, blocked GEMM for many, weights as stored.
 *
 * Thread: engine (inside pool_run for the workers).  Memory: packing scratch per worker, made at create. */
#ifndef ENGINE_CPU_LINEAR_H
#define ENGINE_CPU_LINEAR_H

#include "engine/cpu/cpu.h"
#include "engine/cpu/pool.h"

struct linear; /* opaque: chosen kernels and scratch */

int linear_create(struct linear **out, struct pool *pool, enum cpu_isa isa, enum dtype matmul_dtype,
                  struct error *err); /* isa is resolved, never AUTO */
void linear_destroy(struct linear *linear);
/* A row's result never depends on the other rows of the call (batch invariance). */
int linear_run(struct linear *linear, const struct linear_args *args, struct error *err);

#endif
