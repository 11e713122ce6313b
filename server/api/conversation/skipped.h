/* skipped.h - what bodies had and is left out: types of elements that the model is not shown, and
 * fields that there are not.  Each is named once in the log.
 *
 * Agents send the same unknown element with every request, so a line for each would say nothing
 * new.  Clients choose the names: there is room for a fixed number of them, and none is logged
 * beyond it.
 *
 * Thread: any.  Memory: fixed. */
#ifndef SERVER_API_CONVERSATION_SKIPPED_H
#define SERVER_API_CONVERSATION_SKIPPED_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { SKIPPED_MAX_NAMES = 128, SKIPPED_NAME_BYTES = 96 };

struct skipped_types {
    pthread_mutex_t lock;
    uint32_t n;
    char names[SKIPPED_MAX_NAMES][SKIPPED_NAME_BYTES];
};

void skipped_types_init(struct skipped_types *skipped);
void skipped_types_fini(struct skipped_types *skipped);
/* Notes a type of elements of this list of bodies.  Returns true if it is to be logged: it has not
 * been noted before, and there is room.  A type that is too long counts as others with the same
 * beginning.  NULL is allowed: false. */
bool skipped_types_add(struct skipped_types *skipped, const char *list, const char *type);
/* Logs that elements of this type are skipped in this list of bodies, if skipped_types_add() says
 * so. */
void skipped_types_note(struct skipped_types *skipped, const char *list, const char *type);

#endif
