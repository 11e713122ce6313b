/* http_client.c - see http_client.h. */
#include "server/http/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"

enum {
    HEAD_BYTES = 2048,
    LINE_BYTES = 256,
    PORT_BYTES = 8,
    ANSWER_HEAD_BYTES = 16 << 10, /* a longer head is none of an API's */
};

struct http_client_trust {
    gnutls_certificate_credentials_t credentials;
    bool checks; /* the server's certificate */
};

/* A connection; with TLS gnutls is not NULL. */
struct link {
    const struct http_client_request *request;
    int fd;
    gnutls_session_t gnutls;
};

static int refuse(const struct http_client_request *request, const char *why, struct error *err) {
    return error_set(err, ERR_IO, "%.200s port %u: %.200s", request->host, request->port, why);
}

/* ---- trust ---- */

int http_client_trust_create_any(struct http_client_trust **out, struct error *err) {
    struct http_client_trust *trust = calloc(1, sizeof(*trust));
    if (!trust || gnutls_certificate_allocate_credentials(&trust->credentials) < 0) {
        free(trust);
        return error_set(err, ERR_NOMEM, "no memory for TLS");
    }
    *out = trust;
    return 0;
}

int http_client_trust_create(struct http_client_trust **out, const char *ca_file,
                             struct error *err) {
    struct http_client_trust *trust;
    int rc = http_client_trust_create_any(&trust, err);
    if (rc) return rc;
    trust->checks = true;
    /* Both return how many they have read. */
    const int n = ca_file ? gnutls_certificate_set_x509_trust_file(trust->credentials, ca_file,
                                                                   GNUTLS_X509_FMT_PEM)
                          : gnutls_certificate_set_x509_system_trust(trust->credentials);
    const char *why = n < 0 ? gnutls_strerror(n) : "it has no certificate";
    if (n > 0) {
        *out = trust;
        return 0;
    }
    http_client_trust_destroy(trust);
    if (ca_file) return error_set(err, ERR_INVALID, "%.200s: %s", ca_file, why);
    return error_set(err, ERR_INVALID, "the system's store of certificates: %s", why);
}

void http_client_trust_destroy(struct http_client_trust *trust) {
    if (!trust) return;
    gnutls_certificate_free_credentials(trust->credentials);
    free(trust);
}

/* ---- a connection ---- */

static bool set_waits(int fd, unsigned wait_s) {
    const struct timeval wait = {.tv_sec = wait_s};
    return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait)) == 0;
}

static unsigned open_seconds(const struct http_client_request *request) {
    return request->open_s ? request->open_s : request->wait_s;
}

static bool is_stopped(const struct http_client_request *request) {
    return request->stop && *request->stop;
}

static int connect_to(const struct addrinfo *address, const struct http_client_request *request) {
    const int fd =
        socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (fd < 0) return -1;
    if (set_waits(fd, open_seconds(request)) &&
        connect(fd, address->ai_addr, address->ai_addrlen) == 0 && set_waits(fd, request->wait_s))
        return fd;
    const int why = errno == EINPROGRESS ? ETIMEDOUT : errno; /* what SO_SNDTIMEO makes of it */
    close(fd);
    errno = why;
    return -1;
}

static int open_socket(struct link *link, struct error *err) {
    const struct http_client_request *request = link->request;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *addresses = NULL;
    char port[PORT_BYTES];
    if (request->fd) {
        link->fd = request->fd;
        return set_waits(link->fd, request->wait_s) ? 0 : refuse(request, strerror(errno), err);
    }
    snprintf(port, sizeof(port), "%" PRIu16, request->port);
    const int status = getaddrinfo(request->host, port, &hints, &addresses);
    if (status) return refuse(request, gai_strerror(status), err);
    for (const struct addrinfo *one = addresses; one && link->fd < 0 && !is_stopped(request);
         one = one->ai_next)
        link->fd = connect_to(one, request);
    const int why = errno;
    freeaddrinfo(addresses);
    return link->fd < 0 ? refuse(request, strerror(why), err) : 0;
}

/* Tells GnuTLS which name or address the certificate must be for.  The handshake says the name,
 * too; it has no place for an address. */
