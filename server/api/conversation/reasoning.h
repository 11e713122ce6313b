/* reasoning.h - splits generated text into reasoning and answer, piece by piece.
 *
 *   <think>  r e a s o n i n g  </think>  a n s w e r
 *
 * engine/request/thought.h has the rules, and those of models that think in messages.  What may be
 * a mark is held back until it is whole or turns out to be text; so is white space before a mark.
 * Where the prompt ends inside a thought, the text begins there.
 *
 * Thread: the owner's.  Memory: the split owns what it holds back. */
#ifndef SERVER_API_CONVERSATION_REASONING_H
#define SERVER_API_CONVERSATION_REASONING_H

#include <stddef.h>

#include "engine/request/thought.h"
#include "server/json/buffer.h"

/* Zero-initialise but for the thought's place. */
struct reasoning_split {
    struct thought thought;
    struct buffer held;
};

void reasoning_split_fini(struct reasoning_split *split);
/* Appends the text to the part that it belongs to. */
void reasoning_add(struct reasoning_split *split, const char *text, size_t n,
                   struct buffer *reasoning, struct buffer *answer);
/* Appends what was held back, once the text has ended.  A header that heads nothing is no text. */
void reasoning_end(struct reasoning_split *split, struct buffer *reasoning, struct buffer *answer);

#endif
