/* talk.h - what `quire run` and `quire chat` share: their options, and bodies of requests.
 *
 * Thread: main.  Memory: a plan owns its strings. */
#ifndef SERVER_TERMINAL_TALK_H
#define SERVER_TERMINAL_TALK_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "server/terminal/asked_server.h"

struct error;
struct option_table;
struct options;

struct talk_plan {
    char *url, *system;  /* NULL: not given */
    uint64_t max_tokens; /* 0: as many as there is room for */
    double temperature;  /* negative: not given */
    bool raw;            /* the prompt is a text to continue, not a message */
};

/* Serves with options and a feed, in a child: what the server that answers needs of main.c. */
struct talk_engine {
    private_server_run run;
    void *ctx;
};

/* Returns the command's options beside those of `quire serve`. */
const struct option_table *run_options(void);
const struct option_table *chat_options(void);
/* Takes the options of a table out of argv.  ERR_INVALID names the one that is wrong. */
int talk_plan_read(struct talk_plan *plan, const struct option_table *table, int *argc, char **argv,
                   struct error *err);
void talk_plan_fini(struct talk_plan *plan);

/* Lets Ctrl-C set a flag, in place of ending the program.  Returns the flag, which the caller may
 * clear. */
volatile sig_atomic_t *talk_take_interrupt(void);

/* Finds or starts the server.  model: its name in requests to a URL; NULL: none. */
int talk_open(struct asked_server *out, const struct talk_plan *plan, const struct options *options,
              const char *model, const struct talk_engine *engine,
              const volatile sig_atomic_t *stop, struct error *err);
/* Returns a body with what the plan says of the answer; NULL without memory. */
json_t *talk_body(const struct talk_plan *plan, const struct asked_server *server);

#endif
