/* model_kind.c - see model_kind.h. */
#define _GNU_SOURCE /* FNM_CASEFOLD */

#include "server/settings/model_kind.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/model_document.h"

/* How many entries of a folder are looked at. */
enum { MAX_ENTRIES = 4096, START_BYTES = 64 };

static const char LAYOUT[] =
    "a model is a folder with config.json, tokenizer.json and model.safetensors, as transformers "
    "writes it, a GGUF file, or a name of the hub, such as OWNER/NAME";
static const char LFS_START[] = "version https://git-lfs.github.com/spec/";

/* Reads the first bytes of a regular file to start [START_BYTES], with zeros behind them.  Returns
 * whether there are any. */
static bool read_start(const char *path, char *start) {
    struct error why = {0};
    int fd;
    memset(start, 0, START_BYTES);
    if (file_open(&fd, path, O_RDONLY, &why)) return false;
    const ssize_t n = read(fd, start, START_BYTES - 1);
    close(fd);
    return n > 0;
}

static bool begins_with(const char *path, const char *start) {
    char bytes[START_BYTES];
    return read_start(path, bytes) && memcmp(bytes, start, strlen(start)) == 0;
}

static bool has_file(const char *folder, const char *name) {
    char path[PATH_MAX];
    struct stat status;
    const int n = snprintf(path, sizeof(path), "%s/%s", folder, name);
    return n > 0 && n < (int)sizeof(path) && stat(path, &status) == 0;
}

/* Writes the first name in the folder that fits a pattern, whatever its case, to out [NAME_MAX +
 * 1]. */
static bool find_name(char *out, const char *folder, const char *pattern) {
    DIR *dir = opendir(folder);
    bool found = false;
    const struct dirent *entry;
    for (int i = 0; dir && !found && i < MAX_ENTRIES && (entry = readdir(dir)); i++) {
        found = fnmatch(pattern, entry->d_name, FNM_CASEFOLD) == 0;
        if (found) snprintf(out, NAME_MAX + 1, "%s", entry->d_name);
    }
    if (dir) closedir(dir);
    return found;
}

/* ---- nothing is there ---- */

static int refuse_missing(const char *path, struct error *err) {
    if (strstr(path, "://"))
        return error_set(err, ERR_INVALID, "%.200s is an address of no model: %s", path, LAYOUT);
    return error_set(err, ERR_INVALID, "%.200s: there is no such folder; %s", path, LAYOUT);
}

/* ---- a file ---- */

/* Checks a file, which must be a GGUF file. */
static int check_file(const char *path, struct error *err) {
    const char *slash = strrchr(path, '/');
    const int n_folder = slash ? (int)(slash - path) : 1;
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%.*s", n_folder ? n_folder : 1, slash ? path : ".");
    if (begins_with(path, LFS_START))
        return error_set(
            err, ERR_INVALID,
            "%.200s is a Git LFS pointer, and not the file that it stands for: `git lfs "
            "pull` fetches it",
            path);
    if (model_is_gguf(path)) return 0;
    if (fnmatch("*.gguf", path, FNM_CASEFOLD) == 0)
        return error_set(err, ERR_INVALID, "%.200s does not begin as a GGUF file does", path);
    if (has_file(folder, "config.json"))
        return error_set(err, ERR_INVALID, "%.200s is a file: name its folder, %.200s", path,
                         folder);
    return error_set(err, ERR_INVALID, "%.200s is a file: %s", path, LAYOUT);
}

/* ---- a folder ---- */

/* What a folder may have that shows another layout.  weights: of a folder with config.json that
 * lacks weights in safetensors. */
static const struct sign {
    const char *pattern, *what;
    bool weights;
} signs[] = {
    {"adapter_model.*", "an adapter, and not a model: merge it into its model first", true},
    {"adapter_config.json", "an adapter, and not a model: merge it into its model first", true},
    {"model_index.json", "a pipeline of several models, such as for images", true},
    {"consolidated*.pth", "weights in Meta's own layout", true},
    {"consolidated*.safetensors", "weights in Mistral's own layout", true},
    {"pytorch_model*.bin", "pickled weights, which may run code and are not read", true},
    {"*.pth", "pickled weights, which may run code and are not read", true},
    {"*.pt", "pickled weights, which may run code and are not read", true},
    {"*.ckpt", "pickled weights, which may run code and are not read", true},
    {"tf_model.h5", "weights for TensorFlow", true},
    {"flax_model.msgpack", "weights for Flax", true},
    {"*.onnx", "a graph in ONNX, which is not read", true},
    {"*.nemo", "an archive of NeMo, which is not read", true},
    {"params.json", "parameters in Meta's or Mistral's own layout", false},
    {"*.safetensors", "weights without their config.json", false},
};

