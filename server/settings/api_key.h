/* api_key.h - reads and checks the key of `quire serve`, and warns of what is unsafe about it.
 *
 * Thread: main, at start.  Memory: the options own the key. */
#ifndef SERVER_SETTINGS_API_KEY_H
#define SERVER_SETTINGS_API_KEY_H

#include <stdbool.h>

struct error;
struct options;

enum { API_KEY_MAX = 1024 }; /* bytes; a request's head could hold many such keys */

/* Stores the content of --api-key-file in options->api_key.  Checks the key, from whichever source,
 * and --require-api-key.  ERR_INVALID names the option; no error shows any part of the key. */
int api_key_settle(struct options *options, struct error *err);

/* Warns when other users could read the key, and when there is none although other machines can
 * reach the server. */
void api_key_warn(const struct options *options, bool is_loopback);

#endif
