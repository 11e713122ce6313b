/* settings.h - where the hub and its cache are, as the variables of huggingface_hub say it.
 *
 *   HF_ENDPOINT                           the hub, or a mirror [https://huggingface.co]
 *   HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE   the cache
 *   HF_HOME                               its hub/ is the cache, its token the token
 *   XDG_CACHE_HOME, HOME                  HF_HOME is huggingface/ or .cache/huggingface/ there
 *   HF_TOKEN, HUGGING_FACE_HUB_TOKEN      the token
 *   HF_TOKEN_PATH                         the token's file
 *   HF_HUB_OFFLINE                        1: the network is not used
 *   SSL_CERT_FILE, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE
 *                                         PEM file with the authorities of certificates
 *
 * A path may begin with ~, as files of settings have it.
 *
 * Thread: main.  Memory: none. */
#ifndef SERVER_HUB_SETTINGS_H
#define SERVER_HUB_SETTINGS_H

#include <limits.h>
#include <stdbool.h>

struct error;

enum { HUB_ENDPOINT_MAX = 256, HUB_TOKEN_MAX = 512 };

struct hub_settings {
    char endpoint[HUB_ENDPOINT_MAX + 1]; /* without a slash at its end */
    char cache[PATH_MAX];
    char token[HUB_TOKEN_MAX + 1]; /* empty: none.  Never printed. */
    const char *authorities;       /* a path; NULL: the system has no authorities */
    bool offline;
};

/* Reads the variables.  ERR_INVALID names the one that is wrong. */
int hub_settings_read(struct hub_settings *out, struct error *err);

#endif
