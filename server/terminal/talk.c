/* talk.c - see talk.h. */
#include "server/terminal/talk.h"

#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/settings/log.h"
#include "server/settings/option_table.h"
#include "server/settings/options.h"

#define AT(member) offsetof(struct talk_plan, member)

/* The last one is of `quire run` alone. */
static const struct option entries[] = {
    {"system", OPTION_STRING, AT(system), 0, 0, NULL, NULL, "what the system's message says"},
    {"max-tokens", OPTION_NUMBER, AT(max_tokens), 0, 1u << 30, "0", NULL,
     "most tokens of an answer; 0: until the model ends it, but 16 of a server at a --url with "
     "--raw"},
    {"temperature", OPTION_FRACTION, AT(temperature), 0, 200, NULL, NULL,
     "0 to 2; 0: always the best token [that of the model's generation_config.json]"},
    {"url", OPTION_STRING, AT(url), 0, 0, NULL, NULL,
     "a server that runs, such as http://localhost:8000, in place of one of the command's own; "
     "MODEL is its name there then"},
    {"raw", OPTION_BOOL, AT(raw), 0, 0, "false", NULL,
     "continue the prompt as a text, without the model's chat template"},
};
enum { N_ENTRIES = sizeof(entries) / sizeof(*entries) };
static const struct option_table of_run = {entries, N_ENTRIES};
static const struct option_table of_chat = {entries, N_ENTRIES - 1};

/* The least share of the best token's probability that a token needs (min_p), of a server of the
 * command's own.  Without a bound a small model at temperature 1 soon writes a token that leads to
 * noise, and an answer that does not end.  Other servers may refuse the field. */
static const double least_share = 0.1;

/* A handler has nothing else to tell the program by. */
static volatile sig_atomic_t interrupted;

const struct option_table *run_options(void) {
    return &of_run;
}

const struct option_table *chat_options(void) {
    return &of_chat;
}

int talk_plan_read(struct talk_plan *plan, const struct option_table *table, int *argc, char **argv,
                   struct error *err) {
    *plan = (struct talk_plan){.temperature = -1};
    int rc = option_table_take(table, plan, argc, argv, err);
    if (!rc && plan->raw && plan->system) {
        rc = error_set(err, ERR_INVALID, "--raw excludes --system: a text has no messages");
        talk_plan_fini(plan);
    }
    return rc;
}

void talk_plan_fini(struct talk_plan *plan) {
    option_table_free(&of_run, plan);
}

static void note_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

volatile sig_atomic_t *talk_take_interrupt(void) {
    /* Without SA_RESTART: a wait for the server or for a line must end. */
    const struct sigaction action = {.sa_handler = note_interrupt};
    sigaction(SIGINT, &action, NULL);
    return &interrupted;
}

int talk_open(struct asked_server *out, const struct talk_plan *plan, const struct options *options,
              const char *model, const struct talk_engine *engine,
              const volatile sig_atomic_t *stop, struct error *err) {
    if (plan->url) {
        const int rc = asked_server_at(out, plan->url, err);
        out->model = model;
        out->key = options->keys.n > 0 ? options->keys.all[0].key : NULL;
        return rc;
    }
    const bool is_shown = isatty(STDERR_FILENO);
    if (is_shown) fputs("loading the model ...", stderr);
    const int rc = asked_server_start(out, engine->run, engine->ctx, stop, err);
    if (is_shown) fputs("\r                     \r", stderr);
    return rc;
}

json_t *talk_body(const struct talk_plan *plan, const struct asked_server *server) {
    json_t *body = json_object();
    int status = body ? 0 : -1;
    if (!status && server->model)
        status = json_object_set_new(body, "model", json_string(server->model));
    if (!status && plan->max_tokens > 0)
        status =
            json_object_set_new(body, "max_tokens", json_integer((json_int_t)plan->max_tokens));
    if (!status && !server->is_remote)
        status = json_object_set_new(body, "min_p", json_real(least_share));
    if (!status && plan->temperature >= 0)
        status = json_object_set_new(body, "temperature", json_real(plan->temperature));
    if (!status) return body;
    json_decref(body);
    return NULL;
}
