/* pull.h - a model of the hub, from the cache or into it.
 *
 *   the hub's list of files ─► which are read ─► is there space? ─► the small ones
 *        │ the hub is out of reach                                     │ would it be served?
 *        ▼                                                             ▼
 *   what the cache has, if that is whole  ◄── one of these fails ──  the weights, or a look at
 *                                                                    how they begin
 *
 * Thread: main.  Memory: none is kept. */
#ifndef SERVER_HUB_PULL_H
#define SERVER_HUB_PULL_H

#include <limits.h>
#include <stdbool.h>

#include "server/hub/name.h"

struct error;
struct hub_voice;

/* What is done with a model whose weights the cache lacks, in place of fetching them.  part: its
 * folder, or its GGUF file, where of the weights only the first bytes are real; it is gone
 * afterwards.  path: where the model would be. */
struct hub_look {
    void (*look)(void *ctx, const char *part, const char *path);
    void *ctx;
};

struct hub_request {
    struct hub_name name;
    bool has_weights; /* they are needed, too */
    bool offline;     /* the network is not used, whatever HF_HUB_OFFLINE says */
    bool only_tells;  /* what would come is said, and nothing comes */
    /* A revision of the hub that cannot be had is an error, even where the cache has a former one
     * whole. */
    bool needs_newest;
    const struct hub_voice *voice;
    /* Says whether a model would be served.  path: its folder, or its GGUF file; of its weights
     * only the first bytes are real.  has_weights: they are there, too.  Returns 0 or ERR_*. */
    int (*check)(void *ctx, const char *path, bool has_weights, struct error *err);
    void *ctx;
    const struct hub_look *look; /* NULL: the weights are fetched */
};

/* Finds the model, and fetches what the cache lacks of it.  Writes the folder of its files, or the
 * path of its GGUF file, to path, which is empty where request->look was called.  The errors are
 * sentences that say what to do. */
int hub_pull(char path[PATH_MAX], const struct hub_request *request, struct error *err);

#endif
