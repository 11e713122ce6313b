/* chat_command.h - `quire chat MODEL`: a conversation at a terminal.
 *
 * Thread: main.  Memory: the conversation's, freed on return. */
#ifndef SERVER_TERMINAL_CHAT_COMMAND_H
#define SERVER_TERMINAL_CHAT_COMMAND_H

struct error;
struct options;
struct talk_engine;
struct talk_plan;

void chat_print_help(void);
/* Reads messages and prints answers until the input ends, or /exit.  model: its name at --url;
 * NULL: none.  An answer that fails is told, and the conversation goes on.  ERR_IO: there is no
 * server; ERR_STOPPED: Ctrl-C did, while the model was loaded. */
int chat_command(const struct talk_plan *plan, const struct options *options, const char *model,
                 const struct talk_engine *engine, struct error *err);

#endif
