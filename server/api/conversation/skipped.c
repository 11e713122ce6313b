/* skipped.c - see skipped.h. */
#include "server/api/conversation/skipped.h"

#include <stdio.h>
#include <string.h>

#include "server/settings/log.h"

void skipped_types_init(struct skipped_types *skipped) {
    pthread_mutex_init(&skipped->lock, NULL);
    skipped->n = 0;
}

void skipped_types_fini(struct skipped_types *skipped) {
    pthread_mutex_destroy(&skipped->lock);
}

/* Adds a name.  Returns false if it is there, or there is no room for it. */
static bool add(struct skipped_types *skipped, const char *name) {
    for (uint32_t i = 0; i < skipped->n; i++)
        if (strcmp(skipped->names[i], name) == 0) return false;
    if (skipped->n == SKIPPED_MAX_NAMES) return false;
    strcpy(skipped->names[skipped->n++], name);
    return true;
}

bool skipped_types_add(struct skipped_types *skipped, const char *list, const char *type) {
    char name[SKIPPED_NAME_BYTES];
    if (!skipped) return false;
    snprintf(name, sizeof(name), "%s %s", list, type);
    pthread_mutex_lock(&skipped->lock);
    const bool is_new = add(skipped, name);
    pthread_mutex_unlock(&skipped->lock);
    return is_new;
}

void skipped_types_note(struct skipped_types *skipped, const char *list, const char *type) {
    char quoted[SKIPPED_NAME_BYTES];
    if (skipped_types_add(skipped, list, type))
        log_event(LOG_INFO, "skipped list=%s type=%s: the model is not shown such elements", list,
                  log_quote(quoted, sizeof(quoted), type));
}
