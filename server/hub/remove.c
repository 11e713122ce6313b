/* remove.c - see remove.h. */
#include "server/hub/remove.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/hub/choice.h"
#include "server/hub/name.h"

enum { REVISIONS_MAX = 1000, DEPTH_MAX = 16 };

/* Opens a folder for reading its names.  NULL: there is none. */
static DIR *open_dir(int parent, const char *path) {
    const int fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir && fd >= 0) close(fd);
    return dir;
}

/* Returns the next name that is not of the folder itself or the one above, or NULL. */
static const struct dirent *next_name(DIR *dir) {
    const struct dirent *entry;
    while (dir && (entry = readdir(dir)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) return entry;
    return NULL;
}

static void close_dir(DIR *dir) {
    if (dir) closedir(dir);
}

/* ---- what there is ---- */

static int read_revisions(struct hub_stock *out, struct error *err) {
    DIR *dir = open_dir(out->cache.folder, "snapshots");
    const struct dirent *entry;
    int rc = 0;
    out->revisions = calloc(REVISIONS_MAX, sizeof(*out->revisions));
    if (!out->revisions) rc = error_set(err, ERR_NOMEM, "no memory for the list of revisions");
    while (!rc && (entry = next_name(dir))) {
        if (!hub_is_hex(entry->d_name, HUB_COMMIT_CHARS)) continue;
        if (out->n == REVISIONS_MAX) {
            out->is_cut = true;
            break;
        }
        struct hub_files *files = &out->revisions[out->n];
        rc = hub_cache_list(&out->cache, entry->d_name, files, err);
        if (!rc) memcpy(files->commit, entry->d_name, HUB_COMMIT_CHARS + 1);
        out->is_cut |= files->is_cut;
        out->n += !rc;
    }
    close_dir(dir);
    return rc;
}

static bool is_incomplete(const char *name) {
    const size_t n = strlen(name), n_end = strlen(".incomplete");
    return n > n_end && strcmp(name + n - n_end, ".incomplete") == 0;
}

static void count_blobs(struct hub_stock *out) {
    DIR *dir = open_dir(out->cache.folder, "blobs");
    const struct dirent *entry;
    struct stat status;
    while ((entry = next_name(dir))) {
        if (fstatat(dirfd(dir), entry->d_name, &status, 0) != 0 || !S_ISREG(status.st_mode))
            continue;
        out->bytes += (uint64_t)status.st_size;
        if (is_incomplete(entry->d_name)) out->incomplete += (uint64_t)status.st_size;
    }
    close_dir(dir);
}

int hub_stock_read(struct hub_stock *out, const struct hub_settings *settings,
                   const char *repository, struct error *err) {
    *out = (struct hub_stock){.cache = HUB_CACHE_NONE};
    int rc = hub_cache_open(&out->cache, settings, repository, false, err);
    if (!rc) rc = read_revisions(out, err);
    if (!rc) count_blobs(out);
    if (rc) hub_stock_fini(out);
    return rc;
}

void hub_stock_fini(struct hub_stock *stock) {
    for (size_t i = 0; i < stock->n; i++) hub_files_fini(&stock->revisions[i]);
    free(stock->revisions);
    hub_cache_close(&stock->cache);
    *stock = (struct hub_stock){.cache = HUB_CACHE_NONE};
}

/* Calls found() with each name below refs/ that means the commit. */
static void find_refs(const struct hub_cache *cache, const char *below, const char *commit,
                      int depth, void (*found)(void *ctx, const char *ref), void *ctx) {
    char path[PATH_MAX], name[HUB_REVISION_MAX + NAME_MAX + 2], known[HUB_COMMIT_CHARS + 1];
    snprintf(path, sizeof(path), "refs%s%s", *below ? "/" : "", below);
    DIR *dir = open_dir(cache->folder, path);
    const struct dirent *entry;
    while ((entry = next_name(dir))) {
        struct stat status;
        snprintf(name, sizeof(name), "%s%s%s", below, *below ? "/" : "", entry->d_name);
        if (strlen(name) > HUB_REVISION_MAX ||
            fstatat(dirfd(dir), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (S_ISDIR(status.st_mode) && depth < DEPTH_MAX)
            find_refs(cache, name, commit, depth + 1, found, ctx);
        else if (hub_cache_commit(cache, name, known) && strcmp(known, commit) == 0)
            found(ctx, name);
    }
    close_dir(dir);
}

struct ref_text {
    char *out;
    size_t size, length;
};

static void append_ref(void *ctx, const char *ref) {
    struct ref_text *text = ctx;
    const int n = snprintf(text->out + text->length, text->size - text->length, "%s%s",
                           text->length ? "," : "", ref);
    if (n > 0 && (size_t)n < text->size - text->length) text->length += (size_t)n;
    else text->out[text->length] = 0;
}

void hub_stock_refs(const struct hub_stock *stock, const char *commit, char *out, size_t size) {
    struct ref_text text = {out, size, 0};
    out[0] = 0;
    find_refs(&stock->cache, "", commit, 0, append_ref, &text);
}

/* ---- what is to go ---- */

/* Returns the link of this number, counted over all revisions. */
static const struct hub_file *link_at(const struct hub_stock *stock, size_t i,
                                      const struct hub_files **revision) {
    const struct hub_files *at = stock->revisions;
    while (i >= at->n) i -= (at++)->n;
    *revision = at;
    return &at->all[i];
}

/* Tells whether a link of the same bytes stays, or was counted before.  A file that is no link has
 * bytes of its own. */
static bool has_other(const struct hub_removal *r, const struct hub_stock *stock, size_t link,
                      const char *hash, bool *stays) {
    const struct hub_files *revision;
    bool is_first = true;
    *stays = false;
    for (size_t i = 0; *hash && i < r->n_links; i++) {
        if (strcmp(link_at(stock, i, &revision)->hash, hash) != 0) continue;
        *stays |= !r->doomed[i];
        is_first &= i >= link || !r->doomed[i];
    }
    return *stays || !is_first;
}

static void count(struct hub_removal *r, const struct hub_stock *stock) {
    const struct hub_files *revision;
    for (size_t i = 0; i < r->n_links; i++) {
        const struct hub_file *file = link_at(stock, i, &revision);
        bool stays;
        if (!r->doomed[i]) continue;
        if (!has_other(r, stock, i, file->hash, &stays)) r->bytes += file->size;
        else if (stays) r->shared += file->size;
    }
}

int hub_removal_plan(struct hub_removal *out, const struct hub_stock *stock,
                     const struct hub_name *name, bool is_revision, struct error *err) {
    char commit[HUB_COMMIT_CHARS + 1] = "";
    const struct hub_files *revision;
    bool any = false, rest = false;
    *out = (struct hub_removal){.all = !is_revision && !*name->quant, .bytes = stock->bytes};
    if (out->all) return 0;
    if (stock->is_cut)
        return error_set(err, ERR_UNSUPPORTED,
                         "the cache has more of %.150s than is listed (%d revisions, %d bytes of a "
                         "path), so which bytes are shared is not known: only all of it can be "
                         "removed, by its name alone",
                         name->repository, REVISIONS_MAX, HUB_PATH_MAX);
    if (is_revision && !hub_cache_commit(&stock->cache, name->revision, commit))
        return error_set(err, ERR_NOT_FOUND,
                         "the cache has no %.150s@%.100s: `quire list` shows "
                         "what it has",
                         name->repository, name->revision);
    for (size_t i = 0; i < stock->n; i++) out->n_links += stock->revisions[i].n;
    out->doomed = calloc(out->n_links + 1, sizeof(*out->doomed));
    if (!out->doomed) return error_set(err, ERR_NOMEM, "no memory for the list of files");
    for (size_t i = 0; i < out->n_links; i++) {
        const char *path = link_at(stock, i, &revision)->path;
        out->doomed[i] = (!is_revision || strcmp(revision->commit, commit) == 0) &&
                         (!*name->quant || hub_is_asked(path, name->quant));
        any |= out->doomed[i];
        rest |= !out->doomed[i];
    }
    out->bytes = 0;
    out->all = any && !rest;
    if (out->all) out->bytes = stock->bytes;
    else if (any) count(out, stock);
    if (any) return 0;
    hub_removal_fini(out);
    return error_set(err, ERR_NOT_FOUND,
                     "the cache has no such file of %.150s: `quire list` shows what it has",
                     name->repository);
}

void hub_removal_fini(struct hub_removal *removal) {
    free(removal->doomed);
    removal->doomed = NULL;
}

/* ---- taking it away ---- */

/* Removes a folder that lies in so many others. */
static int remove_below(int parent, const char *name, int depth) {
    DIR *dir = open_dir(parent, name);
    const struct dirent *entry;
    bool done = dir != NULL || errno == ENOENT;
    while (done && (entry = next_name(dir))) {
        struct stat status;
        done = fstatat(dirfd(dir), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0;
        if (done && S_ISDIR(status.st_mode))
            done = depth < DEPTH_MAX && remove_below(dirfd(dir), entry->d_name, depth + 1) == 0;
        else if (done) done = unlinkat(dirfd(dir), entry->d_name, 0) == 0;
    }
    close_dir(dir);
    return done && (unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT) ? 0 : -1;
}

int hub_remove_folder(int parent, const char *name) {
    return remove_below(parent, name, 0);
}

/* Tells whether another process holds one of the repository's locks. */
static bool is_being_fetched(const struct hub_cache *cache) {
    char path[HUB_FOLDER_MAX + 16];
    bool held = false;
    snprintf(path, sizeof(path), ".locks/%s", cache->name);
    DIR *dir = open_dir(cache->root, path);
    const struct dirent *entry;
    while (!held && (entry = next_name(dir))) {
        const int fd =
            openat(dirfd(dir), entry->d_name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        held = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        if (fd >= 0) close(fd);
    }
    close_dir(dir);
    return held;
}

static bool remove_all(const struct hub_cache *cache) {
    char locks[HUB_FOLDER_MAX + 16];
    snprintf(locks, sizeof(locks), ".locks/%s", cache->name);
    return hub_remove_folder(cache->root, cache->name) == 0 &&
           hub_remove_folder(cache->root, locks) == 0;
}

static void remove_ref(void *ctx, const char *ref) {
    const struct hub_cache *cache = ctx;
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "refs/%s", ref);
    unlinkat(cache->folder, path, 0);
}

/* Removes a link, and its bytes if no other link leads to them. */
static bool remove_link(const struct hub_removal *r, const struct hub_stock *stock, size_t i) {
    char path[PATH_MAX];
    const struct hub_files *revision;
    const struct hub_file *file = link_at(stock, i, &revision);
    bool stays;
    snprintf(path, sizeof(path), "snapshots/%s/%s", revision->commit, file->path);
    if (unlinkat(stock->cache.folder, path, 0) != 0 && errno != ENOENT) return false;
    has_other(r, stock, i, file->hash, &stays);
    snprintf(path, sizeof(path), "blobs/%s", file->hash);
    return stays || !*file->hash || unlinkat(stock->cache.folder, path, 0) == 0 || errno == ENOENT;
}

/* Removes the folder of a revision that has no file left, and its names. */
static bool remove_empty(const struct hub_removal *r, const struct hub_stock *stock) {
    char path[64];
    size_t link = 0;
    bool done = true;
    for (size_t i = 0; i < stock->n; i++) {
        const struct hub_files *revision = &stock->revisions[i];
        bool is_empty = true;
        for (size_t k = 0; k < revision->n; k++) is_empty &= r->doomed[link++];
        if (!is_empty) continue;
        find_refs(&stock->cache, "", revision->commit, 0, remove_ref, (void *)&stock->cache);
        snprintf(path, sizeof(path), "snapshots/%s", revision->commit);
        done &= hub_remove_folder(stock->cache.folder, path) == 0;
    }
    return done;
}

int hub_removal_run(const struct hub_removal *removal, const struct hub_stock *stock,
                    struct error *err) {
    const struct hub_cache *cache = &stock->cache;
    bool done = true;
    if (is_being_fetched(cache))
        return error_set(err, ERR_FULL, "%.200s is being fetched by another process", cache->path);
    errno = 0;
    if (removal->all) done = remove_all(cache);
    for (size_t i = 0; !removal->all && i < removal->n_links && done; i++)
        if (removal->doomed[i]) done = remove_link(removal, stock, i);
    if (!removal->all && done) done = remove_empty(removal, stock);
    if (done) return 0;
    return error_set(err, ERR_IO, "%.200s cannot be removed: %s", cache->path, strerror(errno));
}
