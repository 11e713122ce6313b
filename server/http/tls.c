/* tls.c - the thread: it carries bytes between a session's two sockets.
 *
 * A session moves on whenever one of its sockets is ready, as far as it can (session_run), and then
 * waits for what it lacks.  When one side ends, the other is told once everything has been passed
 * on.  The transport enforces all deadlines by closing its end; only a client that does not take
 * the last bytes is this thread's matter (FLUSH_S).
 *
 * The thread has its own epoll set, and no uv loop: loop_memory.c serves only one.
 *
 * Thread: its own, but for tls.h's functions, which reach it through the mailbox.  Memory: a
 * session that has ended is freed once the events that were taken with its own have been seen. */
#define _GNU_SOURCE /* SOCK_NONBLOCK */

#include "server/http/tls.h"

#include <errno.h>
#include <gnutls/gnutls.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/error.h"
#include "engine/base/mailbox.h"
#include "engine/base/thread.h"

enum {
    RECORD = 16384, /* a record's largest payload */
    FLUSH_S = 30,   /* for the client to take some of what is left */
    END_S = 2,      /* for all sessions to end with the thread */
};

static const char priorities[] = "NORMAL:-VERS-TLS1.0:-VERS-TLS1.1:%SERVER_PRECEDENCE";

/* A certificate with its key; freed with its last session after it was replaced. */
struct identity {
    gnutls_certificate_credentials_t credentials;
    unsigned n_users; /* under tls->lock */
};

/* Bytes on their way: data[start, end). */
struct passage {
    size_t start, end;
    bool ended;   /* the source has no more */
    bool told;    /* so has the destination been told */
    bool blocked; /* the destination takes none now */
    char data[RECORD];
};

/* One of a session's two sockets, in the epoll set. */
struct end {
    struct session *session;
    int fd;
    uint32_t events; /* that are waited for */
};

struct session {
    struct session *next_arrived; /* first: mailbox.h */
    struct session *prev, *next;
    struct tls *tls;
    struct identity *identity;
    gnutls_session_t gnutls;
    struct end net, plain;
    struct passage in, out;
    unsigned idle_s; /* ticks since the transport ended or the client took something */
    bool is_open;    /* the handshake is done */
    bool is_over;
};

struct tls {
    const char *certificate_file, *key_file;
    pthread_mutex_t lock; /* of the identity, and of all counts of users */
    struct identity *identity;
    pthread_t thread;
    int epoll, wake; /* wake: an eventfd, in the set with data NULL */
    struct mailbox arrived;
    struct session *sessions, *ended; /* the thread's, like the next two */
    double tick_s;                    /* the next one, of clock_seconds() */
    unsigned end_s;
    bool stops; /* under the lock */
};

/* ---- identities ---- */

static int load_identity(struct identity **out, const struct tls *tls, struct error *err) {
    struct identity *identity = calloc(1, sizeof(*identity));
    if (!identity || gnutls_certificate_allocate_credentials(&identity->credentials) < 0) {
        free(identity);
        return error_set(err, ERR_NOMEM, "no memory for a TLS certificate");
    }
    const int status = gnutls_certificate_set_x509_key_file(
        identity->credentials, tls->certificate_file, tls->key_file, GNUTLS_X509_FMT_PEM);
    if (status < 0) {
        gnutls_certificate_free_credentials(identity->credentials);
        free(identity);
        return error_set(err, ERR_INVALID, "TLS certificate %.160s with key %.160s: %s",
                         tls->certificate_file, tls->key_file, gnutls_strerror(status));
    }
    identity->n_users = 1;
    *out = identity;
    return 0;
}

static void leave_identity(struct tls *tls, struct identity *identity) {
    if (!identity) return;
    pthread_mutex_lock(&tls->lock);
    const bool is_last = --identity->n_users == 0;
    pthread_mutex_unlock(&tls->lock);
    if (!is_last) return;
    gnutls_certificate_free_credentials(identity->credentials);
    free(identity);
}

