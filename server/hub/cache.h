/* cache.h - a repository's folder in the cache of the hub, as huggingface_hub lays it out.
 *
 *   CACHE/models--OWNER--NAME/blobs/HASH              a whole file
 *                             blobs/HASH.incomplete   its first bytes
 *                             refs/main               the commit that "main" was, as text
 *                             snapshots/COMMIT/PATH   -> ../../blobs/HASH
 *   CACHE/.locks/models--OWNER--NAME/HASH.lock        held while the file is written
 *
 * A link appears once its file is whole, and a revision's text once all of its files are.  Folders
 * and files are opened below one another without following links, so nothing is written outside of
 * the cache.
 *
 * Thread: main.  Memory: holds open folders until it is closed. */
#ifndef SERVER_HUB_CACHE_H
#define SERVER_HUB_CACHE_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/hub/files.h"

struct error;
struct hub_settings;
struct hub_voice;

enum { HUB_FOLDER_MAX = 255 };

struct hub_cache {
    int root, folder;              /* CACHE, and the repository's; -1: not open */
    char name[HUB_FOLDER_MAX + 1]; /* models--OWNER--NAME */
    char path[PATH_MAX];           /* of the repository's folder */
};

/* Opens a repository's folder.  create: it is made where it does not exist; else that is
 * ERR_NOT_FOUND. */
int hub_cache_open(struct hub_cache *out, const struct hub_settings *settings,
                   const char *repository, bool create, struct error *err);
/* Closes the folder.  A cache that was never opened must be HUB_CACHE_NONE. */
void hub_cache_close(struct hub_cache *cache);
#define HUB_CACHE_NONE ((struct hub_cache){.root = -1, .folder = -1})

/* Writes the commit of a revision to commit [41].  Returns false where the cache does not know
 * it. */
bool hub_cache_commit(const struct hub_cache *cache, const char *revision, char *commit);
int hub_cache_set_commit(const struct hub_cache *cache, const char *revision, const char *commit,
                         struct error *err);

/* Lists the files of a commit that are whole.  No commit is an empty list.  Files with too long
 * paths, or in too many folders, are left out, which out->is_cut says. */
int hub_cache_list(const struct hub_cache *cache, const char *commit, struct hub_files *out,
                   struct error *err);

/* Tells whether the file's bytes are there, in full length. */
bool hub_cache_has_blob(const struct hub_cache *cache, const struct hub_file *file);
/* Returns how many first bytes of the file are there. */
uint64_t hub_cache_begun(const struct hub_cache *cache, const struct hub_file *file);
/* Opens the file that holds its first bytes, and makes it where it does not exist.  The caller
 * closes *out. */
int hub_cache_open_part(int *out, const struct hub_cache *cache, const struct hub_file *file,
                        struct error *err);
/* Gives a file that is whole its name, once the disk has it. */
int hub_cache_finish(const struct hub_cache *cache, const struct hub_file *file, int fd,
                     struct error *err);
/* Removes the file that holds its first bytes. */
void hub_cache_drop_part(const struct hub_cache *cache, const struct hub_file *file);
/* Links a commit's path to the file's bytes. */
int hub_cache_link(const struct hub_cache *cache, const char *commit, const struct hub_file *file,
                   struct error *err);

/* Waits until no other process writes the file.  The caller closes *out, which ends the lock. */
int hub_cache_lock(int *out, const struct hub_cache *cache, const struct hub_file *file,
                   const struct hub_voice *voice, struct error *err);

/* Returns how many bytes may still be written; UINT64_MAX: not known. */
uint64_t hub_cache_space(const struct hub_cache *cache);

#endif
