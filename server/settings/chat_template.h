/* chat_template.h - the model's chat template, read at the start, and what it may write as its own.
 *
 * The source is the first of these that there is.  There may be one template or several by name, of
 * which `default` and, for requests with tools, `tool_use` count:
 *
 *   the setting --chat-template, a file
 *   chat_template.jinja and additional_chat_templates/NAME.jinja of the model's directory
 *   `chat_template` in its tokenizer_config.json
 *   `chat_template` in its chat_template.json, the file of a processor
 *
 * Thread: main, at the start; read-only afterwards.  Memory: the struct owns all of it. */
#ifndef SERVER_SETTINGS_CHAT_TEMPLATE_H
#define SERVER_SETTINGS_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <jansson.h>

#include "engine/request/thought.h"

struct error;
struct template;

struct chat_template {
    struct template *plain;      /* NULL: requests without tools have none */
    struct template *with_tools; /* of requests with tools; NULL: `plain` */
    json_t *own;                 /* bos_token and the like, by name */
    json_t *unused;              /* an array: names of templates that no request uses */
    char *source;                /* where `plain` is from, for the log; NULL: nowhere */
    char *tool_text;             /* of the template for requests with tools; NULL: no template */
    bool names_developer;        /* it knows the role `developer` */
    bool drops_systems;          /* it writes no system message behind the first turn */
    bool drops_calls;            /* it does not write all calls of a message */
    bool drops_tools;            /* it writes nothing of a request's tools */
    bool marks_reasoning;        /* its model marks what it thinks: */
    enum thought_form thoughts;  /* so */
    bool has_processors;         /* there is a chat_template.json, which is not used */
    const json_t *defaults;      /* variables of requests that do not set them, of the server's
                                    options; NULL: none */
};

/* Loads the model's template into *out, which is zeroed.  file: the setting, or NULL.  A model
 * without a template is none.  ERR_INVALID, ERR_UNSUPPORTED: the text names file, line and column.
 * ERR_NOT_FOUND: `file` does not exist.  ERR_NOMEM. */
int chat_template_load(struct chat_template *out, const char *file, const char *model_dir,
                       struct error *err);
void chat_template_fini(struct chat_template *chat);

#endif
