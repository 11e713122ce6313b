/* remove.h - what the cache has of a repository, and taking it away: all of it, a revision, or one
 * GGUF file.
 *
 * Revisions share the bytes of files that are the same.  Bytes go with the last link to them.
 *
 * Thread: main.  Memory: the struct owns what it lists. */
#ifndef SERVER_HUB_REMOVE_H
#define SERVER_HUB_REMOVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/hub/cache.h"
#include "server/hub/files.h"

struct error;
struct hub_name;
struct hub_settings;

/* A repository in the cache. */
struct hub_stock {
    struct hub_cache cache;
    struct hub_files *revisions; /* [n]; of each the commit and the files */
    size_t n;
    bool is_cut;         /* there are revisions, or files of them, that are not listed */
    uint64_t bytes;      /* of all blobs */
    uint64_t incomplete; /* of them, in files that are not whole */
};

/* Lists a repository.  ERR_NOT_FOUND: the cache has none of this name. */
int hub_stock_read(struct hub_stock *out, const struct hub_settings *settings,
                   const char *repository, struct error *err);
void hub_stock_fini(struct hub_stock *stock);
/* Writes the names of refs/ that mean a commit, separated by commas, to out [size]. */
void hub_stock_refs(const struct hub_stock *stock, const char *commit, char *out, size_t size);

/* What is to go. */
struct hub_removal {
    bool all;        /* the whole repository */
    uint64_t bytes;  /* that will be free */
    uint64_t shared; /* that stay, because other links lead to them */
    bool *doomed;    /* [n_links]: the links, revision by revision */
    size_t n_links;
};

/* Finds what a name means: with a revision its files, with a format that GGUF file in each
 * revision; else all.  is_revision: one was given.  ERR_NOT_FOUND: nothing.  ERR_UNSUPPORTED: which
 * bytes only these files have is not known, as the stock is not listed whole. */
int hub_removal_plan(struct hub_removal *out, const struct hub_stock *stock,
                     const struct hub_name *name, bool is_revision, struct error *err);
/* Removes it.  ERR_FULL: another process fetches a file of the repository. */
int hub_removal_run(const struct hub_removal *removal, const struct hub_stock *stock,
                    struct error *err);
void hub_removal_fini(struct hub_removal *removal);

/* Removes a folder with all that is in it; none is no error.  A link is removed, and not what it
 * leads to.  Returns -1, with errno, where something stays. */
int hub_remove_folder(int parent, const char *name);

#endif
