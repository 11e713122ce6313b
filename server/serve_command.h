/* serve_command.h - `quire serve`, from its options to the server's end: the log, the model, the
 * devices.
 *
 * Thread: main.  Memory: everything is freed on return. */
#ifndef SERVER_SERVE_COMMAND_H
#define SERVER_SERVE_COMMAND_H

struct options;

/* Serves with these options until it is stopped, and frees them.  A failure is logged.  Returns 0
 * or a negative number. */
int serve_command(struct options *options);

/* Serves a command's own feed alone.  What only a network needs is left out, as is what another
 * server with the same settings has for itself.  ctx: the options. */
int serve_privately(void *ctx, int feed);

/* Warns of variables that look like a setting's and are none's.  Refusing them was rejected:
 * another program may have them. */
void warn_of_variables(void (*warn)(void *ctx, const char *line));

#endif
