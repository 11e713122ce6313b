/* http_client.h - asks another server once, and looks only at the status of its answer.
 *
 * The connection is this request's alone, with TLS or without.
 *
 * Thread: any; it blocks.  Memory: a request's is freed on return. */
#ifndef SERVER_HTTP_HTTP_CLIENT_H
#define SERVER_HTTP_HTTP_CLIENT_H

#include <stddef.h>
#include <stdint.h>

struct error;
struct http_client_trust; /* opaque: the fields live in http_client.c */

/* Trusts the certificates that these authorities signed, a file in PEM; NULL: those of the system's
 * store.  ERR_INVALID: there are none. */
int http_client_trust_create(struct http_client_trust **out, const char *ca_file,
                             struct error *err);
/* Trusts every certificate. */
int http_client_trust_create_any(struct http_client_trust **out, struct error *err);
void http_client_trust_destroy(struct http_client_trust *trust); /* NULL is allowed */

struct http_client_request {
    const char *host; /* 0.0.0.0 and :: are this machine */
    uint16_t port;
    const struct http_client_trust *trust; /* NULL: without TLS */
    unsigned wait_s;                       /* for a connection, and for each further step */
    const char *authority;                 /* what the header Host says */
    const char *path;
    const char *body; /* JSON that is posted, n_body bytes; NULL: the request is a GET */
    size_t n_body;
};

/* Writes the answer's status.  ERR_IO: there is no answer, or none of HTTP, or the certificate is
 * not trusted for this host; the text says why. */
int http_client_ask(unsigned *status, const struct http_client_request *request, struct error *err);

#endif
