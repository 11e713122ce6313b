/* auth.c - see auth.h. */
#include "server/api/auth.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "server/api/salt.h"
#include "server/http/http.h"
#include "server/json/api_error.h"
#include "server/settings/api_keys.h"

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

/* Compares with every key, so that the time does not tell which one it is. */
static const struct api_key *find(const struct api_keys *keys, const char *given) {
    const struct api_key *found = NULL;
    for (uint32_t i = 0; given && i < keys->n; i++)
        if (same_secret(keys->all[i].key, given)) found = &keys->all[i];
    return found;
}

const struct api_key *auth_find(const struct api_keys *keys, const struct http_exchange *exchange) {
    if (!keys) return NULL;
    const struct api_key *by_bearer = find(keys, bearer_of(exchange)),
                         *by_header = find(keys, http_header(exchange, "x-api-key"));
    return by_bearer ? by_bearer : by_header;
}

int auth_check(const struct api_keys *keys, const struct http_exchange *exchange,
               struct api_error *err) {
    if (!keys || keys->n == 0 || auth_find(keys, exchange)) return 0;
    const bool gave = bearer_of(exchange) || http_header(exchange, "x-api-key");
    return api_error_set(
        err, 401, "invalid_api_key", NULL,
        gave ? "the API key is wrong" : "send the API key as `Authorization: Bearer KEY`");
}

uint64_t auth_client(const struct api_keys *keys, const struct salt_key *salt,
                     const struct http_exchange *exchange) {
    const struct api_key *found = auth_find(keys, exchange);
    const char *key = found ? found->key : bearer_of(exchange);
    if (!key) key = http_header(exchange, "x-api-key");
    return key ? salt_hash(salt, key, strlen(key)) : 0;
}
