/* test_thread.c - what several threads are to do is done once, and is over when they return. */
#include <stdatomic.h>
#include <stdbool.h>

#include "engine/base/thread.h"
#include "tests/test.h"

struct call {
    atomic_uint n;
    pthread_t thread;
    bool is_blocked;
};

static void *count_call(void *arg) {
    struct call *call = arg;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    call->is_blocked = sigismember(&mask, SIGTERM);
    call->thread = pthread_self();
    atomic_fetch_add(&call->n, 1);
    return NULL;
}

TEST(each_call_has_its_argument_and_the_first_is_the_callers) {
    static const uint32_t counts[] = {1, 2, 7, THREADS_MOST};
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        struct call calls[THREADS_MOST] = {0};
        threads_run(counts[k], count_call, calls, sizeof(*calls));
        for (uint32_t i = 0; i < THREADS_MOST; i++)
            assert_int_equal(calls[i].n, i < counts[k] ? 1 : 0);
        assert_true(pthread_equal(calls[0].thread, pthread_self()));
        assert_false(calls[0].is_blocked);
        for (uint32_t i = 1; i < counts[k]; i++) {
            assert_false(pthread_equal(calls[i].thread, pthread_self()));
            assert_true(calls[i].is_blocked);
        }
    }
}

TEST(calls_may_share_one_argument) {
    struct call call = {0};
    threads_run(5, count_call, &call, 0);
    assert_int_equal(call.n, 5);
}

TEST(a_thread_for_each_part_and_processor_is_useful) {
    assert_int_equal(threads_useful(0), 1);
    assert_int_equal(threads_useful(1), 1);
    assert_true(threads_useful(2) <= 2);
    assert_in_range(threads_useful(UINT64_MAX), 1, THREADS_MOST);
}
