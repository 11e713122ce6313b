/* compile_thread.c - see compile_thread.h.
 *
 * The caller and the thread share a task, which the last of both frees.  A thread that was left
 * behind frees what it has compiled, too. */
#define _GNU_SOURCE /* setpriority() of one thread */
#include "engine/grammar/compile_thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/error.h"

enum { STACK_BYTES = 64 << 20, MAX_LEFT = 8, LOOK_NS = 50 * 1000 * 1000, LOW_NICE = 10 };

/* What a thread may take beyond its limit until it is left behind, in processor seconds. */
#define GRACE_SECONDS 1.0

struct compile_threads {
    atomic_uint n_refs, n_left;
};

struct task {
    atomic_uint n_refs;
    atomic_bool stop;
    pthread_mutex_t lock; /* of is_done and is_left */
    pthread_cond_t done;
    bool is_done, is_left, is_low;
    struct compile_threads *threads;
    const struct grammar_vocab *vocab; /* borrowed, and used only before the thread may be left */
    struct grammar_limits limits;
    struct grammar *grammar;
    int code;
    struct error err;
    enum grammar_kind kind;
    size_t n;
    char text[];
};

int compile_threads_create(struct compile_threads **out) {
    struct compile_threads *threads = calloc(1, sizeof(*threads));
    if (!threads) return ERR_NOMEM;
    atomic_init(&threads->n_refs, 1);
    *out = threads;
    return 0;
}

void compile_threads_destroy(struct compile_threads *threads) {
    if (threads && atomic_fetch_sub(&threads->n_refs, 1) == 1) free(threads);
}

static void task_unref(struct task *task) {
    if (atomic_fetch_sub(&task->n_refs, 1) != 1) return;
    pthread_mutex_destroy(&task->lock);
    pthread_cond_destroy(&task->done);
    compile_threads_destroy(task->threads);
    free(task);
}

static bool is_stopped(const void *user) {
    return atomic_load_explicit(&((const struct task *)user)->stop, memory_order_relaxed);
}

static void *run(void *user) {
    struct task *task = user;
    if (task->is_low) setpriority(PRIO_PROCESS, (id_t)gettid(), LOW_NICE);
    task->code = grammar_compile(&task->grammar, task->vocab, task->kind, task->text, task->n,
                                 &task->limits, &task->err);
    pthread_mutex_lock(&task->lock);
    task->is_done = true;
    pthread_cond_signal(&task->done);
    const bool is_left = task->is_left;
    pthread_mutex_unlock(&task->lock);
    if (is_left) {
        if (!task->code) grammar_unref(task->grammar);
        atomic_fetch_sub(&task->threads->n_left, 1);
    }
    task_unref(task);
    return NULL;
}

static struct task *make_task(struct compile_threads *threads, const struct grammar_vocab *vocab,
                              enum grammar_kind kind, const char *text, size_t n,
                              const struct grammar_limits *limits, bool is_low) {
    struct task *task = calloc(1, sizeof(*task) + n);
    if (!task) return NULL;
    atomic_init(&task->n_refs, 2);
    atomic_init(&task->stop, false);
    pthread_mutex_init(&task->lock, NULL);
    pthread_condattr_t of_clock;
    pthread_condattr_init(&of_clock);
    pthread_condattr_setclock(&of_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&task->done, &of_clock);
    pthread_condattr_destroy(&of_clock);
    atomic_fetch_add(&threads->n_refs, 1);
    task->threads = threads;
    task->vocab = vocab;
    task->kind = kind;
    task->n = n;
    memcpy(task->text, text, n);
    task->is_low = is_low;
    task->limits = (struct grammar_limits){limits->seconds, limits->bytes, is_stopped, task};
    return task;
}

static int start(struct task *task, pthread_t *thread, struct error *err) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    const int status = pthread_create(thread, &attr, run, task);
    pthread_attr_destroy(&attr);
    return status ? error_set(err, ERR_NOMEM, "no thread for the grammar: %s", strerror(status))
                  : 0;
}

static double seconds_of(clockid_t clock) {
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Waits for the task's end, under its lock.  Returns false if the thread is left behind. */
static bool wait_for(struct task *task, pthread_t thread, const struct grammar_limits *limits) {
    clockid_t clock;
    double end = limits->seconds + GRACE_SECONDS;
    if (pthread_getcpuclockid(thread, &clock)) clock = CLOCK_MONOTONIC;
    while (!task->is_done) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&task->done, &task->lock, &until);
        if (task->is_done) break;
        const double now = seconds_of(clock);
        if (!is_stopped(task) && limits->is_stopped && limits->is_stopped(limits->user)) {
            atomic_store(&task->stop, true);
            if (end > now + GRACE_SECONDS) end = now + GRACE_SECONDS;
        }
        if (now > end) return false;
    }
    return true;
}

int compile_thread_run(struct compile_threads *threads, struct grammar **out,
                       const struct grammar_vocab *vocab, enum grammar_kind kind, const char *text,
                       size_t n, const struct grammar_limits *limits, bool is_low,
                       struct error *err) {
    pthread_t thread;
    if (atomic_load(&threads->n_left) >= MAX_LEFT)
        return error_set(err, ERR_UNSUPPORTED, "too many forms that do not end are being compiled");
    struct task *task = make_task(threads, vocab, kind, text, n, limits, is_low);
    if (!task) return error_set(err, ERR_NOMEM, "no memory for the grammar");
    int code = start(task, &thread, err);
    if (code) {
        task_unref(task);
        task_unref(task);
        return code;
    }
    pthread_mutex_lock(&task->lock);
    const bool is_done = wait_for(task, thread, limits);
    task->is_left = !is_done;
    if (!is_done) atomic_fetch_add(&threads->n_left, 1);
    pthread_mutex_unlock(&task->lock);
    if (is_done) {
        pthread_join(thread, NULL);
        code = task->code;
        if (code) error_set(err, code, "%s", task->err.text);
        else *out = task->grammar;
    } else {
        pthread_detach(thread);
        code = error_set(err, ERR_FULL, "it takes too long to compile");
    }
    task_unref(task);
    return code;
}
