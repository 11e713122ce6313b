/* auth.h - checks that a request carries the API key.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_API_AUTH_H
#define SERVER_API_AUTH_H

struct api_error;
struct http_exchange;

/* Refuses with 401 a request that carries the key neither in its header Authorization nor in
 * x-api-key, where clients of Anthropic's API have it.  key: NULL lets every request pass. */
int auth_check(const char *key, const struct http_exchange *exchange, struct api_error *err);

#endif
