/* auth.c - see auth.h. */
#include "server/api/auth.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "server/json/api_error.h"

/* Compares in a time that depends only on the length of what the client sent.  A client therefore
 * cannot find the key letter by letter. */
static bool same_secret(const char *key, const char *given) {
    const size_t n = strlen(given), n_key = strlen(key);
    unsigned difference = n != n_key;
    for (size_t i = 0; i < n; i++)
        difference |= (unsigned char)given[i] ^ (unsigned char)key[i < n_key ? i : n_key];
    return difference == 0;
}

int auth_check(const char *key, const char *header, struct api_error *err) {
    static const char scheme[] = "Bearer ";
    if (!key) return 0;
    if (!header || strncasecmp(header, scheme, sizeof(scheme) - 1) != 0) {
        return api_error_set(err, 401, "invalid_api_key", NULL,
                             "send the API key as `Authorization: Bearer KEY`");
    }
    const char *given = header + sizeof(scheme) - 1;
    while (*given == ' ') given++;
    if (same_secret(key, given)) return 0;
    return api_error_set(err, 401, "invalid_api_key", NULL, "the API key is wrong");
}
