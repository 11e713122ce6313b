/* threads.h - the CPU backend's workers: run one function over task numbers and wait.
 *
 * Thread: pool_run() from one thread at a time; the function runs on every worker and the caller.
 * Memory: allocates at create, never afterwards.  Workers spin briefly, then sleep. */
#ifndef ENGINE_CPU_THREADS_H
#define ENGINE_CPU_THREADS_H

#include <stdint.h>

struct error;
struct pool;

/* worker is in [0, pool_size): for per-worker scratch. */
typedef void (*pool_fn)(void *ctx, uint32_t task, uint32_t worker);

int pool_create(struct pool **out, uint32_t n_threads,
                struct error *err);   /* n_threads >= 1, caller included */
void pool_destroy(struct pool *pool); /* NULL is allowed */
uint32_t pool_size(const struct pool *pool);

/* Calls fn for every task in [0, n_tasks), each once, and returns when all are done.  Tasks are
 * handed out dynamically, in increasing order. */
void pool_run(struct pool *pool, pool_fn fn, void *ctx, uint32_t n_tasks);

#endif
