/* test_job.c - long texts hold one thread, long completions another, and a short completion waits
 * for neither; a job that waits ends when its client leaves. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "server/api/job.h"
#include "server/api/server.h"
#include "tests/server/fake_http.h"
#include "tests/test.h"

enum { PATIENCE_MS = 20000, MAX_JOBS = 32 };

struct rig {
    uv_loop_t loop;
    uv_timer_t alarm;
    struct server server;
    uv_sem_t gate;              /* long jobs run until they may pass */
    struct job *done[MAX_JOBS]; /* in the order of their ends; freed already */
    uint32_t n_done;
    atomic_uint n_begun;
    char *long_body;
};

static int set_up(void **state) {
    struct rig *rig = calloc(1, sizeof(*rig));
    struct error err = {0};
    assert_non_null(rig);
    uv_loop_init(&rig->loop);
    uv_timer_init(&rig->loop, &rig->alarm);
    uv_sem_init(&rig->gate, 0);
    rig->server.loop = &rig->loop;
    rig->loop.data = rig;
    rig->long_body = calloc(1, JOB_LONG_BYTES + 1);
    memset(rig->long_body, 'x', JOB_LONG_BYTES);
    assert_int_equal(job_make_threads(&err), 0);
    *state = rig;
    return 0;
}

static int tear_down(void **state) {
    struct rig *rig = *state;
    for (int i = 0; i < MAX_JOBS; i++) uv_sem_post(&rig->gate);
    uv_close((uv_handle_t *)&rig->alarm, NULL);
    uv_run(&rig->loop, UV_RUN_DEFAULT);
    for (int i = 0; i < JOB_N_LANES; i++) {
        assert_null(rig->server.jobs.lanes[i].first);
        assert_int_equal(rig->server.jobs.lanes[i].n_running, 0);
    }
    assert_int_equal(uv_loop_close(&rig->loop), 0);
    uv_sem_destroy(&rig->gate);
    free(rig->long_body);
    free(rig);
    return 0;
}

static void run_long(struct job *job) {
    struct rig *rig = job->server->loop->data;
    atomic_fetch_add(&rig->n_begun, 1);
    uv_sem_wait(&rig->gate);
}

static void run_short(struct job *job) {
    struct rig *rig = job->server->loop->data;
    atomic_fetch_add(&rig->n_begun, 1);
}

static void job_done(struct job *job) {
    struct rig *rig = job->server->loop->data;
    rig->done[rig->n_done++] = job;
    job_free(job);
}

static struct job *start(struct rig *rig, struct http_exchange *exchange, enum job_kind kind,
                         const char *body) {
    *exchange = (struct http_exchange){.method = "POST", .path = "/", .body = body};
    return job_start(&rig->server, exchange, kind, sizeof(struct job),
                     body == rig->long_body ? run_long : run_short, job_done);
}

static void too_late(uv_timer_t *alarm) {
    (void)alarm;
    fail_msg("a job waits for what it should not wait for");
}

static void wait_done(struct rig *rig, uint32_t n) {
    uv_timer_start(&rig->alarm, too_late, PATIENCE_MS, 0);
    while (rig->n_done < n) uv_run(&rig->loop, UV_RUN_ONCE);
    uv_timer_stop(&rig->alarm);
}

TEST_WITH(a_short_completion_passes_long_ones_and_texts, set_up, tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchanges[18];
    for (int i = 0; i < 8; i++) start(rig, &exchanges[i], JOB_TEXT, rig->long_body);
    for (int i = 8; i < 16; i++) start(rig, &exchanges[i], JOB_COMPLETION, rig->long_body);
    struct job *completion = start(rig, &exchanges[16], JOB_COMPLETION, "{}");
    struct job *text = start(rig, &exchanges[17], JOB_TEXT, "{}");
    wait_done(rig, 2);
    assert_true(rig->done[0] == completion || rig->done[1] == completion);
    assert_true(rig->done[0] == text || rig->done[1] == text);
    for (int i = 0; i < 16; i++) uv_sem_post(&rig->gate);
    wait_done(rig, 18);
}

