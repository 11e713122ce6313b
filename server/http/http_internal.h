/* http_internal.h - what the transport's modules share; no other module includes it.
 *
 *   http.c      the daemon on the loop: accepting, running, closing
 *   listen.c    the sockets that connections are accepted from
 *   feed.c      connections that another process passes on, in place of these
 *   wire.c      a client's bytes on their way to libmicrohttpd: scanned, and cut by request
 *   exchange.c  one request: admission, body, answer
 *   target.c    the host and the path that a request names
 *   body.c      the memory of request bodies, bounded
 *   stream.c    the bytes of a streamed answer, on their way to a reader
 *   watch.c     one connection: its deadlines, and its socket while libmicrohttpd does not look
 *   peers.c     the addresses that clients come from: what each may hold
 *   tls.c       a thread in front, where connections are encrypted
 *   refuse.c    answers written around libmicrohttpd, and closing so that they arrive
 *
 * A connection lives from accept to close and carries one exchange after another:
 *
 *   HEAD ──► BODY ──► WAITING ──► REPLYING ──► completed, freed
 *     │                  └──────► STREAMING ─►     "
 *     └► REFUSED ──► completed, freed
 *
 * "Completed" is libmicrohttpd's notification and the only place where an exchange is freed and
 * on_gone is called.  All other code only marks and resumes.  http.c's prepare callback, the only
 * caller of MHD_run, acts on the marks.  So none of our callbacks can free what its caller still
 * holds.
 *
 * Thread: loop.  Memory: connections on the heap, freed when their uv handle has closed; exchanges
 * likewise, freed on completion. */
#ifndef SERVER_HTTP_HTTP_INTERNAL_H
#define SERVER_HTTP_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "server/http/framing.h"
#include "server/http/http.h"
#include "server/http/listen.h"
#include "server/http/target.h"

enum {
    HTTP_ID_MAX = FRAMING_ID_MAX,
    HTTP_N_PEER_CHAINS = 1024,
    HTTP_MAX_LINGERING = 64, /* refused clients drained at once; more are cut off */
    HTTP_LINGER_MS = 2000,   /* enough to read and drop a body that is still arriving */
};

enum exchange_state {
    EXCHANGE_HEAD,      /* the request line has been read */
    EXCHANGE_BODY,      /* the head is legal, the body is arriving */
    EXCHANGE_WAITING,   /* the handler works on it */
    EXCHANGE_REPLYING,  /* http_reply */
    EXCHANGE_STREAMING, /* http_stream_begin */
};

/* An address and what its connections hold; freed with the last of them. */
struct http_peer {
    struct http_peer *next; /* in its chain */
    uint64_t address;
    uint32_t n_conns, n_waiting;
    struct http_conn *first, *last; /* those that wait for their client, the longest first */
    size_t body_bytes;
};

/* The memory of one request body. */
struct body {
    char *data;
    size_t length, capacity;
    bool mapped; /* in its own pages, which return to the system */
};

/* Bytes written and not yet taken: data[start, end). */
struct stream_queue {
    char *data;
    size_t start, end, capacity;
    bool ended;
};

struct header_line {
    struct header_line *next;
    char *name, *value; /* behind this struct, in the same allocation */
};

struct http_exchange {
    struct http_conn *conn;
    enum exchange_state state;
    const char *method, *path; /* libmicrohttpd's or the target's, valid until completion */
    struct target target;
    char id[HTTP_ID_MAX + 1];
    struct body body;
    struct header_line *headers;
    http_gone on_gone;
    void *user;
    struct MHD_Response *response; /* until it is queued */
    unsigned status;
    struct stream_queue queue;
    bool handed;   /* the handler was called: counted in n_open */
    bool answered; /* the handler has finished the answer: no on_gone any more */
    bool suspended;
    bool rearmed; /* was suspended once: libmicrohttpd then polls the socket anew */
};

struct http_conn {
    struct http *http;
    struct http_conn *prev, *next;
    struct MHD_Connection *mhd;
    struct http_exchange *exchange; /* NULL between requests */
    struct http_peer *peer;
    struct http_conn *wait_prev, *wait_next; /* in the peer's list of those that wait */
    struct framing framing;                  /* of the current request */
    int fd;                                  /* libmicrohttpd's socket */
    uv_poll_t watch;                         /* disconnects while suspended */
    uint64_t deadline_ms;                    /* for a request to begin, or to be complete */
    uint64_t n_acked, acked_at_ms;           /* how much the reader had taken, and since when */
    uint64_t waiting_since_ms;
    uint64_t whole_at_ms; /* when the request was complete */
    /* Half closed: when to probe whether the client has left; 0: never, or done. */
    uint64_t probe_at_ms;
    bool waiting;     /* for its client to begin a request, or to send the rest */
    bool half_closed; /* the client sends no more, but may read */
    bool watching;
    bool killed;
    bool linger; /* refused: drain before closing, or the reset overtakes the answer */
};

struct http_listener {
    uv_poll_t poll; /* first: by which a callback finds the listener */
    int fd;
};