static struct identity *use_identity(struct tls *tls) {
    pthread_mutex_lock(&tls->lock);
    struct identity *identity = tls->identity;
    identity->n_users++;
    pthread_mutex_unlock(&tls->lock);
    return identity;
}

int tls_reload(struct tls *tls, struct error *err) {
    struct identity *fresh;
    const int rc = load_identity(&fresh, tls, err);
    if (rc) return rc;
    pthread_mutex_lock(&tls->lock);
    struct identity *former = tls->identity;
    tls->identity = fresh;
    pthread_mutex_unlock(&tls->lock);
    leave_identity(tls, former);
    return 0;
}

/* ---- a session's bytes ---- */

static bool is_empty(const struct passage *p) {
    return p->start == p->end;
}

/* Tells whether to try again when the socket is ready, as the set says again after a signal. */
static bool would_block(ssize_t n) {
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

static bool would_block_tls(ssize_t n) {
    return n == GNUTLS_E_AGAIN || n == GNUTLS_E_INTERRUPTED;
}

static void filled(struct passage *p, size_t n) {
    p->start = 0;
    p->end = n;
}

/* Takes decrypted bytes.  Returns whether there is something new. */
static bool read_client(struct session *s) {
    ssize_t n;
    if (!is_empty(&s->in) || s->in.ended) return false;
    do n = gnutls_record_recv(s->gnutls, s->in.data, RECORD);
    while (n < 0 && !would_block_tls(n) && !gnutls_error_is_fatal((int)n));
    if (would_block_tls(n)) return false;
    if (n > 0) filled(&s->in, (size_t)n);
    /* Many clients close without the alert that TLS wants; only the whole request counts. */
    else s->in.ended = true;
    return true;
}

static bool write_transport(struct session *s) {
    struct passage *in = &s->in;
    in->blocked = false;
    if (is_empty(in)) {
        if (!in->ended || in->told) return false;
        in->told = true;
        shutdown(s->plain.fd, SHUT_WR);
        return true;
    }
    const ssize_t n = send(s->plain.fd, in->data + in->start, in->end - in->start, MSG_NOSIGNAL);
    in->blocked = would_block(n);
    if (n > 0) {
        in->start += (size_t)n;
    } else if (!in->blocked) {
        /* The transport is gone, or must not wait for what is lost here: `out` ends, too. */
        in->start = in->end;
        shutdown(s->plain.fd, SHUT_WR);
    }
    return n > 0;
}

static bool read_transport(struct session *s) {
    if (!is_empty(&s->out) || s->out.ended) return false;
    const ssize_t n = recv(s->plain.fd, s->out.data, RECORD, 0);
    if (would_block(n)) return false;
    if (n > 0) filled(&s->out, (size_t)n);
    else s->out.ended = true;
    return true;
}

/* Sends bytes to the client, or the end. */
static bool write_client(struct session *s) {
    struct passage *out = &s->out;
    ssize_t n = 0;
    out->blocked = false;
    if (is_empty(out)) {
        if (!out->ended || out->told) return false;
        n = gnutls_bye(s->gnutls, GNUTLS_SHUT_WR);
        out->blocked = would_block_tls(n);
        out->told = !out->blocked;
        return out->told;
    }
    n = gnutls_record_send(s->gnutls, out->data + out->start, out->end - out->start);
    out->blocked = would_block_tls(n);
    if (n > 0) {
        out->start += (size_t)n;
        s->idle_s = 0;
    } else if (!out->blocked) {
        s->is_over = true;
    }
    return n > 0;
}

static void shake_hands(struct session *s) {
    int status;
    do status = gnutls_handshake(s->gnutls);
    while (status < 0 && !would_block_tls(status) && !gnutls_error_is_fatal(status));
    s->is_open = status == 0;
    if (status < 0 && !would_block_tls(status)) s->is_over = true;
}

/* Passes on what can be passed on. */
static void pass(struct session *s) {
    bool moves = true;
    while (moves && !s->is_over) {
        moves = read_client(s);
        moves |= write_transport(s);
        moves |= read_transport(s);
        moves |= write_client(s);
    }
    if (s->out.told) s->is_over = true; /* the transport has ended, and the client has it all */
}

/* ---- a session's life ---- */

static void session_free(struct session *s) {
    if (s->net.fd >= 0) close(s->net.fd);
    if (s->plain.fd >= 0) close(s->plain.fd);
    if (s->gnutls) gnutls_deinit(s->gnutls);
    leave_identity(s->tls, s->identity);
    free(s);
}

static void session_end(struct session *s) {
    struct tls *tls = s->tls;
    if (s->prev) s->prev->next = s->next;
    else tls->sessions = s->next;
    if (s->next) s->next->prev = s->prev;
    shutdown(s->net.fd, SHUT_WR);
    shutdown(s->plain.fd, SHUT_RDWR); /* the transport learns it at once */
    (void)epoll_ctl(tls->epoll, EPOLL_CTL_DEL, s->net.fd, NULL);
    (void)epoll_ctl(tls->epoll, EPOLL_CTL_DEL, s->plain.fd, NULL);
    s->is_over = true;
    s->next = tls->ended;
    tls->ended = s;
}

static void wait_for(struct end *end, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = end};
    if (events == end->events) return;
    end->events = events;
    (void)epoll_ctl(end->session->tls->epoll, EPOLL_CTL_MOD, end->fd, &event);
}