TEST_WITH(a_long_completion_does_not_wait_for_texts, set_up, tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchanges[9];
    for (int i = 0; i < 8; i++) start(rig, &exchanges[i], JOB_TEXT, rig->long_body);
    start(rig, &exchanges[8], JOB_COMPLETION, rig->long_body);
    const uint64_t deadline = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    while (atomic_load(&rig->n_begun) < 2) {
        assert_true(uv_hrtime() < deadline);
        uv_run(&rig->loop, UV_RUN_NOWAIT);
    }
    for (int i = 0; i < 9; i++) uv_sem_post(&rig->gate);
    wait_done(rig, 9);
}

/* A cheap form has a second step that ends; a costly one waits for the gate in a third. */
static void run_costly(struct job *job) {
    run_long(job);
}

static void run_quick(struct job *job) {
    if (job->length > 2) job_then(job, run_costly, LANE_COSTLY_FORM);
}

static void run_form(struct job *job) {
    job_then(job, run_quick, LANE_FORM);
}

static struct job *start_form(struct rig *rig, struct http_exchange *exchange, const char *body) {
    *exchange = (struct http_exchange){.method = "POST", .path = "/", .body = body};
    return job_start(&rig->server, exchange, JOB_COMPLETION, sizeof(struct job), run_form,
                     job_done);
}

TEST_WITH(a_cheap_form_does_not_wait_for_costly_ones, set_up, tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchanges[12];
    for (int i = 0; i < 8; i++) start_form(rig, &exchanges[i], "costly");
    for (int i = 8; i < 10; i++) start(rig, &exchanges[i], JOB_TEXT, rig->long_body);
    struct job *cheap = start_form(rig, &exchanges[10], "{}");
    struct job *completion = start(rig, &exchanges[11], JOB_COMPLETION, "{}");
    wait_done(rig, 2);
    assert_true(rig->done[0] == cheap || rig->done[1] == cheap);
    assert_true(rig->done[0] == completion || rig->done[1] == completion);
    for (int i = 0; i < 10; i++) uv_sem_post(&rig->gate);
    wait_done(rig, 12);
}

static void run_until_stopped(struct job *job) {
    struct rig *rig = job->server->loop->data;
    atomic_fetch_add(&rig->n_begun, 1);
    while (!job_is_stopped(job)) sched_yield();
}

TEST_WITH(a_client_that_leaves_stops_the_job, set_up, tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchange = {.method = "POST", .path = "/", .body = "{}"};
    job_start(&rig->server, &exchange, JOB_COMPLETION, sizeof(struct job), run_until_stopped,
              job_done);
    const uint64_t deadline = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    while (atomic_load(&rig->n_begun) < 1) assert_true(uv_hrtime() < deadline);
    fake_http_leave(&exchange);
    wait_done(rig, 1);
}

TEST_WITH(a_lane_is_first_come_first_served, set_up, tear_down) {
    struct rig *rig = *state;
    struct http_exchange exchanges[8];
    struct job *jobs[8];
    for (int i = 0; i < 8; i++) jobs[i] = start(rig, &exchanges[i], JOB_TEXT, rig->long_body);
    for (uint32_t i = 0; i < 8; i++) {
        uv_sem_post(&rig->gate);
        wait_done(rig, i + 1);
        assert_ptr_equal(rig->done[i], jobs[i]);
    }
}

/* The first, the last and one between leave; the one that runs does, too. */
TEST_WITH(a_client_that_leaves_a_waiting_job_ends_it_at_once, set_up, tear_down) {
    struct rig *rig = *state;
    static const int leaving[] = {1, 7, 4};
    struct http_exchange exchanges[8];
    struct job *jobs[8];
    for (int i = 0; i < 8; i++) jobs[i] = start(rig, &exchanges[i], JOB_TEXT, rig->long_body);
    for (uint32_t i = 0; i < 3; i++) {
        fake_http_leave(&exchanges[leaving[i]]);
        assert_int_equal(rig->n_done, i + 1);
        assert_ptr_equal(rig->done[i], jobs[leaving[i]]);
    }
    fake_http_leave(&exchanges[0]);
    assert_int_equal(rig->n_done, 3);
    for (int i = 0; i < 5; i++) uv_sem_post(&rig->gate);
    wait_done(rig, 8);
    assert_ptr_equal(rig->done[3], jobs[0]);
    assert_int_equal(atomic_load(&rig->n_begun), 5);
}
