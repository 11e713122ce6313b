/* auth.h - does a request carry the key?
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_API_AUTH_H
#define SERVER_API_AUTH_H

struct api_error;

/* key NULL: everybody may.  header: the value of Authorization, or NULL. */
int auth_check(const char *key, const char *header, struct api_error *err);

#endif
