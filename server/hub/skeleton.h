/* skeleton.h - a model's folder in which the weights have their names, sizes and first bytes only.
 *
 * The readers of a model's files can say of it whether they would read the model, before its
 * weights have come.  The rest of the weights is a hole in the file, so it takes no space.
 *
 *   CACHE/models--OWNER--NAME/quire-check-XXXXXX/PATH
 *
 * It lies in the cache, as that may be the only folder that can be written.
 *
 * Thread: main.  Memory: the folder, until it is removed. */
#ifndef SERVER_HUB_SKELETON_H
#define SERVER_HUB_SKELETON_H

#include <limits.h>

struct error;
struct hub_cache;
struct hub_choice;

struct hub_skeleton {
    char path[PATH_MAX];  /* of the folder */
    char model[PATH_MAX]; /* what a reader is given: the folder, or its GGUF file */
};

/* Makes the folder from what the cache has of the chosen files, and removes those that a process
 * left when it was ended.  On failure nothing is left. */
int hub_skeleton_make(struct hub_skeleton *out, const struct hub_cache *cache,
                      const struct hub_choice *choice, struct error *err);
void hub_skeleton_remove(const struct hub_skeleton *skeleton, const struct hub_cache *cache);

#endif
