/* api_keys.h - reads and checks the keys of `quire serve`, and warns of what is unsafe about them.
 *
 * Thread: main.  Memory: the options own the keys of the start, and the caller those that are read
 * later. */
#ifndef SERVER_SETTINGS_API_KEYS_H
#define SERVER_SETTINGS_API_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/request/request.h"

struct error;
struct options;

enum {
    API_KEY_MAX = 1024, /* bytes; a request's head could hold many such keys */
    API_KEY_NAME_MAX = 64,
    API_KEYS_MAX = REQUEST_MAX_TENANTS - 1,
    API_KEY_MAX_WEIGHT = 1000,
};

struct api_key {
    char *name; /* for the log and metrics */
    char *key;
    uint32_t weight;            /* of its requests, among others' (fair_share.h) */
    uint64_t tokens_per_minute; /* prompt and generated; 0: any number */
    uint32_t tenant;            /* 1 to API_KEYS_MAX, as long as its name is in the list */
};

struct api_keys {
    struct api_key *all; /* [n] */
    uint32_t n;          /* 0: no key is needed */
};

/* Fills options->keys from --api-key or --api-key-file, which give the key "default", and from
 * --api-keys or --api-keys-file:
 *
 *   {"keys": [{"name": "a-team", "key": "…", "weight": 2, "tokens-per-minute": 100000}, …]}
 *
 * Checks them, and --require-api-key.  ERR_INVALID names the option; no error shows any part of a
 * key. */
int api_keys_resolve(struct options *options, struct error *err);

/* Tells whether there is a file that could have changed. */
bool api_keys_can_change(const struct options *options);
/* Reads the files again into *out, which is zeroed.  A name that the former list has keeps its
 * tenant, and another gets one that no former name has, while there are any.  On failure *out is
 * empty. */
int api_keys_renew(struct api_keys *out, const struct api_keys *former,
                   const struct options *options, struct error *err);
bool api_keys_have_tenant(const struct api_keys *keys, uint32_t tenant);
void api_keys_fini(struct api_keys *keys);

/* Warns when other users could read a key, and when there is none although other machines can reach
 * the server. */
void api_keys_warn(const struct options *options, bool is_loopback);

#endif
