/* tokenize_command.h - `quire tokenize`: reads a text and prints one line per token: id, tab, the
 * token as JSON.
 *
 * Thread: main.  Memory: the text and its tokens, freed on return. */
#ifndef SERVER_TOKENIZE_COMMAND_H
#define SERVER_TOKENIZE_COMMAND_H

#include <stdio.h>

struct error;

void tokenize_print_help(void);
int tokenize_command(const char *model_dir, FILE *in, FILE *out, struct error *err);

#endif
