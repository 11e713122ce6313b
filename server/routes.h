/* routes.h - which function answers which path, and which paths need the API key: one table.
 *
 * Thread: loop.  Memory: none. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include <stdbool.h>

#include "server/api/handlers.h"
#include "server/json/api_error.h"

struct http_exchange;
struct request_table;

enum { ROUTE_MAX_REQUIRED = 4 };

/* Routes of the same path stand together, with a method each. */
struct route {
    const char *path, *method; /* GET is also HEAD */
    bool prefix;               /* matches every path that begins with it */
    const char *suffix;        /* and ends with this; NULL: as it may.  Longer matches come first */
    const char *shown;         /* the path with its {id}; NULL: it has none */
    bool open;                 /* needs no key */
    bool scraped;              /* nor, where the server has open_metrics */
    bool early;                /* answers while the model is being loaded, too */
    route_handler *handle;
    api_error_writer write_error;              /* NULL: OpenAI's shape */
    const struct request_table *const *tables; /* of the body, which is JSON; NULL: there is none */
    const char *required[ROUTE_MAX_REQUIRED];  /* members; NULL after the last one */
    const struct request_table *arguments;     /* of the query; NULL: there are none */
    const char *content;                       /* type of the answer; NULL: JSON */
    const char *answer; /* what JSON it is: a name of answers.json; NULL: not JSON */
    const char *event;  /* what the data of a stream's events are; NULL: there are no streams */
    const char *about;  /* what the answer is */
};

/* Decides on host, origin, path, method and API key before a body is read, so a client without the
 * key cannot make the server hold 64 MB.  This and routes_handle() are the transport's callbacks;
 * ctx is the struct server. */
bool routes_admit(struct http_exchange *exchange, void *ctx);
/* Returns the path of the route that answers, as it is written for people; NULL: there is none.
 * *method: becomes "other" if the route has no such method, so that clients cannot make up rows of
 * the table that counts answers (counters.h). */
const char *routes_name(const char *path, const char **method);
void routes_handle(struct http_exchange *exchange, void *ctx);

#endif
