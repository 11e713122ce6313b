/* target.c - see target.h. */
#include "server/http/target.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/base/error.h"

/* Returns the length of the scheme, with the slashes behind it, of absolute-form; else 0. */
static size_t scheme_length(const char *sent) {
    static const char *const schemes[] = {"http://", "https://"};
    for (size_t i = 0; i < sizeof(schemes) / sizeof(*schemes); i++) {
        const size_t n = strlen(schemes[i]);
        if (strncasecmp(sent, schemes[i], n) == 0) return n;
    }
    return 0;
}

int target_read_host(struct target *target, const char *sent) {
    /* Names, addresses, ports.  No '%', which would be decoded with the path, and no '@': a name
     * and a password in front of the host are there to mislead people. */
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                  "-._~:[]";
    const size_t n_scheme = scheme_length(sent);
    if (n_scheme == 0) return 0;
    const char *host = sent + n_scheme;
    const size_t n = strcspn(host, "/?#");
    target->invalid = n == 0 || strspn(host, allowed) < n;
    if (target->invalid) return 0;
    target->host = strndup(host, n);
    target->n_before = n_scheme + n;
    return target->host ? 0 : ERR_NOMEM;
}

static bool is_plain(const char *path) {
    const size_t n = strlen(path);
    return !strstr(path, "//") && (n == 1 || (n > 1 && path[n - 1] != '/'));
}

const char *target_read_path(struct target *target, const char *decoded) {
    const char *at = decoded + target->n_before;
    if (!*at && target->host) return "/";
    if (*at != '/' || is_plain(at)) return at;
    target->path = malloc(strlen(at) + 1);
    if (!target->path) return NULL;
    size_t n = 0;
    for (; *at; at++)
        if (*at != '/' || n == 0 || target->path[n - 1] != '/') target->path[n++] = *at;
    if (n > 1 && target->path[n - 1] == '/') n--;
    target->path[n] = '\0';
    return target->path;
}

void target_fini(struct target *target) {
    free(target->host);
    free(target->path);
}
