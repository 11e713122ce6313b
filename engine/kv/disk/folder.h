/* folder.h - the files of the tier on disk: what is where, and that it is whole or not there.
 *
 *   DIR/lock                       held by the one server that uses the folder
 *   DIR/secret                     random: the key of names, and of clients' cache_salt
 *   DIR/writer                     a line: how the last server was set up, for a warning (disk.h)
 *   DIR/3f/3fa1….b40               a block that ends at token 0x40; the name has 32 digits
 *   DIR/c0/c07b….s1f2              a state of 0x1f2 tokens
 *   DIR/c0/c07b….s1f2.tmp          one that is being written
 *
 * A file is written under another name and renamed when it is whole.  What a crash leaves of one is
 * removed at the next start.  Nothing waits for the device: a power failure may leave a file torn,
 * and its checksum tells (format.h).  Files and folders are for the owner only.  Files with other
 * names are left alone.
 *
 * A file that the system has in its page cache is copied from there.  Another is read past it
 * (O_DIRECT), which costs half the CPU time and displaces nothing.
 *
 * Thread: any, but open and close.  Memory: the caller's. */
#ifndef ENGINE_KV_DISK_FOLDER_H
#define ENGINE_KV_DISK_FOLDER_H

#include <stddef.h>
#include <stdint.h>

#include "engine/kv/disk/index.h"

struct error;

enum { DISK_SECRET_WORDS = 8, DISK_ALIGN = 4096, DISK_WRITER_BYTES = 64 };

struct disk_folder {
    int dir, lock; /* descriptors */
    uint64_t secret[DISK_SECRET_WORDS];
};

/* Opens the folder, which is created if it does not exist; its parent must.  ERR_INVALID: another
 * process uses it.  ERR_IO.  On failure nothing is left open. */
int disk_folder_open(struct disk_folder *out, const char *path, struct error *err);
void disk_folder_close(struct disk_folder *folder);

/* Notes what server uses the folder from now on, and copies what was noted before to
 * former[DISK_WRITER_BYTES]: empty if there is none.  A note that cannot be written is left out. */
void disk_folder_note_writer(const struct disk_folder *folder, const char *writer, char *former);

/* Adds all files to the index and removes what was not finished.  ERR_IO, ERR_NOMEM. */
int disk_folder_scan(const struct disk_folder *folder, struct disk_index *index, struct error *err);

/* Writes a file.  ERR_IO: there is none, and err says why. */
int disk_folder_write(const struct disk_folder *folder, const struct disk_id *id, const char *bytes,
                      size_t size, struct error *err);
/* Reads a file of exactly `size` bytes and notes that it was used.  to: aligned to DISK_ALIGN, with
 * room for `size` rounded up to that.  ERR_NOT_FOUND; ERR_IO, or ERR_INVALID: it has another size,
 * or is no regular file. */
int disk_folder_read(const struct disk_folder *folder, const struct disk_id *id, char *to,
                     size_t size, struct error *err);
/* Removes the item's file, if there is one. */
void disk_folder_remove(const struct disk_folder *folder, const struct disk_id *id);

#endif
