/* mailbox.h - a locked list between two threads, taken whole by its reader.
 *
 * Items are structs whose first member is a pointer to the next item.  The mailbox owns its items
 * until they are taken.  A closed mailbox refuses items, so that none is ever left unread.
 *
 * Thread: any.  Memory: allocates nothing. */
#ifndef ENGINE_BASE_MAILBOX_H
#define ENGINE_BASE_MAILBOX_H

#include <pthread.h>
#include <stdbool.h>

struct mailbox {
    pthread_mutex_t lock;
    pthread_cond_t arrived;
    void *first, *last;
    bool closed, poked;
};

int mailbox_init(struct mailbox *box);  /* ERR_NOMEM */
void mailbox_fini(struct mailbox *box); /* must be empty */

/* Appends a chain of items (linked, last->next is NULL) and wakes a reader in mailbox_wait.
 * *was_empty (may be NULL) tells whether this turned the box non-empty.  ERR_FULL: the box is
 * closed, the chain stays the caller's. */
int mailbox_push(struct mailbox *box, void *first, void *last, bool *was_empty);

void mailbox_poke(struct mailbox *box); /* ends the present or next wait, with or without items */

void *mailbox_take(struct mailbox *box); /* all items, oldest first; NULL when empty */
void *mailbox_wait(struct mailbox *box); /* the same, but sleeps while the box is empty and open */
/* Does the same, but no longer than until this time of clock_seconds(). */
void *mailbox_wait_until(struct mailbox *box, double until_s);
void *mailbox_close(struct mailbox *box); /* refuses items from now on, and takes the rest */

#endif