static uint32_t events_of(bool reads, bool writes) {
    return (reads ? EPOLLIN : 0u) | (writes ? EPOLLOUT : 0u);
}

static bool has_room(const struct passage *p) {
    return is_empty(p) && !p->ended;
}

/* Waits for what the session lacks.  Before the handshake is done the transport may give up. */
static void wait_further(struct session *s) {
    if (!s->is_open) {
        const bool writes = gnutls_record_get_direction(s->gnutls) == 1;
        wait_for(&s->net, events_of(!writes, writes));
        wait_for(&s->plain, EPOLLRDHUP);
        return;
    }
    wait_for(&s->net, events_of(has_room(&s->in), s->out.blocked));
    wait_for(&s->plain, events_of(has_room(&s->out), s->in.blocked));
}

static void session_run(struct session *s) {
    if (!s->is_open && !s->is_over) shake_hands(s);
    if (s->is_open) pass(s);
    if (s->is_over) session_end(s);
    else wait_further(s);
}

static void ready(struct end *end) {
    struct session *s = end->session;
    if (s->is_over) return; /* it ended by an event before this one */
    s->is_over = !s->is_open && end == &s->plain;
    session_run(s);
}

static bool enter_set(struct end *end) {
    struct epoll_event event = {.data.ptr = end};
    return epoll_ctl(end->session->tls->epoll, EPOLL_CTL_ADD, end->fd, &event) == 0;
}

static void session_start(struct session *s) {
    struct tls *tls = s->tls;
    s->next = tls->sessions;
    if (s->next) s->next->prev = s;
    tls->sessions = s;
    s->is_over = !enter_set(&s->net) || !enter_set(&s->plain);
    session_run(s);
}

/* ---- the thread ---- */

static bool is_stopping(struct tls *tls) {
    pthread_mutex_lock(&tls->lock);
    const bool stops = tls->stops;
    pthread_mutex_unlock(&tls->lock);
    return stops;
}

static void start_arrived(struct tls *tls) {
    eventfd_t n;
    struct session *next;
    (void)eventfd_read(tls->wake, &n);
    for (struct session *s = mailbox_take(&tls->arrived); s; s = next) {
        next = s->next_arrived;
        session_start(s);
    }
}

/* Ends the sessions whose client does not take the last bytes; all of them when it is time. */
static void tick(struct tls *tls, bool stops) {
    tls->tick_s = clock_seconds() + 1;
    tls->end_s += stops;
    for (struct session *s = tls->sessions, *next; s; s = next) {
        next = s->next;
        const bool is_stuck = s->out.ended && ++s->idle_s > FLUSH_S;
        if (is_stuck || tls->end_s > END_S) session_end(s);
    }
}

