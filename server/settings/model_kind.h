/* model_kind.h - what a path is that was named as a model and is none: a file of another format, a
 * name of the hub, a pointer of Git LFS.
 *
 * A model is a folder in the layout of transformers, or a GGUF file.  People name other things, and
 * would otherwise be told which file is missing, and not what they have instead of it.
 *
 * Thread: main, at start-up.  Memory: none is kept. */
#ifndef SERVER_SETTINGS_MODEL_KIND_H
#define SERVER_SETTINGS_MODEL_KIND_H

#include <limits.h>
#include <stdbool.h>

struct error;

/* Replaces a folder by its GGUF file, if that is the one model in it.  ERR_INVALID: there are
 * several. */
int model_kind_find_file(char path[PATH_MAX], bool has_weights, struct error *err);

/* Returns 0 if the path may be a model; what is wrong inside of its files is the reader's to say.
 * Else ERR_INVALID, with what it is and what to do.  has_weights: weights are needed, too. */
int model_kind_check(const char *path, bool has_weights, struct error *err);

#endif