static int expect_host(struct link *link) {
    const char *host = link->request->host;
    unsigned char address[sizeof(struct in6_addr)];
    const bool is_address =
        inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
    gnutls_session_set_verify_cert(link->gnutls, host, 0);
    return is_address ? 0
                      : gnutls_server_name_set(link->gnutls, GNUTLS_NAME_DNS, host, strlen(host));
}

/* Says what is wrong with the server's certificate. */
static int refuse_certificate(struct link *link, struct error *err) {
    gnutls_datum_t said = {0};
    const unsigned status = gnutls_session_get_verify_cert_status(link->gnutls);
    if (gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &said, 0) < 0)
        return refuse(link->request, "its certificate is not trusted", err);
    char *text = (char *)said.data;
    for (size_t n = strlen(text); n > 0 && text[n - 1] == ' '; n--) text[n - 1] = 0;
    refuse(link->request, text, err);
    gnutls_free(text);
    return ERR_IO;
}

static int begin_tls(struct link *link, struct error *err) {
    const struct http_client_trust *trust = link->request->trust;
    int status = gnutls_init(&link->gnutls, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL);
    if (status >= 0) status = gnutls_set_default_priority(link->gnutls);
    if (status >= 0)
        status = gnutls_credentials_set(link->gnutls, GNUTLS_CRD_CERTIFICATE, trust->credentials);
    if (status >= 0 && trust->checks) status = expect_host(link);
    if (status < 0) return refuse(link->request, gnutls_strerror(status), err);
    gnutls_transport_set_int(link->gnutls, link->fd);
    gnutls_handshake_set_timeout(link->gnutls, 1000 * open_seconds(link->request));
    do status = gnutls_handshake(link->gnutls);
    while (status < 0 && !gnutls_error_is_fatal(status) && !is_stopped(link->request));
    if (status == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR) return refuse_certificate(link, err);
    return status < 0 ? refuse(link->request, gnutls_strerror(status), err) : 0;
}

static void link_close(struct link *link) {
    if (link->gnutls) gnutls_deinit(link->gnutls);
    if (link->fd >= 0) close(link->fd);
}

/* Tells whether a step that returned `got` is to be repeated.  Nothing has failed then, and the
 * request can be stopped, but is not. */
static bool waits_on(const struct link *link, ssize_t got) {
    const bool may_come = link->gnutls ? got < 0 && !gnutls_error_is_fatal((int)got)
                                       : got < 0 && (errno == EAGAIN || errno == EINTR);
    return may_come && link->request->stop && !*link->request->stop;
}

