/* stored.c - routes of responses that are stored: GET and DELETE /v1/responses/{id}, and the list
 * of its input items.
 *
 * OpenAI's route that cancels a response is for those in the background, which there are not. */
#include "server/api/handlers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>
#include <uv.h>

#include "engine/base/error.h"
#include "server/api/auth.h"
#include "server/api/job.h"
#include "server/api/reply.h"
#include "server/api/request_fields.h"
#include "server/api/responses/history.h"
#include "server/api/responses/missing.h"
#include "server/api/responses/store.h"
#include "server/api/server.h"
#include "server/http/http.h"
#include "server/json/json_value.h"

enum { ID_MAX = 256, PAGE_DEFAULT = 20, PAGE_MOST = 100 };

static uint64_t now_s(void) {
    return uv_hrtime() / 1000000000u;
}

static uint64_t client_of(const struct server *server, const struct http_exchange *exchange) {
    return auth_client(server->keys, &server->limits.salt_key, exchange);
}

/* Copies the id out of a path that ends with `behind`. */
static void id_of(const struct http_exchange *exchange, const char *behind, char id[ID_MAX]) {
    const char *begin = http_path(exchange) + strlen("/v1/responses/");
    snprintf(id, ID_MAX, "%.*s", (int)(strlen(begin) - strlen(behind)), begin);
}

static int refuse_missing(const struct server *server, uint64_t client, const char *id,
                          struct api_error *err) {
    char reason[MISSING_REASON_BYTES];
    return api_error_set(err, 404, "not_found", NULL, "Response with id '%.200s' not found: %s", id,
                         response_missing(reason, server->responses, client, id));
}

void responses_show(struct server *server, struct http_exchange *exchange) {
    char id[ID_MAX];
    struct buffer body = {0};
    struct api_error err;
    const char *stream = http_argument(exchange, "stream");
    id_of(exchange, "", id);
    if (stream && strcmp(stream, "true") == 0) {
        api_error_set(&err, 400, "unsupported", "stream",
                      "stream is not supported: a response that is stored has ended");
    } else if (server->responses &&
               responses_store_write(server->responses, client_of(server, exchange), id, now_s(),
                                     &body)) {
        reply_json(server, exchange, 200, &body);
        return;
    } else {
        refuse_missing(server, client_of(server, exchange), id, &err);
    }
    reply_error(server, exchange, &err);
}

void responses_delete(struct server *server, struct http_exchange *exchange) {
    char id[ID_MAX];
    struct buffer body = {0};
    struct api_error err;
    id_of(exchange, "", id);
    if (!server->responses ||
        !responses_store_remove(server->responses, client_of(server, exchange), id)) {
        refuse_missing(server, client_of(server, exchange), id, &err);
        reply_error(server, exchange, &err);
        return;
    }
    buffer_puts(&body, "{\"id\":");
    buffer_json_string(&body, id, strlen(id));
    buffer_puts(&body, ",\"object\":\"response\",\"deleted\":true}");
    reply_json(server, exchange, 200, &body);
}

void responses_cancel(struct server *server, struct http_exchange *exchange) {
    char id[ID_MAX];
    struct api_error err;
    id_of(exchange, "/cancel", id);
    if (server->responses &&
        responses_store_has(server->responses, client_of(server, exchange), id))
        api_error_set(&err, 400, "unsupported", NULL,
                      "response '%.200s' has ended: only one in the background could be cancelled",
                      id);
    else
        api_error_set(&err, 404, "not_found", NULL,
                      "Response with id '%.200s' not found: a request that is running is cancelled "
                      "by POST /v1/requests/{id}/cancel",
                      id);
    reply_error(server, exchange, &err);
}

/* ---- input items ---- */

struct listing {
    struct job job; /* first: see job.h */
    uint64_t client;
    uint32_t limit;
    bool ascending;
    char id[ID_MAX], after[ID_MAX]; /* after: empty if the list is to begin at its first item */
    struct buffer out;
};

static const char *item_id(const json_t *list, size_t i) {
    return json_string_value(json_object_get(json_array_get(list, i), "id"));
}

