/* file.h - opens and reads the files that a model directory has or a person names: regular ones.
 *
 * A FIFO would hold up the start until somebody writes to it, and a device or a socket says what it
 * likes for as long as it likes.  So a file is opened without waiting, and refused unless it is
 * regular; links are followed, because a download cache is made of them.
 *
 * Thread: any.  Memory: file_read()'s bytes are the caller's. */
#ifndef ENGINE_BASE_FILE_H
#define ENGINE_BASE_FILE_H

#include <stddef.h>

struct error;

/* flags: open()'s, and what O_CREAT creates is the user's alone to write.  The caller closes *out.
 * ERR_NOT_FOUND when there is none; on failure *out is untouched. */
int file_open(int *out, const char *path, int flags, struct error *err);

/* Reads a whole file of at most max_bytes; a zero follows the last byte.  On success the caller
 * frees *out; on failure it is untouched. */
int file_read(char **out, size_t *size, const char *path, size_t max_bytes, struct error *err);

#endif
