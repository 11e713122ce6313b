/* detokenize.c - ids to text.  Tokens are bytes and may cut characters in two; text is whole
 * characters.
 *
 * What is not UTF-8 becomes U+FFFD, one for each maximal part of a character that something else
 * interrupts (Unicode 3.9, and Rust's from_utf8_lossy, which the reference library uses):
 *
 *   E2 82 | AC       E2 82 waits, AC completes it: one character
 *   E2 82 | 41       E2 82 can no longer become a character: U+FFFD, then A
 *
 * The whole decode pushes its ids through the streaming one, so the two cannot differ.
 *
 * Thread: any.  Memory: the caller's. */
#include <stdlib.h>
#include <string.h>

#include "engine/error.h"
#include "engine/tokenizer/internal.h"

static const char REPLACEMENT[3] = {'\xEF', '\xBF', '\xBD'};

static size_t expected_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}

/* Whether byte can follow the n_pending bytes of a character.  The second byte's range depends on
 * the first: no overlong forms, no surrogates, nothing above U+10FFFF. */
static bool continues(const struct detokenizer *d, unsigned char byte) {
    const unsigned char lead = d->pending[0];
    unsigned char low = 0x80, high = 0xBF;
    if (d->n_pending == 1) {
        if (lead == 0xE0) low = 0xA0;
        if (lead == 0xF0) low = 0x90;
        if (lead == 0xED) high = 0x9F;
        if (lead == 0xF4) high = 0x8F;
    }
    return byte >= low && byte <= high;
}

static size_t replace(char *out) {
    memcpy(out, REPLACEMENT, sizeof(REPLACEMENT));
    return sizeof(REPLACEMENT);
}

/* Takes one byte and writes what it completes: a character, or up to two replacements (one for what
 * waited, one for the byte itself). */
static size_t push_byte(struct detokenizer *d, unsigned char byte, char out[6]) {
    size_t n = 0;
    if (d->n_pending > 0 && !continues(d, byte)) {
        n = replace(out);
        d->n_pending = 0;
    }
    if (d->n_pending == 0 && expected_length(byte) == 0) return n + replace(out + n);
    d->pending[d->n_pending++] = byte;
    if (d->n_pending < expected_length(d->pending[0])) return n;
    memcpy(out + n, d->pending, d->n_pending);
    n += d->n_pending;
    d->n_pending = 0;
    return n;
}

long detokenizer_push(struct detokenizer *d, const struct tokenizer *tokenizer, uint32_t id,
                      bool skip_special, char *buffer, size_t capacity) {
    size_t length, n = 0;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (!bytes || (skip_special && tokenizer_is_special(tokenizer, id))) return 0;
    struct detokenizer next = *d;
    for (size_t i = 0; i < length; i++) {
        char completed[6];
        const size_t n_completed = push_byte(&next, (unsigned char)bytes[i], completed);
        if (n_completed > capacity - n) return ERR_FULL;
        memcpy(buffer + n, completed, n_completed);
        n += n_completed;
    }
    *d = next;
    return (long)n;
}

long detokenizer_finish(struct detokenizer *d, char *buffer, size_t capacity) {
    if (d->n_pending == 0) return 0;
    if (capacity < sizeof(REPLACEMENT)) return ERR_FULL;
    d->n_pending = 0;
    return (long)replace(buffer);
}

int tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t n,
                     bool skip_special, char **out, size_t *length, struct error *err) {
    size_t n_bytes = 0, used = 0, n_token;
    for (size_t i = 0; i < n; i++) {
        if (tokenizer_token_bytes(tokenizer, ids[i], &n_token)) n_bytes += n_token;
    }
    /* Each byte becomes at most one replacement; one more ends a waiting character, one byte the
     * text. */
    const size_t capacity = sizeof(REPLACEMENT) * (n_bytes + 1);
    char *text = malloc(capacity + 1);
    if (!text) return error_set(err, ERR_NOMEM, "tokenizer: no memory to decode %zu ids", n);
    struct detokenizer d = {0};
    for (size_t i = 0; i < n; i++) {
        used += (size_t)detokenizer_push(&d, tokenizer, ids[i], skip_special, text + used,
                                         capacity - used);
    }
    used += (size_t)detokenizer_finish(&d, text + used, capacity - used);
    text[used] = '\0';
    *out = text;
    *length = used;
    return 0;
}
