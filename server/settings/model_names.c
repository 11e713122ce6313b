/* model_names.c - see model_names.h. */
#include "server/settings/model_names.h"

#include <fnmatch.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"

/* Copies the next part of a list with commas to *out, and moves *at behind it.  Returns 1, 0 at the
 * list's end, or ERR_*. */
static int next_part(char **out, const char **at, const char *setting, struct error *err) {
    const size_t n = strcspn(*at, ",");
    if (!**at) return 0;
    if (n == 0 || n > MODEL_NAME_MAX_BYTES)
        return error_set(err, ERR_INVALID, "--%s: a part between commas must have 1 to %d bytes",
                         setting, MODEL_NAME_MAX_BYTES);
    *out = strndup(*at, n);
    if (!*out) return error_set(err, ERR_NOMEM, "no memory for --%s", setting);
    *at += n + ((*at)[n] == ',');
    return 1;
}

static const char *find_name(const struct model_names *names, const char *text) {
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(names->names[i], text) == 0) return names->names[i];
    return NULL;
}

static int read_names(struct model_names *out, const char *served, struct error *err) {
    char *name;
    int rc;
    while ((rc = next_part(&name, &served, "served-model-name", err)) > 0) {
        const bool twice = find_name(out, name);
        if (!twice && out->n < MODEL_NAMES_MAX) {
            out->names[out->n++] = name;
            continue;
        }
        rc = error_set(err, ERR_INVALID,
                       twice ? "--served-model-name: '%.100s' is there twice"
                             : "--served-model-name: '%.100s' is too much: at most %d are allowed",
                       name, MODEL_NAMES_MAX);
        free(name);
        return rc;
    }
    return rc;
}

/* Splits PATTERN=NAME, in place, at the last '='. */
static int split_alias(struct model_alias *alias, const struct model_names *names,
                       struct error *err) {
    char *equals = strrchr(alias->pattern, '=');
    if (!equals || equals == alias->pattern)
        return error_set(err, ERR_INVALID, "--model-alias: '%.100s' must be PATTERN=NAME",
                         alias->pattern);
    *equals = '\0';
    alias->name = find_name(names, equals + 1);
    if (alias->name) return 0;
    return error_set(err, ERR_INVALID,
                     "--model-alias: '%.100s' is no name of the model: '%.100s' is, and "
                     "--served-model-name gives others",
                     equals + 1, names->names[0]);
}

static int read_aliases(struct model_names *out, const char *aliases, struct error *err) {
    char *text;
    int rc;
    while ((rc = next_part(&text, &aliases, "model-alias", err)) > 0) {
        if (out->n_aliases == MODEL_NAMES_MAX) {
            free(text);
            return error_set(err, ERR_INVALID, "--model-alias: at most %d are allowed",
                             MODEL_NAMES_MAX);
        }
        struct model_alias *alias = &out->aliases[out->n_aliases++];
        alias->pattern = text;
        if ((rc = split_alias(alias, out, err))) return rc;
    }
    return rc;
}

int model_names_read(struct model_names *out, const char *served, const char *aliases,
                     const char *model, struct error *err) {
    int rc = 0;
    *out = (struct model_names){0};
    if (served) rc = read_names(out, served, err);
    else if (!(out->names[out->n++] = strdup(model)))
        rc = error_set(err, ERR_NOMEM, "no memory for the name of the model");
    if (!rc && aliases) rc = read_aliases(out, aliases, err);
    if (rc) model_names_fini(out);
    return rc;
}

void model_names_fini(struct model_names *names) {
    for (size_t i = 0; i < names->n; i++) free(names->names[i]);
    for (size_t i = 0; i < names->n_aliases; i++) free(names->aliases[i].pattern);
    *names = (struct model_names){0};
}

const char *model_names_find(const struct model_names *names, const char *text) {
    const char *found = find_name(names, text);
    for (size_t i = 0; i < names->n_aliases && !found; i++)
        if (fnmatch(names->aliases[i].pattern, text, 0) == 0) found = names->aliases[i].name;
    return found;
}
