/* framing.h - where a request ends: an incremental scanner of its bytes, and the faults it refuses.
 *
 * It reads what a client sent before libmicrohttpd does, piece by piece as it arrives, and says of
 * each piece how much belongs to the request under way.  libmicrohttpd is shown no byte beyond, and
 * none at all of a request that was refused: two readers of the same bytes never disagree about
 * where one request ends and the next begins.
 *
 *   START ──► request line ──► fields ──┬─► WHOLE                    no body
 *                                       ├─► BODY ──► WHOLE           Content-Length
 *                                       └─► chunk line ─► data ─┐    chunked
 *                                             ▲ └─► trailer ─► WHOLE │
 *                                             └─────────────────────┘
 *   anything else ──► REFUSED
 *
 * Lines end in CR LF and in nothing else.  Legal, but refused because readers differ about them:
 * LF alone, folded fields, repeated or mixed Content-Length and Transfer-Encoding, codings other
 * than chunked, control bytes anywhere in a head.
 *
 * The verdict depends on the bytes alone, not on how they were cut into pieces.
 *
 * Thread: any; the struct belongs to its owner.  Memory: none beside the struct. */
#ifndef SERVER_HTTP_FRAMING_H
#define SERVER_HTTP_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FRAMING_ID_MAX = 128,
    FRAMING_TARGET_MAX = 8 * 1024,
    FRAMING_HEAD_MAX = 32 * 1024, /* request line, fields and trailer together */
    FRAMING_COOKIES_MAX = 8 * 1024,
    /* libmicrohttpd makes a record of each: together with the head they fit into its memory. */
    FRAMING_MAX_FIELDS = 100,
    FRAMING_MAX_ARGUMENTS = 64,
    FRAMING_MAX_COOKIES = 64,
    FRAMING_CHUNK_LINE_MAX = 256,
    FRAMING_KEPT_VALUE = FRAMING_ID_MAX + 1,
};

enum framing_state {
    FRAMING_START,
    FRAMING_START_LF,
    FRAMING_METHOD,
    FRAMING_TARGET,
    FRAMING_VERSION,
    FRAMING_LINE_LF,
    FRAMING_FIELD_START,
    FRAMING_NAME,
    FRAMING_VALUE_START,
    FRAMING_VALUE,
    FRAMING_VALUE_LF,
    FRAMING_END_LF, /* of the head or the trailer */
    FRAMING_BODY,
    FRAMING_CHUNK_SIZE,
    FRAMING_CHUNK_EXTENSION,
    FRAMING_CHUNK_LF,
    FRAMING_CHUNK_DATA,
    FRAMING_CHUNK_DATA_CR,
    FRAMING_CHUNK_DATA_LF,
    FRAMING_WHOLE,
    FRAMING_REFUSED,
};

struct framing {
    enum framing_state state;
    unsigned status;     /* REFUSED: what to answer, and why */
    const char *message;
    uint64_t max_body;
    uint64_t body;       /* declared, or of the chunks so far */
    uint64_t left;       /* of the body, or of the chunk */
    uint32_t n_head, n_target, n_line, n_cookie_bytes;
    uint32_t n_fields;   /* of the head, not the trailer */
    uint32_t n_trailer_fields, n_arguments, n_cookies, n_hosts, n_blank;
    uint32_t n_name, n_value;
    bool http_1_0, has_length, has_coding, trailer, query;
    bool is_cookie, cookie_value, cookie_quoted;
    uint8_t n_percent;   /* how much of "%00" the target's last bytes are */
    char major;          /* of the version, a digit */
    char name[20], value[FRAMING_KEPT_VALUE + 1], length[24];
    char id[FRAMING_ID_MAX + 1]; /* X-Request-Id, as sent; empty: none, or too long */
};

void framing_init(struct framing *framing, uint64_t max_body);
/* Returns how many of the bytes belong to the request: all of them until it is WHOLE.  Bytes of a
 * request that is REFUSED are not counted. */
size_t framing_scan(struct framing *framing, const char *data, size_t length);
/* Returns how many bytes the body certainly still has; 0: what comes next is not known. */
uint64_t framing_left(const struct framing *framing);
/* Tells whether a request has begun and its end is still to come. */
bool framing_unfinished(const struct framing *framing);

#endif
