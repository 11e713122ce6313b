/* wire.h - requests to the hub, through libcurl: one GET, and the redirects behind it.
 *
 * The token goes to the scheme, host and port of the hub's address only, and only through TLS or to
 * this machine.  A redirect elsewhere is followed without it, and one from https to http is not
 * followed.
 *
 * Without libcurl (absent.c) hub_wire_open() refuses.
 *
 * Thread: main.  Memory: owns libcurl's state. */
#ifndef SERVER_HUB_WIRE_H
#define SERVER_HUB_WIRE_H

#include <stddef.h>
#include <stdint.h>

struct error;
struct hub_settings;
struct hub_wire; /* opaque: the fields live in wire.c */

enum { HUB_URL_MAX = 4096 };

/* What is asked for, and what takes it. */
struct hub_get {
    const char *url;
    uint64_t from, end; /* the bytes [from, end); end 0: all, and no range is asked for */
    /* Takes bytes of the answer in order.  The first ones are those at `from`, or at 0 where the
     * hub sends the whole file all the same.  Only an answer with 200 or 206 has any.  Returns 0,
     * or ERR_* to end the request, with *err filled. */
    int (*take)(void *ctx, uint64_t at, const char *bytes, size_t n, struct error *err);
    void *ctx;
};

struct hub_answer {
    long status;       /* 0: there was none */
    long retry_after;  /* seconds; -1: the hub does not say */
    long window_left;  /* seconds until requests are allowed again; -1: not said, or they are */
    char code[48];     /* of the header X-Error-Code; empty: none */
    char message[64];  /* of the header X-Error-Message, cut; never printed */
    int taken;         /* what take() returned */
    char trouble[200]; /* why the connection failed; empty: it did not */
};

/* Starts libcurl.  ERR_UNSUPPORTED: this quire was built without it. */
int hub_wire_open(struct hub_wire **out, const struct hub_settings *settings, struct error *err);
void hub_wire_close(struct hub_wire *wire); /* NULL is allowed */

/* Sends one request and follows its redirects.  A status of the hub is no failure, nor is a
 * connection that breaks: *answer tells.  ERR_INVALID: a redirect leads nowhere that is allowed.
 * Else what take() returned. */
int hub_wire_get(struct hub_wire *wire, const struct hub_get *get, struct hub_answer *answer,
                 struct error *err);

#endif
