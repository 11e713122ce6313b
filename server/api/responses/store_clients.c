/* store_clients.c - see store_clients.h. */
#include "server/api/responses/store_clients.h"

#include <stdlib.h>

#include "engine/base/error.h"
#include "engine/base/sizes.h"

enum { CLIENT_BYTES = sizeof(struct store_client) + 16, FEWEST_SLOTS = 4 };

int store_clients_init(struct store_clients *clients, size_t n_buckets) {
    clients->mask = n_buckets - 1;
    clients->n_slots = FEWEST_SLOTS;
    clients->buckets = calloc(n_buckets, sizeof(struct store_client *));
    clients->heap = calloc(FEWEST_SLOTS, sizeof(struct store_client *));
    return clients->buckets && clients->heap ? 0 : ERR_NOMEM;
}

void store_clients_fini(struct store_clients *clients) {
    free(clients->buckets);
    free(clients->heap);
}

uint64_t store_clients_bytes(const struct store_clients *clients) {
    return (clients->mask + 1 + clients->n_slots) * sizeof(struct store_client *) +
           clients->n * CLIENT_BYTES;
}

/* ---- the heap ---- */

static uint64_t evictable_bytes(const struct store_client *client) {
    return client->last.oldest || client->earlier.oldest ? client->n_bytes : 0;
}

static uint64_t bytes_at(const struct store_clients *clients, size_t at) {
    return at < clients->n ? evictable_bytes(clients->heap[at]) : 0;
}

static void put_at(struct store_clients *clients, size_t at, struct store_client *client) {
    clients->heap[at] = client;
    client->at = at;
}

void store_clients_changed(struct store_clients *clients, struct store_client *client) {
    const uint64_t own = evictable_bytes(client);
    size_t at = client->at;
    for (size_t above; at > 0 && bytes_at(clients, above = (at - 1) / 2) < own; at = above)
        put_at(clients, at, clients->heap[above]);
    for (size_t below; (below = 2 * at + 1) < clients->n; at = below) {
        if (bytes_at(clients, below + 1) > bytes_at(clients, below)) below++;
        if (bytes_at(clients, below) <= own) break;
        put_at(clients, at, clients->heap[below]);
    }
    put_at(clients, at, client);
}

struct store_client *store_clients_first(const struct store_clients *clients) {
    return bytes_at(clients, 0) > 0 ? clients->heap[0] : NULL;
}

uint64_t store_clients_second_bytes(const struct store_clients *clients) {
    return max_u64(bytes_at(clients, 1), bytes_at(clients, 2));
}

/* ---- clients by their ids ---- */

static struct store_client **link_to(struct store_clients *clients, uint64_t id) {
    struct store_client **link = &clients->buckets[id & clients->mask];
    while (*link && (*link)->id != id) link = &(*link)->next;
    return link;
}

/* Makes the heap's array large enough for one more client. */
static int reserve_slot(struct store_clients *clients) {
    if (clients->n < clients->n_slots) return 0;
    const size_t n = 2 * clients->n_slots;
    struct store_client **heap = realloc(clients->heap, n * sizeof(struct store_client *));
    if (!heap) return ERR_NOMEM;
    clients->heap = heap;
    clients->n_slots = n;
    return 0;
}

struct store_client *store_clients_get(struct store_clients *clients, uint64_t id) {
    struct store_client **link = link_to(clients, id);
    if (*link || reserve_slot(clients)) return *link;
    struct store_client *client = calloc(1, sizeof(*client));
    if (!client) return NULL;
    client->id = id;
    *link = client;
    put_at(clients, clients->n++, client);
    return client;
}

void store_clients_remove(struct store_clients *clients, struct store_client *client) {
    struct store_client *moved = clients->heap[--clients->n];
    *link_to(clients, client->id) = client->next;
    if (moved != client) {
        put_at(clients, client->at, moved);
        store_clients_changed(clients, moved);
    }
    free(client);
}
