/* stream.c - the bytes of a streamed answer on their way to a reader.
 *
 * Writes append to one buffer per exchange; libmicrohttpd takes what has gathered as one chunk when
 * the socket is writable.  When the buffer is empty the connection is suspended (returning 0 alone
 * would spin), and the next write resumes it.  So many writes in one loop iteration cost one send.
 *
 * Thread: loop.  Memory: the buffer doubles up to max_stream_backlog and is freed with the
 * exchange. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/http_internal.h"

enum {
    QUEUE_MIN = 1024,
    QUEUE_KEEP = 64 * 1024, /* an empty buffer above this is freed */
    READER_BLOCK =
        4096, /* only HTTP/1.0 readers use it: chunks go through libmicrohttpd's own buffer */
};

void stream_queue_fini(struct stream_queue *queue) {
    free(queue->data);
    *queue = (struct stream_queue){0};
}

static bool queue_reserve(struct stream_queue *queue, size_t length) {
    if (queue->capacity - queue->end >= length) return true;
    const size_t used = queue->end - queue->start;
    if (queue->start) memmove(queue->data, queue->data + queue->start, used);
    queue->start = 0;
    queue->end = used;
    size_t capacity = queue->capacity ? queue->capacity : QUEUE_MIN;
    while (capacity - used < length) capacity *= 2;
    if (capacity == queue->capacity) return true;
    char *data = realloc(queue->data, capacity);
    if (!data) return false;
    queue->data = data;
    queue->capacity = capacity;
    return true;
}

static size_t queue_take(struct stream_queue *queue, char *out, size_t max) {
    size_t n = queue->end - queue->start;
    if (n > max) n = max;
    memcpy(out, queue->data + queue->start, n);
    queue->start += n;
    if (queue->start == queue->end) {
        queue->start = queue->end = 0;
        if (queue->capacity > QUEUE_KEEP) {
            free(queue->data);
            queue->data = NULL;
            queue->capacity = 0;
        }
    }
    return n;
}

static ssize_t reader(void *cls, uint64_t position, char *buffer, size_t max) {
    (void)position;
    struct http_exchange *exchange = cls;
    if (exchange->conn->killed) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (exchange->queue.start < exchange->queue.end) {
        return (ssize_t)queue_take(&exchange->queue, buffer, max);
    }
    if (exchange->queue.ended) return MHD_CONTENT_READER_END_OF_STREAM;
    exchange_suspend(exchange);
    return 0;
}

void http_stream_begin(struct http_exchange *exchange, unsigned status, const char *content_type) {
    assert(exchange->state == EXCHANGE_WAITING);
    exchange->state = EXCHANGE_STREAMING;
    /* libmicrohttpd 0.9.75 ends a chunked answer with its last chunk even when HEAD omits the body,
     * and the next answer on the connection would begin with that chunk.  So HEAD gets an empty
     * body. */
    struct MHD_Response *response =
        strcmp(exchange->method, MHD_HTTP_METHOD_HEAD) == 0
            ? MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT)
            : MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, READER_BLOCK, reader, exchange,
                                                NULL);
    exchange_answer(exchange, response, status, content_type);
}

void http_stream_write(struct http_exchange *exchange, const void *data, size_t length) {
    assert(exchange->state == EXCHANGE_STREAMING && !exchange->answered);
    struct http_conn *conn = exchange->conn;
    struct stream_queue *queue = &exchange->queue;
    if (conn->killed || length == 0) return;
    const size_t waiting = queue->end - queue->start;
    const size_t limit = conn->http->config.max_stream_backlog;
    if (waiting > limit || length > limit - waiting || !queue_reserve(queue, length)) {
        conn_kill(conn, true);
        return;
    }
    memcpy(queue->data + queue->end, data, length);
    queue->end += length;
    conn->probe_at_ms = 0; /* this shows whether a client that closed its side still reads */
    /* The time without progress counts from when there is something to take. */
    if (waiting == 0) conn_output_started(conn);
    exchange_resume(exchange);
}

void http_stream_end(struct http_exchange *exchange) {
    assert(exchange->state == EXCHANGE_STREAMING && !exchange->answered);
    exchange->answered = true;
    exchange->queue.ended = true;
    exchange->conn->probe_at_ms = 0;
    conn_output_started(exchange->conn);
    exchange_resume(exchange);
}
