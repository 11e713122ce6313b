/* store.h - responses that clients may ask for again, or go on from.
 *
 *   [client, id] ─► response ─► turn ─► turn that it goes on from ─► …
 *                   head, tail  input, output: items as JSON, with commas between them
 *
 * A response is the JSON object of an answer, without its items: they are in its turn, once.  A
 * turn never changes.  It is freed with the last response or later turn that needs it.  So a
 * conversation can go on though its first responses have been dropped.
 *
 * Only the client that made a response finds it.  A response is dropped when it has not been used
 * for some time.  Where there would be too many bytes, the client that takes most gives up, in this
 * order:
 *
 *   objects of responses that later ones go on from: their turns, and so the conversations, stay
 *   its least recently used conversation, whole
 *
 * Why a response is no longer there is remembered for some time, in a table of fixed size.
 *
 * Thread: any.  The lock is held to look up, to link and to copy, never to read JSON.  Memory: the
 * store's. */
#ifndef SERVER_API_RESPONSES_STORE_H
#define SERVER_API_RESPONSES_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buffer;
struct error;
struct responses_store;
struct stored_turn;

struct responses_store_config {
    uint64_t max_bytes; /* of everything here */
    uint64_t max_age_s; /* since the last use; 0: any */
    uint64_t key[2];    /* of the hash: clients choose ids */
};

int responses_store_create(struct responses_store **out,
                           const struct responses_store_config *config, struct error *err);
void responses_store_destroy(struct responses_store *store); /* NULL is allowed */

/* A text that is the caller's. */
struct stored_text {
    const char *data;
    size_t n;
};

struct new_response {
    uint64_t client;
    const char *id;
    struct stored_text head, tail; /* of the object, before its items and behind them */
    struct buffer *input, *output; /* taken, whatever becomes of it */
    struct stored_turn **before;   /* what it goes on from: taken likewise; *before NULL: nothing */
    bool failed;                   /* nothing can go on from it */
};

/* Adds a response in place of one with the same client and id.  A response is dropped at once where
 * it is too long with the turns before it, beside what clients that take less have stored. */
void responses_store_add(struct responses_store *store, const struct new_response *response,
                         uint64_t now_s);

/* Tells whether there is such a response.  This is no use of it. */
bool responses_store_has(struct responses_store *store, uint64_t client, const char *id);
/* Tells whether there is such a response, or was one that is remembered. */
bool responses_store_knows(struct responses_store *store, uint64_t client, const char *id);
/* Finds a response's turn, which the caller must stored_turn_release().  Returns 0, or ERR_INVALID:
 * there is none. */
int responses_store_find(struct responses_store *store, uint64_t client, const char *id,
                         uint64_t now_s, struct stored_turn **out);
/* Appends the response's object.  Returns false if there is no response, or only its turn. */
bool responses_store_write(struct responses_store *store, uint64_t client, const char *id,
                           uint64_t now_s, struct buffer *out);
/* Returns false if there is none. */
bool responses_store_remove(struct responses_store *store, uint64_t client, const char *id);
/* Drops what has not been used for too long. */
void responses_store_expire(struct responses_store *store, uint64_t now_s);

/* Why a response, or its object, is not there. */
enum response_fate {
    RESPONSE_UNKNOWN, /* it never was there, or too many others have been dropped since */
    RESPONSE_DELETED,
    RESPONSE_EVICTED,
    RESPONSE_EXPIRED,
    RESPONSE_TOO_LONG,  /* it was dropped at once */
    RESPONSE_SHORTENED, /* its object has been evicted, its turn is there */
    N_RESPONSE_FATES
};

/* Returns why a response that has been asked for was not found.  *is_first: it was evicted, and is
 * the first such response that is asked for. */
enum response_fate responses_store_fate(struct responses_store *store, uint64_t client,
                                        const char *id, bool *is_first);
const struct responses_store_config *responses_store_config(const struct responses_store *store);

struct responses_store_stats {
    uint64_t n_responses, n_bytes;
    uint64_t n_hits, n_misses[N_RESPONSE_FATES], n_dropped[N_RESPONSE_FATES];
};

struct responses_store_stats responses_store_stats(struct responses_store *store);

bool stored_turn_failed(const struct stored_turn *turn); /* nothing can go on from it */
const struct stored_turn *stored_turn_before(const struct stored_turn *turn); /* NULL: none */
struct stored_text stored_turn_input(const struct stored_turn *turn);
struct stored_text stored_turn_output(const struct stored_turn *turn);
/* Returns the bytes of all items from the first turn to this one, with a comma for each text. */
size_t stored_turn_chain_bytes(const struct stored_turn *turn);
void stored_turn_release(struct responses_store *store, struct stored_turn *turn); /* or NULL */

#endif
