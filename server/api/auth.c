/* auth.c - see auth.h. */
#include "server/api/auth.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "server/http/http.h"
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

/* Returns what the header Authorization gives as a key, or NULL. */
static const char *bearer_of(const struct http_exchange *exchange) {
    static const char scheme[] = "Bearer ";
    const char *header = http_header(exchange, "Authorization");
    if (!header || strncasecmp(header, scheme, sizeof(scheme) - 1) != 0) return NULL;
    return header + sizeof(scheme) - 1 + strspn(header + sizeof(scheme) - 1, " ");
}

int auth_check(const char *key, const struct http_exchange *exchange, struct api_error *err) {
    if (!key) return 0;
    const char *bearer = bearer_of(exchange), *given = http_header(exchange, "x-api-key");
    const bool same_bearer = bearer && same_secret(key, bearer);
    if (same_bearer || (given && same_secret(key, given))) return 0;
    return api_error_set(err, 401, "invalid_api_key", NULL,
                         bearer || given ? "the API key is wrong"
                                         : "send the API key as `Authorization: Bearer KEY`");
}
