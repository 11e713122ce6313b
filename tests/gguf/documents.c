/* documents.c - see documents.h. */
#define _GNU_SOURCE /* memfd_create */

#include "tests/gguf/documents.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/error.h"
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

int read_documents(const void *bytes, size_t size) {
    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    int n_read = 0;
    for (int i = 0; i < 4; i++) {
        json_t *document = NULL;
        struct error err = {0};
        const int rc = document_of(&document, bytes, size, names[i], &err);
        if (rc && (document || err.text[0] == '\0' || err.code != rc)) abort();
        n_read += rc == 0;
        json_decref(document);
    }
    return n_read;
}
