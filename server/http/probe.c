/* probe.c - see probe.h. */
#include "server/http/probe.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/base/error.h"

enum { REQUEST_BYTES = 256, LINE_BYTES = 256, PORT_BYTES = 8 };

/* A connection; with TLS gnutls is not NULL. */
struct link {
    int fd;
    gnutls_session_t gnutls;
    gnutls_certificate_credentials_t credentials;
};

static int refuse(const struct probe *probe, const char *why, struct error *err) {
    return error_set(err, ERR_IO, "%.200s port %u: %.200s", probe->host, probe->port, why);
}

static int connect_to(const struct addrinfo *address) {
    const struct timeval wait = {.tv_sec = PROBE_WAIT_S};
    const int fd =
        socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (fd < 0) return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) == 0 &&
        connect(fd, address->ai_addr, address->ai_addrlen) == 0)
        return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int open_socket(int *out, const struct probe *probe, struct error *err) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    char port[PORT_BYTES];
    snprintf(port, sizeof(port), "%" PRIu16, probe->port);
    const int status = getaddrinfo(probe->host, port, &hints, &addresses);
    if (status) return refuse(probe, gai_strerror(status), err);
    int fd = -1;
    for (const struct addrinfo *one = addresses; one && fd < 0; one = one->ai_next)
        fd = connect_to(one);
    const int why = errno;
    freeaddrinfo(addresses);
    if (fd < 0) return refuse(probe, strerror(why), err);
    *out = fd;
    return 0;
}

static int begin_tls(struct link *link, const struct probe *probe, struct error *err) {
    int status = gnutls_certificate_allocate_credentials(&link->credentials);
    if (status >= 0) status = gnutls_init(&link->gnutls, GNUTLS_CLIENT);
    if (status >= 0) status = gnutls_set_default_priority(link->gnutls);
    if (status >= 0)
        status = gnutls_credentials_set(link->gnutls, GNUTLS_CRD_CERTIFICATE, link->credentials);
    if (status < 0) return refuse(probe, gnutls_strerror(status), err);
    gnutls_transport_set_int(link->gnutls, link->fd);
    gnutls_handshake_set_timeout(link->gnutls, 1000 * PROBE_WAIT_S);
    do status = gnutls_handshake(link->gnutls);
    while (status < 0 && !gnutls_error_is_fatal(status));
    return status < 0 ? refuse(probe, gnutls_strerror(status), err) : 0;
}

static void link_close(struct link *link) {
    if (link->gnutls) gnutls_deinit(link->gnutls);
    if (link->credentials) gnutls_certificate_free_credentials(link->credentials);
    if (link->fd >= 0) close(link->fd);
}

static bool link_send(struct link *link, const char *text) {
    const ssize_t n = (ssize_t)strlen(text);
    return link->gnutls ? gnutls_record_send(link->gnutls, text, (size_t)n) == n
                        : send(link->fd, text, (size_t)n, MSG_NOSIGNAL) == n;
}

/* Reads up to the first line end, or as much as comes. */
static void link_read_line(struct link *link, char line[LINE_BYTES]) {
    size_t n = 0;
    for (ssize_t more = 1; more > 0 && n + 1 < LINE_BYTES && !memchr(line, '\n', n);) {
        const size_t room = LINE_BYTES - 1 - n;
        more = link->gnutls ? gnutls_record_recv(link->gnutls, line + n, room)
                            : recv(link->fd, line + n, room, 0);
        if (more > 0) n += (size_t)more;
    }
    line[n] = 0;
}

static int exchange(unsigned *status, struct link *link, const struct probe *probe,
                    struct error *err) {
    char request[REQUEST_BYTES], line[LINE_BYTES];
    snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n", probe->path);
    if (!link_send(link, request)) return refuse(probe, "it takes no request", err);
    link_read_line(link, line);
    if (sscanf(line, "HTTP/1.%*1[01] %3u", status) == 1) return 0;
    return refuse(probe, line[0] ? "what answers does not speak HTTP" : "no answer", err);
}

int probe_ask(unsigned *status, const struct probe *probe, struct error *err) {
    struct link link = {.fd = -1};
    int rc = open_socket(&link.fd, probe, err);
    if (!rc && probe->tls) rc = begin_tls(&link, probe, err);
    if (!rc) rc = exchange(status, &link, probe, err);
    link_close(&link);
    return rc;
}
