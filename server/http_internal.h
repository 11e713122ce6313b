/* http_internal.h - what the modules of the transport share and nobody else sees.
 *
 *   http.c      the daemon on the loop: accepting, running, closing
 *   exchange.c  one request: checks, body, answer
 *   stream.c    the bytes of a streamed answer, on their way to a reader
 *   watch.c     one connection: its deadlines, and its socket while libmicrohttpd does not look
 *   refuse.c    answers written around libmicrohttpd, and closing so that they arrive
 *
 * A connection lives from accept to close and carries one exchange after another:
 *
 *   HEAD ──► BODY ──► WAITING ──► REPLYING ──► completed, freed
 *     │                  └──────► STREAMING ─►     "
 *     └► REFUSED ──► completed, freed
 *
 * "Completed" is libmicrohttpd's notification and the only place where an exchange is freed and
 * on_gone is called. Everything else only marks and resumes; the marks are acted on in http.c's
 * prepare callback, which is the only caller of MHD_run. So no callback of ours can free what its
 * caller still holds.
 *
 * Thread: loop. Memory: connections on the heap, freed when their uv handle has closed; exchanges
 * likewise, freed on completion. */
#ifndef SERVER_HTTP_INTERNAL_H
#define SERVER_HTTP_INTERNAL_H

#include <microhttpd.h>

#include "server/http.h"

enum {
    HTTP_ID_MAX = 128,
    HTTP_MAX_LINGERING = 64, /* refused clients drained at once; beyond that they are cut off */
    HTTP_LINGER_MS = 2000,   /* long enough to swallow a body that was already under way */
};

enum exchange_state {
    EXCHANGE_HEAD,      /* the request line was read */
    EXCHANGE_BODY,      /* the head is legal, the body arrives */
    EXCHANGE_REFUSED,   /* the transport answered by itself */
    EXCHANGE_WAITING,   /* the handler has it */
    EXCHANGE_REPLYING,  /* http_reply */
    EXCHANGE_STREAMING, /* http_stream_begin */
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
    const char *method, *path; /* libmicrohttpd's, valid until completion */
    char id[HTTP_ID_MAX + 1];
    char *body;
    size_t body_length, body_capacity;
    uint64_t body_declared; /* Content-Length; 0 where there is none */
    struct header_line *headers;
    http_gone on_gone;
    void *user;
    struct MHD_Response *response; /* until it is queued */
    unsigned status;
    struct stream_queue queue;
    bool bad_target; /* the request line names a path that C strings cannot hold */
    bool handed;     /* the handler was called: counted in n_open */
    bool answered;   /* the handler is done with it: no on_gone any more */
    bool suspended;
};

struct http_conn {
    struct http *http;
    struct http_conn *prev, *next;
    struct MHD_Connection *mhd;
    struct http_exchange *exchange; /* NULL between requests */
    int fd;                         /* libmicrohttpd's socket */
    uv_poll_t watch;                /* disconnects while suspended */
    uint64_t deadline_ms;           /* for a request to begin or to be complete */
    uint64_t n_acked, acked_at_ms;  /* what the reader had taken, and since when */
    bool watching;
    bool killed;
    bool linger; /* refused: drain before closing, or the reset overtakes the answer */
};

struct http {
    uv_loop_t *loop;
    struct http_config config;
    struct MHD_Daemon *daemon;
    uv_prepare_t prepare; /* runs the daemon, at most once per loop iteration and state of things */
    uv_timer_t timeout;   /* MHD_get_timeout */
    uv_timer_t tick;      /* deadlines */
    uv_poll_t epoll;      /* the daemon's epoll descriptor */
    uv_poll_t listen;
    int listen_fd; /* -1: not accepting */
    uint16_t port;
    struct http_conn *conns;
    struct http_linger *lingering;
    struct http_conn *adding; /* handed to MHD_add_connection, which calls back before it returns */
    uint32_t n_conns, n_open, n_lingering;
    uint32_t n_handles; /* uv handles not yet closed */
    bool run_needed;
    bool closing, closed;
    bool listen_paused; /* out of descriptors: try again at the next tick */
    void (*done)(void *);
    void *done_ctx;
};

/* http.c */
void http_kick(struct http *http); /* have the daemon run before the loop blocks */
void http_handle_closed(struct http *http);

/* exchange.c: libmicrohttpd's callbacks; cls is the struct http */
void *exchange_started(void *cls, const char *uri, struct MHD_Connection *mhd);
enum MHD_Result exchange_access(void *cls, struct MHD_Connection *mhd, const char *url,
                                const char *method, const char *version, const char *data,
                                size_t *data_length, void **context);
void exchange_completed(void *cls, struct MHD_Connection *mhd, void **context,
                        enum MHD_RequestTerminationCode why);
void exchange_finish(struct http_exchange *exchange);
/* The answer, or a part of it, is there: have libmicrohttpd ask for it. */
void exchange_resume(struct http_exchange *exchange);
void exchange_suspend(struct http_exchange *exchange);
/* Takes the response (NULL: no memory, the connection is dropped), adds the headers. */
void exchange_answer(struct http_exchange *exchange, struct MHD_Response *response, unsigned status,
                     const char *content_type);
bool exchange_id_valid(const char *id);
void exchange_id_make(char id[HTTP_ID_MAX + 1]);

/* stream.c */
void stream_queue_fini(struct stream_queue *queue);

/* watch.c */
/* NULL: refused by the system, and fd is still the caller's. */
struct http_conn *conn_create(struct http *http, int fd);
void conn_closed(struct http_conn *conn); /* the socket is about to be closed */
void conn_expect_request(struct http_conn *conn, uint32_t timeout_ms);
void conn_watch(struct http_conn *conn);
void conn_unwatch(struct http_conn *conn);
/* Ends the connection from our side at the next run; hard: what is under way is discarded. */
void conn_kill(struct http_conn *conn, bool hard);
void conn_check(struct http_conn *conn, uint64_t now_ms);
void conn_output_started(struct http_conn *conn);

/* refuse.c */
const char *refuse_body(unsigned status, const char *message, char *buffer, size_t size);
/* Best effort, never blocks.  id: the request's; empty: one is made. */
void refuse_raw(struct http *http, int fd, const char *id, unsigned status, const char *message);
void refuse_note(const struct http *http, const char *id, unsigned status, const char *message);
/* Takes fd, whose sending side is shut: reads until the peer closes, then closes. */
void linger_start(struct http *http, int fd);
void linger_check(struct http *http, uint64_t now_ms);
void linger_stop_all(struct http *http);

#endif
