/* gguf_files.h - a model's GGUF file, or all files of one that is split.
 *
 *   NAME-00001-of-00003.gguf    keys, and some tensors
 *   NAME-00002-of-00003.gguf    other tensors; of its keys only the split's numbers count
 *
 * Thread: open on any one, then read-only.  Memory: maps the files until close. */
#ifndef ENGINE_GGUF_GGUF_FILES_H
#define ENGINE_GGUF_GGUF_FILES_H

#include <stdbool.h>
#include <stdint.h>

struct digest;
struct error;
struct gguf;
struct gguf_files;
struct gguf_tensor;

/* Opens the file, and the others of a split whose first it is.  On failure *out is untouched. */
int gguf_files_open(struct gguf_files **out, const char *path, struct error *err);
void gguf_files_close(struct gguf_files *files); /* NULL is allowed */

/* Returns the first file, which has the keys. */
const struct gguf *gguf_files_keys(const struct gguf_files *files);
/* Returns the tensor of this name, or NULL. */
const struct gguf_tensor *gguf_files_find(const struct gguf_files *files, const char *name);
/* Returns tensor i of all files; NULL: there are not so many. */
const struct gguf_tensor *gguf_files_tensor(const struct gguf_files *files, uint32_t i);

/* Absorbs every byte of the files. */
void gguf_files_digest(const struct gguf_files *files, struct digest *digest);
/* Returns ERR_IO, naming the file, once a missing part of one was touched (mapped_file.h). */
int gguf_files_check(const struct gguf_files *files, struct error *err);

/* Returns true if the name is that of a file of a split, and which one it is, from 1 on, of how
 * many. */
bool gguf_split_name(const char *name, uint32_t *number, uint32_t *count);

#endif
