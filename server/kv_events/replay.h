/* replay.h - the newest messages, kept for readers that have missed some.
 *
 * Thread: the publisher's.  Memory: at most REPLAY_MESSAGES messages, and REPLAY_BYTES of them; the
 * newest is kept in any case. */
#ifndef SERVER_KV_EVENTS_REPLAY_H
#define SERVER_KV_EVENTS_REPLAY_H

#include <stddef.h>
#include <stdint.h>

enum { REPLAY_MESSAGES = 10000, REPLAY_BYTES = 64 << 20 };

struct replay_message {
    uint64_t number;
    unsigned char *data;
    size_t n;
};

/* Zero-initialise. */
struct replay {
    struct replay_message messages[REPLAY_MESSAGES]; /* a ring */
    uint32_t first, n;
    size_t n_bytes;
};

/* Takes ownership of the data, which malloc() gave.  Numbers ascend. */
void replay_add(struct replay *replay, uint64_t number, unsigned char *data, size_t n);
/* Returns message i of replay->n, the oldest first. */
const struct replay_message *replay_get(const struct replay *replay, uint32_t i);
void replay_fini(struct replay *replay);

#endif
