/* provenance.h - files that are found by measuring, and say how: objects of JSON with a member
 * "provenance" for people.
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

/* What a file says of its making, in the order given. */
struct provenance_note {
    const char *name, *text;
};

/* Writes what follows the provenance; 0 or a negative ERR_*. */
typedef int (*provenance_members)(FILE *file, const void *ctx);

/* Writes the file whole or not at all: one of that name is replaced at the end. */
int provenance_save(const char *path, const char *format, const struct provenance_note *notes,
                    size_t n_notes, provenance_members members, const void *ctx,
                    struct error *err);

#endif
