/* model_file.c - see model_file.h. */
#include "server/settings/model_file.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/settings/data_dir.h"
#include "server/settings/hub_cache.h"

static const char default_model[] = "models/quire-31m";

/* Writes the path of the file that ships to path [PATH_MAX].  Returns whether it can be read. */
static bool find(char *path, const char *kind, const char *model_dir) {
    char data[PATH_MAX], whole[PATH_MAX];
    model_name_write(whole, model_dir);
    const char *name = model_file_name(whole);
    if (data_dir_find(data, NULL)) return false;
    const int length = snprintf(path, PATH_MAX, "%s/config/%s/%s.json", data, kind, name);
    return length > 0 && length < PATH_MAX && access(path, R_OK) == 0;
}

int model_dir_choose(char *path, const char *dir, struct error *err) {
    char data[PATH_MAX];
    struct error why = {0};
    int length;
    if (!dir && *QUIRE_MODEL_DIR) dir = QUIRE_MODEL_DIR;
    if (!dir && data_dir_find(data, &why))
        return error_set(err, why.code, "there is no default model: %.480s", why.text);
    if (dir) length = snprintf(path, PATH_MAX, "%s", dir);
    else length = snprintf(path, PATH_MAX, "%s/%s", data, default_model);
    if (length >= PATH_MAX) return error_set(err, ERR_INVALID, "the model's path is too long");
    return hub_cache_resolve(path, err);
}

int model_file_choose(char **out, const char *file, const char *kind, const char *model_dir,
                      struct error *err) {
    char path[PATH_MAX];
    *out = NULL;
    if (!file && !find(path, kind, model_dir)) return 0;
    *out = strdup(file ? file : path);
    return *out ? 0 : error_set(err, ERR_NOMEM, "no memory for a file's name");
}

void model_name_write(char *name, const char *model_dir) {
    char path[PATH_MAX], folder[PATH_MAX];
    const char *slash = strrchr(model_dir, '/');
    /* A file of the hub's cache is a link out of the folder that has the name. */
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - model_dir) : 0, model_dir);
    if (slash && realpath(folder, path)) {
        const size_t n = strlen(path);
        snprintf(path + n, sizeof(path) - n, "%s", slash);
        if (hub_cache_name(name, path)) return;
    }
    const char *real = realpath(model_dir, path) ? path : model_dir;
    if (!hub_cache_name(name, real)) snprintf(name, PATH_MAX, "%s", model_file_name(real));
}

const char *model_file_name(const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    return slash ? slash + 1 : path;
}
