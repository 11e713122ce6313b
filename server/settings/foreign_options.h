/* foreign_options.h - options of other servers: which setting one is understood as, or what quire
 * has in its place.
 *
 * Thread: main.  Memory: none. */
#ifndef SERVER_SETTINGS_FOREIGN_OPTIONS_H
#define SERVER_SETTINGS_FOREIGN_OPTIONS_H

#include <stdbool.h>

struct buffer;

struct foreign_option;

/* Returns the option that is spelt so, up to a '=', or NULL.  In a long one '_' is '-'. */
const struct foreign_option *foreign_option_find(const char *argument);
/* Tells whether argv[*i] asks for what quire does anyhow.  Moves *i to its value, if it has one. */
bool foreign_option_is_usual(int argc, char **argv, int *i);
/* Returns the value that another server's users mean by a text, where their option has our name;
 * else the text. */
const char *foreign_option_value(const char *option, const char *text);
/* Returns why such a value is none here, a sentence; NULL: nothing is known of it. */
const char *foreign_option_refusal(const char *option, const char *text);
/* Appends an array with an object for each: spellings, of, and option or instead. */
void foreign_options_json(struct buffer *out);
/* Appends an object: the values of each spelling with which it asks for what quire does anyhow, in
 * the form of foreign_options.c. */
void foreign_options_usual_json(struct buffer *out);
/* Appends an array with an object for each value that has another spelling here, or that is
 * refused. */
void foreign_options_values_json(struct buffer *out);

#endif
