/* mapped_file.h - a weights file, mapped, which another process may truncate while it is in use.
 *
 * Reading a page that a mapped file no longer has raises SIGBUS, and so does a page that its disk
 * cannot give.  The process would end without a message, in whichever thread touched the page.
 * Reading files into memory instead would avoid that.  But a CPU's weights are used where they are
 * mapped.  A start would take as long as the disk does, and two servers of one model would need
 * twice the memory.  So a handler of SIGBUS has a table of the mappings:
 *
 *   mapping   [ page | page | gone ............ ]      a thread touches what is gone: SIGBUS
 *                           [ zeros ........... ]      the handler maps these in its place
 *                                                      and marks the file; the thread continues
 *
 * What was computed from zeros is worthless: code that computes must ask mapped_file_is_whole()
 * before it hands on a result.  A SIGBUS anywhere else ends the process as ever.  Bytes that
 * change, or that were cut off the last page, cannot be noticed like this.
 *
 * Thread: any; the handler runs in the one that touched the page.  Memory: the mapping; the table
 * of mappings is static, since a handler may neither lock nor allocate. */
#ifndef ENGINE_BASE_MAPPED_FILE_H
#define ENGINE_BASE_MAPPED_FILE_H

#include <stdbool.h>
#include <stddef.h>

struct error;
struct mapping;

struct mapped_file {
    const void *bytes;
    size_t size;
    struct mapping *mapping; /* its place in the table; NULL: not open */
};

/* Maps a file; refuses one that is empty or not regular.  On failure *out is untouched. */
int mapped_file_open(struct mapped_file *out, const char *path, struct error *err);
void mapped_file_close(struct mapped_file *file); /* a zeroed one is allowed */

/* Returns true if every page that was touched so far was there. */
bool mapped_file_is_whole(const struct mapped_file *file);
/* Returns ERR_IO, with this name for the file, if it is open and not whole any more. */
int mapped_file_check(const struct mapped_file *file, const char *name, struct error *err);

#endif
