/* arguments.h - the arguments of a tool call, read by one rule on both ways.
 *
 *   model's text ─► arguments_mend() ─► answer ─► client ─► body ─► arguments_read() ─► template
 *
 * So a call that is answered can be sent back.  Arguments stay as the model wrote them, unless
 * official clients could not read them or would read something else: then doubled members (the last
 * counts) and halves of surrogate pairs (U+FFFD) are mended.
 *
 * Thread: any.  Memory: the caller's. */
#ifndef SERVER_API_CONVERSATION_ARGUMENTS_H
#define SERVER_API_CONVERSATION_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <jansson.h>

#include "server/json/buffer.h"
#include "server/json/json_guard.h"

struct json_oddities;

/* A body has arguments inside of other values. */
enum { ARGUMENTS_MAX_DEPTH = JSON_MAX_DEPTH - 32 };

/* Parses a text whose root is an object, and tells what is odd about it.  ERR_INVALID,
 * ERR_NOMEM. */
int arguments_parse(json_t **out, const char *text, size_t n, struct json_oddities *odd);

/* Reads what a client sends back: such an object.  White space alone and null mean that there are
 * no arguments.  ERR_INVALID, ERR_NOMEM. */
int arguments_read(json_t **out, const char *text, size_t n);

/* Reads the member of a call that holds its arguments: an object, or a text as above.  A missing
 * one, null and an empty text mean the same.  ERR_INVALID, ERR_NOMEM. */
int arguments_of(json_t **out, const json_t *member);

/* Mends a model's arguments.  Returns false if arguments_read() would refuse them; where there is
 * no memory, they have failed. */
bool arguments_mend(struct buffer *arguments);

#endif
