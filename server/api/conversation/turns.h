/* turns.h - the turns of a conversation, written for a template that takes fewer forms of them.
 *
 * Templates raise at what their model has never seen: a system message behind the first turn, or
 * any, two turns of one role, a turn of the user right behind results of tools, ids of calls of
 * another length.  Agents send all of these.
 *
 *   [system A] [user] [system B] [user] [tool] [user C]
 *     └ in front, or in the   └ joined        └ in the result's text
 *       first user's turn
 *
 * A later system message becomes part of the user's turn in its place, not of the first message.
 * So a new one changes nothing before it, and the prefix stays in the cache.
 *
 * Thread: any.  Memory: results are new; they share values with what they are made from. */
#ifndef SERVER_API_CONVERSATION_TURNS_H
#define SERVER_API_CONVERSATION_TURNS_H

#include <stdbool.h>
#include <jansson.h>

/* What a template does not take. */
struct turn_rules {
    bool one_text;   /* what a message with calls says beside a thought */
    bool one_call;   /* several calls of a message */
    bool short_ids;  /* ids of calls that do not fit (call_ids.h) */
    bool joined;     /* later system messages, and two turns of one role */
    bool no_system;  /* system messages */
    bool tools_last; /* a turn of the user behind results */
};

/* The rules to try one after the other, until a template takes what they make. */
enum { TURN_ATTEMPTS = 9 };
extern const struct turn_rules turn_attempts[TURN_ATTEMPTS];

/* Returns the rules by which a template writes all of the messages.  Without them it leaves out
 * system messages behind the first turn, or all calls of a message but one.  *needed: they change
 * something. */
struct turn_rules turns_whole(const json_t *messages, bool drops_systems, bool drops_calls,
                              bool *needed);
/* Makes messages (messages.h) that keep the rules.  NULL: there is no memory. */
json_t *turns_make(const json_t *messages, const struct turn_rules *rules);

#endif
