/* tokenizer_cache.h - the tokens of texts that were encoded lately, so that a text which comes
 * again costs little more than a comparison.
 *
 *   key    scope │ step │ ends │ bytes     whose text, for which step of the pre-tokenizer, whether
 *                                          the text ends here, and the text
 *   value  tokens │ n_done                 the first n_done bytes have these tokens in any text
 *
 * chunks.c cuts texts into such chunks and says why the tokens of each are those of the whole text.
 * A hash under a secret key finds an entry, and its bytes are always compared: clients can neither
 * make texts collide nor get the tokens of another text.
 *
 * How long a request takes tells whether its text is here, as with cached prefixes.  So an entry is
 * found only in the scope that it was inserted in, a number that clients cannot choose.
 *
 * The cache serves one tokenizer.  The least recently used entries are evicted.
 *
 * Thread: any; a lock is held while one entry is copied.  Memory: at most max_bytes, with the text,
 * the tokens and what an entry needs beside them; entries are allocated as they come. */
#ifndef ENGINE_TOKENIZER_TOKENIZER_CACHE_H
#define ENGINE_TOKENIZER_TOKENIZER_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;
struct token_list;
struct tokenizer_cache; /* opaque: the fields live in tokenizer_cache.c */

struct tokenizer_cache_config {
    uint64_t max_bytes;
    uint64_t key[2];    /* of the hash: secret */
    size_t chunk_bytes; /* of an entry's text at most; 0: the default */
};

int tokenizer_cache_create(struct tokenizer_cache **out,
                           const struct tokenizer_cache_config *config, struct error *err);
void tokenizer_cache_destroy(struct tokenizer_cache *cache); /* NULL is allowed */

/* Returns how long an entry's text may be, and from which length on looking one up pays. */
size_t tokenizer_cache_chunk(const struct tokenizer_cache *cache);
size_t tokenizer_cache_least(const struct tokenizer_cache *cache);

/* A text to look up.  The bytes are borrowed. */
struct tokenizer_cache_key {
    uint64_t hash; /* of all below */
    uint64_t scope;
    const char *bytes;
    uint32_t n, step;
    bool ends;
};
struct tokenizer_cache_key tokenizer_cache_key(const struct tokenizer_cache *cache, uint64_t scope,
                                               size_t step, bool ends, const char *bytes, size_t n);

/* What was found: tokens of the text's first n_done bytes; n_done 0: nothing was. */
struct tokenizer_cache_hit {
    size_t n_ids, n_done;
};
/* Looks up a text and writes its tokens behind the list's last, but leaves it to the caller to
 * count them.  ERR_NOMEM. */
int tokenizer_cache_find(struct tokenizer_cache *cache, const struct tokenizer_cache_key *key,
                         struct token_list *list, struct tokenizer_cache_hit *hit);
/* Inserts a text.  Nothing happens if it is there, or if there is no memory. */
void tokenizer_cache_insert(struct tokenizer_cache *cache, const struct tokenizer_cache_key *key,
                            const uint32_t *ids, const struct tokenizer_cache_hit *value);
/* Counts n bytes of text as encoded after nothing was found. */
void tokenizer_cache_count_missed(struct tokenizer_cache *cache, size_t n);

struct tokenizer_cache_stats {
    uint64_t bytes, n_entries;        /* now */
    uint64_t hit_bytes, missed_bytes; /* of text, ever */
};
struct tokenizer_cache_stats tokenizer_cache_stats(struct tokenizer_cache *cache);

#endif
