/* grammar_cache.h - compiled grammars by the text that they were made of, so that a client which
 * sends one schema with many requests waits for it once.
 *
 * The least recently used ones are dropped when the kept ones take too much memory; sequences that
 * still use one keep it alive.  A text that took too much to compile is remembered for a minute, so
 * that it is refused at once when it comes again.
 *
 * Compiling is bounded, in two steps: what takes long is begun anew with more time and a low
 * priority, so that a caller can let it wait where it keeps no other form waiting.
 *
 * Thread: any.  Compiling holds no lock, so lookups never wait for it.  Memory: what
 * grammar_cache_create() is told, and what is being compiled. */
#ifndef ENGINE_GRAMMAR_GRAMMAR_CACHE_H
#define ENGINE_GRAMMAR_GRAMMAR_CACHE_H

#include <stdbool.h>
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

enum grammar_effort {
    GRAMMAR_QUICK, /* a quarter of a second */
    GRAMMAR_COSTLY /* twenty seconds, with a low priority */
};

struct grammar_trial {
    enum grammar_effort effort;
    bool (*is_stopped)(const void *user); /* tells whether it should end; NULL: it should not */
    const void *user;
};

/* Finds or compiles and keeps a text's grammar, counted for the caller.  trial NULL: it may cost
 * what it may at all.  ERR_INVALID, ERR_NOMEM and ERR_STOPPED are those of grammar_compile().
 * ERR_FULL: it takes more than a quick trial; ERR_UNSUPPORTED: than any, or is larger than all that
 * may be kept. */
int grammar_cache_get(struct grammar_cache *cache, struct grammar **out, enum grammar_kind kind,
                      const char *text, size_t n, const struct grammar_trial *trial,
                      struct error *err);
uint32_t grammar_cache_n_kept(struct grammar_cache *cache);

#endif
