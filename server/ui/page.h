/* page.h - the page at /, as the build has embedded it (embed.py).
 *
 * Thread: any.  Memory: constants. */
#ifndef SERVER_UI_PAGE_H
#define SERVER_UI_PAGE_H

#include <stddef.h>

extern const unsigned char page_data[]; /* [page_size]: HTML in UTF-8, with its style and script */
extern const size_t page_size;
extern const char page_etag[]; /* with its quotes; another page has another one */
extern const char
    page_policy[]; /* Content-Security-Policy: names style and script by their hashes */

#endif
