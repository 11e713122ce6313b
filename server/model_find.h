/* model_find.h - the one place where what a user names as a model becomes a path.
 *
 * That is a folder, a GGUF file, a folder of the hub's cache, or a name of the hub.  A name of the
 * hub without hf: is one only where no file or folder has it.
 *
 * Thread: main, at start-up.  Memory: none is kept. */
#ifndef SERVER_MODEL_FIND_H
#define SERVER_MODEL_FIND_H

#include <limits.h>
#include <stdbool.h>

struct error;
struct hub_look;
struct hub_voice;
struct options;

struct model_finding {
    bool has_weights; /* they are needed, too */
    const struct hub_voice *voice;
    /* As in struct hub_request. */
    int (*check)(void *ctx, const char *path, bool has_weights, struct error *err);
    void *ctx;
    const struct hub_look *look;
};

/* Writes the path of the model's folder or GGUF file.  A model of the hub that is not in the cache
 * is fetched, or looked at: then the path is empty.  The errors are sentences that say what to
 * do. */
int model_find(char path[PATH_MAX], const struct options *options,
               const struct model_finding *finding, struct error *err);

#endif
