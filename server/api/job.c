/* job.c - see job.h. */
#include "server/api/job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/base/error.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/http/http.h"

/* How many of the pool's threads each lane may hold. */
static const uint32_t lane_threads[JOB_N_LANES] = {[LANE_SHORT_COMPLETION] = JOB_N_THREADS,
                                                   [LANE_LONG_COMPLETION] = 1,
                                                   [LANE_SHORT_TEXT] = 1,
                                                   [LANE_LONG_TEXT] = 1,
                                                   [LANE_FORM] = 2,
                                                   [LANE_COSTLY_FORM] = 2};

static enum job_lane_name lane_of(enum job_kind kind, size_t length) {
    const bool is_long = length >= JOB_LONG_BYTES;
    if (kind == JOB_TEXT) return is_long ? LANE_LONG_TEXT : LANE_SHORT_TEXT;
    return is_long ? LANE_LONG_COMPLETION : LANE_SHORT_COMPLETION;
}

static struct job_lane *lane_at(struct job *job) {
    return &job->server->jobs.lanes[job->lane];
}

static void lane_append(struct job_lane *lane, struct job *job) {
    job->waiting = true;
    job->prev = lane->last;
    if (lane->last) lane->last->next = job;
    else lane->first = job;
    lane->last = job;
}

static void lane_remove(struct job_lane *lane, struct job *job) {
    if (job->prev) job->prev->next = job->next;
    else lane->first = job->next;
    if (job->next) job->next->prev = job->prev;
    else lane->last = job->prev;
    job->next = job->prev = NULL;
    job->waiting = false;
}

static void run_work(uv_work_t *work) {
    struct job *job = work->data;
    job->run(job);
}

static void finish(struct job *job) {
    http_free_body(&job->held);
    job->body = NULL;
    job->done(job);
}

static void after_work(uv_work_t *work, int status);

/* Hands waiting jobs to the pool, as far as the lane has threads. */
static void lane_advance(struct job_lane *lane, uint32_t n_threads) {
    while (lane->first && lane->n_running < n_threads) {
        struct job *job = lane->first;
        lane_remove(lane, job);
        lane->n_running++;
        uv_queue_work(job->server->loop, &job->work, run_work, after_work);
    }
}

/* Lets the job wait for its next step. */
static void run_next(struct job *job) {
    job->run = job->then;
    job->then = NULL;
    job->lane = job->then_lane;
    lane_append(lane_at(job), job);
    lane_advance(lane_at(job), lane_threads[job->lane]);
}

static void after_work(uv_work_t *work, int status) {
    struct job *job = work->data;
    struct job_lane *lane = lane_at(job);
    assert(status == 0); /* the pool's work is never cancelled */
    (void)status;
    lane->n_running--;
    lane_advance(lane, lane_threads[job->lane]);
    if (job->then && job->exchange) run_next(job);
    else finish(job);
}

static void client_gone(void *user) {
    struct job *job = user;
    job_stop(job);
    if (!job->waiting) job->held = http_hold_body(job->exchange);
    job->exchange = NULL;
    if (!job->waiting) return;
    lane_remove(lane_at(job), job);
    finish(job);
}

struct job *job_create(struct server *server, struct http_exchange *exchange, enum job_kind kind,
                       size_t size, job_step run, job_step done) {
    struct job *job = calloc(1, size);
    if (!job) {
        struct api_error err;
        api_error_set(&err, 500, NULL, NULL, "no memory for the request");
        reply_error(server, exchange, &err);
        return NULL;
    }
    job->body = http_body(exchange, &job->length);
    job->server = server;
    job->exchange = exchange;
    job->lane = lane_of(kind, job->length);
    job->run = run;
    job->done = done;
    job->work.data = job;
    http_on_gone(exchange, client_gone, job);
    return job;
}

void job_submit(struct job *job) {
    lane_append(lane_at(job), job);
    lane_advance(lane_at(job), lane_threads[job->lane]);
}

struct job *job_start(struct server *server, struct http_exchange *exchange, enum job_kind kind,
                      size_t size, job_step run, job_step done) {
    struct job *job = job_create(server, exchange, kind, size, run, done);
    if (job) job_submit(job);
    return job;
}

void job_free(struct job *job) {
    http_free_body(&job->held);
    free(job);
}

void job_then(struct job *job, job_step step, enum job_lane_name lane) {
    job->then = step;
    job->then_lane = lane;
}

void job_stop(struct job *job) {
    atomic_store_explicit(&job->stopped, true, memory_order_relaxed);
}

bool job_is_stopped(const struct job *job) {
    return atomic_load_explicit(&job->stopped, memory_order_relaxed);
}

/* ---- the pool ---- */

static void wait_for_end(void *end) {
    uv_sem_wait(end);
}

/* Creates as many threads as the pool has, all at once, and ends them.  The C library reuses their
 * stacks for the pool's threads, whose stacks have the same size. */
static int try_threads(struct error *err) {
    uv_thread_t threads[JOB_N_THREADS];
    uv_sem_t end;
    int n = 0, status = uv_sem_init(&end, 0);
    if (status)
        return error_set(err, ERR_NOMEM, "cannot create a semaphore: %s", uv_strerror(status));
    while (n < JOB_N_THREADS && !status) {
        status = uv_thread_create(&threads[n], wait_for_end, &end);
        if (!status) n++;
    }
    for (int i = 0; i < n; i++) uv_sem_post(&end);
    for (int i = 0; i < n; i++) uv_thread_join(&threads[i]);
    uv_sem_destroy(&end);
    if (!status) return 0;
    return error_set(err, ERR_NOMEM, "cannot start %d threads that read requests: %s",
                     JOB_N_THREADS, uv_strerror(status));
}

static void do_nothing(uv_work_t *work) {
    (void)work;
}

/* Makes libuv create the threads, by their first work, which a loop of its own waits for. */
static int start_pool(void) {
    uv_loop_t loop;
    uv_work_t work;
    int status = uv_loop_init(&loop);
    if (status) return status;
    status = uv_queue_work(&loop, &work, do_nothing, NULL);
    if (!status) uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    return status;
}

int job_make_threads(struct error *err) {
    char n_threads[16];
    snprintf(n_threads, sizeof(n_threads), "%d", JOB_N_THREADS);
    setenv("UV_THREADPOOL_SIZE", n_threads, 1); /* libuv reads it when it creates them */
    const int rc = try_threads(err);
    if (rc) return rc;
    const int status = start_pool();
    return status ? error_set(err, ERR_NOMEM, "cannot start the threads that read requests: %s",
                              uv_strerror(status))
                  : 0;
}
