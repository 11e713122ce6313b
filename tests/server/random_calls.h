/* random_calls.h - tool calls at random, how formats write them, and whether they are read back.
 *
 * The writers are code of the tests' own.  rand() decides; a test sets its seed.
 *
 * Thread: any, one at a time.  Memory: the caller frees calls and buffers. */
#ifndef TESTS_SERVER_RANDOM_CALLS_H
#define TESTS_SERVER_RANDOM_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "server/api/conversation/tool_calls.h"

enum { CALLS_MAX = 4, CALLS_N_ROUNDS = 500 };

struct calls {
    uint32_t n;
    char names[CALLS_MAX][32];
    json_t *arguments[CALLS_MAX]; /* objects */
};

uint32_t random_below(uint32_t n);

/* Makes at least one call, and at most max_calls. */
void calls_make(struct calls *calls, uint32_t max_calls);
void calls_free(struct calls *calls);
/* Tells whether an argument may be read back as another one where strings stand without quotes.
 * Such a string is JSON, too, or has a mark or a line end at its start or end. */
bool calls_are_ambiguous(const struct calls *calls);

/* Appends a value as JSON. */
void put_json(struct buffer *out, const json_t *value);
/* Appends a value as templates without quotes write it. */
void put_bare(struct buffer *out, const json_t *value);
/* Appends call i as an object; arguments: what the member with its arguments is called. */
void put_object(struct buffer *out, const struct calls *calls, uint32_t i, const char *arguments);
/* Append all calls as formats write them. */
void put_array(struct buffer *out, const struct calls *calls);
void put_functions(struct buffer *out, const struct calls *calls);

/* Gives a text to a split in pieces of `piece` bytes. */
void split_pieces(struct tool_split *split, const char *text, size_t n, size_t piece,
                  struct buffer *answer);
/* Fails the test unless the split has these calls; text: what they were read from. */
void check_calls(const struct tool_split *split, const struct calls *calls, const char *text);
/* Reads a text in pieces of every size, and fails the test unless that gives so many calls and this
 * answer.  names: of the tools, or NULL; cut: as tool_split_end() takes it. */
void check_split(const char *sign, const json_t *names, const char *text, const char *cut,
                 uint32_t n_calls, const char *expected);

#endif
