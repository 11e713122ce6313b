/* command_model.h - finds the model that a command is called with, and fetches it where it may.
 *
 * Thread: main.  Memory: none is kept. */
#ifndef SERVER_COMMAND_MODEL_H
#define SERVER_COMMAND_MODEL_H

#include <limits.h>
#include <stdbool.h>

struct error;
struct hub_look;
struct options;

/* Is told, line by line, of what is fetched.  The context is not used. */
typedef void command_voice(void *ctx, const char *line);
command_voice say_on_stderr, say_in_log, say_nothing;
/* On a terminal it writes over "loading the model ...", which a command that waits shows there. */
command_voice say_while_waiting;

/* Writes the path of the model's folder or GGUF file.  look: NULL, or as in struct hub_request;
 * then out is empty where it was called.  The errors are sentences that say what to do. */
int command_model_find(char out[PATH_MAX], const struct options *options, bool has_weights,
                       command_voice *say, const struct hub_look *look, struct error *err);

/* Tells whether the device that serves would serve a model that is not here yet: as the check of
 * struct hub_request.  ctx: the options. */
int command_model_check(void *ctx, const char *path, bool has_weights, struct error *err);

#endif
