/* reasoning.h - splits generated text into reasoning and answer, piece by piece.
 *
 *   <think>  r e a s o n i n g  </think>  a n s w e r
 *
 * Either mark may come in several pieces, so the beginning of one is held back until it is whole or
 * turns out to be text.  Where the prompt ends with <think>, the text begins inside.  Line ends right
 * behind a mark belong to neither part.
 *
 * Thread: the owner's.  Memory: none but the caller's buffers. */
#ifndef SERVER_API_CONVERSATION_REASONING_H
#define SERVER_API_CONVERSATION_REASONING_H

#include <stdbool.h>
#include <stddef.h>

#include "server/json/buffer.h"

enum reasoning_place {
    REASONING_BEFORE, /* only white space so far: <think> may follow */
    REASONING_INSIDE,
    REASONING_BEHIND /* the rest is answer */
};

struct reasoning_split {
    enum reasoning_place place;
    bool fresh;    /* nothing of this part has come yet: line ends are skipped */
    size_t n_held; /* bytes of the mark that is looked for, which the text ends with */
};

/* Appends the text to the part that it belongs to. */
void reasoning_add(struct reasoning_split *split, const char *text, size_t n,
                   struct buffer *reasoning, struct buffer *answer);
/* Appends what was held back, once the text has ended. */
void reasoning_end(struct reasoning_split *split, struct buffer *reasoning, struct buffer *answer);

/* Tells whether a prompt ends inside reasoning that it has begun. */
bool reasoning_is_begun(const char *prompt, size_t n);

#endif
