/* provenance.h - files that are found by measuring and say how: JSON objects with a member
 * "provenance" for human readers.
 *
 *   {"format": "quire-patterns-1",
 *   "provenance": {
 *    "model": "...",
 *    "date": "..."
 *   },
 *   the members that programs read}
 *
 * Thread: any.  Memory: none is kept. */
#ifndef ENGINE_SPARSITY_PROVENANCE_H
#define ENGINE_SPARSITY_PROVENANCE_H

#include <stddef.h>
#include <stdio.h>

struct error;

/* A note on how the file was made; notes keep the order given. */
struct provenance_note {
    const char *name, *text;
};

/* Writes what follows the provenance; 0 or a negative ERR_*. */
typedef int (*provenance_members)(FILE *file, const void *ctx);

/* Writes the file whole or not at all: a file of that name is replaced at the end. */
int provenance_save(const char *path, const char *format, const struct provenance_note *notes,
                    size_t n_notes, provenance_members members, const void *ctx, struct error *err);

#endif
