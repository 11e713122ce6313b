/* listen.c - see listen.h. */
#define _GNU_SOURCE /* SOCK_NONBLOCK */

#include "server/http/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/error.h"

/* A port that is free on one address may be taken on another, so any free one is tried again. */
enum { BACKLOG = 1024, TRIES = 16 };

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_storage
        storage; /* zero behind what is used, so that all of it can be compared */
};

/* The addresses of a name, each once. */
struct addresses {
    union address all[LISTEN_MAX];
    size_t n;
};

/* Sets the port, which is at the same offset in both families. */
static void set_port(union address *address, uint16_t port) {
    address->v4.sin_port = htons(port);
}

/* Opens a listener on the address.  Returns its descriptor, or -1 with errno. */
static int open_one(const union address *address, bool has_others) {
    const socklen_t size =
        address->any.sa_family == AF_INET ? sizeof(address->v4) : sizeof(address->v6);
    const int on = 1;
    const int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    /* Where a name has both families, its address of IPv6 must not take those of IPv4. */
    const bool is_apart = has_others && address->any.sa_family == AF_INET6;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        (!is_apart || setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) == 0) &&
        bind(fd, &address->any, size) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

static uint16_t port_of(int fd) {
    union address address = {.storage = {0}};
    socklen_t size = sizeof(address);
    return getsockname(fd, &address.any, &size) == 0 ? ntohs(address.v4.sin_port) : 0;
}

static void add(struct addresses *to, const struct sockaddr *one, socklen_t size) {
    union address address = {.storage = {0}};
    if (size > sizeof(address) || to->n == LISTEN_MAX) return;
    memcpy(&address, one, size);
    for (size_t i = 0; i < to->n; i++)
        if (memcmp(&to->all[i], &address, sizeof(address)) == 0) return;
    to->all[to->n++] = address;
}

/* Finds the addresses of a name.  Returns 0, or getaddrinfo's error.  localhost is 127.0.0.1 in any
 * case (RFC 6761, 6.3): files of names have it for ::1 alone, or are missing in a bare
 * container. */
static int resolve(struct addresses *out, const char *host) {
    const struct sockaddr_in loopback = {.sin_family = AF_INET,
                                         .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    const bool is_local = strcasecmp(host, "localhost") == 0;
    struct addrinfo *all = NULL;
    out->n = 0;
    const int failure = getaddrinfo(host, NULL, &hints, &all);
    if (failure && !is_local) return failure;
    for (const struct addrinfo *at = all; at; at = at->ai_next)
        if (at->ai_family == AF_INET || at->ai_family == AF_INET6)
            add(out, at->ai_addr, at->ai_addrlen);
    if (is_local) add(out, (const struct sockaddr *)&loopback, sizeof(loopback));
    if (all) freeaddrinfo(all);
    return 0;
}

/* Tells whether an address is none of this machine's, as IPv6 where it is switched off. */
static bool is_absent(int why) {
    return why == EADDRNOTAVAIL || why == EAFNOSUPPORT;
}

static void close_all(const int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) close(fds[i]);
}

/* Listens on all of the addresses that there are.  Returns 0, or errno. */
static int open_all(int fds[LISTEN_MAX], size_t *n, const struct addresses *from, uint16_t *port) {
    int absent = EADDRNOTAVAIL;
    *n = 0;
    for (size_t i = 0; i < from->n; i++) {
        union address address = from->all[i];
        set_port(&address, *port);
        const int fd = open_one(&address, from->n > 1);
        if (fd < 0 && is_absent(errno)) {
            absent = errno;
        } else if (fd < 0) {
            const int why = errno;
            close_all(fds, *n);
            return why;
        } else {
            fds[(*n)++] = fd;
            *port = port_of(fd);
        }
    }
    return *n ? 0 : absent;
}

static int refuse(const char *host, uint16_t port, int why, struct error *err) {
    if (why == EADDRINUSE)
        return error_set(err, ERR_IO,
                         "port %u of %.200s is in use by another program: name another one with "
                         "--port (0: any free one)",
                         port, host);
    if (why == EACCES)
        return error_set(err, ERR_IO,
                         "port %u of %.200s: %s: ports below 1024 may be reserved for root; name "
                         "another one with --port",
                         port, host, strerror(why));
    if (is_absent(why))
        return error_set(err, ERR_IO, "--host %.200s is no address of this machine (%s)", host,
                         strerror(why));
    return error_set(err, ERR_IO, "listening on %.200s port %u: %s", host, port, strerror(why));
}

int listen_open(int fds[LISTEN_MAX], size_t *n, const char *host, uint16_t *port,
                struct error *err) {
    struct addresses addresses;
    const int failure = resolve(&addresses, host);
    if (failure)
        return error_set(err, ERR_INVALID,
                         "--host '%.200s': %s; it must be a name or an address of this machine, "
                         "without a port",
                         host, gai_strerror(failure));
    uint16_t chosen = *port;
    int why = open_all(fds, n, &addresses, &chosen);
    for (int i = 1; why == EADDRINUSE && *port == 0 && i < TRIES; i++) {
        chosen = 0;
        why = open_all(fds, n, &addresses, &chosen);
    }
    if (why) return refuse(host, *port, why, err);
    *port = chosen;
    return 0;
}

bool listen_is_loopback(int fd) {
    union address address = {.storage = {0}};
    socklen_t size = sizeof(address);
    if (getsockname(fd, &address.any, &size) != 0) return false;
    if (address.any.sa_family == AF_UNIX) return true;
    if (address.any.sa_family == AF_INET) return ntohl(address.v4.sin_addr.s_addr) >> 24 == 127;
    const struct in6_addr *v6 = &address.v6.sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}
