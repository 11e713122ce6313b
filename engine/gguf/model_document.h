/* model_document.h - the JSON documents of a model: the files of its folder, or what the keys of
 * its GGUF file stand for.
 *
 * So the readers of config.json, generation_config.json, tokenizer.json and tokenizer_config.json
 * need not know which of both a model is.
 *
 * Thread: any.  Memory: the caller owns *out. */
#ifndef ENGINE_GGUF_MODEL_DOCUMENT_H
#define ENGINE_GGUF_MODEL_DOCUMENT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>

struct error;

/* Returns true if the path is that of a file that begins as every GGUF file does. */
bool model_is_gguf(const char *path);

/* Reads the document of this name.  model: a folder, or a GGUF file.  max_bytes: of a file.
 * ERR_NOT_FOUND: the model has none. */
int model_document_read(json_t **out, const char *model, const char *name, size_t max_bytes,
                        struct error *err);

/* Writes where the document of this name is read from: the path of a file of the folder, or of the
 * GGUF file itself.  ERR_INVALID: the path is too long. */
int model_document_place(char out[PATH_MAX], const char *model, const char *name,
                         struct error *err);

#endif
