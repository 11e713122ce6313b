/* name.c - see name.h. */
#include "server/hub/name.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "engine/base/error.h"

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"

static const char PREFIX[] = "hf:", TREE[] = "/tree/";

/* Returns what follows the start of an address of the hub, or NULL. */
static const char *behind_address(const char *text) {
    static const char *const starts[] = {"https://huggingface.co/", "http://huggingface.co/",
                                         "https://hf.co/",          "hf.co/",
                                         "huggingface.co/",         "hf://"};
    for (size_t i = 0; i < sizeof(starts) / sizeof(*starts); i++) {
        const size_t n = strlen(starts[i]);
        if (strncasecmp(text, starts[i], n) == 0) return text + n;
    }
    return NULL;
}

/* Tells whether the hub would allow n bytes as OWNER or NAME.  Two dashes or dots would make a
 * folder's name that another repository has, too, or another folder. */
static bool is_part(const char *text, size_t n) {
    if (n == 0 || n > HUB_PART_MAX || strchr("-.", text[0]) || strchr("-.", text[n - 1]))
        return false;
    for (size_t i = 0; i + 1 < n; i++)
        if (text[i] == text[i + 1] && strchr("-.", text[i])) return false;
    return true;
}

/* Returns how many bytes of the text are OWNER/NAME; 0: it does not begin with them. */
static size_t repository_length(const char *text) {
    const size_t n_owner = strspn(text, LETTERS);
    if (!is_part(text, n_owner) || text[n_owner] != '/') return 0;
    const char *name = text + n_owner + 1;
    const size_t n = strspn(name, LETTERS);
    return is_part(name, n) ? n_owner + 1 + n : 0;
}

/* Tells whether the text may name a branch, a tag or a commit, and a file below refs/. */
static bool is_revision(const char *text, size_t n) {
    if (n == 0 || n > HUB_REVISION_MAX || strspn(text, LETTERS "/") < n) return false;
    if (strchr("./-", text[0]) || strchr("./", text[n - 1])) return false;
    for (size_t i = 0; i + 1 < n; i++)
        if (strchr("./", text[i]) && strchr("./", text[i + 1])) return false;
    return true;
}

static int read_revision(struct hub_name *out, const char *at, size_t n, struct error *err) {
    if (!is_revision(at, n))
        return error_set(err, ERR_INVALID,
                         "'%.100s' cannot be a revision: a branch, a tag or a commit is allowed",
                         at);
    memcpy(out->revision, at, n);
    out->revision[n] = 0;
    return 0;
}

/* Reads what follows OWNER/NAME in an address: nothing, or the page of a revision. */
static int read_address_end(struct hub_name *out, const char *at, struct error *err) {
    const size_t n_tree = sizeof(TREE) - 1;
    if (strcmp(at, "") == 0 || strcmp(at, "/") == 0) return 0;
    if (strncmp(at, TREE, n_tree) != 0)
        return error_set(err, ERR_INVALID,
                         "'%.100s' is not the page of a model: https://huggingface.co/OWNER/NAME "
                         "is, and hf:OWNER/NAME:FILE names one of its GGUF files",
                         at);
    const size_t n = strlen(at + n_tree);
    return read_revision(out, at + n_tree, n - (n > 0 && at[n_tree + n - 1] == '/'), err);
}

/* Reads [:QUANT][@REVISION]. */
static int read_name_end(struct hub_name *out, const char *at, struct error *err) {
    if (*at == ':') {
        const size_t n = strcspn(++at, "@");
        if (n == 0 || n > HUB_QUANT_MAX || strspn(at, LETTERS "/") < n || *at == '.')
            return error_set(err, ERR_INVALID,
                             "'%.100s' cannot be the format or the name of a GGUF file", at);
        memcpy(out->quant, at, n);
        out->quant[n] = 0;
        at += n;
    }
    if (*at == '@') return read_revision(out, at + 1, strlen(at + 1), err);
    if (!*at) return 0;
    return error_set(err, ERR_NOT_FOUND, "'%.100s' does not belong to a name", at);
}

static int refuse_form(const char *text, struct error *err) {
    return error_set(err, ERR_INVALID,
                     "%.200s does not name a model of the hub: hf:OWNER/NAME does, with :QUANT for "
                     "one of several GGUF files, and @REVISION",
                     text);
}

int hub_name_read(struct hub_name *out, const char *text, struct error *err) {
    const char *address = behind_address(text),
               *prefixed = strncmp(text, PREFIX, sizeof(PREFIX) - 1) == 0
                               ? text + sizeof(PREFIX) - 1
                               : NULL;
    const char *name = address ? address : prefixed ? prefixed : text;
    if (address && strncmp(name, "models/", 7) == 0 && repository_length(name + 7)) name += 7;
    const size_t n = repository_length(name);
    *out = (struct hub_name){.revision = "main"};
    if (n == 0 && (address || prefixed)) return refuse_form(text, err);
    if (n == 0) return error_set(err, ERR_NOT_FOUND, "%.200s is no name of the hub", text);
    snprintf(out->repository, sizeof(out->repository), "%.*s", (int)n, name);
    const int rc =
        address ? read_address_end(out, name + n, err) : read_name_end(out, name + n, err);
    return rc == ERR_NOT_FOUND && prefixed ? refuse_form(text, err) : rc;
}
