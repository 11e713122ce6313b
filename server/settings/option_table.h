/* option_table.h - tables of options: each fills a member of a struct from a text, whatever source
 * the text is from.
 *
 * Thread: main.  Memory: a struct owns its strings; option_table_free() frees them. */
#ifndef SERVER_SETTINGS_OPTION_TABLE_H
#define SERVER_SETTINGS_OPTION_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct error;

enum option_kind {
    OPTION_STRING,
    OPTION_LIST, /* a string: values with commas between them; a flag may be repeated */
    OPTION_NUMBER,
    OPTION_TOKENS, /* a number, with k, m or g by 1000, or K, M or G by 1024, as vLLM reads them */
    OPTION_BYTES,  /* a number, with K, M or G by 1024, whatever the case */
    OPTION_FRACTION, /* a double */
    OPTION_CHOICE,
    OPTION_BOOL
};

struct option {
    const char *name; /* without dashes */
    enum option_kind kind;
    size_t offset;       /* in the struct that the table fills */
    uint64_t low, high;  /* of numbers, both allowed; FRACTION: in percent */
    const char *initial; /* the default as text; NULL: none */
    /* OPTION_CHOICE, NULL-terminated.  OPTION_BYTES: one word for UINT64_MAX, or NULL. */
    const char *const *words;
    const char *help;
};

struct option_table {
    const struct option *entries; /* [n] */
    size_t n;
};

/* The source of a value, for messages: "--port", "QUIRE_PORT" or "\"port\" in FILE". */
struct option_source {
    const char *label;
    struct error *err;
};

/* Returns the table's option of this name, or NULL. */
const struct option *option_find(const struct option_table *table, const char *name, size_t length);
/* Sets the option's member of *target.  A string's former value is freed: it is owned, or NULL.
 * ERR_INVALID: the text is not allowed; ERR_NOMEM. */
int option_set(void *target, const struct option *option, const char *text,
               const struct option_source *from);
/* Sets every member of *target that has a default. */
int option_table_set_defaults(const struct option_table *table, void *target, struct error *err);
/* Returns the option that a flag names, --name or --no-name, up to a '='; NULL: none. */
const struct option *option_table_find_flag(const struct option_table *table, const char *flag);
/* Refuses a flag that no table has, and names the one that is likely meant.  own: the options of
 * the command, before those of the table; NULL: it has none. */
int option_table_refuse_flag(const struct option_table *table, const struct option_table *own,
                             const char *command, const char *flag, struct error *err);
/* Applies the flag at argv[*i] and advances *i over its value.  Flags are --name value,
 * --name=value, or a boolean's --name and --no-name; '_' is '-'.  given [table->n]: which lists a
 * flag has set; a further flag adds to them.  ERR_INVALID names a flag that is not in the table. */
int option_table_apply_flag(const struct option_table *table, void *target, bool *given, int argc,
                            char **argv, int *i, struct error *err);
/* Takes the table's flags out of argv, and leaves the rest, in order, in argv[0..*argc).  Defaults
 * are set first.  On failure nothing is left to free.  ERR_INVALID names the flag. */
int option_table_take(const struct option_table *table, void *target, int *argc, char **argv,
                      struct error *err);
/* Frees the strings of *target, and sets them to NULL. */
void option_table_free(const struct option_table *table, void *target);
/* Prints an option with its kind, help and default. */
void option_print(FILE *out, const struct option *option);
/* Prints each option likewise. */
void option_table_print(FILE *out, const struct option_table *table);

#endif
