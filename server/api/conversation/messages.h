/* messages.h - the messages of a chat request, as the variables that its template reads.
 *
 * Published templates expect what the Hugging Face library gives them: text as a string, the
 * arguments of tool calls as objects, reasoning under the name reasoning_content.
 *
 * Thread: any.  Memory: results are new; they share strings with the body. */
#ifndef SERVER_API_CONVERSATION_MESSAGES_H
#define SERVER_API_CONVERSATION_MESSAGES_H

#include <stdbool.h>
#include <jansson.h>

struct api_error;
struct skipped_types;

/* Checks the messages of a body and makes those for the template.  names_developer: the template
 * knows that role; else such messages are of the role `system`.  skipped: takes note of types that
 * are not shown; NULL is allowed.  On failure *out is untouched. */
int chat_messages_read(json_t **out, const json_t *messages, bool names_developer,
                       struct skipped_types *skipped, struct api_error *err);

#endif
