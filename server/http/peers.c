/* peers.c - the addresses that clients come from, and what the connections of each hold.
 *
 * A connection that waits for its client (to begin a request, or to send the rest of one) costs the
 * client nothing.  So when all places are taken, the address with most waiting connections loses
 * the one that has waited longest.  It loses it at once to an address that has fewer, and after a
 * while (http.c) to one that has as many.  No number of waiting connections keeps other addresses
 * out, and a request that has arrived is never touched.  body.c bounds an address's share of the
 * memory for bodies.
 *
 * An IPv6 client commands at least 64 bits of addresses, so those count as one.
 *
 *   chain = hash(address) ──► peer ──► peer ──► NULL
 *                              └─ first ◄─► ... ◄─► last: its connections that wait
 *
 * Thread: loop.  Memory: one block per address with an open connection. */
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "server/http/http_internal.h"

/* Returns a number for the address: all of IPv4, the first half of IPv6.  They share no number,
 * because 0000::/8 is not in use. */
static uint64_t address_number(const struct sockaddr *address) {
    static const unsigned char mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    uint32_t v4;
    uint64_t v6;
    if (address->sa_family == AF_INET) {
        memcpy(&v4, &((const struct sockaddr_in *)address)->sin_addr, sizeof(v4));
        return 1ull << 32 | ntohl(v4);
    }
    if (address->sa_family != AF_INET6) return 0;
    const unsigned char *bytes = ((const struct sockaddr_in6 *)address)->sin6_addr.s6_addr;
    if (memcmp(bytes, mapped, sizeof(mapped)) == 0) {
        memcpy(&v4, bytes + sizeof(mapped), sizeof(v4));
        return 1ull << 32 | ntohl(v4);
    }
    memcpy(&v6, bytes, sizeof(v6));
    return v6;
}

static struct http_peer **chain_of(struct http *http, uint64_t address) {
    const uint64_t mixed = address * 0x9E3779B97F4A7C15ull; /* Knuth's multiplicative hash */
    return &http->peers[mixed >> 32 & (HTTP_N_PEER_CHAINS - 1)];
}

struct http_peer *peers_enter(struct http *http, const struct sockaddr *address) {
    const uint64_t number = address_number(address);
    struct http_peer **chain = chain_of(http, number);
    struct http_peer *peer = *chain;
    while (peer && peer->address != number) peer = peer->next;
    if (!peer) {
        peer = calloc(1, sizeof(*peer));
        if (!peer) return NULL;
        peer->address = number;
        peer->next = *chain;
        *chain = peer;
    }
    peer->n_conns++;
    return peer;
}

void peers_leave(struct http *http, struct http_peer *peer) {
    if (--peer->n_conns) return;
    struct http_peer **at = chain_of(http, peer->address);
    while (*at != peer) at = &(*at)->next;
    *at = peer->next;
    free(peer);
}

void peer_wait(struct http_conn *conn) {
    struct http_peer *peer = conn->peer;
    if (conn->waiting) return;
    conn->waiting = true;
    conn->waiting_since_ms = uv_now(conn->http->loop);
    conn->wait_next = NULL;
    conn->wait_prev = peer->last;
    if (peer->last) peer->last->wait_next = conn;
    else peer->first = conn;
    peer->last = conn;
    peer->n_waiting++;
}

void peer_unwait(struct http_conn *conn) {
    struct http_peer *peer = conn->peer;
    if (!conn->waiting) return;
    conn->waiting = false;
    if (conn->wait_prev) conn->wait_prev->wait_next = conn->wait_next;
    else peer->first = conn->wait_next;
    if (conn->wait_next) conn->wait_next->wait_prev = conn->wait_prev;
    else peer->last = conn->wait_prev;
    peer->n_waiting--;
}

struct http_conn *peers_longest_waiting(const struct http *http) {
    const struct http_peer *most = NULL;
    for (size_t i = 0; i < HTTP_N_PEER_CHAINS; i++)
        for (const struct http_peer *peer = http->peers[i]; peer; peer = peer->next)
            if (!most || peer->n_waiting > most->n_waiting) most = peer;
    return most ? most->first : NULL;
}
