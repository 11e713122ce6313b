/* transfer.h - whole answers and parts of files from the hub, though connections break and the hub
 * asks to wait.
 *
 * A request is sent again after a connection that broke, and after the statuses 408, 429, 500, 502,
 * 503 and 504.  After new bytes that is at once; else after a pause that doubles, or that the hub
 * names.  Both are bounded, so a transfer ends.
 *
 * Thread: main.  Memory: none is kept. */
#ifndef SERVER_HUB_TRANSFER_H
#define SERVER_HUB_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer;
struct error;
struct hub_answer;
struct hub_wire;

/* Where it is said what happens. */
struct hub_voice {
    void (*say)(void *ctx, const char *line);
    void *ctx;
    bool is_terminal; /* progress may be drawn on standard error */
};

/* A part of a file that is to come, or the rest of it. */
struct hub_part {
    const char *url;
    uint64_t at, end; /* the bytes [at, end); at moves */
    uint64_t size;    /* of the whole file */
    bool is_short;    /* the hub has no more of the file, although its end has not come */
    /* Takes bytes in order.  at may be 0 once more: then the hub begins anew.  Returns 0 or
     * ERR_*. */
    int (*take)(void *ctx, uint64_t at, const char *bytes, size_t n, struct error *err);
    void *ctx;
};

/* Gets the whole answer, of at most max bytes.  attempts: without a new byte, at least 1.  ERR_IO
 * without a text: *answer says why it did not come.  ERR_*: the text says it. */
int hub_transfer_text(struct hub_wire *wire, const char *url, size_t max, int attempts,
                      const struct hub_voice *voice, struct buffer *out, struct hub_answer *answer,
                      struct error *err);
/* Gets the part.  ERR_IO as above. */
int hub_transfer_part(struct hub_wire *wire, struct hub_part *part, const struct hub_voice *voice,
                      struct hub_answer *answer, struct error *err);

#endif
