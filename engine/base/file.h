/* file.h - opens and reads regular files: those of a model directory, or named by an operator.
 *
 * A FIFO would block the start until another process writes to it, and a device or a socket may
 * never end.  So a file is opened without blocking, and refused unless it is regular.  Links are
 * followed, because a download cache is made of them.
 *
 * Thread: any.  Memory: file_read()'s bytes are the caller's. */
#ifndef ENGINE_BASE_FILE_H
#define ENGINE_BASE_FILE_H

#include <stddef.h>

struct error;

/* Opens a file with the flags of open(); only the user may write a file that O_CREAT creates.  The
 * caller closes *out.  ERR_NOT_FOUND if the file does not exist; on failure *out is untouched. */
int file_open(int *out, const char *path, int flags, struct error *err);

/* Reads a whole file of at most max_bytes; a zero follows the last byte.  On success the caller
 * frees *out; on failure it is untouched. */
int file_read(char **out, size_t *size, const char *path, size_t max_bytes, struct error *err);

#endif
