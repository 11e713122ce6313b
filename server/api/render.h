/* render.h - what a body's prompts are as tokens, without running them.
 *
 * Routers ask for the ids to find out which server has them cached; clients count them.  A prompt
 * may be longer than the context.
 *
 * Thread: loop (but for the job).  Memory: the job owns everything of its request. */
#ifndef SERVER_API_RENDER_H
#define SERVER_API_RENDER_H

#include <stddef.h>

#include "server/api/job.h"
#include "server/json/api_error.h"

struct buffer;
struct completion_request;
struct http_exchange;
struct prompt;
struct prompt_list;
struct request_limits;
struct server;

/* Reads and checks a body.  On failure *out holds nothing to free and err names the cause. */
typedef int (*render_reader)(struct completion_request *out, const char *body, size_t length,
                             const struct request_limits *limits, struct api_error *err);
/* Writes the answer about the tokenised prompts. */
typedef void (*render_writer)(const struct prompt_list *prompts, struct buffer *out);

/* Starts a job; run: calls render_run() with the API's reader and writer.  write_error NULL: errors
 * have OpenAI's shape. */
void render_start(struct server *server, struct http_exchange *exchange, job_step run,
                  api_error_writer write_error);
/* Reads and tokenises the job's body.  Thread: pool. */
void render_run(struct job *job, render_reader read, render_writer write);

/* Writes {"token_ids":[…]}. */
void render_write_ids(const struct prompt *prompt, struct buffer *out);

#endif
