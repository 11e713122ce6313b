/* job.c - see job.h. */
#include "server/job.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/http.h"
#include "server/reply.h"
#include "server/server.h"

static void run_work(uv_work_t *work) {
    struct job *job = work->data;
    job->run(job);
}

static void after_work(uv_work_t *work, int status) {
    struct job *job = work->data;
    assert(status == 0); /* nobody cancels */
    (void)status;
    free(job->body);
    job->body = NULL;
    job->done(job);
}

static void client_gone(void *user) {
    struct job *job = user;
    job->exchange = NULL;
}

struct job *job_start(struct server *server, struct http_exchange *exchange, size_t size,
                      job_step run, job_step done) {
    size_t length;
    const char *body = http_body(exchange, &length);
    struct job *job = calloc(1, size);
    if (job) job->body = malloc(length + 1);
    if (!job || !job->body) {
        struct api_error err;
        api_error_set(&err, 500, NULL, NULL, "no memory for the request");
        free(job);
        reply_error(server, exchange, &err);
        return NULL;
    }
    if (length) memcpy(job->body, body, length);
    job->body[length] = 0;
    job->length = length;
    job->server = server;
    job->exchange = exchange;
    job->run = run;
    job->done = done;
    job->work.data = job;
    http_on_gone(exchange, client_gone, job);
    uv_queue_work(server->loop, &job->work, run_work, after_work);
    return job;
}

void job_free(struct job *job) {
    free(job->body);
    free(job);
}
