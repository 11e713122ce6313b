/* template_defaults.h - the setting --default-chat-template-kwargs: variables of the chat template
 * that hold where a request does not set them.
 *
 * Thread: any.  Memory: the caller owns *out. */
#ifndef SERVER_SETTINGS_TEMPLATE_DEFAULTS_H
#define SERVER_SETTINGS_TEMPLATE_DEFAULTS_H

#include <jansson.h>

struct error;

/* Reads an object of JSON.  ERR_INVALID: it is none, or it has what only a request can say, such as
 * messages.  On failure *out is untouched. */
int template_defaults_read(json_t **out, const char *text, struct error *err);

#endif
