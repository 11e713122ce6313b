/* render.c - see render.h. */
#include "server/api/render.h"

#include "engine/engine.h"
#include "server/api/completion_request.h"
#include "server/api/reply.h"
#include "server/api/server.h"
#include "server/json/buffer.h"

struct render {
    struct job job;               /* first: see job.h */
    api_error_writer write_error; /* NULL: OpenAI's shape */
    struct buffer out;
};

void render_run(struct job *job, render_reader read, render_writer write) {
    const struct request_limits *limits = &job->server->limits;
    struct completion_request request;
    job->rc = read(&request, job->body, job->length, limits, &job->err);
    if (job->rc) return;
    job->rc = completion_request_encode(&request, job->server->info->tokenizer, limits, &job->err);
    if (!job->rc) write(&request.prompts, &((struct render *)job)->out);
    completion_request_fini(&request);
}

static void job_done(struct job *job) {
    struct render *render = (struct render *)job;
    if (job->exchange && job->rc) {
        reply_error_as(job->server, job->exchange, &job->err, render->write_error);
    } else if (job->exchange) {
        reply_json(job->server, job->exchange, 200, &render->out);
    }
    buffer_fini(&render->out);
    job_free(job);
}

void render_start(struct server *server, struct http_exchange *exchange, job_step run,
                  api_error_writer write_error) {
    struct render *render = (struct render *)job_start(server, exchange, JOB_TEXT,
                                                       sizeof(struct render), run, job_done);
    if (render) render->write_error = write_error;
}

void render_write_ids(const struct prompt *prompt, struct buffer *out) {
    buffer_puts(out, "{\"token_ids\":[");
    for (size_t i = 0; i < prompt->tokens.n; i++)
        buffer_printf(out, i ? ",%u" : "%u", prompt->tokens.ids[i]);
    buffer_puts(out, "]}");
}
