/* data_dir.c - see data_dir.h.  Meson says how bindir and datadir lie to each other, and which
 * folders are the source tree and the build folder. */
#include "server/settings/data_dir.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "engine/base/error.h"

static const char marker[] = "config/quire.json";

/* Writes the directory `to`, seen from the directory `from`, to dir if it is a data directory. */
static bool take(char *dir, const char *from, const char *to) {
    char place[PATH_MAX], file[PATH_MAX + sizeof(marker)];
    const bool absolute = to[0] == '/';
    const int length = absolute ? snprintf(place, sizeof(place), "%s", to)
                                : snprintf(place, sizeof(place), "%s/%s", from, to);
    if (length < 0 || length >= PATH_MAX || !realpath(place, dir)) return false;
    snprintf(file, sizeof(file), "%s/%s", dir, marker);
    return access(file, R_OK) == 0;
}

static bool is_below(const char *path, const char *dir) {
    const size_t length = strlen(dir);
    return strncmp(path, dir, length) == 0 && (path[length] == '/' || path[length] == 0);
}

int data_dir_find_from(char *dir, const char *exe, struct error *err) {
    char from[PATH_MAX], build[PATH_MAX];
    const char *slash = strrchr(exe, '/');
    snprintf(from, sizeof(from), "%.*s", slash ? (int)(slash - exe) : 0, exe);
    if (take(dir, from, QUIRE_DATA_FROM_BIN) || take(dir, from, "..")) return 0;
    if (realpath(QUIRE_BUILD_DIR, build) && is_below(from, build) &&
        take(dir, from, QUIRE_SOURCE_DIR))
        return 0;
    return error_set(err, ERR_NOT_FOUND,
                     "no %s: neither '%.180s/" QUIRE_DATA_FROM_BIN "' nor '%.180s/..' holds it",
                     marker, from, from);
}

int data_dir_find(char *dir, struct error *err) {
    char exe[PATH_MAX];
    size_t length = sizeof(exe);
    const int rc = uv_exepath(exe, &length);
    if (rc) return error_set(err, ERR_IO, "cannot tell where the program is: %s", uv_strerror(rc));
    return data_dir_find_from(dir, exe, err);
}
