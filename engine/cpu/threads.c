/* threads.c - see threads.h.
 *
 *   ticket   n_tasks (high 32 bits) | next task (low 32 bits)
 *
 * A call stores a new ticket.  A thread, the caller included, adds one to it and owns the task
 * number that it read.  The call is over when every *task* is done: a worker that the system did
 * not schedule in time is not waited for.  Such a latecomer gets a number past the end, or a task
 * of the next call, which is as good. fn and ctx are only read by the holder of an unfinished task,
 * and only written when there is none. */
#include "engine/cpu/threads.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/thread.h"

enum {
    SPIN_ROUNDS = 4000
}; /* some tens of microseconds of `pause`: the gap between two operations */

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
    atomic_uint epoch; /* counts calls; sleeping workers wait for it to change */
    atomic_uint n_done, n_sleeping;
    atomic_bool stop, caller_waits;
    _Atomic uint64_t ticket;
    pool_fn fn;
    void *ctx;
};

/* Counts a task as done; the last task of a call wakes the caller if it fell asleep. */
static void finish_task(struct pool *pool, uint32_t n_tasks) {
    if (atomic_fetch_add(&pool->n_done, 1) + 1 != n_tasks || !atomic_load(&pool->caller_waits))
        return;
    pthread_mutex_lock(&pool->lock);
    pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->lock);
}

static void run_tasks(struct pool *pool, uint32_t worker) {
    for (;;) {
        uint64_t ticket = atomic_fetch_add(&pool->ticket, 1);
        uint32_t task = (uint32_t)ticket, n_tasks = (uint32_t)(ticket >> 32);
        if (task >= n_tasks) return;
        pool->fn(pool->ctx, task, worker);
        finish_task(pool, n_tasks);
    }
}

static unsigned wait_for_epoch(struct pool *pool, unsigned seen) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load(&pool->epoch) != seen) return atomic_load(&pool->epoch);
        thread_pause();
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
    if (!pool) return error_set(err, ERR_NOMEM, "cpu: no memory for the thread pool");
    pool->n_threads = n_threads;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    pool->workers = calloc(n_threads, sizeof(*pool->workers));
    if (!pool->workers) goto fail;
    for (uint32_t i = 0; i + 1 < n_threads; i++) {
        pool->workers[i] = (struct worker){.pool = pool, .number = i + 1};
        if (pthread_create(&pool->workers[i].thread, NULL, worker_main, &pool->workers[i]) != 0)
            goto fail;
        pool->n_started++;
    }
    *out = pool;
    return 0;

fail:
    pool_destroy(pool);
    return error_set(err, ERR_NOMEM, "cpu: cannot start %u threads", n_threads);
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

static void wait_for_tasks(struct pool *pool, uint32_t n_tasks) {
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load(&pool->n_done) == n_tasks) return;
        thread_pause();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_store(&pool->caller_waits, true);
    while (atomic_load(&pool->n_done) != n_tasks) pthread_cond_wait(&pool->done, &pool->lock);
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
    atomic_store(&pool->n_done, 0);
    atomic_store(&pool->ticket, (uint64_t)n_tasks << 32);
    publish(pool);
    run_tasks(pool, 0);
    wait_for_tasks(pool, n_tasks);
}
