/* framing.h - finds where a request ends: an incremental scanner of its bytes, and the faults it
 * refuses.
 *
 * It reads what a client sent before libmicrohttpd does, part by part as it arrives, and tells how
 * much of each part belongs to the current request.  libmicrohttpd is shown no byte beyond that,
 * and none of a request that was refused.  So two readers of the same bytes never disagree about
 * where one request ends and the next begins.
 *
 *   START ──► request line ──► fields ──┬─► WHOLE                    no body
 *                                       ├─► BODY ──► WHOLE           Content-Length
 *                                       └─► chunk line ─► data ─┐    chunked
 *                                             ▲ └─► trailer ─► WHOLE │
 *                                             └─────────────────────┘
 *   anything else ──► REFUSED
 *
 * Lines end in CR LF and in nothing else.  Some legal requests are refused because readers differ
 * about them: LF alone, folded fields, repeated or mixed Content-Length and Transfer-Encoding,
 * codings other than chunked, control bytes anywhere in a head.  White space at the end of a field
 * is no part of its value, and libmicrohttpd 0.9.75 does not know that: it is taken out.
 *
 * The verdict depends on the bytes alone, not on how they were cut into parts.
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
    /* libmicrohttpd makes a record of each; with the head, they fit into its memory. */
    FRAMING_MAX_FIELDS = 100,
    FRAMING_MAX_ARGUMENTS = 64,
    FRAMING_MAX_COOKIES = 64,
    FRAMING_CHUNK_LINE_MAX = 256,
    FRAMING_WHITE_SPACE_MAX = 256, /* in one place of a value: it is read again with each part */
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
    unsigned status; /* REFUSED: the answer's status and message */
    const char *message;
    uint64_t max_body;
    uint64_t body; /* as declared, or the sum of the chunks so far */
    uint64_t left; /* bytes left of the body, or of the chunk */
    uint32_t n_head, n_target, n_line, n_cookie_bytes;
    uint32_t n_fields; /* fields of the head, not the trailer */
    uint32_t n_trailer_fields, n_arguments, n_cookies, n_hosts, n_blank;
    uint32_t n_name, n_value;
    bool http_1_0, has_length, has_coding, trailer, query;
    bool encoded; /* Content-Encoding names another coding than identity */
    bool is_cookie, cookie_value, cookie_quoted;
    uint8_t n_percent; /* how many characters of "%00" the target's last bytes match */
    char major;        /* the version's first digit */
    char name[20], value[FRAMING_KEPT_VALUE + 1], length[24];
    char id[FRAMING_ID_MAX + 1]; /* X-Request-Id, as sent; empty: none, or too long */
};

void framing_init(struct framing *framing, uint64_t max_body);
/* Scans the bytes and returns how many of them belong to the request and were taken.  That is all
 * of them until it is WHOLE, but for white space at the end of the data that may end a field's
 * value: give it again, with what follows it.  Takes white space that does end one out of the data,
 * of which the first *kept bytes are then what was taken.  Returns 0 for a request that is
 * REFUSED. */
size_t framing_scan(struct framing *framing, char *data, size_t length, size_t *kept);
/* Makes the request REFUSED.  The message is borrowed. */
void framing_refuse(struct framing *framing, unsigned status, const char *message);
/* Returns how many bytes the body still has at least; 0 when the next bytes are not known to be
 * body. */
uint64_t framing_left(const struct framing *framing);
/* Returns whether a request has begun and has not ended. */
bool framing_unfinished(const struct framing *framing);

#endif
