/* job.h - work on a request's body off the loop: parsing and tokenising a long prompt takes
 * seconds.
 *
 *   loop: job_start() ──► pool thread: run() ──► loop: done()
 *
 * The body is copied, because the exchange may go while the pool works.  done() always runs; when
 * job->exchange is NULL by then, the client has left and nobody is to be answered.
 *
 * Thread: run on a pool thread, alone with the job; the rest on the loop.
 * Memory: a job is the first member of what embeds it; done() takes it over and must job_free()
 * it. */
#ifndef SERVER_JOB_H
#define SERVER_JOB_H

#include <stddef.h>
#include <uv.h>

#include "server/api_error.h"

struct http_exchange;
struct job;
struct server;

typedef void (*job_step)(struct job *job);

struct job {
    uv_work_t work;
    struct server *server;
    struct http_exchange *exchange; /* NULL: gone */
    char *body;
    size_t length;
    job_step run, done;
    int rc; /* negative: err says why */
    struct api_error err;
};

/* size: of the struct that begins with the job; it is zero-filled and returned for the caller to
 * fill in what done() needs (run() may have begun).  NULL: no memory, and the exchange has been
 * answered. */
struct job *job_start(struct server *server, struct http_exchange *exchange, size_t size,
                      job_step run, job_step done);
void job_free(struct job *job);

#endif
