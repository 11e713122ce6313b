/* auth.h - checks that a request carries the API key.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_API_AUTH_H
#define SERVER_API_AUTH_H

struct api_error;

/* Refuses with 401 a request whose Authorization header does not carry the key.  key: NULL lets
 * every request pass.  header: the header's value, or NULL. */
int auth_check(const char *key, const char *header, struct api_error *err);

#endif
