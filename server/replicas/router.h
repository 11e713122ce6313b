/* router.h - which of several replicas gets a request: the one that has the least to do with it.
 *
 *   to do   the prompt tokens that were given to the replica and are not computed yet,
 *           ROUTER_SEQUENCE_TOKENS for each of its sequences,
 *           and the request's own tokens, without those that the replica has cached
 *
 * So a text goes where its beginning is, unless the wait there costs more than to compute the
 * beginning elsewhere.  Choosing the longest cached prefix alone was rejected
 * (scripts/load/fleet.py).  What all requests have in common, such as a system prompt, would bring
 * them all to one replica.
 *
 * What a replica has cached is known from what it was given, in blocks of ROUTER_BLOCK tokens; it
 * is not asked.  A wrong guess costs a hit, nothing else.
 *
 * The hash of a text's first block chooses among replicas with as little to do.  So a text that is
 * new to all goes to the same one after a restart, where a cache on disk may have it.  Texts
 * without a whole block go to one after the other.
 *
 * Thread: loop, but for router_name().  Memory: allocates at create, never afterwards. */
#ifndef SERVER_REPLICAS_ROUTER_H
#define SERVER_REPLICAS_ROUTER_H

#include <stdbool.h>
#include <stdint.h>

struct error;
struct router; /* opaque: the fields live in router.c */

enum { ROUTER_BLOCK = 64, ROUTER_SEQUENCE_TOKENS = 64, ROUTER_NONE = -1 };

/* What finds its beginning again: texts share prefixes only within one salt. */
struct routed_text {
    const uint32_t *tokens;
    uint32_t n_tokens;
    uint64_t salt;
    const uint64_t *names; /* [n_names] of router_name(), or NULL: it is named when it is needed */
    uint32_t n_names;
};

/* Makes a router for replicas whose prefix caches hold n_blocks each; 0: they have none.  key: of
 * the hash of texts.  ERR_NOMEM. */
int router_create(struct router **out, uint32_t n_replicas, uint32_t n_blocks,
                  const uint64_t key[2], struct error *err);
void router_destroy(struct router *router); /* NULL is allowed */

/* Computes the names of the text's whole blocks, of as many as a prefix cache holds, to out
 * [n_tokens / ROUTER_BLOCK].  Returns how many there are.  Thread: any, because a million tokens
 * take milliseconds. */
uint32_t router_name(const struct router *router, const struct routed_text *text, uint64_t *out);

/* Returns the replica that has the least to do with the text, among those of usable[n_replicas].
 * ROUTER_NONE: there is none. */
int router_choose(struct router *router, const struct routed_text *text, const bool *usable);
/* Notes that the replica got the text.  Returns the tokens that it must compute. */
uint32_t router_given(struct router *router, uint32_t replica, const struct routed_text *text);
/* Notes that it has computed tokens of prompts, and that a sequence has ended. */
void router_computed(struct router *router, uint32_t replica, uint32_t n_tokens);
void router_ended(struct router *router, uint32_t replica);

#endif
