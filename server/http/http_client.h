/* http_client.h - asks another server once, for the status of its answer or for all of it.
 *
 * The connection is this request's alone, with TLS or without.
 *
 * Thread: any; it blocks.  Memory: a request's is freed on return. */
#ifndef SERVER_HTTP_HTTP_CLIENT_H
#define SERVER_HTTP_HTTP_CLIENT_H

#include <signal.h>
#include <stdbool.h>
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
    unsigned wait_s;                       /* for each step */
    unsigned open_s;       /* for a connection, and for the handshake of TLS; 0: wait_s */
    const char *authority; /* what the header Host says */
    const char *path;
    const char *body; /* JSON that is posted, n_body bytes; NULL: the request is a GET */
    size_t n_body;
    const char *key; /* of the header Authorization; NULL: none */
    int fd;          /* a connection, which is closed at the end; 0: one is made to the host */
    const volatile sig_atomic_t *stop; /* other than 0 ends the waiting; NULL: wait_s does.  It is
                                          looked at every wait_s, and at a signal */
};

/* Takes a part of an answer's body.  Returns false to leave the rest. */
typedef bool (*http_client_take)(void *ctx, const char *data, size_t n);

/* Writes the answer's status.  ERR_IO: there is no answer, or none of HTTP, or the certificate is
 * not trusted for this host; the text says why. */
int http_client_ask(unsigned *status, const struct http_client_request *request, struct error *err);
/* Writes the status, and then gives the body to take() as it arrives, until its end.  ERR_IO
 * likewise; ERR_STOPPED: *stop ended it. */
int http_client_read(unsigned *status, const struct http_client_request *request,
                     http_client_take take, void *ctx, struct error *err);

#endif
