/* auth.h - checks that a request carries an API key, and tells which.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_API_AUTH_H
#define SERVER_API_AUTH_H

#include <stdint.h>

struct api_error;
struct api_key;
struct api_keys;
struct http_exchange;
struct salt_key;

/* Returns the key that the request carries in its header Authorization, or in x-api-key, where
 * clients of Anthropic's API have it.  NULL: none of them. */
const struct api_key *auth_find(const struct api_keys *keys, const struct http_exchange *exchange);

/* Refuses a request without a key with 401.  keys: NULL or empty lets every request pass. */
int auth_check(const struct api_keys *keys, const struct http_exchange *exchange,
               struct api_error *err);

/* Hashes the key that a request carries; 0: it carries none.  Requests of one client can be told
 * from those of others by it.  Where there are keys, it is the one that let the request pass, so
 * that its holder is one client whatever else a header says. */
uint64_t auth_client(const struct api_keys *keys, const struct salt_key *salt,
                     const struct http_exchange *exchange);

#endif