static void free_ended(struct tls *tls) {
    while (tls->ended) {
        struct session *s = tls->ended;
        tls->ended = s->next;
        session_free(s);
    }
}

static void *run(void *arg) {
    enum { N_EVENTS = 256, TICK_MS = 1000 };
    struct tls *tls = arg;
    struct epoll_event events[N_EVENTS];
    for (bool stops = false; !stops || tls->sessions; stops = is_stopping(tls)) {
        const int n = epoll_wait(tls->epoll, events, N_EVENTS, TICK_MS);
        for (int i = 0; i < n; i++)
            if (events[i].data.ptr) ready(events[i].data.ptr);
        start_arrived(tls);
        if (clock_seconds() >= tls->tick_s) tick(tls, stops);
        free_ended(tls);
    }
    return NULL;
}

static int open_set(struct tls *tls) {
    struct epoll_event event = {.events = EPOLLIN};
    tls->epoll = epoll_create1(EPOLL_CLOEXEC);
    tls->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (tls->epoll < 0 || tls->wake < 0) return ERR_NOMEM;
    return epoll_ctl(tls->epoll, EPOLL_CTL_ADD, tls->wake, &event) ? ERR_NOMEM : 0;
}

/* Frees what tls_create() made so far, without the thread. */
static void dismantle(struct tls *tls) {
    if (tls->epoll >= 0) close(tls->epoll);
    if (tls->wake >= 0) close(tls->wake);
    leave_identity(tls, tls->identity);
    mailbox_fini(&tls->arrived);
    pthread_mutex_destroy(&tls->lock);
    free(tls);
}

int tls_create(struct tls **out, const char *certificate_file, const char *key_file,
               struct error *err) {
    struct tls *tls = calloc(1, sizeof(*tls));
    if (!tls || mailbox_init(&tls->arrived)) {
        free(tls);
        return error_set(err, ERR_NOMEM, "no memory for TLS");
    }
    tls->certificate_file = certificate_file;
    tls->key_file = key_file;
    tls->epoll = tls->wake = -1;
    pthread_mutex_init(&tls->lock, NULL);
    int rc = load_identity(&tls->identity, tls, err);
    if (!rc && (open_set(tls) || thread_start(&tls->thread, run, tls)))
        rc = error_set(err, ERR_NOMEM, "the TLS thread cannot be started");
    if (rc) dismantle(tls);
    else *out = tls;
    return rc;
}

static void wake(struct tls *tls) {
    (void)eventfd_write(tls->wake, 1);
}

void tls_destroy(struct tls *tls) {
    if (!tls) return;
    pthread_mutex_lock(&tls->lock);
    tls->stops = true;
    pthread_mutex_unlock(&tls->lock);
    wake(tls);
    pthread_join(tls->thread, NULL);
    dismantle(tls);
}

/* Sets the session up as a server's. */
static int configure(struct session *s) {
    static const gnutls_datum_t http_1_1 = {(unsigned char *)"http/1.1", 8};
    if (gnutls_init(&s->gnutls, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0)
        return ERR_NOMEM;
    s->identity = use_identity(s->tls);
    if (gnutls_priority_set_direct(s->gnutls, priorities, NULL) < 0 ||
        gnutls_credentials_set(s->gnutls, GNUTLS_CRD_CERTIFICATE, s->identity->credentials) < 0 ||
        gnutls_alpn_set_protocols(s->gnutls, &http_1_1, 1, 0) < 0)
        return ERR_NOMEM;
    gnutls_transport_set_int(s->gnutls, s->net.fd);
    return 0;
}

int tls_accept(struct tls *tls, int fd) {
    int pair[2];
    struct session *s = calloc(1, sizeof(*s));
    if (!s || socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
        free(s);
        close(fd);
        return -1;
    }
    s->tls = tls;
    s->net = (struct end){.session = s, .fd = fd};
    s->plain = (struct end){.session = s, .fd = pair[1]};
    if (configure(s) != 0) {
        session_free(s);
        close(pair[0]);
        return -1;
    }
    mailbox_push(&tls->arrived, s, s, NULL);
    wake(tls);
    return pair[0];
}
