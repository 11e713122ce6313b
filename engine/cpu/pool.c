/* pool.c - see pool.h.
 *
 * A call publishes (fn, ctx, n_tasks) and bumps `epoch`; workers that see a new epoch take task numbers
 * from `next` until they run out and then report in `n_idle`.  The caller works too and leaves when every
 * worker has reported, so the fields of a call are never written while a worker may read them. */
#include "engine/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "engine/error.h"

enum { SPIN_ROUNDS = 4000 }; /* some tens of microseconds of `pause`: the gap between two operations */

struct worker {
    struct pool *pool;
    pthread_t thread;
    uint32_t number;
};

struct pool {
    uint32_t n_threads, n_started;
    struct worker *workers; /* [n_threads - 1] */
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    atomic_uint epoch, next, n_idle, n_sleeping;
    atomic_bool stop, caller_waits;
    pool_fn fn;
    void *ctx;
    uint32_t n_tasks;
};

static void spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void run_tasks(struct pool *pool, uint32_t worker) {
    for (;;) {
        uint32_t task = atomic_fetch_add(&pool->next, 1);
        if (task >= pool->n_tasks) return;
        pool->fn(pool->ctx, task, worker);
    }
}

static unsigned wait_for_epoch(struct pool *pool, unsigned seen) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load(&pool->epoch) != seen) return atomic_load(&pool->epoch);
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->n_sleeping, 1);
    while (atomic_load(&pool->epoch) == seen) pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->n_sleeping, 1);
    pthread_mutex_unlock(&pool->lock);
    return atomic_load(&pool->epoch);
}

static void *worker_main(void *arg) {
    struct worker *worker = arg;
    struct pool *pool = worker->pool;
    unsigned seen = 0;
    for (;;) {
        seen = wait_for_epoch(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        run_tasks(pool, worker->number);
        if (atomic_fetch_add(&pool->n_idle, 1) + 1 == pool->n_threads - 1 && atomic_load(&pool->caller_waits)) {
            pthread_mutex_lock(&pool->lock);
            pthread_cond_signal(&pool->done);
            pthread_mutex_unlock(&pool->lock);
        }
    }
}

static void publish(struct pool *pool) {
    atomic_fetch_add(&pool->epoch, 1);
    if (atomic_load(&pool->n_sleeping) == 0) return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

int pool_create(struct pool **out, uint32_t n_threads, struct error *err) {
    struct pool *pool = calloc(1, sizeof(*pool));
    if (!pool) return error_set(err, ERR_NOMEM, "thread pool: no memory");
    pool->n_threads = n_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->workers = calloc(n_threads, sizeof(*pool->workers));
    if (!pool->workers) goto fail;
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .number = i + 1};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0) goto fail;
        pool->n_started++;
    }
    *out = pool;
    return 0;

fail:
    pool_destroy(pool);
    return error_set(err, ERR_NOMEM, "thread pool: cannot start %u threads", n_threads);
}

void pool_destroy(struct pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, true);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->epoch, 1);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->n_started; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->work);
    pthread_cond_destroy(&pool->done);
    pthread_mutex_destroy(&pool->lock);
    free(pool->workers);
    free(pool);
}

uint32_t pool_size(const struct pool *pool) {
    return pool->n_threads;
}

static void wait_for_workers(struct pool *pool) {
    uint32_t others = pool->n_threads - 1;
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load(&pool->n_idle) == others) return;
        spin_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_waits, true);
    while (atomic_load(&pool->n_idle) != others) pthread_cond_wait(&pool->done, &pool->lock);
    atomic_store(&pool->caller_waits, false);
    pthread_mutex_unlock(&pool->lock);
}

void pool_run(struct pool *pool, pool_fn fn, void *ctx, uint32_t n_tasks) {
    if (n_tasks <= 1 || pool->n_threads == 1) {
        for (uint32_t task = 0; task < n_tasks; task++) fn(ctx, task, 0);
        return;
    }
    pool->fn = fn;
    pool->ctx = ctx;
    pool->n_tasks = n_tasks;
    atomic_store(&pool->next, 0);
    atomic_store(&pool->n_idle, 0);
    publish(pool);
    run_tasks(pool, 0);
    wait_for_workers(pool);
}
