/* test_pool.c - every task runs once, whatever the number of threads and however often the pool
 * sleeps. */
#include "tests/cpu/cpu_test.h"

#include <stdatomic.h>
#include <unistd.h>

#include "engine/cpu/threads.h"

enum { MAX_TASKS = 1000 };

struct counts {
    atomic_uint runs[MAX_TASKS];
    atomic_uint busy[8]; /* per worker: tasks in progress */
    atomic_bool overlap;
};

static void count(void *ctx, uint32_t task, uint32_t worker) {
    struct counts *c = ctx;
    if (atomic_fetch_add(&c->busy[worker], 1) != 0) atomic_store(&c->overlap, true);
    atomic_fetch_add(&c->runs[task], 1);
    atomic_fetch_sub(&c->busy[worker], 1);
}

TEST(every_task_runs_once) {
    for (uint32_t n_threads = 1; n_threads <= 8; n_threads++) {
        struct pool *pool = NULL;
        assert_int_equal(pool_create(&pool, n_threads, NULL), 0);
        assert_int_equal(pool_size(pool), n_threads);
        for (int round = 0; round < 300; round++) {
            static struct counts c;
            memset(&c, 0, sizeof(c));
            uint32_t n = round % 7 == 0 ? 0 : random_below(MAX_TASKS);
            pool_run(pool, count, &c, n);
            for (uint32_t i = 0; i < MAX_TASKS; i++) assert_int_equal(c.runs[i], i < n);
            assert_false(c.overlap);             /* a worker number is one thread's own */
            if (round % 100 == 50) usleep(3000); /* long enough for the workers to fall asleep */
        }
        pool_destroy(pool);
    }
}

TEST(a_pool_can_be_destroyed_unused) {
    struct pool *pool = NULL;
    assert_int_equal(pool_create(&pool, 4, NULL), 0);
    pool_destroy(pool);
    pool_destroy(NULL);
}
