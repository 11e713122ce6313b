/* target.h - the target of a request: the host it names, and the path that handlers see.
 *
 * A target has one of these forms (RFC 9112, 3.2); the others are left to the handler, which knows
 * no such path:
 *
 *   /v1/models?limit=1                     origin-form: the header Host names the host
 *   http://localhost:8000/v1/models        absolute-form, as clients of a proxy write it: it names
 *                                          the host itself, whatever the header says
 *
 * Slashes at the end of a path, or several in one place, come from base URLs that are joined badly.
 * They name nothing, and are taken out.
 *
 * Thread: loop.  Memory: the struct's strings are its own; target_fini() frees them. */
#ifndef SERVER_HTTP_TARGET_H
#define SERVER_HTTP_TARGET_H

#include <stdbool.h>
#include <stddef.h>

struct target {
    char *host;      /* of absolute-form; else NULL */
    char *path;      /* decoded, where it differs from what the client sent; else NULL */
    size_t n_before; /* length of what stands before the path */
    bool invalid;    /* absolute-form without a host, or with one that is not valid */
};

/* Reads the form and the host of a target as it was sent.  Returns 0 or ERR_NOMEM. */
int target_read_host(struct target *target, const char *sent);
/* Writes the path of the same target, decoded and without its query.  Returns it: target's, or a
 * part of what was given.  NULL: no memory. */
const char *target_read_path(struct target *target, const char *decoded);
void target_fini(struct target *target);

#endif
