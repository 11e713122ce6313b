/* data_dir.h - finds the data directory: the default model and the files of config/ that ship with
 * quire.
 *
 * A data directory holds config/ and models/ as the source tree does.  The search begins where the
 * binary lies, symbolic links resolved, so that a tree can be copied or moved as a whole.  The
 * first of these places that holds config/quire.json is taken, and no other is looked at:
 *
 *   1. ../share/quire    an installed tree: the way from Meson's bindir to its datadir
 *   2. ..                a build folder inside the source tree, wherever that has been moved
 *   3. the source tree   while the binary lies in the build folder that Meson made it in
 *
 * Thread: main, at start-up.  Memory: none is kept. */
#ifndef SERVER_SETTINGS_DATA_DIR_H
#define SERVER_SETTINGS_DATA_DIR_H

struct error;

/* Writes the data directory of this program, an absolute path, to dir [PATH_MAX].  ERR_NOT_FOUND
 * names the places that were tried. */
int data_dir_find(char *dir, struct error *err);
/* Writes the data directory of a binary at the absolute path exe, in the same way. */
int data_dir_find_from(char *dir, const char *exe, struct error *err);

#endif