struct http {
    uv_loop_t *loop;
    struct http_config config;
    struct MHD_Daemon *daemon;
    struct tls *tls;      /* NULL: plain HTTP */
    uv_prepare_t prepare; /* runs the daemon before the loop blocks */
    uv_timer_t timeout;   /* MHD_get_timeout */
    uv_timer_t tick;      /* deadlines */
    uv_poll_t epoll;      /* the daemon's epoll descriptor */
    struct http_listener listeners[LISTEN_MAX];
    size_t n_listeners; /* 0: not accepting */
    uint16_t port;
    struct http_conn *conns;
    struct http_linger *lingering;
    struct http_conn *adding; /* given to MHD_add_connection, which calls back before it returns */
    struct http_conn **by_fd; /* [n_fds], by which wire.c finds a connection */
    size_t n_fds;
    struct http_peer *peers[HTTP_N_PEER_CHAINS];
    size_t body_bytes;           /* of all connections */
    struct http_held_body spare; /* pages for the next body, or zeros: not counted */
    uint32_t n_conns, n_killed, n_open, n_lingering;
    uint32_t n_handles; /* uv handles not yet closed */
    bool run_needed;
    bool closing, closed;
    bool listen_paused; /* out of descriptors: try again at the next tick */
    void (*done)(void *);
    void *done_ctx;
};

/* ---- http.c ---- */
void http_kick(struct http *http); /* makes the daemon run before the loop blocks */
void http_handle_closed(struct http *http);

/* ---- exchange.c: libmicrohttpd's callbacks; cls is the struct http ---- */
void *exchange_started(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result exchange_access(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_length, void **context);
void exchange_completed(void *cls, struct MHD_Connection *mhd, void **context,
                        enum MHD_RequestTerminationCode why);
void exchange_finish(struct http_exchange *exchange);
/* Makes libmicrohttpd ask for the answer, or the next part of it, which is ready. */
void exchange_resume(struct http_exchange *exchange);
void exchange_suspend(struct http_exchange *exchange);
/* Owns the response (NULL: no memory, the connection is dropped) and adds the headers. */
void exchange_answer(struct http_exchange *exchange, struct MHD_Response *response, unsigned status,
                     const char *content_type);
/* Writes the request's id: as the client sent it, if that is valid, else a generated one. */
void exchange_id_choose(const char *sent, char id[HTTP_ID_MAX + 1]);
void exchange_id_make(char id[HTTP_ID_MAX + 1]);

/* ---- wire.c ---- */
/* Returns whether libmicrohttpd's reads call wire.c. */
bool wire_in_place(void);
/* Calls MHD_run; meanwhile wire.c reads the connections' sockets. */
void wire_run(struct http *http);
int wire_attach(struct http_conn *conn); /* ERR_NOMEM */
void wire_detach(struct http_conn *conn);
/* Returns whether a read would return at once, with bytes or the end. */
bool wire_has_more(const struct http_conn *conn);

/* ---- peers.c ---- */
/* Returns the address's peer with one more connection; NULL without memory. */
struct http_peer *peers_enter(struct http *http, const struct sockaddr *address);
void peers_leave(struct http *http, struct http_peer *peer);
void peer_wait(struct http_conn *conn); /* a repeated call changes nothing */
void peer_unwait(struct http_conn *conn);
/* Returns the connection that has waited longest for its client, from the address with the most
 * such connections; NULL when none waits. */
struct http_conn *peers_longest_waiting(const struct http *http);

/* ---- body.c ---- */
/* Returns the least allowed max_buffered_bytes: that of one body of max_body_bytes. */
size_t body_least_buffer(size_t max_body_bytes);
/* Returns whether a body of this length would be accepted now. */
bool body_fits(const struct http_conn *conn, uint64_t length);
/* Appends to a body.  Returns ERR_FULL when all bodies, or those of this address, would exceed
 * their bound, or ERR_NOMEM.  whole: length of the whole body, which bounds what is reserved ahead;
 * 0: unknown. */
int body_append(struct http_conn *conn, struct body *body, const char *data, size_t length,
                uint64_t whole);
void body_fini(struct http_conn *conn, struct body *body);
/* Gives the body's memory to the caller; the body is empty afterwards. */
struct http_held_body body_hold(struct http_conn *conn, struct body *body);

/* ---- stream.c ---- */
void stream_queue_fini(struct stream_queue *queue);

/* ---- watch.c ---- */
/* Creates the connection of fd.  Returns NULL on failure; fd is still the caller's then. */
struct http_conn *conn_create(struct http *http, int fd, const struct sockaddr *address);
/* Notes that a request has begun to arrive; the next two, that it has arrived or is answered. */
void conn_request_begun(struct http_conn *conn);
void conn_request_whole(struct http_conn *conn);
void conn_request_over(struct http_conn *conn);
/* Sends our own refusal, if no other answer has begun, and ends the connection.  What the client
 * still sends is read and dropped. */
void conn_refuse(struct http_conn *conn, unsigned status, const char *message);
/* Ends the connection so that another client gets its place. */
void conn_evict(struct http_conn *conn);
void conn_closed(struct http_conn *conn); /* the socket is about to be closed */
void conn_expect_request(struct http_conn *conn, uint32_t timeout_ms);
void conn_watch(struct http_conn *conn);
void conn_unwatch(struct http_conn *conn);
/* Ends the connection from our side at the next run.  hard: unsent bytes are discarded. */
void conn_kill(struct http_conn *conn, bool hard);
void conn_check(struct http_conn *conn, uint64_t now_ms);
void conn_output_started(struct http_conn *conn);

/* ---- refuse.c ---- */
/* Sends a refusal if the socket takes it at once; never blocks.  id: the request's; empty: one is
 * generated. */
void refuse_raw(struct http *http, int fd, const char *id, unsigned status, const char *message);
/* Takes ownership of fd, whose sending side is shut: reads until the peer closes, then closes
 * it. */
void linger_start(struct http *http, int fd);
void linger_check(struct http *http, uint64_t now_ms);
void linger_stop_all(struct http *http);

#endif
