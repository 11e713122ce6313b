/* call_ids.h - ids of tool calls that fit every template: nine letters and digits, which is what
 * templates of Mistral's models ask for.
 *
 * An id of another form has an alias of this one, which depends on the id alone: so the prompts of
 * a conversation's later turns begin like those of the earlier ones, whichever server reads them.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_API_CONVERSATION_CALL_IDS_H
#define SERVER_API_CONVERSATION_CALL_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CALL_ID_LENGTH = 9 };

/* Tells whether an id fits as it is. */
bool call_id_fits(const char *id, size_t length);
/* Writes the alias of a text, with a zero behind it. */
void call_id_alias(char out[CALL_ID_LENGTH + 1], const char *text, size_t length);
/* Writes the id of a call of an answer to a prompt of so many tokens; messages and responses put a
 * word before it.  The tokens tell the turns of a conversation apart in which the client gives all
 * requests the same id. */
void call_id_make(char out[CALL_ID_LENGTH + 1], const char *request_id, uint32_t n_prompt,
                  uint32_t choice, uint32_t call);

#endif
