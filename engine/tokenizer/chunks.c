/* chunks.c - encodes a text chunk by chunk, so that a chunk that was encoded before is looked up;
 * see tokenizer_cache.h.
 *
 *   text    the quick brown fox jumps over the lazy dog
 *   chunk  [the quick brown fo] its pieces but the last are certain: what
 *                        chunk [ fox jumps over the]         follows cannot change them; the next
 *                                         chunk [ the lazy…  chunk begins where they end
 *
 * A chunk's tokens are those of the whole text because
 *
 *   a piece     is encoded on its own, so only where pieces begin and end can depend on other text;
 *   before it   a chunk begins where a piece does, and patterns that look behind, or may match
 *               nothing, are not searched by chunks (is_forward);
 *   behind it   PCRE2 reports a partial match as soon as an attempt to match reaches the chunk's
 *               end.  The matches before did not, so they are the same whatever is there.
 *
 * Long pieces, those of texts without a pre-tokenizer, are merged word by word (symbols.c).
 * Whether a place is a cut depends on the two characters around it, so it is certain where a chunk
 * has both.
 *
 * A piece that is longer than a chunk, or needs many steps to be found, is encoded as without a
 * cache: the search for it in a chunk, at most FEW_STEPS a place, is all that it costs more.
 *
 * Budgets of a call (match.c) are not spent on what is looked up.  So a text that exceeds them may
 * be encoded if parts of it were encoded before.
 *
 * Thread: any; what changes is in the call's struct encoding.  Memory: the cache's. */
#include "engine/tokenizer/internal.h"

static size_t chunk_length(const struct tokenizer_cache *cache, const char *text, size_t n) {
    const size_t most = tokenizer_cache_chunk(cache);
    if (n <= most) return n;
    size_t length = most; /* back to a character's beginning */
    while (length > 0 && ((unsigned char)text[length] & 0xC0) == 0x80) length--;
    return length > 0 ? length : n;
}

/* Encodes a chunk that was not found, without looking up its parts, and inserts it.  One of which
 * little is certain would cost more memory than it saves time.  One with a special token is not
 * inserted: so a hit needs no check whether the text is trusted. */
static int encode_missed(struct encoding *e, const struct tokenizer_cache_key *key,
                         extent_fn encode, size_t *done) {
    struct tokenizer_cache *cache = e->cache;
    const size_t n_before = e->out->n;
    e->cache = NULL;
    const int rc =
        encode(e, key->step, key->bytes, key->n, key->ends ? EXTENT_WHOLE : EXTENT_CERTAIN, done);
    e->cache = cache;
    if (rc || *done < key->n / 2 || *done == 0 || encoding_find_special(e, n_before) != NO_TOKEN)
        return rc;
    const struct tokenizer_cache_hit value = {.n_ids = e->out->n - n_before, .n_done = *done};
    tokenizer_cache_insert(cache, key, e->out->ids + n_before, &value);
    return 0;
}

static int encode_chunk(struct encoding *e, size_t step, const char *text, size_t n,
                        extent_fn encode, size_t *done) {
    const size_t length = chunk_length(e->cache, text, n);
    const struct tokenizer_cache_key key =
        tokenizer_cache_key(e->cache, e->scope, step, length == n, text, length);
    struct tokenizer_cache_hit hit;
    int rc = tokenizer_cache_find(e->cache, &key, e->out, &hit);
    if (rc) return rc;
    *done = hit.n_done;
    if (hit.n_done > 0) return encoding_extend(e, hit.n_ids);
    rc = encode_missed(e, &key, encode, done);
    if (rc == 0 && *done == 0) rc = encode(e, step, text, n, EXTENT_FIRST, done);
    tokenizer_cache_count_missed(e->cache, *done);
    return rc;
}

int encode_chunks(struct encoding *e, size_t step, const char *text, size_t n, extent_fn encode) {
    size_t done = 0;
    int rc = 0;
    for (size_t at = 0; at < n && rc == 0; at += done) {
        if (e->cache && n - at >= tokenizer_cache_least(e->cache))
            rc = encode_chunk(e, step, text + at, n - at, encode, &done);
        else rc = encode(e, step, text + at, n - at, EXTENT_WHOLE, &done);
    }
    return rc;
}
