/* request.h - what a chat asks for, whatever its shape: a completion whose prompt the model's
 * template renders.
 *
 * The one shape that is read here is that of POST /v1/chat/completions.  A body of another API is
 * translated into it: an API reads what it has of sampling by its own table, and makes the members
 * that a chat has besides.
 *
 * Thread: any one.  Memory: the completion request owns the rendered prompt. */
#ifndef SERVER_API_CONVERSATION_REQUEST_H
#define SERVER_API_CONVERSATION_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "engine/request/thought.h"

struct api_error;
struct completion_request;
struct request_limits;
struct request_reading;
struct request_table;
struct tool_format;
struct tool_list;

/* The members of a body of POST /v1/chat/completions; NULL ends the list. */
extern const struct request_table *const chat_tables[];
/* Those of a body of any API: what its template is given, and what comes of its reasoning. */
extern const struct request_table chat_template_table;

/* What a chat asks for beside its completion. */
struct chat_request {
    bool splits_reasoning;           /* the answer's reasoning is a member of its own */
    struct thought thought;          /* where the answer begins, if so */
    const struct tool_format *tools; /* how the answer calls tools; NULL: it has none */
    json_t *strings; /* of the tools (tool_strings.h), owned; NULL: none need be told */
    json_t *origins; /* of the tools (tools.h), owned; NULL: there are none */
    uint32_t max_calls;
    bool must_call; /* behind its thought the answer is calls alone */
};

struct chat_dialect {
    /* Reads the members of a body, which r->own is for, and adds those of a chat to `members` and
     * to `tools`.  These may share values with the body. */
    int (*translate)(struct request_reading *r, const json_t *root, json_t *members,
                     struct tool_list *tools);
    void *own;
};

void chat_request_fini(struct chat_request *chat);

/* Reads and checks a body, and renders its prompt.  dialect NULL: the body is a chat's.  On failure
 * neither struct holds anything to free and err names the cause. */
int chat_request_parse(struct completion_request *out, struct chat_request *chat,
                       const struct chat_dialect *dialect, const char *body, size_t length,
                       const struct request_limits *limits, struct api_error *err);

#endif
