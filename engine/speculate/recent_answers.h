/* recent_answers.h - the newest answers of an engine, and what followed a text's end in them.
 *
 *   slots   … │ the cat sat on the mat │END│ once upon a time │END│ oldest answers, replaced next …
 *                        ▲ at                                  ▲ n_written
 *   heads   [hash of a scope and RECENT_MIN tokens] ─► the newest position behind such tokens
 *   earlier [of each slot]    ─► the one before it with the same hash: a chain
 *
 * A position counts the tokens ever written, modulo 2^32; its slot holds the token that follows
 * there.  The slot before the next one to be written is always an END, and no token is one: so a
 * match never reaches from the newest answer into what is left of the oldest.
 *
 * An answer is found only in the scope that it was added in, a number that clients cannot choose.
 * So guesses show a request only answers of requests whose prefixes it could share.  The scope is
 * part of the hash, too, so that answers of others are hardly ever visited.
 *
 * Matches are longer than those of a text with itself (suffix_index.h): what others say is like
 * what this text says less often than its own words are.
 *
 * Thread: engine (create: any).  Memory: 20 bytes a token, taken by create and never grown; the
 * system backs it with pages as answers come. */
#ifndef ENGINE_SPECULATE_RECENT_ANSWERS_H
#define ENGINE_SPECULATE_RECENT_ANSWERS_H

#include <stddef.h>
#include <stdint.h>

#include "engine/speculate/suffix_index.h"

enum {
    RECENT_MIN = 8,            /* tokens of the shortest match */
    RECENT_MAX_VISITED = 16,   /* positions of a chain that one search looks at */
    RECENT_TOKENS = 1 << 18,   /* of an engine: 5 MiB */
    RECENT_ANSWER_MOST = 16384 /* newest tokens of one answer: no step waits for a long one */
};

struct recent_answers; /* opaque: the fields live in recent_answers.c */

/* Makes space, owned by the caller, for n_tokens tokens, a power of 2 > 2 * RECENT_MIN.
 * ERR_NOMEM. */
int recent_answers_create(struct recent_answers **out, uint32_t n_tokens);
void recent_answers_destroy(struct recent_answers *recent); /* NULL is allowed */

/* Adds a copy of an answer, which overwrites the oldest ones.  Adds nothing if it has at most
 * RECENT_MIN tokens.  Of a longer one only the newest tokens are added: at most RECENT_ANSWER_MOST,
 * and at most half of the space. */
void recent_answers_add(struct recent_answers *recent, uint64_t scope, const uint32_t *tokens,
                        uint32_t n_tokens);
/* Returns the longest match of the text's end in an answer of the scope: RECENT_MIN to
 * SUFFIX_MAX tokens, or length 0.  Looks at *hint (NULL: no hint) and at the newest
 * RECENT_MAX_VISITED places.  Its `end` is a position.  Of equally long ones it is the one at
 * *hint, else the newest. */
struct suffix_match recent_answers_find(const struct recent_answers *recent, uint64_t scope,
                                        const uint32_t *tokens, uint32_t n_tokens,
                                        const uint32_t *hint);
/* Copies up to n_most tokens that follow the position in its answer to `tokens`, and returns their
 * number.  The position was found since the last recent_answers_add(). */
uint32_t recent_answers_copy(const struct recent_answers *recent, uint32_t position,
                             uint32_t *tokens, uint32_t n_most);

#endif
