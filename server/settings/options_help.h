/* options_help.h - the settings in groups, and what `quire serve --help` prints of them.
 *
 * Thread: main.  Memory: none. */
#ifndef SERVER_SETTINGS_OPTIONS_HELP_H
#define SERVER_SETTINGS_OPTIONS_HELP_H

#include <stdbool.h>
#include <stdio.h>

struct buffer;
struct option;

/* A group begins with the setting `first`, and ends before that of the next group. */
struct option_group {
    const char *name, *title, *first;
    const char *example; /* a command line */
};

/* Returns the groups in the order of the settings; one without a name ends them. */
const struct option_group *options_groups(void);
/* Returns the group of one of the settings. */
const struct option_group *options_group_of(const struct option *option);
/* Tells whether the first screen of help shows the setting. */
bool options_is_common(const struct option *option);
/* Tells whether there is help of this name: "" for the first screen, "all", or a group's. */
bool options_help_exists(const char *name);
/* Prints the help of this name, which exists. */
void options_help_print(FILE *out, const char *name);
/* Appends an array with an object for each group: name, title, example, and the names of its
 * options. */
void options_help_json(struct buffer *out);

#endif
