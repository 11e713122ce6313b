/* model_file.c - see model_file.h. */
#include "server/settings/model_file.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#include "engine/base/error.h"

/* path: [PATH_MAX].  True when such a file can be read. */
static bool is_at(char *path, const char *dir, const char *beside, const char *kind,
                  const char *name) {
    const int length = snprintf(path, PATH_MAX, "%s%s/%s/%s.json", dir, beside, kind, name);
    return length > 0 && length < PATH_MAX && access(path, R_OK) == 0;
}

static bool find(char *path, const char *kind, const char *model_dir) {
    char exe[PATH_MAX], model[PATH_MAX];
    size_t length = sizeof(exe);
    const char *name = model_file_name(realpath(model_dir, model) ? model : model_dir);
    if (uv_exepath(exe, &length) == 0) {
        char *end = strrchr(exe, '/');
        if (end) *end = 0;
        if (is_at(path, exe, "/../config", kind, name)) return true;
    }
    return is_at(path, QUIRE_CONFIG_DIR, "", kind, name);
}

int model_file_choose(char **out, const char *file, const char *kind, const char *model_dir,
                      struct error *err) {
    char path[PATH_MAX];
    *out = NULL;
    if (!file && !find(path, kind, model_dir)) return 0;
    *out = strdup(file ? file : path);
    return *out ? 0 : error_set(err, ERR_NOMEM, "no memory for a file's name");
}

const char *model_file_name(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}
