/* age_list.c - see age_list.h. */
#include "engine/base/age_list.h"

void age_list_append(struct age_list *list, struct age_link *links, uint32_t at) {
    links[at] = (struct age_link){.older = list->newest, .newer = AGE_NONE};
    if (list->newest != AGE_NONE) links[list->newest].newer = at;
    else list->oldest = at;
    list->newest = at;
}

void age_list_remove(struct age_list *list, struct age_link *links, uint32_t at) {
    const struct age_link link = links[at];
    if (link.older != AGE_NONE) links[link.older].newer = link.newer;
    else list->oldest = link.newer;
    if (link.newer != AGE_NONE) links[link.newer].older = link.older;
    else list->newest = link.older;
}
