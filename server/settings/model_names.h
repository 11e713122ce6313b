/* model_names.h - the names under which clients may ask for the one model that is served.
 *
 *   --served-model-name big,small        names; the first is the one of answers by default
 *   --model-alias 'claude-*=small'       other names, by a pattern, which stand for one of them
 *
 * Thread: main reads, then any.  Memory: owned; model_names_fini() frees it. */
#ifndef SERVER_SETTINGS_MODEL_NAMES_H
#define SERVER_SETTINGS_MODEL_NAMES_H

#include <stddef.h>

struct error;

enum { MODEL_NAMES_MAX = 64, MODEL_NAME_MAX_BYTES = 512 };

struct model_alias {
    char *pattern;    /* of fnmatch() */
    const char *name; /* one of the names */
};

struct model_names {
    char *names[MODEL_NAMES_MAX]; /* [n]; the first is the default */
    struct model_alias aliases[MODEL_NAMES_MAX];
    size_t n, n_aliases;
};

/* Reads both settings.  served: names, separated by commas; NULL: `model`, the model's own name, is
 * the only one.  aliases: PATTERN=NAME, separated by commas; NULL: none.  *out is filled, or empty
 * on failure.  ERR_INVALID names the setting. */
int model_names_read(struct model_names *out, const char *served, const char *aliases,
                     const char *model, struct error *err);
void model_names_fini(struct model_names *names);

/* Returns the served name that a client's text means, or NULL: one of the names itself, or that of
 * the first alias whose pattern fits. */
const char *model_names_find(const struct model_names *names, const char *text);

#endif
