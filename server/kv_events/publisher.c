/* publisher.c - see publisher.h. */
#include "server/kv_events/publisher.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zmq.h>

#include "engine/base/error.h"
#include "engine/base/thread.h"
#include "engine/kv/kv_feed.h"
#include "server/kv_events/event_batch.h"
#include "server/kv_events/msgpack.h"
#include "server/kv_events/replay.h"

/* Messages that wait for a slow reader; how long the last ones may take at the end.  Most events of
 * one message. */
enum { HIGH_WATER = 10000, LINGER_MS = 200, BATCH_EVENTS = 256, NUMBER_BYTES = 8 };

struct kv_publisher {
    struct kv_publisher_config config;
    struct kv_feed *feed;
    void *context, *events, *replies;
    uint64_t next;
    bool is_cleared; /* the next message says that all blocks are gone */
    struct replay replay;
    struct kv_feed_event batch[BATCH_EVENTS];
    atomic_bool stops;
    bool started;
    pthread_t thread;
};

/* ---- the thread ---- */

static void write_number(unsigned char out[NUMBER_BYTES], uint64_t number) {
    for (int i = 0; i < NUMBER_BYTES; i++)
        out[i] = (unsigned char)(number >> 8 * (NUMBER_BYTES - 1 - i));
}

static double unix_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void publish(struct kv_publisher *p, uint32_t n) {
    struct msgpack message = {0};
    unsigned char number[NUMBER_BYTES];
    event_batch_write(&message, unix_time(), p->config.rank, p->is_cleared, p->batch, n);
    if (message.failed) { /* readers must not keep what they would have lost */
        msgpack_fini(&message);
        p->is_cleared = true;
        return;
    }
    write_number(number, p->next);
    /* A publisher never blocks: ZeroMQ drops what a slow reader has no room for. */
    zmq_send(p->events, p->config.topic, strlen(p->config.topic), ZMQ_SNDMORE);
    zmq_send(p->events, number, sizeof(number), ZMQ_SNDMORE);
    zmq_send(p->events, message.data, message.n, 0);
    replay_add(&p->replay, p->next++, message.data, message.n);
    p->is_cleared = false;
}

static void publish_all(struct kv_publisher *p) {
    uint32_t n;
    do {
        for (n = 0; n < BATCH_EVENTS && kv_feed_take(p->feed, &p->batch[n]);) n++;
        if (n > 0 || p->is_cleared) publish(p, n);
        if (kv_feed_mend(p->feed)) p->is_cleared = true;
    } while (n > 0 || p->is_cleared);
}

/* Sends one message of a replay: the reader's address, nothing, number, events.  Returns false if
 * the reader has no room or is gone. */
