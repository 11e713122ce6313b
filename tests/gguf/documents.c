/* documents.c - see documents.h. */
#define _GNU_SOURCE /* memfd_create */

#include "tests/gguf/documents.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "engine/gguf/gguf_config.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/gguf_tokenizer.h"
#include "engine/gguf/model_document.h"

int document_of(json_t **out, const void *bytes, size_t size, const char *name, struct error *err) {
    char path[64];
    const int fd = memfd_create("gguf", 0);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size) abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const int rc = model_document_read(out, path, name, 1 << 20, err);
    close(fd);
    return rc;
}

/* Opens the bytes as a file without a name.  It is the same file each time, because a fuzzer would
 * spend more time on making files than on reading them. */
static int open_bytes(struct gguf_files **out, const void *bytes, size_t size, struct error *err) {
    static int fd = -1;
    char path[64];
    if (fd < 0) fd = memfd_create("gguf", 0);
    if (fd < 0 || ftruncate(fd, (off_t)size) || pwrite(fd, bytes, size, 0) != (ssize_t)size)
        abort();
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return gguf_files_open(out, path, err);
}

int read_documents(const void *bytes, size_t size) {
    static int (*const written[])(json_t * *out, const struct gguf_files *files, const char *label,
                                  struct error *err) = {gguf_config, gguf_generation,
                                                        gguf_tokenizer, gguf_tokenizer_config};
    struct gguf_files *files = NULL;
    struct error err = {0};
    int n_read = 0;
    if (open_bytes(&files, bytes, size, &err)) {
        if (files || err.text[0] == '\0') abort(); /* a refusal says why and gives nothing */
        return 0;
    }
    for (int i = 0; i < 4; i++) {
        json_t *document = NULL;
        err = (struct error){0};
        const int rc = written[i](&document, files, "fuzz", &err);
        if (rc && (document || err.text[0] == '\0' || err.code != rc)) abort();
        n_read += rc == 0;
        json_decref(document);
    }
    gguf_files_close(files);
    return n_read;
}
