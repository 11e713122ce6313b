/* channels.h - answers that are messages on channels, as gpt-oss writes them: OpenAI's harmony.
 *
 *   <|channel|>analysis<|message|> a thought <|end|>
 *   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
 *   <|start|>assistant<|channel|>final<|message|> what is said <|return|>
 *
 * What stands before <|message|> is a message's header.  A message to a function is a call.  On the
 * channel analysis is a thought, and everything else is said.  An answer begins in a header, whose
 * <|start|> is the prompt's.
 *
 * The marks are tokens.  In an answer's text each is one byte that no UTF-8 has.  So what a model
 * says about marks is text, and no mark is ever cut in two.
 *
 * Thread: the owner's.  Memory: constant. */
#ifndef ENGINE_REQUEST_CHANNELS_H
#define ENGINE_REQUEST_CHANNELS_H

#include <stdbool.h>

#include "engine/request/thought.h"

/* The bytes, as strings.  CHANNEL_FIRST_BYTE is the least of them. */
#define CHANNEL_START "\xf8"
#define CHANNEL_NAME "\xf9"
#define CHANNEL_CONSTRAIN "\xfa"
#define CHANNEL_MESSAGE "\xfb"
#define CHANNEL_END "\xfc"
#define CHANNEL_FIRST_BYTE 0xf8
/* Before the name of the function that a message is for. */
#define CHANNEL_TO " to=functions."
#define CHANNEL_THOUGHTS "analysis"

struct channel_mark {
    const char *token; /* NULL ends the list */
    char byte;
};

enum { CHANNEL_MOST_MARKS = 5 };
extern const struct channel_mark channel_marks[]; /* <|channel|> is the first */

static inline bool channel_is_mark(char byte) {
    return (unsigned char)byte >= CHANNEL_FIRST_BYTE;
}

/* Returns where an answer begins: in a header, of which nothing has come. */
struct thought channels_begin(void);
/* Does thought_take() for THOUGHT_CHANNELS. */
enum thought_step channels_take(struct thought *t, char byte);

#endif