/* Finds the item behind which the page begins.  Returns how many items come before the page. */
static int find_after(const struct listing *l, const json_t *list, size_t *n_before,
                      struct api_error *err) {
    const size_t n = json_array_size(list);
    *n_before = 0;
    if (!*l->after) return 0;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(item_id(list, i), l->after) != 0) continue;
        *n_before = l->ascending ? i + 1 : n - i;
        return 0;
    }
    return api_error_set(err, 400, NULL, "after", "after: the response has no input item '%.200s'",
                         l->after);
}

static void write_id(struct buffer *out, const char *name, const char *id) {
    buffer_printf(out, ",\"%s\":", name);
    if (id) buffer_json_string(out, id, strlen(id));
    else buffer_puts(out, "null");
}

static void write_page(struct listing *l, const json_t *list, size_t n_before) {
    const size_t n = json_array_size(list), end = n - n_before > l->limit ? n_before + l->limit : n;
    const char *first = NULL, *last = NULL;
    buffer_puts(&l->out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = n_before; i < end; i++) {
        const size_t at = l->ascending ? i : n - 1 - i;
        if (i > n_before) buffer_puts(&l->out, ",");
        buffer_json_value(&l->out, json_array_get(list, at));
        last = item_id(list, at);
        if (!first) first = last;
    }
    buffer_puts(&l->out, "]");
    write_id(&l->out, "first_id", first);
    write_id(&l->out, "last_id", last);
    buffer_printf(&l->out, ",\"has_more\":%s}", end < n ? "true" : "false");
}

static void list_items(struct job *job) {
    struct listing *l = (struct listing *)job;
    struct responses_store *store = job->server->responses;
    struct stored_turn *turn = NULL;
    size_t n_before = 0;
    if (!store || responses_store_find(store, l->client, l->id, now_s(), &turn)) {
        job->rc = refuse_missing(job->server, l->client, l->id, &job->err);
        return;
    }
    json_t *list = history_list(turn, l->id);
    job->rc = list ? find_after(l, list, &n_before, &job->err) : api_error_no_memory(&job->err);
    if (!job->rc) write_page(l, list, n_before);
    json_decref(list);
    stored_turn_release(store, turn);
}

static void listed(struct job *job) {
    struct listing *l = (struct listing *)job;
    if (job->exchange && job->rc) reply_error(job->server, job->exchange, &job->err);
    else if (job->exchange) reply_json(job->server, job->exchange, 200, &l->out);
    buffer_fini(&l->out);
    job_free(job);
}

static int read_limit(const char *given, uint32_t *limit, struct api_error *err) {
    char *end = NULL;
    const long n = given ? strtol(given, &end, 10) : PAGE_DEFAULT;
    if (given && (end == given || *end || n < 1 || n > PAGE_MOST))
        return api_error_set(err, 400, NULL, "limit", "limit must be between 1 and %d", PAGE_MOST);
    *limit = (uint32_t)n;
    return 0;
}

static int read_order(const char *given, bool *ascending, struct api_error *err) {
    *ascending = given && strcmp(given, "asc") == 0;
    if (!given || *ascending || strcmp(given, "desc") == 0) return 0;
    return api_error_set(err, 400, NULL, "order", "order must be asc or desc");
}

void responses_items(struct server *server, struct http_exchange *exchange) {
    const char *after = http_argument(exchange, "after");
    struct api_error err;
    uint32_t limit = PAGE_DEFAULT;
    bool ascending = false;
    int rc = read_limit(http_argument(exchange, "limit"), &limit, &err);
    if (!rc) rc = read_order(http_argument(exchange, "order"), &ascending, &err);
    if (rc) {
        reply_error(server, exchange, &err);
        return;
    }
    struct listing *l =
        (struct listing *)job_create(server, exchange, JOB_TEXT, sizeof(*l), list_items, listed);
    if (!l) return;
    l->client = client_of(server, exchange);
    l->limit = limit;
    l->ascending = ascending;
    id_of(exchange, "/input_items", l->id);
    snprintf(l->after, sizeof(l->after), "%s", after ? after : "");
    job_submit(&l->job);
}

static const struct request_field item_fields[] = {
    {.name = "limit",
     .type = "integer",
     .low = 1,
     .high = PAGE_MOST,
     .about = "Most items; 20 unless given."},
    {.name = "order", .type = "'asc'|'desc'", .about = "From the first item on, or from the last."},
    {.name = "after",
     .type = "string",
     .about = "The id of the item behind which the list begins."},
};
const struct request_table responses_item_arguments = REQUEST_TABLE(item_fields);
