/* age_list.h - numbers in the order of their last use, in a list that links an array.
 *
 *   list    oldest 2 ──► 0 ──► 5 newest
 *   links   [0: 2, 5][1][2: -, 0][3][4][5: 0, -]    of each number: the older one, the newer one
 *
 * Lists may share an array of links, as a number is in one list at most.  Numbers that are in no
 * list have links without a meaning.
 *
 * Thread: its owner's.  Memory: none; the owner has the array. */
#ifndef ENGINE_BASE_AGE_LIST_H
#define ENGINE_BASE_AGE_LIST_H

#include <stdint.h>

#define AGE_NONE UINT32_MAX /* no number */

struct age_link {
    uint32_t older, newer; /* AGE_NONE: there is none */
};

struct age_list {
    uint32_t oldest, newest; /* AGE_NONE: the list is empty */
};

/* Returns an empty list. */
static inline struct age_list age_list_empty(void) {
    return (struct age_list){AGE_NONE, AGE_NONE};
}

/* Adds a number, which is in no list, as the newest. */
void age_list_append(struct age_list *list, struct age_link *links, uint32_t at);
/* Removes a number, which is in this list. */
void age_list_remove(struct age_list *list, struct age_link *links, uint32_t at);

#endif
