/* grammar_cache.h - compiled grammars by the text that they were made of, so that a client which sends
 * one schema with many requests waits for it once.
 *
 * The least recently used ones are dropped when the kept ones take too much memory; sequences that
 * still use one keep it alive.
 *
 * Thread: any.  Compiling holds no lock, so lookups never wait for it.  Memory: what
 * grammar_cache_create() is told, and what is being compiled. */
#ifndef ENGINE_GRAMMAR_GRAMMAR_CACHE_H
#define ENGINE_GRAMMAR_GRAMMAR_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/grammar/grammar.h"

struct grammar_cache;

/* Takes ownership of the vocabulary on success.  max_bytes: of the kept grammars, as the library
 * counts them.  ERR_NOMEM. */
int grammar_cache_create(struct grammar_cache **out, struct grammar_vocab *vocab, size_t max_bytes);
void grammar_cache_destroy(struct grammar_cache *cache); /* NULL is allowed */

/* Returns the kept grammar of a text, counted for the caller; NULL: there is none. */
struct grammar *grammar_cache_find(struct grammar_cache *cache, enum grammar_kind kind,
                                   const char *text, size_t n);
/* Finds or compiles and keeps a text's grammar, counted for the caller.  Errors are those of
 * grammar_compile(); a grammar that is larger than all that may be kept is ERR_INVALID, too. */
int grammar_cache_get(struct grammar_cache *cache, struct grammar **out, enum grammar_kind kind,
                      const char *text, size_t n, struct error *err);
uint32_t grammar_cache_n_kept(struct grammar_cache *cache);

#endif
