/* gguf_files.c - see gguf_files.h. */
#include "engine/gguf/gguf_files.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/digest.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/gguf/gguf.h"

enum { MAX_FILES = 1000, DIGITS = 5 };
static const char END[] = "-00001-of-00001.gguf";

struct one_file {
    struct mapped_file mapped;
    struct gguf *gguf;
    char path[PATH_MAX];
};

struct gguf_files {
    struct one_file **files;
    uint32_t n;
};

/* Reads a number of five digits. */
static bool read_digits(const char *text, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        *out = *out * 10 + (uint32_t)(text[i] - '0');
    }
    return true;
}

bool gguf_split_name(const char *name, uint32_t *number, uint32_t *count) {
    const size_t n = strlen(name), n_end = sizeof(END) - 1;
    if (n <= n_end) return false;
    const char *end = name + n - n_end;
    return end[0] == '-' && read_digits(end + 1, number) && memcmp(end + 6, "-of-", 4) == 0 &&
           read_digits(end + 10, count) && strcmp(end + 15, ".gguf") == 0 && *number >= 1 &&
           *number <= *count;
}

static int open_one(struct gguf_files *files, const char *path, struct error *err) {
    struct one_file *file = calloc(1, sizeof(*file));
    if (!file) return error_set(err, ERR_NOMEM, "%.200s: no memory for its header", path);
    files->files[files->n++] = file;
    snprintf(file->path, sizeof(file->path), "%s", path);
    const int rc = mapped_file_open(&file->mapped, path, err);
    return rc ? rc : gguf_parse(&file->gguf, file->mapped.bytes, file->mapped.size, path, err);
}

/* Reads which file of how many this is; a file alone is the first of one. */
static void read_split(const struct gguf *gguf, uint64_t *number, uint64_t *count) {
    *number = 0;
    *count = 1;
    gguf_whole(gguf_find(gguf, "split.no"), number);
    if (!gguf_whole(gguf_find(gguf, "split.count"), count) || *count == 0) *count = 1;
}

static int check_names(const struct gguf_files *files, struct error *err) {
    for (uint32_t i = 1; i < files->n; i++)
        for (uint32_t k = 0; k < gguf_n_tensors(files->files[i]->gguf); k++) {
            const char *name = gguf_tensor_at(files->files[i]->gguf, k)->name;
            for (uint32_t before = 0; before < i; before++)
                if (gguf_find_tensor(files->files[before]->gguf, name))
                    return error_set(err, ERR_INVALID,
                                     "%.200s: tensor '%.100s' is in another file, too",
                                     files->files[i]->path, name);
        }
    return 0;
}

/* Opens file i of a split: it must be what its name says. */
static int open_next(struct gguf_files *files, const char *path, uint32_t i, uint32_t count,
                     struct error *err) {
    char next[PATH_MAX];
    uint64_t number, of;
    const int n_stem = (int)(strlen(path) - (sizeof(END) - 1));
    const int n = snprintf(next, sizeof(next), "%.*s-%05" PRIu32 "-of-%05" PRIu32 ".gguf", n_stem,
                           path, i + 1, count);
    if (n < 0 || n >= (int)sizeof(next))
        return error_set(err, ERR_INVALID, "%.200s: the path is too long", path);
    const int rc = open_one(files, next, err);
    if (rc) return rc;
    read_split(files->files[i]->gguf, &number, &of);
    if (number == i && of == count) return 0;
    return error_set(err, ERR_INVALID, "%.200s: it is not file %" PRIu32 " of %" PRIu32 " inside",
                     next, i + 1, count);
}

static int open_all(struct gguf_files *files, const char *path, struct error *err) {
    uint64_t number, count;
    uint32_t named, of;
    int rc = open_one(files, path, err);
    if (rc) return rc;
    read_split(files->files[0]->gguf, &number, &count);
    if (count == 1) return 0;
    if (number != 0)
        return error_set(err, ERR_INVALID,
                         "%.200s: it is file %" PRIu64 " of %" PRIu64
                         ": name the first one, which has the keys",
                         path, number + 1, count);
    if (!gguf_split_name(path, &named, &of) || named != 1 || of != count)
        return error_set(err, ERR_INVALID,
                         "%.200s: it is the first of %" PRIu64
                         " files, and its name does not end in -00001-of-%05" PRIu64 ".gguf",
                         path, count, count);
    if (count > MAX_FILES)
        return error_set(err, ERR_UNSUPPORTED, "%.200s: more than %d files", path, MAX_FILES);
    for (uint32_t i = 1; !rc && i < count; i++) rc = open_next(files, path, i, of, err);
    return rc ? rc : check_names(files, err);
}

int gguf_files_open(struct gguf_files **out, const char *path, struct error *err) {
    struct gguf_files *files = calloc(1, sizeof(*files));
    if (files) files->files = calloc(MAX_FILES, sizeof(*files->files));
    if (!files || !files->files) {
        free(files);
        return error_set(err, ERR_NOMEM, "%.200s: no memory for its files", path);
    }
    int rc = open_all(files, path, err);
    /* Zeros of a file that is cut short cause other errors, which would mislead. */
    if (gguf_files_check(files, err)) rc = ERR_IO;
    if (rc) gguf_files_close(files);
    else *out = files;
    return rc;
}

void gguf_files_close(struct gguf_files *files) {
    if (!files) return;
    for (uint32_t i = 0; i < files->n; i++) {
        gguf_destroy(files->files[i]->gguf);
        mapped_file_close(&files->files[i]->mapped);
        free(files->files[i]);
    }
    free(files->files);
    free(files);
}

const struct gguf *gguf_files_keys(const struct gguf_files *files) {
    return files->files[0]->gguf;
}

const struct gguf_tensor *gguf_files_find(const struct gguf_files *files, const char *name) {
    for (uint32_t i = 0; i < files->n; i++) {
        const struct gguf_tensor *found = gguf_find_tensor(files->files[i]->gguf, name);
        if (found) return found;
    }
    return NULL;
}

const struct gguf_tensor *gguf_files_tensor(const struct gguf_files *files, uint32_t i) {
    for (uint32_t file = 0; file < files->n; file++) {
        const uint32_t n = gguf_n_tensors(files->files[file]->gguf);
        if (i < n) return gguf_tensor_at(files->files[file]->gguf, i);
        i -= n;
    }
    return NULL;
}

void gguf_files_digest(const struct gguf_files *files, struct digest *digest) {
    digest_absorb(digest, files->n);
    for (uint32_t i = 0; i < files->n; i++) {
        const struct mapped_file *mapped = &files->files[i]->mapped;
        digest_absorb_checksums(digest, mapped->bytes, mapped->size);
    }
}

int gguf_files_check(const struct gguf_files *files, struct error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < files->n && !rc; i++)
        rc = mapped_file_check(&files->files[i]->mapped, files->files[i]->path, err);
    return rc;
}
