/* commands.h - `quire pull`, `quire list` and `quire rm`: models that are fetched by their names.
 *
 * Thread: main.  Memory: none is kept. */
#ifndef SERVER_HUB_COMMANDS_H
#define SERVER_HUB_COMMANDS_H

#include <stdbool.h>
#include <stdio.h>

#include "server/hub/name.h"

struct error;
struct hub_voice;
struct option_table;

/* What pull and rm are told.  Each has a table of its own options, which are members of this. */
struct hub_plan {
    struct hub_name name;
    bool is_revision; /* the name has one */
    bool dry_run;     /* pull */
    bool yes;         /* rm */
};

const struct option_table *hub_pull_options(void);
const struct option_table *hub_rm_options(void);
void hub_pull_print_help(void);
void hub_list_print_help(void);
void hub_rm_print_help(void);

/* Reads the command's options and its one name.  ERR_INVALID names what is wrong. */
int hub_plan_read(struct hub_plan *plan, const struct option_table *options, int argc, char **argv,
                  struct error *err);

/* Fetches the model, and prints its path.  check, ctx: as in struct hub_request. */
int hub_pull_command(const struct hub_plan *plan, const struct hub_voice *voice,
                     int (*check)(void *ctx, const char *path, bool has_weights, struct error *err),
                     void *ctx, FILE *out, struct error *err);
/* Prints a line for each revision in the cache, and for each folder that cannot be read. */
int hub_list_command(FILE *out, struct error *err);
/* Removes what the name means, once `in` says y, or without asking under --yes. */
int hub_rm_command(const struct hub_plan *plan, FILE *in, FILE *out, struct error *err);

#endif