static bool link_send(struct link *link, const char *data, size_t n) {
    while (n > 0) {
        const ssize_t sent = link->gnutls ? gnutls_record_send(link->gnutls, data, n)
                                          : send(link->fd, data, n, MSG_NOSIGNAL);
        if (waits_on(link, sent)) continue;
        if (sent <= 0) return false;
        data += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* Returns 0 at the end, and a negative number when nothing comes in time. */
static ssize_t link_read(struct link *link, char *data, size_t n) {
    if (!link->gnutls) return recv(link->fd, data, n, 0);
    /* GnuTLS says "again" also after records of its own, such as a session's ticket. */
    const double until_s = clock_seconds() + link->request->wait_s;
    ssize_t got;
    do got = gnutls_record_recv(link->gnutls, data, n);
    while (got < 0 && !gnutls_error_is_fatal((int)got) && clock_seconds() < until_s);
    return got;
}

/* Reads up to the first line end, or as much as comes. */
static void link_read_line(struct link *link, char line[LINE_BYTES]) {
    size_t n = 0;
    for (ssize_t more = 1; more > 0 && n + 1 < LINE_BYTES && !memchr(line, '\n', n);) {
        more = link_read(link, line + n, LINE_BYTES - 1 - n);
        if (more > 0) n += (size_t)more;
    }
    line[n] = 0;
}

/* ---- a request ---- */

/* Returns the length of the request's head, or 0 when it is too long.  An answer of version 1.0 is
 * not cut into chunks. */
static size_t write_head(char head[HEAD_BYTES], const struct http_client_request *request,
                         const char *version) {
    char length[96] = "";
    if (request->body)
        snprintf(length, sizeof(length),
                 "Content-Type: application/json\r\nContent-Length: %zu\r\n", request->n_body);
    const char *key = request->key;
    const int n =
        snprintf(head, HEAD_BYTES, "%s %s HTTP/%s\r\nHost: %s\r\n%s%s%s%sConnection: close\r\n\r\n",
                 request->body ? "POST" : "GET", request->path, version, request->authority,
                 key ? "Authorization: Bearer " : "", key ? key : "", key ? "\r\n" : "", length);
    return n < HEAD_BYTES ? (size_t)n : 0;
}

static int send_request(struct link *link, const char *version, struct error *err) {
    const struct http_client_request *request = link->request;
    char head[HEAD_BYTES];
    const size_t n_head = write_head(head, request, version);
    if (!n_head) return refuse(request, "its name, path and key are too long", err);
    if (!link_send(link, head, n_head) ||
        (request->body && !link_send(link, request->body, request->n_body)))
        return refuse(request, "it takes no request", err);
    return 0;
}

static int read_status(unsigned *status, const struct link *link, const char *line,
                       struct error *err) {
    if (sscanf(line, "HTTP/1.%*1[01] %3u", status) == 1) return 0;
    return refuse(link->request, line[0] ? "what answers does not speak HTTP" : "no answer", err);
}

static int open_link(struct link *link, struct error *err) {
    const int rc = open_socket(link, err);
    return rc || !link->request->trust ? rc : begin_tls(link, err);
}

int http_client_ask(unsigned *status, const struct http_client_request *request,
                    struct error *err) {
    struct link link = {.request = request, .fd = -1};
    char line[LINE_BYTES];
    int rc = open_link(&link, err);
    if (!rc) rc = send_request(&link, "1.1", err);
    if (!rc) {
        link_read_line(&link, line);
        rc = read_status(status, &link, line, err);
    }
    link_close(&link);
    return rc;
}

/* ---- a whole answer ---- */

/* Reads as link_read() does, and waits on as long as *stop is 0, if there is one. */
static ssize_t read_on(struct link *link, char *data, size_t n) {
    ssize_t got;
    do got = link_read(link, data, n);
    while (waits_on(link, got));
    return got;
}

/* Reads the head of the answer, and what has come with it of the body.  Returns where that begins,
 * or 0 where the head does not end. */
static size_t read_head(struct link *link, char data[ANSWER_HEAD_BYTES + 1], size_t *length) {
    *length = 0;
    for (ssize_t more = 1; more > 0 && *length < ANSWER_HEAD_BYTES;) {
        more = read_on(link, data + *length, ANSWER_HEAD_BYTES - *length);
        if (more > 0) *length += (size_t)more;
        data[*length] = 0;
        const char *end = strstr(data, "\r\n\r\n");
        if (end) return (size_t)(end - data) + 4;
    }
    return 0;
}

static int read_answer(unsigned *status, struct link *link, http_client_take take, void *ctx,
                       struct error *err) {
    const struct http_client_request *request = link->request;
    char data[ANSWER_HEAD_BYTES + 1];
    size_t length;
    const size_t begin = read_head(link, data, &length);
    int rc = 0;
    if (!is_stopped(request)) rc = read_status(status, link, data, err);
    if (!rc && !begin && !is_stopped(request)) rc = refuse(request, "no whole answer", err);
    if (rc) return rc;
    ssize_t n = begin ? (ssize_t)(length - begin) : 0;
    bool goes_on = begin && (n == 0 || take(ctx, data + begin, (size_t)n));
    while (goes_on && (n = read_on(link, data, ANSWER_HEAD_BYTES)) > 0)
        goes_on = take(ctx, data, (size_t)n);
    return goes_on && n < 0 ? refuse(request, "the answer breaks off", err) : 0;
}

int http_client_read(unsigned *status, const struct http_client_request *request,
                     http_client_take take, void *ctx, struct error *err) {
    struct link link = {.request = request, .fd = -1};
    int rc = open_link(&link, err);
    if (!rc) rc = send_request(&link, "1.0", err);
    if (!rc) rc = read_answer(status, &link, take, ctx, err);
    link_close(&link);
    return is_stopped(request) ? error_set(err, ERR_STOPPED, "stopped") : rc;
}
