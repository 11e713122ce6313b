/* hub_cache.h - a model's folder in the cache of the Hugging Face hub.
 *
 *   models--OWNER--NAME/refs/main                the revision that "main" was
 *   models--OWNER--NAME/snapshots/REVISION/...   the files, as links
 *
 * Thread: main, at start-up.  Memory: none is kept. */
#ifndef SERVER_SETTINGS_HUB_CACHE_H
#define SERVER_SETTINGS_HUB_CACHE_H

#include <stdbool.h>

struct error;

/* Replaces a folder of the cache in path [PATH_MAX] by the folder of a revision: that of refs/main,
 * or the only one.  Any other path stays as it is.  ERR_INVALID: which revision is meant is not
 * known. */
int hub_cache_resolve(char *path, struct error *err);
/* Writes OWNER/NAME, or NAME without an owner, to name [PATH_MAX].  Returns false if `path`, an
 * absolute one, is no revision's folder of the cache, and lies in none. */
bool hub_cache_name(char *name, const char *path);

#endif