static bool reply(struct kv_publisher *p, zmq_msg_t *reader, uint64_t number, const void *data,
                  size_t n) {
    unsigned char bytes[NUMBER_BYTES];
    zmq_msg_t copy;
    write_number(bytes, number);
    zmq_msg_init(&copy);
    zmq_msg_copy(&copy, reader);
    if (zmq_msg_send(&copy, p->replies, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&copy);
        return false;
    }
    return zmq_send(p->replies, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(p->replies, bytes, sizeof(bytes), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(p->replies, data, n, ZMQ_DONTWAIT) >= 0;
}

static void replay_from(struct kv_publisher *p, zmq_msg_t *reader, uint64_t first) {
    for (uint32_t i = 0; i < p->replay.n; i++) {
        const struct replay_message *message = replay_get(&p->replay, i);
        if (message->number < first) continue;
        if (!reply(p, reader, message->number, message->data, message->n)) return;
    }
    reply(p, reader, UINT64_MAX, "", 0);
}

/* Reads the rest of a message, and returns how many frames that were.  frame: gets the last one, up
 * to its size; *length: its whole length. */
static unsigned read_rest(struct kv_publisher *p, unsigned char frame[NUMBER_BYTES],
                          size_t *length) {
    int more = 1;
    size_t size = sizeof(more);
    unsigned n = 0;
    while (zmq_getsockopt(p->replies, ZMQ_RCVMORE, &more, &size) == 0 && more) {
        const int got = zmq_recv(p->replies, frame, NUMBER_BYTES, ZMQ_DONTWAIT);
        if (got < 0) break;
        *length = (size_t)got;
        n++;
    }
    return n;
}

/* Takes a message, and answers it if it is the reader's address, nothing and a number.  Returns
 * false if there is none. */
static bool answer_request(struct kv_publisher *p) {
    zmq_msg_t reader;
    unsigned char frame[NUMBER_BYTES] = {0};
    size_t length = 0;
    zmq_msg_init(&reader);
    const bool arrived = zmq_msg_recv(&reader, p->replies, ZMQ_DONTWAIT) >= 0;
    if (arrived && read_rest(p, frame, &length) == 2 && length == NUMBER_BYTES) {
        uint64_t first = 0;
        for (int i = 0; i < NUMBER_BYTES; i++) first = first << 8 | frame[i];
        replay_from(p, &reader, first);
    }
    zmq_msg_close(&reader);
    return arrived;
}

static void *run(void *arg) {
    struct kv_publisher *p = arg;
    zmq_pollitem_t items[] = {{.fd = kv_feed_descriptor(p->feed), .events = ZMQ_POLLIN},
                              {.socket = p->replies, .events = ZMQ_POLLIN}};
    do {
        publish_all(p);
        while (p->replies && answer_request(p)) publish_all(p);
        const bool sleeps = kv_feed_sleep(p->feed) && !atomic_load(&p->stops);
        if (sleeps) zmq_poll(items, p->replies ? 2 : 1, -1);
    } while (!atomic_load(&p->stops));
    publish_all(p);
    return NULL;
}

/* ---- its beginning and its end ---- */

static int bind_socket(struct kv_publisher *p, void **out, int type, const char *endpoint,
                       const char *setting, struct error *err) {
    const int high_water = HIGH_WATER, linger_ms = LINGER_MS;
    *out = zmq_socket(p->context, type);
    if (!*out) return error_set(err, ERR_NOMEM, "%s: %s", setting, zmq_strerror(errno));
    zmq_setsockopt(*out, ZMQ_SNDHWM, &high_water, sizeof(high_water));
    zmq_setsockopt(*out, ZMQ_LINGER, &linger_ms, sizeof(linger_ms));
    if (zmq_bind(*out, endpoint) == 0) return 0;
    return error_set(err, ERR_INVALID, "%s %.200s: %s", setting, endpoint, zmq_strerror(errno));
}

static int open_sockets(struct kv_publisher *p, struct error *err) {
    const struct kv_publisher_config *c = &p->config;
    p->context = zmq_ctx_new();
    if (!p->context) return error_set(err, ERR_NOMEM, "no memory for --kv-events");
    int rc = bind_socket(p, &p->events, ZMQ_PUB, c->endpoint, "--kv-events", err);
    if (!rc && c->replay_endpoint)
        rc = bind_socket(p, &p->replies, ZMQ_ROUTER, c->replay_endpoint, "--kv-events-replay", err);
    return rc;
}

/* Starts the threads, ZeroMQ's too, with every signal blocked: signals are the loop's. */
int kv_publisher_start(struct kv_publisher **out, const struct kv_publisher_config *config,
                       struct error *err) {
    struct kv_publisher *p = calloc(1, sizeof(*p));
    if (!p) return error_set(err, ERR_NOMEM, "no memory for --kv-events");
    p->config = *config;
    p->is_cleared = true;
    int rc = kv_feed_create(&p->feed, err);
    const sigset_t former = signals_block();
    if (!rc) rc = open_sockets(p, err);
    p->started = !rc && pthread_create(&p->thread, NULL, run, p) == 0;
    if (!rc && !p->started)
        rc = error_set(err, ERR_NOMEM, "cannot start the thread of --kv-events");
    signals_restore(former);
    if (rc) kv_publisher_stop(p);
    else *out = p;
    return rc;
}

struct kv_feed *kv_publisher_feed(struct kv_publisher *p) {
    return p->feed;
}

void kv_publisher_stop(struct kv_publisher *p) {
    if (!p) return;
    atomic_store(&p->stops, true);
    if (p->feed) kv_feed_wake(p->feed);
    if (p->started) pthread_join(p->thread, NULL);
    if (p->events) zmq_close(p->events);
    if (p->replies) zmq_close(p->replies);
    if (p->context) zmq_ctx_term(p->context);
    replay_fini(&p->replay);
    kv_feed_destroy(p->feed);
    free(p);
}
