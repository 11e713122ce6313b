/* scores.h - which tokens of an answer are its content's, for the log-probabilities of the content.
 *
 *   token, with its text ─► waits ─► the text is content: the token is told
 *                             └────► it is a thought, a mark or a call: the token is dropped
 *
 * The end token has no text, so it is dropped, too.
 *
 * Thread: loop.  Memory: the queue owns what waits. */
#ifndef SERVER_API_CONVERSATION_SCORES_H
#define SERVER_API_CONVERSATION_SCORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/json/buffer.h"

/* A token that waits: bytes begin to end - 1 of the answer's text are its own. */
struct score {
    uint64_t begin, end;
    struct buffer json;
};

/* Zero-initialise. */
struct scores {
    struct score *waiting; /* [n_waiting] */
    size_t n_waiting, capacity;
    uint64_t n_text;    /* bytes that the tokens so far have */
    uint64_t n_decided; /* bytes whose part of the answer is known */
};

void scores_fini(struct scores *s);
/* Adds a token with n_own bytes of text, and returns what its JSON is to be written to; NULL: there
 * is no memory.  is_part: it is the beginning of a character, which a later token completes. */
struct buffer *scores_add(struct scores *s, size_t n_own, bool is_part);
/* Takes note that of the next n bytes of text the last n_content are content.  Appends the tokens
 * that have some of these to the list. */
void scores_decide(struct scores *s, uint64_t n, uint64_t n_content, struct buffer *list);

#endif
