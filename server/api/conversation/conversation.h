/* conversation.h - a completion that is a chat, whatever its shape: what the model says is split
 * into reasoning, text and calls while it comes.
 *
 *   body ──dialect──► members of a chat ──request.h──► prompt ─► engine ─► events
 *                                                                            │
 *   answer ◄──dialect── reasoning, content, calls of each choice ◄───────────┘
 *
 * Thread: loop, but for conversation_run().  Memory: the conversation owns its answers. */
#ifndef SERVER_API_CONVERSATION_CONVERSATION_H
#define SERVER_API_CONVERSATION_CONVERSATION_H

#include <stdbool.h>
#include <stdint.h>

#include "server/api/completion.h"
#include "server/api/conversation/reasoning.h"
#include "server/api/conversation/request.h"
#include "server/api/conversation/scores.h"
#include "server/api/conversation/tool_calls.h"
#include "server/api/conversation/tools.h"
#include "server/json/buffer.h"

/* What a choice has beside its tokens. */
struct answer {
    struct reasoning_split split;
    struct tool_split tools;
    struct json_check *check;         /* of the choice: sees what is no reasoning */
    struct buffer said;               /* of the event that is being added: no reasoning */
    struct buffer reasoning, content; /* since the last answer_clear() */
    struct scores scores;             /* with log-probabilities */
    uint64_t n_text;                  /* bytes that have come, with log-probabilities */
    uint32_t n_calls_sent;
    bool has_begun; /* the beginning of its stream has been sent */
};

struct conversation {
    struct completion c; /* first: see completion.h */
    struct chat_request request;
    struct answer *answers; /* [c.n_choices] */
    uint32_t n_reasoning;   /* tokens, of all choices */
};

static inline struct conversation *conversation_of(struct completion *c) {
    return (struct conversation *)c;
}

static inline struct answer *answer_of(struct completion *c, const struct choice *choice) {
    return &conversation_of(c)->answers[choice - c->choices];
}

/* Does completion_run(), and makes the answers.  Thread: pool. */
void conversation_run(struct job *job, completion_reader read);
/* Frees the answers: `fini` of a completion_api. */
void conversation_fini(struct completion *c);
/* Splits the event's text: `added` of a completion_api. */
void conversation_added(struct completion *c, struct choice *choice,
                        const struct engine_event *event);
/* Notes a token, an object with its bytes and the best ones, which is added to choice->tokens once
 * it is known to be one of the content: `add_logprobs`. */
void conversation_add_logprobs(struct choice *choice, const struct choice_format *format,
                               const struct token_info *info, bool skip);

/* Tells whether something has come that has not been sent. */
bool answer_has_news(const struct answer *answer);
/* Returns the content that the model wrote before the first call that is not sent, from *begin on,
 * and moves *begin behind it.  With all calls sent it is the rest.  The bytes stay the answer's. */
struct buffer answer_next_text(const struct answer *answer, size_t *begin);
/* Forgets the text that has been sent; all calls must have been, too. */
void answer_clear(struct answer *answer);
/* Writes the text as a JSON string. */
void answer_write_string(struct buffer *out, const struct buffer *text);
/* Returns which tool a call calls.  One that is not among the request's is a function. */
struct tool_origin answer_origin(struct completion *c, const struct tool_call *call);
/* Writes "name":…, and "namespace":… where the tool has one. */
void answer_write_name(struct buffer *out, const struct tool_origin *origin);
/* Writes as a JSON string what a custom tool is given: the one member of the arguments. */
void answer_write_custom_input(struct buffer *out, const struct tool_call *call);

#endif
