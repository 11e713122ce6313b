/* model_document.c - see model_document.h. */
#include "engine/gguf/model_document.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_guard.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/gguf_tokenizer.h"

static const struct {
    const char *name;
    int (*write)(json_t **out, const struct gguf_files *files, const char *label,
                 struct error *err);
} documents[] = {{"config.json", gguf_config},
                 {"generation_config.json", gguf_generation},
                 {"tokenizer.json", gguf_tokenizer},
                 {"tokenizer_config.json", gguf_tokenizer_config}};

static int read_keys(json_t **out, const char *model, const char *name, struct error *err) {
    struct gguf_files *files = NULL;
    size_t i = 0;
    while (i < sizeof(documents) / sizeof(*documents) && strcmp(documents[i].name, name) != 0) i++;
    if (i == sizeof(documents) / sizeof(*documents))
        return error_set(err, ERR_NOT_FOUND, "%.200s: a GGUF file has no %s", model, name);
    int rc = gguf_files_open(&files, model, err);
    if (rc) return rc;
    rc = documents[i].write(out, files, model, err);
    if (gguf_files_check(files, err) && !rc) {
        json_decref(*out);
        *out = NULL;
        rc = ERR_IO;
    }
    gguf_files_close(files);
    return rc;
}

bool model_is_gguf(const char *path) {
    char start[4] = {0};
    struct error why = {0};
    int fd;
    if (file_open(&fd, path, O_RDONLY, &why)) return false;
    const ssize_t n = read(fd, start, sizeof(start));
    close(fd);
    return n == sizeof(start) && memcmp(start, "GGUF", sizeof(start)) == 0;
}

int model_document_place(char out[PATH_MAX], const char *model, const char *name,
                         struct error *err) {
    const int n = model_is_gguf(model) ? snprintf(out, PATH_MAX, "%s", model)
                                       : snprintf(out, PATH_MAX, "%s/%s", model, name);
    if (n >= 0 && n < PATH_MAX) return 0;
    return error_set(err, ERR_INVALID, "%.200s: the path is too long", model);
}

/* Makes `null` of Infinity, which Python writes into such files and JSON does not have.  A string
 * may have that word. */
static void replace_infinity(char *text, size_t size) {
    static const char word[] = "Infinity", null[] = "null    ";
    const size_t n = sizeof(word) - 1;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        if (in_string && text[i] == '\\') i++;
        else if (text[i] == '"') in_string = !in_string;
        else if (!in_string && size - i >= n && memcmp(text + i, word, n) == 0) {
            memcpy(text + i, null, n);
            if (i > 0 && text[i - 1] == '-') text[i - 1] = ' ';
        }
    }
}

/* Reads a file that Python has written. */
static int read_file(json_t **out, const char *path, size_t max_bytes, struct error *err) {
    char *text = NULL;
    size_t size = 0;
    int rc = file_read(&text, &size, path, max_bytes, err);
    if (rc) return rc;
    replace_infinity(text, size);
    rc = json_guard_parse(out, text, size, path, err);
    free(text);
    return rc;
}

int model_document_read(json_t **out, const char *model, const char *name, size_t max_bytes,
                        struct error *err) {
    char path[PATH_MAX];
    if (model_is_gguf(model)) return read_keys(out, model, name, err);
    const int rc = model_document_place(path, model, name, err);
    return rc ? rc : read_file(out, path, max_bytes, err);
}
