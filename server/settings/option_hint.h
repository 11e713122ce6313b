/* option_hint.h - the setting that a misspelt flag, variable or member of a file likely means.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_SETTINGS_OPTION_HINT_H
#define SERVER_SETTINGS_OPTION_HINT_H

#include <stddef.h>

struct option_table;

/* Returns the name of the setting that the first `length` bytes of a name are like, without dashes
 * in front and whatever its case; NULL: none. */
const char *option_hint(const struct option_table *table, const char *name, size_t length);

/* Writes the option's variable: QUIRE_MAX_NUM_SEQS. */
void option_variable(char *out, size_t size, const char *name);

/* Returns the setting that a variable of the environment, "NAME=value", likely means, though no
 * setting has this name.  NULL: it is a setting's, or like none, or not ours. */
const char *option_hint_variable(const struct option_table *table, const char *variable);

#endif
