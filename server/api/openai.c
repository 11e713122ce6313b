/* openai.c - POST /v1/completions: the OpenAI shape of answers and event streams.
 *
 * Thread: loop (but for the job).  Memory: see completion.h. */
#include "server/api/handlers.h"

#include <stdlib.h>

#include "server/api/completion.h"
#include "server/api/render.h"
#include "server/api/server.h"

static int read_body(struct completion *c) {
    return completion_request_parse(&c->request, c->job.body, c->job.length, &c->job.server->limits,
                                    &c->job.err);
}

static void run(struct job *job) {
    completion_run(job, read_body);
}

static void write_head(struct completion *c) {
    completion_write_head(c, "text_completion");
}

static void write_events(struct completion *c, struct choice *choice) {
    const uint32_t index = (uint32_t)(choice - c->choices); /* best_of is n in a stream */
    buffer_puts(&c->out, "data: ");
    write_head(c);
    choice_write(choice, &c->format, index, c->request.params.stop, &c->out);
    buffer_puts(&c->out, "]");
    completion_write_interim_usage(c, 0);
    buffer_puts(&c->out, "}\n\n");
}

static void write_progress(struct completion *c, const struct choice *choice,
                           const struct engine_event *event) {
    buffer_puts(&c->out, "data: ");
    write_head(c);
    buffer_printf(&c->out,
                  "{\"index\":%u,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null,"
                  "\"stop_reason\":null}]",
                  (uint32_t)(choice - c->choices));
    completion_write_progress(c, event);
    completion_write_interim_usage(c, 0);
    buffer_puts(&c->out, "}\n\n");
}

static void write_end(struct completion *c) {
    if (c->request.include_usage) {
        buffer_puts(&c->out, "data: ");
        write_head(c);
        buffer_puts(&c->out, "],");
        completion_write_usage(c, 0);
        buffer_puts(&c->out, "}\n\n");
    }
    buffer_puts(&c->out, "data: [DONE]\n\n");
}

static int by_likelihood(const void *a, const void *b) {
    const struct choice *x = *(struct choice *const *)a, *y = *(struct choice *const *)b;
    const double px = choice_mean_logprob(x), py = choice_mean_logprob(y);
    if (px != py) return px < py ? 1 : -1;
    return x < y ? -1 : x > y; /* equals keep their order */
}

/* Writes the n likeliest of the best_of choices of one prompt, or simply all n. */
static void write_choices_of(struct completion *c, uint32_t prompt) {
    const uint32_t n = c->request.n, best_of = c->request.best_of;
    struct choice *ranked[REQUEST_MAX_CHOICES];
    for (uint32_t i = 0; i < best_of; i++) ranked[i] = &c->choices[prompt * best_of + i];
    if (best_of > n) qsort(ranked, best_of, sizeof(*ranked), by_likelihood);
    for (uint32_t i = 0; i < n; i++) {
        if (prompt || i) buffer_puts(&c->out, ",");
        choice_write(ranked[i], &c->format, prompt * n + i, c->request.params.stop, &c->out);
    }
}

static void write_answer(struct completion *c) {
    write_head(c);
    for (uint32_t i = 0; i < c->request.prompts.n; i++) write_choices_of(c, i);
    buffer_puts(&c->out, "],");
    completion_write_usage(c, 0);
    buffer_puts(&c->out, "}");
}

void openai_completions(struct server *server, struct http_exchange *exchange) {
    static const struct completion_api api = {.path = "/v1/completions",
                                              .id_prefix = "cmpl-",
                                              .size = sizeof(struct completion),
                                              .run = run,
                                              .write_answer = write_answer,
                                              .write_events = write_events,
                                              .write_progress = write_progress,
                                              .write_end = write_end,
                                              .add_logprobs = choice_add_logprobs};
    completion_start(server, exchange, &api);
}

static void write_rendered(const struct prompt_list *prompts, struct buffer *out) {
    buffer_puts(out, "[");
    for (uint32_t i = 0; i < prompts->n; i++) {
        if (i) buffer_puts(out, ",");
        render_write_ids(&prompts->items[i], out);
    }
    buffer_puts(out, "]");
}

static void run_render(struct job *job) {
    render_run(job, completion_request_parse, write_rendered);
}

void openai_render(struct server *server, struct http_exchange *exchange) {
    render_start(server, exchange, run_render, NULL);
}
