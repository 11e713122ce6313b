/* known_blocks.h - which blocks of texts a replica was given, as far as its prefix cache can still
 * have them: the most recently used ones.
 *
 * Thread: its owner's.  Memory: allocates at create, never afterwards. */
#ifndef SERVER_REPLICAS_KNOWN_BLOCKS_H
#define SERVER_REPLICAS_KNOWN_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct known_blocks; /* opaque: the fields live in known_blocks.c */

/* Makes a set of at most n_blocks, which is at least 1.  ERR_NOMEM. */
int known_blocks_create(struct known_blocks **out, uint32_t n_blocks, struct error *err);
void known_blocks_destroy(struct known_blocks *known); /* NULL is allowed */

bool known_blocks_has(const struct known_blocks *known, uint64_t name);
/* Adds a block, or notes that it is used again.  The one that was used least recently is forgotten
 * if there are too many. */
void known_blocks_use(struct known_blocks *known, uint64_t name);

#endif
