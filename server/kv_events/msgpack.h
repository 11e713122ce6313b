/* msgpack.h - writes the few MessagePack forms that KV events are made of, each the shortest.
 *
 * Thread: any.  Memory: grows; without memory the output is marked as failed, and nothing more is
 * written. */
#ifndef SERVER_KV_EVENTS_MSGPACK_H
#define SERVER_KV_EVENTS_MSGPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zero-initialise. */
struct msgpack {
    unsigned char *data;
    size_t n, capacity;
    bool failed;
};

void msgpack_fini(struct msgpack *out);

void msgpack_nil(struct msgpack *out);
void msgpack_uint(struct msgpack *out, uint64_t value);
void msgpack_double(struct msgpack *out, double value);
void msgpack_string(struct msgpack *out, const char *text);
/* Begins an array of n values, or a map of n keys with their values; these follow. */
void msgpack_array(struct msgpack *out, uint32_t n);
void msgpack_map(struct msgpack *out, uint32_t n);

#endif
