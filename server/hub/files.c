/* files.c - see files.h. */
#include "server/hub/files.h"

#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"

enum { HEX_SHA1 = 40, HEX_SHA256 = 64, FIRST_FILES = 64 };

bool hub_is_hex(const char *text, size_t n) {
    return strspn(text, "0123456789abcdef") == n && !text[n];
}

/* Returns how many bytes of a text in UTF-8 a control character takes here; 0: there is none.  A
 * terminal takes U+0080 to U+009F as such, too. */
static size_t control_bytes(const char *text) {
    const unsigned char first = (unsigned char)text[0], second = first ? (unsigned char)text[1] : 0;
    if (first < 0x20 || first == 0x7f) return first != 0;
    return first == 0xc2 && second >= 0x80 && second < 0xa0 ? 2 : 0;
}

/* Tells whether a path stays below its folder: it has names between slashes, and no name is empty,
 * "." or "..". */
static bool is_inside(const char *path) {
    if (strchr(path, '\\')) return false;
    for (const char *at = path;; at++) {
        const size_t n = strcspn(at, "/");
        if (n == 0 || (n == 1 && at[0] == '.') || (n == 2 && memcmp(at, "..", 2) == 0))
            return false;
        for (size_t i = 0; i < n; i++)
            if (control_bytes(at + i) > 0) return false;
        at += n;
        if (!*at) return true;
    }
}

int hub_files_add(struct hub_files *files, const char *path, uint64_t size, const char *hash,
                  struct error *err) {
    if (!is_inside(path))
        return error_set(err, ERR_INVALID,
                         "a file is named '%.100s', which could be outside of its folder", path);
    if (strlen(path) > HUB_PATH_MAX) {
        files->is_cut = true;
        return 0;
    }
    if (files->n == HUB_FILES_MAX)
        return error_set(err, ERR_INVALID, "there are more than %d files", HUB_FILES_MAX);
    /* The room doubles whenever the number is a power of two. */
    if (files->n == 0 || (files->n >= FIRST_FILES && (files->n & (files->n - 1)) == 0)) {
        const size_t n = files->n ? 2 * files->n : FIRST_FILES;
        struct hub_file *all = realloc(files->all, n * sizeof(*all));
        if (!all) return error_set(err, ERR_NOMEM, "no memory for the list of files");
        files->all = all;
    }
    struct hub_file *file = &files->all[files->n];
    *file = (struct hub_file){.path = strdup(path), .size = size};
    if (!file->path) return error_set(err, ERR_NOMEM, "no memory for the list of files");
    memcpy(file->hash, hash, strnlen(hash, HUB_HASH_MAX));
    files->n++;
    return 0;
}

void hub_files_fini(struct hub_files *files) {
    for (size_t i = 0; i < files->n; i++) free(files->all[i].path);
    free(files->all);
    *files = (struct hub_files){0};
}

/* Returns a member that is a string without zeros in it, or NULL. */
static const char *text_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static int add_sibling(struct hub_files *out, const json_t *sibling, struct error *err) {
    const json_t *lfs = json_object_get(sibling, "lfs");
    const char *path = text_of(sibling, "rfilename");
    const bool in_lfs = json_is_object(lfs);
    const char *hash = in_lfs ? text_of(lfs, "sha256") : text_of(sibling, "blobId");
    const json_int_t size = json_integer_value(json_object_get(in_lfs ? lfs : sibling, "size"));
    if (!path) return error_set(err, ERR_INVALID, "a file has no name");
    if (!hash || !hub_is_hex(hash, in_lfs ? HEX_SHA256 : HEX_SHA1))
        return error_set(err, ERR_INVALID, "'%.100s' has no %s", path,
                         in_lfs ? "lfs.sha256 of 64 digits" : "blobId of 40 digits");
    if (size < 0 || !json_is_integer(json_object_get(in_lfs ? lfs : sibling, "size")))
        return error_set(err, ERR_INVALID, "'%.100s' has no size", path);
    if ((uint64_t)size > HUB_SIZE_MAX)
        return error_set(err, ERR_INVALID,
                         "'%.100s' has %lld bytes, and no file has more than %llu", path,
                         (long long)size, (unsigned long long)HUB_SIZE_MAX);
    return hub_files_add(out, path, (uint64_t)size, hash, err);
}

/* Copies a text that will be printed, without its control characters. */
static void copy_printable(char *out, const char *text) {
    while (*text) {
        const size_t n = control_bytes(text);
        if (n == 0) *out++ = *text++;
        text += n;
    }
    *out = 0;
}

static int read_root(struct hub_files *out, const json_t *root, struct error *err) {
    const char *commit = text_of(root, "sha"),
               *licence = text_of(json_object_get(root, "cardData"), "license");
    const json_t *gated = json_object_get(root, "gated"),
                 *siblings = json_object_get(root, "siblings");
    const json_t *sibling;
    size_t i;
    if (!commit || !hub_is_hex(commit, HUB_COMMIT_CHARS))
        return error_set(err, ERR_INVALID, "'sha' is no commit of 40 digits");
    memcpy(out->commit, commit, HUB_COMMIT_CHARS);
    if (licence && strnlen(licence, sizeof(out->licence)) < sizeof(out->licence))
        copy_printable(out->licence, licence);
    out->is_gated = json_is_true(gated) || json_is_string(gated);
    if (!json_is_array(siblings)) return error_set(err, ERR_INVALID, "'siblings' is no list");
    json_array_foreach(siblings, i, sibling) {
        const int rc = add_sibling(out, sibling, err);
        if (rc) return rc;
    }
    return 0;
}

int hub_files_parse(struct hub_files *out, const char *json, size_t size, struct error *err) {
    struct error why = {0};
    json_t *root = NULL;
    *out = (struct hub_files){0};
    int rc = json_guard_parse(&root, json, size, "the hub's answer", err);
    if (rc) return rc;
    rc = read_root(out, root, &why);
    json_decref(root);
    if (!rc) return 0;
    hub_files_fini(out);
    return error_set(err, rc, "the hub's answer cannot be used: %.400s", why.text);
}
