/* msgpack.c - see msgpack.h. */
#include "server/kv_events/msgpack.h"

#include <stdlib.h>
#include <string.h>

void msgpack_fini(struct msgpack *out) {
    free(out->data);
    *out = (struct msgpack){0};
}

static void put(struct msgpack *out, const void *data, size_t n) {
    if (out->failed) return;
    if (n > out->capacity - out->n) {
        const size_t capacity = 2 * out->capacity + n + 256;
        unsigned char *grown = realloc(out->data, capacity);
        out->failed = !grown;
        if (!grown) return;
        out->data = grown;
        out->capacity = capacity;
    }
    memcpy(out->data + out->n, data, n);
    out->n += n;
}

/* Writes a tag and the value's n_bytes low bytes, the highest first. */
static void put_tagged(struct msgpack *out, unsigned char tag, uint64_t value, size_t n_bytes) {
    unsigned char bytes[9] = {tag};
    for (size_t i = 0; i < n_bytes; i++)
        bytes[1 + i] = (unsigned char)(value >> 8 * (n_bytes - 1 - i));
    put(out, bytes, 1 + n_bytes);
}

void msgpack_nil(struct msgpack *out) {
    put_tagged(out, 0xC0, 0, 0);
}

void msgpack_uint(struct msgpack *out, uint64_t value) {
    if (value < 0x80) put_tagged(out, (unsigned char)value, 0, 0);
    else if (value <= UINT8_MAX) put_tagged(out, 0xCC, value, 1);
    else if (value <= UINT16_MAX) put_tagged(out, 0xCD, value, 2);
    else if (value <= UINT32_MAX) put_tagged(out, 0xCE, value, 4);
    else put_tagged(out, 0xCF, value, 8);
}

void msgpack_double(struct msgpack *out, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_tagged(out, 0xCB, bits, 8);
}

void msgpack_string(struct msgpack *out, const char *text) {
    const size_t n = strlen(text);
    if (n < 32) put_tagged(out, (unsigned char)(0xA0 | n), 0, 0);
    else put_tagged(out, 0xDB, n, 4);
    put(out, text, n);
}

void msgpack_array(struct msgpack *out, uint32_t n) {
    if (n < 16) put_tagged(out, (unsigned char)(0x90 | n), 0, 0);
    else put_tagged(out, 0xDD, n, 4);
}

void msgpack_map(struct msgpack *out, uint32_t n) {
    if (n < 16) put_tagged(out, (unsigned char)(0x80 | n), 0, 0);
    else put_tagged(out, 0xDF, n, 4);
}
