/* reading.h - a chat that is being read, for the files of this folder: its members (request.c) and
 * its prompt (prompt.c).
 *
 * Thread: any one.  Memory: what is owned is the reading's; JSON is borrowed from the body. */
#ifndef SERVER_API_CONVERSATION_READING_H
#define SERVER_API_CONVERSATION_READING_H

#include <stdbool.h>
#include <stdint.h>
#include <jansson.h>

#include "engine/request/thought.h"
#include "server/api/conversation/tool_choice.h"
#include "server/api/conversation/tools.h"

struct chat_template;
struct request_reading;
struct template_text;
struct tool_format;

/* What a client, or the server, says of thinking. */
enum chat_thinking { THINKING_DEFAULT, THINKING_ON, THINKING_OFF };

/* What the readers of a chat's own members find.  JSON is borrowed from the body. */
struct chat_reading {
    const json_t *messages, *documents, *effort, *kwargs;
    const json_t *defaults;           /* the server's variables of the template; NULL: none */
    enum chat_thinking thinking;      /* what the client says of it */
    const json_t *tools;              /* NULL: none may be called */
    const struct tool_format *format; /* of calls to them */
    json_t *strings;       /* among their arguments, owned; NULL: the format tells them */
    struct tool_list list; /* that the body has, owned */
    struct tool_choice choice;
    struct thought thought; /* where the answer begins */
    bool logprobs, no_generation_prompt, has_generation_prompt, continues, keeps_reasoning;
    int32_t top_logprobs;
};

/* Tells whether the model is to think.  chat_template_kwargs wins over the members, these over the
 * effort, and that over what the server says. */
enum chat_thinking chat_thinking(const struct chat_reading *chat);

/* Renders the messages into *text, and notes where the answer begins in r->own, a chat_reading. */
int chat_make_prompt(struct request_reading *r, const struct chat_template *model,
                     struct template_text *text);

#endif
