/* store_clients.h - the clients that have stored responses, and which of them takes most memory.
 *
 *   buckets [id] ─► client ─► client        heap: [most, …], by bytes that can be evicted
 *                           │
 *                           ├─ last:    oldest ⇄ … ⇄ newest    ends of conversations
 *                           └─ earlier: oldest ⇄ … ⇄ newest    responses before these
 *
 * A client is there while it has turns in the store.  Its id is a hash that no client can choose
 * (auth_client()).
 *
 * Thread: any, under the store's lock.  Memory: counted by store_clients_bytes(). */
#ifndef SERVER_API_RESPONSES_STORE_CLIENTS_H
#define SERVER_API_RESPONSES_STORE_CLIENTS_H

#include <stddef.h>
#include <stdint.h>

struct response;

/* Responses by their last use. */
struct response_list {
    struct response *oldest, *newest;
};

struct store_client {
    uint64_t id, n_bytes; /* n_bytes: of its turns and responses */
    uint64_t n_turns;
    struct response_list last, earlier;
    struct store_client *next; /* in its bucket */
    size_t at;                 /* in the heap */
};

/* Zero-initialise. */
struct store_clients {
    struct store_client **buckets, **heap;
    size_t mask, n, n_slots;
};

/* Returns 0, or ERR_NOMEM.  n_buckets is a power of two. */
int store_clients_init(struct store_clients *clients, size_t n_buckets);
void store_clients_fini(struct store_clients *clients); /* no client is left */
/* Returns the memory of the tables and of all clients. */
uint64_t store_clients_bytes(const struct store_clients *clients);

/* Returns a client, which is made unless it is there.  NULL: no memory. */
struct store_client *store_clients_get(struct store_clients *clients, uint64_t id);
void store_clients_remove(struct store_clients *clients, struct store_client *client);

/* Finds the client's new place in the heap, after its bytes or lists have changed. */
void store_clients_changed(struct store_clients *clients, struct store_client *client);
/* Returns the client that takes most among those that have responses; NULL: none has. */
struct store_client *store_clients_first(const struct store_clients *clients);
/* Returns the bytes of the client that takes most beside the first. */
uint64_t store_clients_second_bytes(const struct store_clients *clients);

#endif
