/* cache.c - see cache.h. */
#include "server/hub/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/hub/settings.h"
#include "server/hub/transfer.h"

/* FOLDERS_MAX: below a snapshot, one in another. */
enum { NAME_BYTES = 128, FOLDERS_MAX = 8 };

static const char TAG_NAME[] = "CACHEDIR.TAG",
                  TAG[] = "Signature: 8a477f597d28d172789f06886806bc55\n";

static int refuse(const struct hub_cache *cache, const char *what, const char *name,
                  struct error *err) {
    const int code = errno;
    const bool is_read_only = code == EROFS || code == EACCES || code == EPERM;
    return error_set(err, ERR_IO, "%.200s%s%.100s cannot be %s: %s%s", cache->path,
                     *name ? "/" : "", name, what, strerror(code),
                     is_read_only ? "; HF_HOME can name another folder" : "");
}

/* ---- folders ---- */

/* Opens a folder below another one, and makes it where it does not exist.  Returns -1, with
 * errno. */
static int open_folder(int parent, const char *name, bool create) {
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    const int fd = openat(parent, name, flags);
    if (fd >= 0 || errno != ENOENT || !create) return fd;
    if (mkdirat(parent, name, 0777) != 0 && errno != EEXIST) return -1;
    return openat(parent, name, flags);
}

/* Opens the folder of a path below another folder, and each on the way; *last is the path's last
 * name.  Returns -1, with errno. */
static int open_way(int parent, const char *path, bool create, const char **last) {
    int fd = dup(parent);
    for (const char *slash; fd >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        char name[NAME_MAX + 1];
        snprintf(name, sizeof(name), "%.*s", (int)(slash - path), path);
        const int next = open_folder(fd, name, create);
        close(fd);
        fd = next;
    }
    *last = path;
    return fd;
}

/* Makes a path's folders, and opens the last one, whatever links are in it: it is the user's. */
static int open_root(const char *path, bool create) {
    char part[PATH_MAX];
    snprintf(part, sizeof(part), "%s", path);
    for (char *slash = strchr(part + 1, '/'); create && slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return -1;
        *slash = '/';
    }
    if (create && mkdir(path, 0777) != 0 && errno != EEXIST) return -1;
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* Tells programs that back folders up that this one is a cache. */
static void write_tag(int root) {
    const int fd = openat(root, TAG_NAME, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) return;
    if (write(fd, TAG, sizeof(TAG) - 1) < 0) unlinkat(root, TAG_NAME, 0);
    close(fd);
}

static void write_name(struct hub_cache *cache, const char *repository) {
    const char *slash = strchr(repository, '/');
    snprintf(cache->name, sizeof(cache->name), "models--%.*s--%s", (int)(slash - repository),
             repository, slash + 1);
}

int hub_cache_open(struct hub_cache *out, const struct hub_settings *settings,
                   const char *repository, bool create, struct error *err) {
    *out = HUB_CACHE_NONE;
    write_name(out, repository);
    if (snprintf(out->path, sizeof(out->path), "%s/%s", settings->cache, out->name) >= PATH_MAX)
        return error_set(err, ERR_INVALID, "the path of the hub's cache is too long");
    out->root = open_root(settings->cache, create);
    if (out->root >= 0) out->folder = open_folder(out->root, out->name, create);
    if (out->folder >= 0 && create) write_tag(out->root);
    if (out->folder >= 0) return 0;
    const bool is_missing = !create && errno == ENOENT;
    if (!is_missing) refuse(out, create ? "written" : "opened", "", err);
    hub_cache_close(out);
    if (!is_missing) return ERR_IO;
    return error_set(err, ERR_NOT_FOUND, "%.200s does not exist", out->path);
}

void hub_cache_close(struct hub_cache *cache) {
    if (cache->folder >= 0) close(cache->folder);
    if (cache->root >= 0) close(cache->root);
    cache->root = cache->folder = -1;
}

/* ---- revisions ---- */

bool hub_cache_commit(const struct hub_cache *cache, const char *revision, char *commit) {
    char path[PATH_MAX], text[NAME_BYTES];
    const char *name;
    if (hub_is_hex(revision, HUB_COMMIT_CHARS)) {
        memcpy(commit, revision, HUB_COMMIT_CHARS + 1);
        return true;
    }
    snprintf(path, sizeof(path), "refs/%s", revision);
    const int folder = open_way(cache->folder, path, false, &name);
    const int fd =
        folder < 0 ? -1 : openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) close(fd);
    if (folder >= 0) close(folder);
    if (n < 0) return false;
    text[n] = 0;
    text[strcspn(text, " \r\n")] = 0;
    if (!hub_is_hex(text, HUB_COMMIT_CHARS)) return false;
    memcpy(commit, text, HUB_COMMIT_CHARS + 1);
    return true;
}

