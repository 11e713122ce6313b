/* history.h - the items that a request of POST /v1/responses means.
 *
 * They are those of the responses that it goes on from, then its own.  A reference among these
 * stands for the item that it names.
 *
 *   previous_response_id ─► turn ◄─ turn ◄─ turn        input: [item, reference, item]
 *                            │                                   │
 *                            ▼                                   ▼
 *                      [items of these turns,            the request's own items]
 *
 * Stored items are read again as one document, which has the bounds of a body.  So going on from a
 * conversation costs no more than sending it.
 *
 * Thread: any one.  Memory: the history's. */
#ifndef SERVER_API_RESPONSES_HISTORY_H
#define SERVER_API_RESPONSES_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>

#include "server/json/buffer.h"

struct api_error;
struct responses_store;
struct stored_turn;

/* Where a request's history is looked up, and how much of it is read. */
struct history_source {
    struct responses_store *store; /* NULL: nothing is stored */
    uint64_t client, now_s;
    size_t max_bytes;
};

/* Zero-initialise. */
struct history {
    struct stored_turn *before; /* the turn that the request goes on from, held; NULL: none */
    struct buffer input;        /* the request's own items, as a turn has them */
};

/* Reads the items.  id: of the response to go on from; NULL: none.  *items is the caller's, and its
 * first *n_before items are the stored ones.  keeps: history->input is wanted.  ERR_FULL: the
 * stored items have more than max_bytes, and err says so. */
int history_read(struct history *history, const struct history_source *source, const json_t *id,
                 const json_t *input, bool keeps, json_t **items, size_t *n_before,
                 struct api_error *err);
void history_fini(struct history *history, struct responses_store *store);

/* The prefix that all ids of responses have. */
#define RESPONSE_ID_PREFIX "resp_"

/* Makes a list of one turn's input items, each with an id: its own, or one that a reference can
 * have.  NULL: there is no memory. */
json_t *history_list(const struct stored_turn *turn, const char *response_id);

#endif
