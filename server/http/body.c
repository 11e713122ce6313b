/* body.c - the memory of request bodies: it grows as bytes arrive, and all bodies share a bound.
 *
 * Small bodies lie on the heap.  Larger ones have their own pages, which move without copying when
 * they grow and return to the system at once.  The bound counts capacity: no page beyond it is ever
 * touched, so the process never holds more memory for bodies than it has counted, but for one
 * spare: the pages of one body of SPARE_MAX bytes at most wait for the next, which then gets no new
 * ones.  The system takes as long to clear a body's pages as a client to send them.
 *
 *   all bodies            max_buffered_bytes
 *   those of one address  half of it, but always enough for one of max_body_bytes
 *
 * A body that would exceed a bound is refused, which frees its memory.  So of bodies that do not
 * fit together, some always arrive.
 *
 * Thread: loop.  Memory: as said; freed by body_fini(). */
#define _GNU_SOURCE /* mremap */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/base/error.h"
#include "engine/base/populate.h"
#include "server/http/http_internal.h"

enum {
    HEAP_MIN = 4096,
    HEAP_MAX = 64 * 1024,
    GROW_MAX = 4 * 1024 * 1024, /* at once: unused capacity counts, too */
    AHEAD_MAX = 1024 * 1024,    /* of a body that is given more than a part of what has arrived */
    SPARE_MAX = AHEAD_MAX,
    PAGE = 4096,
};

static size_t whole_pages(size_t n) {
    return (n + PAGE - 1) / PAGE * PAGE;
}

size_t body_least_buffer(size_t max_body_bytes) {
    return whole_pages(max_body_bytes + 1);
}

static bool may_take(const struct http_conn *conn, size_t more) {
    const struct http_config *config = &conn->http->config;
    const size_t least = body_least_buffer(config->max_body_bytes);
    const size_t share =
        config->max_buffered_bytes / 2 > least ? config->max_buffered_bytes / 2 : least;
    return more <= config->max_buffered_bytes - conn->http->body_bytes &&
           conn->peer->body_bytes <= share && more <= share - conn->peer->body_bytes;
}

bool body_fits(const struct http_conn *conn, uint64_t length) {
    return may_take(conn, whole_pages((size_t)length + 1));
}

static void count(struct http_conn *conn, struct body *body, size_t capacity) {
    conn->http->body_bytes += capacity - body->capacity;
    conn->peer->body_bytes += capacity - body->capacity;
    body->capacity = capacity;
}

/* Returns the body's next capacity when `needed` bytes no longer fit.  One whose length is known
 * gets up to four times what has arrived: few steps, but never much for a client that has sent
 * little. */
static size_t next_capacity(const struct body *body, size_t needed, uint64_t whole) {
    size_t capacity = whole && needed < AHEAD_MAX / 4 ? 4 * needed
                      : body->capacity < HEAP_MAX     ? 2 * body->capacity
                      : body->capacity / 4 < GROW_MAX ? body->capacity + body->capacity / 4
                                                      : body->capacity + GROW_MAX;
    if (whole && capacity > whole + 1) capacity = (size_t)whole + 1;
    if (capacity < needed) capacity = needed;
    return capacity <= HEAP_MIN ? HEAP_MIN : whole_pages(capacity);
}

static char *move_to_pages(struct body *body, size_t capacity) {
    char *data = body->mapped ? mremap(body->data, body->capacity, capacity, MREMAP_MAYMOVE)
                              : mmap(NULL, capacity, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return NULL;
    const size_t n_before = body->mapped ? body->capacity : 0;
    if (capacity - n_before <= AHEAD_MAX) populate(data + n_before, capacity - n_before);
    if (!body->mapped) {
        if (body->length) memcpy(data, body->data, body->length);
        free(body->data);
    }
    body->mapped = true;
    return data;
}

/* Moves the body into the spare pages, if it is about to get pages of its own, and these
 * suffice. */
static bool move_to_spare(struct http_conn *conn, struct body *body, size_t capacity) {
    struct http_held_body *spare = &conn->http->spare;
    if (body->mapped || capacity <= HEAP_MAX || spare->capacity < capacity) return false;
    if (!may_take(conn, spare->capacity - body->capacity)) return false;
    if (body->length) memcpy(spare->data, body->data, body->length);
    free(body->data);
    body->data = spare->data;
    body->mapped = true;
    count(conn, body, spare->capacity);
    *spare = (struct http_held_body){0};
    return true;
}

static int reserve(struct http_conn *conn, struct body *body, size_t length, uint64_t whole) {
    const size_t needed = body->length + length + 1;
    if (needed <= body->capacity) return 0;
    size_t capacity = next_capacity(body, needed, whole);
    /* Near the bound the body takes no more than it must. */
    if (!may_take(conn, capacity - body->capacity)) capacity = whole_pages(needed);
    if (!may_take(conn, capacity - body->capacity)) return ERR_FULL;
    if (move_to_spare(conn, body, capacity)) return 0;
    char *data = body->mapped || capacity > HEAP_MAX ? move_to_pages(body, capacity)
                                                     : realloc(body->data, capacity);
    if (!data) return ERR_NOMEM;
    body->data = data;
    count(conn, body, capacity);
    return 0;
}

int body_append(struct http_conn *conn, struct body *body, const char *data, size_t length,
                uint64_t whole) {
    const int rc = reserve(conn, body, length, whole);
    if (rc) return rc;
    memcpy(body->data + body->length, data, length);
    body->length += length;
    body->data[body->length] = '\0';
    return 0;
}

struct http_held_body body_hold(struct http_conn *conn, struct body *body) {
    const struct http_held_body held = {body->data, body->capacity, body->mapped};
    count(conn, body, 0);
    *body = (struct body){0};
    return held;
}

void http_free_body(struct http_held_body *body) {
    if (body->mapped) munmap(body->data, body->capacity);
    else free(body->data);
    *body = (struct http_held_body){0};
}

/* Keeps the pages as the spare ones if they are more. */
static bool become_spare(struct http *http, const struct http_held_body *held) {
    if (!held->mapped || held->capacity > SPARE_MAX || held->capacity <= http->spare.capacity)
        return false;
    http_free_body(&http->spare);
    http->spare = *held;
    return true;
}

void body_fini(struct http_conn *conn, struct body *body) {
    struct http_held_body held = body_hold(conn, body);
    if (!become_spare(conn->http, &held)) http_free_body(&held);
}
