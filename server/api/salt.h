/* salt.h - hashes a client's cache_salt into the number that separates prefix caches.
 *
 * SipHash-2-4 under a key made at start: a client cannot search for a salt that collides with
 * another client's.
 *
 * Thread: any.  Memory: none. */
#ifndef SERVER_API_SALT_H
#define SERVER_API_SALT_H

#include <stddef.h>
#include <stdint.h>

struct salt_key {
    uint64_t words[2];
};

/* Returns the scope of what only requests of the same salt and the same client share. */
uint64_t salt_scope(const struct salt_key *key, uint64_t cache_salt, uint64_t client);
uint64_t salt_hash(const struct salt_key *key, const char *text, size_t length); /* never 0 */

#endif