int hub_cache_set_commit(const struct hub_cache *cache, const char *revision, const char *commit,
                         struct error *err) {
    char path[PATH_MAX], before[HUB_COMMIT_CHARS + 1], other[NAME_BYTES + NAME_MAX];
    const char *name;
    if (hub_cache_commit(cache, revision, before) && strcmp(before, commit) == 0) return 0;
    snprintf(path, sizeof(path), "refs/%s", revision);
    const int folder = open_way(cache->folder, path, true, &name);
    if (folder < 0) return refuse(cache, "made", path, err);
    snprintf(other, sizeof(other), "%s.%ld.tmp", name, (long)getpid());
    const int fd =
        openat(folder, other, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool written = fd >= 0 && write(fd, commit, HUB_COMMIT_CHARS) == HUB_COMMIT_CHARS;
    if (fd >= 0) written = close(fd) == 0 && written;
    written = written && renameat(folder, other, folder, name) == 0;
    const int rc = written ? 0 : refuse(cache, "written", path, err);
    if (!written) unlinkat(folder, other, 0);
    close(folder);
    return rc;
}

/* Writes the name in blobs/ that a link leads to; nothing where it leads elsewhere. */
static void read_hash(char hash[HUB_HASH_MAX + 1], int folder, const char *name) {
    char to[PATH_MAX];
    const ssize_t n = readlinkat(folder, name, to, sizeof(to) - 1);
    hash[0] = 0;
    if (n <= 0) return;
    to[n] = 0;
    const char *slash = strrchr(to, '/');
    const size_t n_hash = slash ? strlen(slash + 1) : 0;
    if ((n_hash == HUB_HASH_MAX || n_hash == HUB_COMMIT_CHARS) && hub_is_hex(slash + 1, n_hash))
        memcpy(hash, slash + 1, n_hash + 1);
}

/* Adds the files of one folder of a snapshot.  prefix: its path, with a slash at the end. */
static int list_folder(int fd, const char *prefix, int depth, struct hub_files *out,
                       struct error *err) {
    DIR *dir = fdopendir(fd);
    struct dirent *entry;
    int rc = 0;
    if (!dir) close(fd);
    while (dir && !rc && (entry = readdir(dir))) {
        char path[2 * HUB_PATH_MAX + 4], hash[HUB_HASH_MAX + 1];
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(dir), entry->d_name, &status, 0) != 0)
            continue; /* a link to nothing is no file */
        if (snprintf(path, sizeof(path), "%s%s", prefix, entry->d_name) > HUB_PATH_MAX) {
            out->is_cut = true;
        } else if (S_ISREG(status.st_mode)) {
            read_hash(hash, dirfd(dir), entry->d_name);
            rc = hub_files_add(out, path, (uint64_t)status.st_size, hash, err);
        } else if (S_ISDIR(status.st_mode)) {
            const int below =
                depth < FOLDERS_MAX ? open_folder(dirfd(dir), entry->d_name, false) : -1;
            snprintf(path, sizeof(path), "%s%s/", prefix, entry->d_name);
            out->is_cut |= below < 0;
            if (below >= 0) rc = list_folder(below, path, depth + 1, out, err);
        }
    }
    if (dir) closedir(dir);
    return rc;
}

/* Opens the folder of a commit.  Returns -1, with errno. */
static int open_snapshot(const struct hub_cache *cache, const char *commit, bool create) {
    const int all = open_folder(cache->folder, "snapshots", create);
    const int fd = all < 0 ? -1 : open_folder(all, commit, create);
    if (all >= 0) close(all);
    return fd;
}

int hub_cache_list(const struct hub_cache *cache, const char *commit, struct hub_files *out,
                   struct error *err) {
    *out = (struct hub_files){0};
    const int fd = open_snapshot(cache, commit, false);
    if (fd < 0) return 0;
    memcpy(out->commit, commit, strnlen(commit, HUB_COMMIT_CHARS));
    const int rc = list_folder(fd, "", 0, out, err);
    if (rc) hub_files_fini(out);
    return rc;
}

/* ---- files ---- */

