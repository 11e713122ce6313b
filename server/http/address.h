/* address.h - the parts of http://HOST[:PORT][/PATH], or https://…
 *
 * Thread: any.  Memory: the caller's. */
#ifndef SERVER_HTTP_ADDRESS_H
#define SERVER_HTTP_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

enum {
    ADDRESS_HOST_BYTES = 256,
    ADDRESS_AUTHORITY_BYTES = ADDRESS_HOST_BYTES + 8,
    ADDRESS_PATH_BYTES = 256
};

struct http_address {
    char host[ADDRESS_HOST_BYTES];           /* without brackets */
    char authority[ADDRESS_AUTHORITY_BYTES]; /* HOST:PORT; an address of IPv6 is in brackets */
    char path[ADDRESS_PATH_BYTES];           /* with its slash; "" where there is none */
    uint16_t port;
    bool with_tls;
};

/* Reads a URL.  Returns false where it has another form, or a part of it is too long. */
bool http_address_read(struct http_address *out, const char *url, uint16_t default_port);

#endif
