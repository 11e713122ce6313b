/* skipped.h - types of elements that bodies had and the model is not shown, each named once in the
 * log.
 *
 * Agents send the same unknown element with every request, so a line for each would say nothing
 * new.  Clients choose the names: there is room for a fixed number of them, and none is logged
 * beyond it.
 *
 * Thread: any.  Memory: fixed. */
#ifndef SERVER_API_CONVERSATION_SKIPPED_H
#define SERVER_API_CONVERSATION_SKIPPED_H

#include <pthread.h>
#include <stdint.h>

enum { SKIPPED_MAX_NAMES = 128, SKIPPED_NAME_BYTES = 96 };

struct skipped_types {
    pthread_mutex_t lock;
    uint32_t n;
    char names[SKIPPED_MAX_NAMES][SKIPPED_NAME_BYTES];
};

void skipped_types_init(struct skipped_types *skipped);
void skipped_types_fini(struct skipped_types *skipped);
/* Logs that elements of this type are skipped in this list of bodies, unless that has been logged.
 * A type that is too long counts as others with the same beginning.  NULL is allowed: nothing is
 * logged. */
void skipped_types_note(struct skipped_types *skipped, const char *list, const char *type);

#endif
