/* files.h - the files of the pages, as the build has embedded them (embed.py).
 *
 * Thread: any.  Memory: constants. */
#ifndef SERVER_UI_FILES_H
#define SERVER_UI_FILES_H

#include <stdbool.h>
#include <stddef.h>

struct ui_file {
    const char *path;          /* as a client asks for it, such as "/ui/chat.js" */
    const char *type;          /* Content-Type */
    const char *etag;          /* with its quotes; another content has another one */
    const unsigned char *data; /* [size] */
    size_t size;               /* bytes */
    bool is_gzip;              /* data is compressed, and there is no other form of it */
};

extern const struct ui_file ui_files[]; /* [ui_n_files] */
extern const size_t ui_n_files;

#endif
