/* api_key.h - where the key of `quire serve` comes from, and what about that is unsafe.
 *
 * Thread: main, at start.  Memory: the key is the options'. */
#ifndef SERVER_SETTINGS_API_KEY_H
#define SERVER_SETTINGS_API_KEY_H

#include <stdbool.h>

struct error;
struct options;

enum { API_KEY_MAX = 1024 }; /* bytes; it must fit a request's head many times over */

/* Puts what --api-key-file holds into options->api_key, and checks the key, from wherever it came,
 * and --require-api-key.  ERR_INVALID names the option; no error tells any of the key. */
int api_key_settle(struct options *options, struct error *err);

/* Logs who might read the key, and that there is none though others than this machine's programs
 * can ask. */
void api_key_warn(const struct options *options, bool is_loopback);

#endif
