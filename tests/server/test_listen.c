/* test_listen.c - names with several addresses, some of which this machine does not have.
 *
 * getaddrinfo is defined here, so the names have what the test says. */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/error.h"
#include "server/http/listen.h"
#include "tests/test.h"

/* What the name has: up to 8 addresses, NULL after the last one. */
static const char *const *addresses;

struct found {
    struct addrinfo info; /* first: freeaddrinfo gets it */
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } address;
};

int getaddrinfo(const char *restrict name, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict out) {
    (void)service, (void)hints;
    if (strcmp(name, "unknown") == 0 || !addresses) return EAI_NONAME;
    struct addrinfo **last = out;
    for (size_t i = 0; addresses[i]; i++) {
        struct found *one = calloc(1, sizeof(*one));
        assert_non_null(one);
        const bool is_v4 = inet_pton(AF_INET, addresses[i], &one->address.v4.sin_addr) == 1;
        if (!is_v4)
            assert_int_equal(inet_pton(AF_INET6, addresses[i], &one->address.v6.sin6_addr), 1);
        one->address.any.sa_family = is_v4 ? AF_INET : AF_INET6;
        one->info.ai_family = one->address.any.sa_family;
        one->info.ai_addr = &one->address.any;
        one->info.ai_addrlen = is_v4 ? sizeof(one->address.v4) : sizeof(one->address.v6);
        *last = &one->info;
        last = &one->info.ai_next;
    }
    return 0;
}

void freeaddrinfo(struct addrinfo *all) {
    for (struct addrinfo *next; all; all = next) {
        next = all->ai_next;
        free(all);
    }
}

static int open_named(const char *name, const char *const *list, int fds[LISTEN_MAX], size_t *n,
                      uint16_t *port, struct error *err) {
    addresses = list;
    return listen_open(fds, n, name, port, err);
}

static int open_on(const char *const *list, int fds[LISTEN_MAX], size_t *n, uint16_t *port,
                   struct error *err) {
    addresses = list;
    return listen_open(fds, n, "name", port, err);
}

static void close_all(const int *fds, size_t n) {
    for (size_t i = 0; i < n; i++) close(fds[i]);
}

static bool has_ipv6(void) {
    int fds[LISTEN_MAX];
    size_t n;
    uint16_t port = 0;
    struct error err;
    if (open_on((const char *const[]){"::1", NULL}, fds, &n, &port, &err)) return false;
    close_all(fds, n);
    return true;
}

static bool answers(const char *address, uint16_t port) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    const bool is_v4 = inet_pton(AF_INET, address, &v4.sin_addr) == 1;
    if (!is_v4) inet_pton(AF_INET6, address, &v6.sin6_addr);
    const int fd = socket(is_v4 ? AF_INET : AF_INET6, SOCK_STREAM, 0);
    const int rc = is_v4 ? connect(fd, (struct sockaddr *)&v4, sizeof(v4))
                         : connect(fd, (struct sockaddr *)&v6, sizeof(v6));
    close(fd);
    return rc == 0;
}

TEST(every_address_of_a_name_is_listened_on) {
    static const char *const both[] = {"::1", "127.0.0.1", NULL};
    static const char *const three[] = {"127.0.0.1", "127.0.0.2", "127.0.0.1", "127.0.0.3", NULL};
    int fds[LISTEN_MAX];
    size_t n;
    uint16_t port = 0;
    struct error err;
    if (has_ipv6()) {
        assert_int_equal(open_on(both, fds, &n, &port, &err), 0);
        assert_int_equal(n, 2);
        assert_true(port > 0 && answers("::1", port) && answers("127.0.0.1", port));
        assert_true(listen_is_loopback(fds[0]) && listen_is_loopback(fds[1]));
        close_all(fds, n);
    }
    port = 0;
    assert_int_equal(open_on(three, fds, &n, &port, &err), 0);
    assert_int_equal(n, 3); /* one is repeated */
    assert_true(answers("127.0.0.1", port) && answers("127.0.0.3", port));
    close_all(fds, n);
}

/* Whatever the file of names has, or where there is none. */
TEST(localhost_is_the_loopback_address) {
    static const char *const v6[] = {"::1", NULL}, *const v4[] = {"127.0.0.1", NULL};
    static const char *const *const lists[] = {v6, v4, NULL};
    int fds[LISTEN_MAX];
    size_t n;
    struct error err;
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists); i++) {
        uint16_t port = 0;
        assert_int_equal(open_named("LocalHost", lists[i], fds, &n, &port, &err), 0);
        assert_true(answers("127.0.0.1", port));
        assert_int_equal(n, lists[i] == v6 && has_ipv6() ? 2 : 1);
        close_all(fds, n);
    }
}

/* An address of a documentation's net is on no machine. */
TEST(addresses_that_the_machine_lacks_are_left_out) {
    static const char *const some[] = {"192.0.2.1", "2001:db8::1", "127.0.0.1", NULL};
    static const char *const none[] = {"192.0.2.1", "2001:db8::1", NULL};
    int fds[LISTEN_MAX];
    size_t n;
    uint16_t port = 0;
    struct error err;
    assert_int_equal(open_on(some, fds, &n, &port, &err), 0);
    assert_int_equal(n, 1);
    assert_true(answers("127.0.0.1", port));
    close_all(fds, n);
    port = 0;
    assert_int_equal(open_on(none, fds, &n, &port, &err), ERR_IO);
    assert_non_null(strstr(err.text, "--host name is no address of this machine"));
    assert_int_equal(listen_open(fds, &n, "unknown", &port, &err), ERR_INVALID);
    assert_non_null(strstr(err.text, "--host 'unknown'"));
}

TEST(a_port_that_is_taken_is_named) {
    static const char *const one[] = {"127.0.0.2", NULL}, *const two[] = {"127.0.0.1", "127.0.0.2",
                                                                          NULL};
    int fds[LISTEN_MAX], others[LISTEN_MAX];
    size_t n, n_others;
    uint16_t port = 0;
    struct error err;
    assert_int_equal(open_on(one, fds, &n, &port, &err), 0);
    const uint16_t taken = port;
    assert_int_equal(open_on(two, others, &n_others, &port, &err), ERR_IO);
    assert_non_null(strstr(err.text, "is in use by another program"));
    assert_non_null(strstr(err.text, "--port"));
    assert_false(answers("127.0.0.1", taken)); /* nothing is left open */
    port = 0;
    assert_int_equal(open_on(two, others, &n_others, &port, &err), 0);
    assert_int_equal(n_others, 2);
    assert_int_not_equal(port, taken);
    close_all(others, n_others);
    close_all(fds, n);
}

TEST(what_others_reach_is_no_loopback) {
    static const char *const any[] = {"0.0.0.0", NULL};
    int fds[LISTEN_MAX];
    size_t n;
    uint16_t port = 0;
    struct error err;
    assert_int_equal(open_on(any, fds, &n, &port, &err), 0);
    assert_false(listen_is_loopback(fds[0]));
    close_all(fds, n);
}