static int refuse_sign(const char *folder, bool has_config, struct error *err) {
    char name[NAME_MAX + 1];
    for (size_t i = 0; i < sizeof(signs) / sizeof(*signs); i++) {
        if ((has_config && !signs[i].weights) || !find_name(name, folder, signs[i].pattern))
            continue;
        return error_set(err, ERR_INVALID, "%.160s has %.100s, %s; %s", folder, name, signs[i].what,
                         LAYOUT);
    }
    if (has_config) return 0; /* the reader of weights says what is missing */
    if (has_file(folder, "model") && has_file(folder, "model/config.json"))
        return error_set(err, ERR_INVALID, "%.200s has no config.json; %.200s/model has one",
                         folder, folder);
    return error_set(err, ERR_INVALID, "%.200s has no config.json: %s", folder, LAYOUT);
}

/* Refuses a folder where a file that is read is a pointer of Git LFS. */
static int check_pointers(const char *folder, struct error *err) {
    static const char *const patterns[] = {"config.json", "tokenizer.json", "tokenizer_config.json",
                                           "model*.safetensors", "model.safetensors.index.json"};
    char name[NAME_MAX + 1], path[PATH_MAX];
    for (size_t i = 0; i < sizeof(patterns) / sizeof(*patterns); i++) {
        if (!find_name(name, folder, patterns[i])) continue;
        const int n = snprintf(path, sizeof(path), "%s/%s", folder, name);
        if (n < 0 || n >= (int)sizeof(path) || !begins_with(path, LFS_START)) continue;
        return error_set(
            err, ERR_INVALID,
            "%.300s is a Git LFS pointer, and not the file that it stands for: `git lfs "
            "pull` in its folder fetches all of them",
            path);
    }
    return 0;
}

/* ---- a folder with a GGUF file ---- */

/* Returns true if the name is that of a model's GGUF file: of a split, its first. */
static bool is_gguf_name(const char *name) {
    uint32_t number, count;
    if (fnmatch("*.gguf", name, FNM_CASEFOLD) != 0 || fnmatch("mmproj*", name, FNM_CASEFOLD) == 0)
        return false;
    return !gguf_split_name(name, &number, &count) || number == 1;
}

/* Writes the first two names of GGUF files in a folder; returns how many were found. */
static int find_gguf(char names[2][NAME_MAX + 1], const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    const struct dirent *entry;
    for (int i = 0; dir && n < 2 && i < MAX_ENTRIES && (entry = readdir(dir)); i++)
        if (is_gguf_name(entry->d_name)) snprintf(names[n++], NAME_MAX + 1, "%s", entry->d_name);
    if (dir) closedir(dir);
    return n;
}

static bool has_safetensors(const char *folder) {
    return has_file(folder, "model.safetensors") ||
           has_file(folder, "model.safetensors.index.json");
}

int model_kind_find_file(char path[PATH_MAX], bool has_weights, struct error *err) {
    char names[2][NAME_MAX + 1], folder[PATH_MAX];
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISDIR(status.st_mode) || has_safetensors(path) ||
        (!has_weights && has_file(path, "config.json")))
        return 0;
    const int n = find_gguf(names, path);
    if (n == 0) return 0;
    if (n > 1)
        return error_set(err, ERR_INVALID,
                         "%.160s has several GGUF files, such as %.100s and %.100s: name one of "
                         "them",
                         path, names[0], names[1]);
    snprintf(folder, sizeof(folder), "%s", path);
    const int length = snprintf(path, PATH_MAX, "%s/%s", folder, names[0]);
    if (length > 0 && length < PATH_MAX) return 0;
    return error_set(err, ERR_INVALID, "%.200s: the path is too long", folder);
}

int model_kind_check(const char *path, bool has_weights, struct error *err) {
    struct stat status;
    if (stat(path, &status) != 0) {
        if (errno == ENOENT || errno == ENOTDIR) return refuse_missing(path, err);
        return error_set(err, ERR_IO, "%.200s: %s", path, strerror(errno));
    }
    if (!S_ISDIR(status.st_mode)) return check_file(path, err);
    if (!has_file(path, "config.json")) return refuse_sign(path, false, err);
    const int rc = check_pointers(path, err);
    if (rc || !has_weights) return rc;
    if (has_safetensors(path)) return 0;
    return refuse_sign(path, true, err);
}
