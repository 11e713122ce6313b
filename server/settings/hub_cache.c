/* hub_cache.c - see hub_cache.h. */
#include "server/settings/hub_cache.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/error.h"
#include "engine/base/file.h"

enum { LONGEST_REVISION = 255 };

static const char snapshots[] = "snapshots", prefix[] = "models--";

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* Joins two parts of a path; returns false if the whole is too long. */
static bool join(char *out, const char *folder, const char *name) {
    const int n = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    return n >= 0 && n < PATH_MAX;
}

/* Writes the folder of the revision that refs/main names to out.  Returns false if there is
 * none. */
static bool find_main(char *out, const char *folder) {
    char path[PATH_MAX], all[PATH_MAX];
    char *text = NULL;
    size_t n = 0;
    struct error why = {0};
    if (!join(path, folder, "refs/main") || file_read(&text, &n, path, LONGEST_REVISION, &why))
        return false;
    text[strcspn(text, " \r\n")] = 0;
    const bool found = *text && !strchr(text, '/') && join(all, folder, snapshots) &&
                       join(out, all, text) && is_folder(out);
    free(text);
    return found;
}

/* Counts the revisions of the folder `all`, and writes the last one's folder to out. */
static int count_revisions(char *out, const char *all) {
    char path[PATH_MAX];
    struct dirent *entry;
    int n = 0;
    DIR *dir = opendir(all);
    while (dir && (entry = readdir(dir))) {
        if (entry->d_name[0] == '.' || !join(path, all, entry->d_name) || !is_folder(path))
            continue;
        memcpy(out, path, sizeof(path));
        n++;
    }
    if (dir) closedir(dir);
    return n;
}

int hub_cache_resolve(char *path, struct error *err) {
    char all[PATH_MAX], config[PATH_MAX], found[PATH_MAX];
    struct stat status;
    if (!join(config, path, "config.json") || stat(config, &status) == 0) return 0;
    if (!join(all, path, snapshots) || !is_folder(all)) return 0;
    if (!find_main(found, path)) {
        const int n = count_revisions(found, all);
        if (n != 1)
            return error_set(err, ERR_INVALID,
                             "%.200s: %s; name the folder of one, %.200s/REVISION", path,
                             n ? "there is no refs/main, and there are several revisions"
                               : "the hub's cache has no revision of this model",
                             all);
    }
    memcpy(path, found, sizeof(found));
    return 0;
}

bool hub_cache_repository(char *name, size_t size, const char *folder, size_t n) {
    const size_t before = strlen(prefix);
    if (n < before || strncmp(folder, prefix, before) != 0) return false;
    snprintf(name, size, "%.*s", (int)(n - before), folder + before);
    char *dashes = strstr(name, "--");
    if (!dashes) return true;
    *dashes = '/';
    memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    return true;
}

bool hub_cache_name(char *name, const char *path) {
    const char *after = NULL;
    for (const char *at = path; (at = strstr(at, "/snapshots/")); at++) after = at;
    if (!after) return false;
    const char *model = after;
    while (model > path && model[-1] != '/') model--;
    return hub_cache_repository(name, PATH_MAX, model, (size_t)(after - model));
}
