/* tls.h - TLS in front of the transport: a thread of its own decrypts each connection.
 *
 *   client ══ TLS ══► thread ── socket pair ──► transport, which sees plain HTTP
 *
 * So handshakes and ciphers cost the loop nothing, and the transport's rules about bytes, ends and
 * deadlines hold for both kinds of connections.  What the transport does not take, the thread does
 * not read, and the other way round: each session holds at most one record in each direction.
 *
 * TLS 1.2 and 1.3, with the library's defaults (GnuTLS).
 *
 * Thread: loop, for these functions.  Memory: the sessions are the thread's. */
#ifndef SERVER_HTTP_TLS_H
#define SERVER_HTTP_TLS_H

struct error;
struct tls;

/* Reads the certificate chain and its key (PEM) and starts the thread.  The names are borrowed. */
int tls_create(struct tls **out, const char *certificate_file, const char *key_file,
               struct error *err);
/* Reads both files again, for connections from now on.  On failure the former ones are kept. */
int tls_reload(struct tls *tls, struct error *err);
/* Begins a session on the accepted socket, which is taken in any case.  Returns the transport's end
 * of a pair, non-blocking, or -1. */
int tls_accept(struct tls *tls, int fd);
/* Ends the thread once every session has ended, or after two seconds.  NULL is allowed. */
void tls_destroy(struct tls *tls);

#endif
