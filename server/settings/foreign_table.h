/* foreign_table.h - what command lines of other servers say, as data.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_SETTINGS_FOREIGN_TABLE_H
#define SERVER_SETTINGS_FOREIGN_TABLE_H

struct foreign_option {
    const char
        *spellings;      /* with dashes, and spaces between; "--a-*" is all that begin with --a- */
    const char *of;      /* the servers that have it */
    const char *flag;    /* ours, with "no-" where it is negated; NULL: refused */
    const char *instead; /* a sentence for the refusal; NULL: none is due */
};

/* An option that, with some values, asks for what quire does anyhow.  It is taken, so that a
 * command line of another server works. */
struct usual_option {
    const char *spelling;
    const char *values; /* with commas between; "": it has none; a comma first: it may have none;
                         * "*": any */
};

/* A value of another server's option that is spelt like ours. */
struct foreign_value {
    const char *option, *theirs;
    const char *ours;    /* NULL: refused */
    const char *instead; /* a sentence for the refusal */
};

/* A row of NULL ends each. */
extern const struct foreign_option foreign_table[];
extern const struct usual_option usual_table[];
extern const struct foreign_value foreign_values[];

#endif
