/* foreign_options.h - options of other servers: which setting one is understood as, or what quire
 * has in its place.
 *
 * Thread: main.  Memory: none. */
#ifndef SERVER_SETTINGS_FOREIGN_OPTIONS_H
#define SERVER_SETTINGS_FOREIGN_OPTIONS_H

#include <stdbool.h>

struct buffer;

struct foreign_option {
    const char *spellings[3]; /* with dashes; NULL: no further one */
    const char *of;           /* the servers that have it */
    const char *flag;         /* ours, with "no-" where it is negated; NULL: refused */
    const char *instead;      /* a sentence for the refusal; NULL: none is due */
};

/* Returns the option that is spelt so, up to a '='; NULL: no server that is known here has it. */
const struct foreign_option *foreign_option_find(const char *argument);
/* Tells whether argv[*i] asks for what quire does anyhow.  Moves *i to its value, if it has one. */
bool foreign_option_is_usual(int argc, char **argv, int *i);
/* Returns all of them; one without a spelling ends them. */
const struct foreign_option *foreign_options(void);
/* Appends an array with an object for each: spellings, of, and option or instead. */
void foreign_options_json(struct buffer *out);
/* Appends an object: the values of each spelling with which it asks for what quire does anyhow, in
 * the form of foreign_options.c. */
void foreign_options_usual_json(struct buffer *out);

#endif
