/* run_command.h - `quire run MODEL "prompt"`: one answer on standard output.
 *
 * Thread: main.  Memory: its own, freed on return. */
#ifndef SERVER_TERMINAL_RUN_COMMAND_H
#define SERVER_TERMINAL_RUN_COMMAND_H

struct error;
struct options;
struct talk_engine;
struct talk_plan;

void run_print_help(void);
/* Prints the answer to the prompt, behind what standard input has if that is no terminal.  prompt:
 * NULL where the input has all of it.  model: its name at --url; NULL: none.  ERR_INVALID: there is
 * no prompt, or the server refuses it; ERR_STOPPED: Ctrl-C did. */
int run_command(const struct talk_plan *plan, const struct options *options, const char *model,
                const char *prompt, const struct talk_engine *engine, struct error *err);

#endif
