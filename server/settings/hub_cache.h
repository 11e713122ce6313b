/* hub_cache.h - a model's folder in the cache of the Hugging Face hub.
 *
 *   models--OWNER--NAME/refs/main                the revision that "main" was
 *   models--OWNER--NAME/snapshots/REVISION/...   the files, as links
 *
 * Thread: main, at start-up.  Memory: none is kept. */
#ifndef SERVER_SETTINGS_HUB_CACHE_H
#define SERVER_SETTINGS_HUB_CACHE_H

#include <stdbool.h>
#include <stddef.h>

struct error;

/* Replaces a folder of the cache in path [PATH_MAX] by the folder of a revision: that of refs/main,
 * or the only one.  Any other path stays as it is.  ERR_INVALID: which revision is meant is not
 * known. */
int hub_cache_resolve(char *path, struct error *err);
/* Writes OWNER/NAME, or NAME without an owner, to name [size].  folder: the name of a folder, of
 * n bytes.  Returns false if it is none of a model. */
bool hub_cache_repository(char *name, size_t size, const char *folder, size_t n);
/* Does the same for a path, to name [PATH_MAX].  Returns false if `path`, an
 * absolute one, is no revision's folder of the cache, and lies in none. */
bool hub_cache_name(char *name, const char *path);

#endif
