/* skeleton.c - see skeleton.h. */
#include "server/hub/skeleton.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/hub/cache.h"
#include "server/hub/choice.h"
#include "server/hub/files.h"
#include "server/hub/remove.h"

/* COPIED_MAX: of one file; no header that is read is longer.  STALE_S: a check takes seconds. */
enum { BLOCK_BYTES = 1 << 16, COPIED_MAX = 129 << 20, STALE_S = 3600 };

static const char PREFIX[] = "quire-check-";

/* Writes the path of a file in the folder.  Returns false if it is too long. */
static bool path_of(char out[PATH_MAX], const char *folder, const char *path) {
    const int n = snprintf(out, PATH_MAX, "%s/%s", folder, path);
    return n > 0 && n < PATH_MAX;
}

/* Makes the folders of a path below the folder. */
static bool make_folders(const char *folder, const char *path) {
    char part[PATH_MAX];
    for (const char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        const int n = snprintf(part, sizeof(part), "%s/%.*s", folder, (int)(slash - path), path);
        if (n < 0 || n >= PATH_MAX || (mkdir(part, 0700) != 0 && errno != EEXIST)) return false;
    }
    return true;
}

/* Copies the first bytes of one file to another.  Returns false where one cannot be read or
 * written. */
static bool copy(int to, int from) {
    char block[BLOCK_BYTES];
    ssize_t n = 1;
    for (size_t done = 0; done < COPIED_MAX && n > 0; done += (size_t)n) {
        n = read(from, block, sizeof(block));
        if (n < 0 || write(to, block, (size_t)n) != n) return false;
    }
    return true;
}

/* Puts a file into the folder: a link to the whole one, or its first bytes and a hole. */
static bool try_put(const struct hub_skeleton *s, const struct hub_cache *cache,
                    const struct hub_file *file) {
    char path[PATH_MAX], name[PATH_MAX], blob[PATH_MAX];
    const bool is_whole = hub_cache_has_blob(cache, file);
    if (!path_of(path, s->path, file->path) || !make_folders(s->path, file->path)) return false;
    const int n = snprintf(name, sizeof(name), "%s/blobs/%s%s", cache->path, file->hash,
                           is_whole ? "" : ".incomplete");
    if (n < 0 || n >= PATH_MAX || !realpath(name, blob)) return false;
    if (is_whole) return symlink(blob, path) == 0;
    const int from = open(blob, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (from < 0) return false;
    const int to = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool done = to >= 0 && copy(to, from) && ftruncate(to, (off_t)file->size) == 0;
    const int code = errno;
    close(from);
    if (to >= 0) close(to);
    errno = code;
    return done;
}

/* Does the same, once more where another process has given the file its name meanwhile. */
static bool put(const struct hub_skeleton *s, const struct hub_cache *cache,
                const struct hub_file *file) {
    return try_put(s, cache, file) || (errno == ENOENT && try_put(s, cache, file));
}

/* Removes folders that a process left when it was ended. */
static void remove_stale(const struct hub_cache *cache) {
    DIR *dir = opendir(cache->path);
    const struct dirent *entry;
    struct stat status;
    while (dir && (entry = readdir(dir)))
        if (strncmp(entry->d_name, PREFIX, sizeof(PREFIX) - 1) == 0 &&
            fstatat(dirfd(dir), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            status.st_mtime + STALE_S < time(NULL))
            hub_remove_folder(cache->folder, entry->d_name);
    if (dir) closedir(dir);
}

int hub_skeleton_make(struct hub_skeleton *out, const struct hub_cache *cache,
                      const struct hub_choice *choice, struct error *err) {
    const int n = snprintf(out->path, sizeof(out->path), "%s/%sXXXXXX", cache->path, PREFIX);
    remove_stale(cache);
    bool done = n > 0 && n < PATH_MAX && mkdtemp(out->path);
    if (!done)
        return error_set(err, ERR_IO, "no folder can be made in %.200s: %s", cache->path,
                         strerror(errno));
    for (size_t i = 0; i < choice->n_small && done; i++) done = put(out, cache, choice->small[i]);
    for (size_t i = 0; i < choice->n_weights && done; i++)
        done = put(out, cache, choice->weights[i]);
    const int code = errno;
    if (choice->is_gguf) done = done && path_of(out->model, out->path, choice->weights[0]->path);
    else memcpy(out->model, out->path, sizeof(out->model));
    if (done) return 0;
    hub_skeleton_remove(out, cache);
    return error_set(err, ERR_IO, "the first bytes of the model cannot be copied to %.200s: %s",
                     out->path, strerror(code));
}

void hub_skeleton_remove(const struct hub_skeleton *skeleton, const struct hub_cache *cache) {
    hub_remove_folder(cache->folder, strrchr(skeleton->path, '/') + 1);
}
