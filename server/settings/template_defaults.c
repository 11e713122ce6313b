/* template_defaults.c - see template_defaults.h. */
#include "server/settings/template_defaults.h"

#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"

#define SETTING "--default-chat-template-kwargs"

/* Refuses variables that are made from a request's own members. */
static int check_names(const json_t *object, struct error *err) {
    static const char *const of_requests[] = {"messages", "tools", "documents",
                                              "add_generation_prompt"};
    for (size_t i = 0; i < sizeof(of_requests) / sizeof(of_requests[0]); i++)
        if (json_object_get(object, of_requests[i]))
            return error_set(err, ERR_INVALID, SETTING ": only a request can say '%s'",
                             of_requests[i]);
    return 0;
}

int template_defaults_read(json_t **out, const char *text, struct error *err) {
    json_t *object = NULL;
    int rc = json_guard_parse(&object, text, strlen(text), SETTING, err);
    if (!rc) rc = check_names(object, err);
    if (rc) json_decref(object);
    else *out = object;
    return rc;
}
