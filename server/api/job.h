/* job.h - work on a request's body off the loop: parsing and tokenising a long prompt takes
 * seconds.
 *
 *   loop: job_start() ──► lane ──► pool thread: run() ──► loop: done()
 *
 * A lane bounds how many of the pool's threads one sort of work may hold.  Further jobs wait there,
 * first come, first served.  The bounded lanes can take seven of the eight threads:
 *
 *   short completions   any thread
 *   long completions    one: they wait for each other, and for nothing else
 *   short texts         one: /tokenize and /detokenize
 *   long texts          one
 *   forms               two: what compiles a grammar
 *   costly forms        two: what compiles one that the lane of forms has given up
 *
 * A job may have another step, in another lane: a completion compiles the grammar that it must
 * comply with.  A form that takes long keeps no cheap one waiting.
 *
 * The body is the exchange's.  The exchange may end while the pool works: then the job keeps the
 * body until the work is done, which the pool's threads bound in number.  done() always runs.  When
 * job->exchange is NULL by then, the client has left and no answer is sent.  A client that leaves
 * while its job still waits ends the job at once, without run().
 *
 * Thread: run on a pool thread, alone with the job; the rest on the loop.  Memory: a job is the
 * first member of what embeds it; done() owns it and must job_free() it. */
#ifndef SERVER_API_JOB_H
#define SERVER_API_JOB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "server/http/http.h"
#include "server/json/api_error.h"

struct error;
struct job;
struct server;

typedef void (*job_step)(struct job *job);

/* A body of this many bytes is long: reading it would delay other requests. */
enum { JOB_LONG_BYTES = 256 << 10, JOB_N_THREADS = 8 };

enum job_kind { JOB_COMPLETION, JOB_TEXT };

enum job_lane_name {
    LANE_SHORT_COMPLETION,
    LANE_LONG_COMPLETION,
    LANE_SHORT_TEXT,
    LANE_LONG_TEXT,
    LANE_FORM,
    LANE_COSTLY_FORM
};

enum { JOB_N_LANES = LANE_COSTLY_FORM + 1 };

/* Zero-initialise. */
struct job_lanes {
    struct job_lane {
        struct job *first, *last; /* waiting */
        uint32_t n_running;
    } lanes[JOB_N_LANES];
};

struct job {
    uv_work_t work;
    struct server *server;
    struct http_exchange *exchange; /* NULL: gone */
    enum job_lane_name lane;
    struct job *next, *prev; /* in its lane */
    bool waiting;
    const char *body; /* until done() */
    size_t length;
    struct http_held_body held; /* the body of an exchange that has ended; or zeros */
    job_step run, done;
    job_step then; /* job_then() sets it: what is to be run next, in then_lane */
    enum job_lane_name then_lane;
    atomic_bool stopped; /* the result is not wanted any more */
    int rc;              /* negative: err says why */
    struct api_error err;
};

/* Makes a job and returns it zero-filled, for the caller to fill in what run() needs before
 * job_submit().  size: of the struct that begins with the job.  Returns NULL without memory; the
 * exchange has been answered then. */
struct job *job_create(struct server *server, struct http_exchange *exchange, enum job_kind kind,
                       size_t size, job_step run, job_step done);
void job_submit(struct job *job);
/* Does both and returns the job, for the caller to fill in what done() needs (run() may have
 * begun).  NULL as above. */
struct job *job_start(struct server *server, struct http_exchange *exchange, enum job_kind kind,
                      size_t size, job_step run, job_step done);
void job_free(struct job *job);

/* Lets another step run when this one has ended, unless the client has left by then.  For run(). */
void job_then(struct job *job, job_step step, enum job_lane_name lane);
/* Tells run() that its result is not wanted any more; so does a client that leaves. */
void job_stop(struct job *job);
bool job_is_stopped(const struct job *job); /* any thread */

/* Creates the pool's threads now, because libuv creates them at their first use and aborts when it
 * cannot.  Before loop_memory_reserve(): libuv frees what it knows of them when the process
 * ends. */
int job_make_threads(struct error *err);

#endif