/* Returns the bytes of a file in blobs/; -1: there is none. */
static int64_t blob_bytes(const struct hub_cache *cache, const struct hub_file *file,
                          const char *end) {
    char path[NAME_BYTES];
    struct stat status;
    snprintf(path, sizeof(path), "blobs/%s%s", file->hash, end);
    if (fstatat(cache->folder, path, &status, 0) != 0 || !S_ISREG(status.st_mode)) return -1;
    return status.st_size;
}

bool hub_cache_has_blob(const struct hub_cache *cache, const struct hub_file *file) {
    return blob_bytes(cache, file, "") == (int64_t)file->size;
}

uint64_t hub_cache_begun(const struct hub_cache *cache, const struct hub_file *file) {
    const int64_t n = blob_bytes(cache, file, ".incomplete");
    return n < 0 || (uint64_t)n > file->size ? 0 : (uint64_t)n;
}

int hub_cache_open_part(int *out, const struct hub_cache *cache, const struct hub_file *file,
                        struct error *err) {
    char name[NAME_BYTES];
    struct stat status;
    const int blobs = open_folder(cache->folder, "blobs", true);
    if (blobs < 0) return refuse(cache, "opened", "blobs", err);
    snprintf(name, sizeof(name), "%s.incomplete", file->hash);
    const int fd =
        openat(blobs, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    const bool is_file = fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    if (!is_file) refuse(cache, "opened", name, err);
    if (!is_file && fd >= 0) close(fd);
    close(blobs);
    if (!is_file) return ERR_IO;
    *out = fd;
    return 0;
}

int hub_cache_finish(const struct hub_cache *cache, const struct hub_file *file, int fd,
                     struct error *err) {
    char from[NAME_BYTES], to[NAME_BYTES];
    snprintf(from, sizeof(from), "blobs/%s.incomplete", file->hash);
    snprintf(to, sizeof(to), "blobs/%s", file->hash);
    if (fsync(fd) == 0 && renameat(cache->folder, from, cache->folder, to) == 0) return 0;
    return refuse(cache, "written", to, err);
}

void hub_cache_drop_part(const struct hub_cache *cache, const struct hub_file *file) {
    char path[NAME_BYTES];
    snprintf(path, sizeof(path), "blobs/%s.incomplete", file->hash);
    unlinkat(cache->folder, path, 0);
}

int hub_cache_link(const struct hub_cache *cache, const char *commit, const struct hub_file *file,
                   struct error *err) {
    char to[PATH_MAX] = "../../", there[PATH_MAX];
    const char *name;
    const int snapshot = open_snapshot(cache, commit, true);
    const int folder = snapshot < 0 ? -1 : open_way(snapshot, file->path, true, &name);
    if (snapshot >= 0) close(snapshot);
    if (folder < 0) return refuse(cache, "made", file->path, err);
    for (const char *at = file->path; (at = strchr(at, '/')); at++) strcat(to, "../");
    strcat(strcat(to, "blobs/"), file->hash);
    const ssize_t n = readlinkat(folder, name, there, sizeof(there) - 1);
    const bool is_there = n > 0 && (size_t)n == strlen(to) && memcmp(there, to, (size_t)n) == 0;
    if (!is_there) unlinkat(folder, name, 0);
    const int rc = is_there || symlinkat(to, folder, name) == 0 || errno == EEXIST
                       ? 0
                       : refuse(cache, "linked", file->path, err);
    close(folder);
    return rc;
}

int hub_cache_lock(int *out, const struct hub_cache *cache, const struct hub_file *file,
                   const struct hub_voice *voice, struct error *err) {
    char path[HUB_FOLDER_MAX + NAME_BYTES], line[HUB_PATH_MAX + 64];
    const char *name;
    snprintf(path, sizeof(path), ".locks/%s/%s.lock", cache->name, file->hash);
    const int folder = open_way(cache->root, path, true, &name);
    const int fd =
        folder < 0
            ? -1
            : openat(folder, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0664);
    if (folder >= 0) close(folder);
    if (fd < 0) return refuse(cache, "written", "", err);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        snprintf(line, sizeof(line), "another process fetches %s: waiting for it", file->path);
        voice->say(voice->ctx, line);
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR) continue;
    }
    *out = fd; /* where locks are not supported, the hash notices two writers */
    return 0;
}

uint64_t hub_cache_space(const struct hub_cache *cache) {
    struct statvfs fs;
    uint64_t bytes;
    if (fstatvfs(cache->folder, &fs) != 0 ||
        __builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &bytes))
        return UINT64_MAX;
    return bytes;
}
