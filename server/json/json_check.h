/* json_check.h - tells whether a text that comes in pieces is one value of JSON.
 *
 * It builds nothing: an answer's text may be long, and only whether it parses is asked.
 *
 * Thread: any, one at a time.  Memory: a byte for each open container; json_check_fini() frees. */
#ifndef SERVER_JSON_JSON_CHECK_H
#define SERVER_JSON_JSON_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "server/json/buffer.h"

/* Zero-initialise. */
struct json_check {
    unsigned char place; /* json_check.c has its names */
    unsigned char n_hex; /* digits of an escape that are still to come */
    bool is_key;         /* the string is a member's name */
    const char *rest;    /* of true, false or null */
    struct buffer open;  /* { and [ */
    bool failed;
};

void json_check_add(struct json_check *check, const char *text, size_t n);
/* Tells whether the text so far is a whole value.  A failed allocation is no fault of the text. */
bool json_check_is_whole(const struct json_check *check);
void json_check_fini(struct json_check *check);

#endif
