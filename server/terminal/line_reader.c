/* line_reader.c - see line_reader.h. */
#define _GNU_SOURCE /* getline */

#include "server/terminal/line_reader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Debian's name of the library, and that of other systems. */
static const char *const libraries[] = {"libedit.so.2", "libedit.so.0"};

/* Returns a function of the library, in the type of `edit` and `remember`: dlsym() returns an
 * object's address, which C converts to no function. */
static void find(void *out, void *library, const char *name) {
    void *symbol = library ? dlsym(library, name) : NULL;
    memcpy(out, &symbol, sizeof(symbol));
}

void line_reader_open(struct line_reader *out) {
    *out = (struct line_reader){.is_terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    if (!out->is_terminal) return;
    for (size_t i = 0; !out->library && i < sizeof(libraries) / sizeof(*libraries); i++)
        out->library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
    find(&out->edit, out->library, "readline");
    find(&out->remember, out->library, "add_history");
    if (!out->remember) out->edit = NULL;
}

void line_reader_close(struct line_reader *reader) {
    if (reader->library) dlclose(reader->library);
    *reader = (struct line_reader){0};
}

static char *read_plain(const struct line_reader *reader, const char *prompt) {
    char *line = NULL;
    size_t size = 0;
    if (reader->is_terminal) {
        fputs(prompt, stdout);
        fflush(stdout);
    }
    const ssize_t n = getline(&line, &size, stdin);
    if (n <= 0) {
        clearerr(stdin); /* a signal leaves an error there */
        free(line);
        return NULL;
    }
    if (line[n - 1] == '\n') line[n - 1] = 0;
    return line;
}

char *line_reader_read(struct line_reader *reader, const char *prompt) {
    if (!reader->edit) return read_plain(reader, prompt);
    char *line = reader->edit(prompt);
    if (line && *line) reader->remember(line);
    return line;
}
