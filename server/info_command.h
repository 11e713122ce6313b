/* info_command.h - `quire info`: what a model's files hold, and what serving it takes on a device.
 * Its weights are checked as at the start of a server, but not read.
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_INFO_COMMAND_H
#define SERVER_INFO_COMMAND_H

#include <stdbool.h>
#include <stdio.h>

struct backend;
struct error;
struct option_table;
struct options;

struct info_plan {
    bool json;
};

/* Takes the command's own flags out of argv.  ERR_INVALID names the flag. */
int info_plan_read(struct info_plan *plan, int *argc, char **argv, struct error *err);
void info_print_help(void);
/* Returns the command's own options. */
const struct option_table *info_options(void);

/* Prints to `out` what the model is: lines for people, or one JSON object.  path: what is printed
 * for model_dir, if that has the first bytes of a model's weights only. */
int info_command(const struct info_plan *plan, const struct options *options, const char *model_dir,
                 const char *path, struct backend *backend, FILE *out, struct error *err);

#endif
