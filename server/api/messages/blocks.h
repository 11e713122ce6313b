/* blocks.h - the messages and content blocks of Anthropic's API as messages of OpenAI's.
 *
 * Thread: any.  Memory: results are new; they share strings with the body. */
#ifndef SERVER_API_MESSAGES_BLOCKS_H
#define SERVER_API_MESSAGES_BLOCKS_H

#include <stdbool.h>
#include <jansson.h>

struct api_error;
struct skipped_types;
struct tool_list;

/* Appends what `system` says to the messages: a string, or an array of text blocks.  A block that
 * Anthropic's own clients write for the gateway of its service is left out: it differs in each
 * request, so no prefix behind it could be found in the cache. */
int blocks_read_system(json_t *messages, const json_t *system, struct skipped_types *skipped,
                       struct api_error *err);
/* Appends the messages of a body, and adds the tools that they bring.  *continues: the last one is
 * the assistant's, so the answer continues it. */
int blocks_read_messages(json_t *messages, struct tool_list *tools, const json_t *from,
                         bool *continues, struct skipped_types *skipped, struct api_error *err);

#endif
