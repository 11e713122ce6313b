/* files.h - the files of a repository at one commit, as the hub lists them.
 *
 * The answer is the hub's JSON of a revision:
 *
 *   {"sha": COMMIT, "gated": false or "auto", "cardData": {"license": …},
 *    "siblings": [{"rfilename": PATH, "size": N, "blobId": SHA-1, "lfs": {"sha256": …}}, …]}
 *
 * Thread: any.  Memory: the list owns its files. */
#ifndef SERVER_HUB_FILES_H
#define SERVER_HUB_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

enum {
    HUB_FILES_MAX = 20000,
    HUB_PATH_MAX = 255,
    HUB_COMMIT_CHARS = 40,
    HUB_HASH_MAX = 64,
    HUB_ANSWER_MAX = 16 << 20 /* bytes of JSON */
};

/* Of one file, in bytes.  The sizes of HUB_FILES_MAX files can be added. */
#define HUB_SIZE_MAX ((uint64_t)1 << 48)

struct hub_file {
    char *path;
    uint64_t size;
    /* Of its bytes: SHA-256, 64 digits, of a file in LFS; else git's SHA-1 of a blob, 40 digits.
     * Empty: not known, as of a file in the cache that is no link. */
    char hash[HUB_HASH_MAX + 1];
};

struct hub_files {
    struct hub_file *all; /* [n] */
    size_t n;
    char commit[HUB_COMMIT_CHARS + 1];
    char licence[64]; /* empty: not stated */
    bool is_gated;
    bool is_cut; /* there are files that are not listed, as their paths are too long */
};

/* Reads the hub's answer.  A path that could leave its folder makes all of it ERR_INVALID.  *out is
 * filled, or empty on failure. */
int hub_files_parse(struct hub_files *out, const char *json, size_t size, struct error *err);
void hub_files_fini(struct hub_files *files);

/* Adds a file; the path is copied.  One that is too long is left out: nothing that is read has such
 * a path.  ERR_INVALID: it could leave its folder, or there are too many. */
int hub_files_add(struct hub_files *files, const char *path, uint64_t size, const char *hash,
                  struct error *err);

/* Returns whether n bytes are hexadecimal digits, with small letters, and nothing else. */
bool hub_is_hex(const char *text, size_t n);

#endif
