/* detokenize.c - ids to text.  Tokens are bytes and may cut characters in two; text is whole
 * characters.
 *
 * An invalid sequence becomes U+FFFD, one for each maximal part of a character that something else
 * interrupts.  The rule is Unicode 3.9's, and that of Rust's from_utf8_lossy, which the reference
 * library uses:
 *
 *   E2 82 | AC       E2 82 waits, AC completes it: one character
 *   E2 82 | 41       E2 82 can no longer become a character: U+FFFD, then A
 *
 * This is ByteLevel.  Under byte fallback a run of byte tokens is text as a whole or not at all: if
 * it is not UTF-8, each of its bytes becomes U+FFFD.  So a run waits for its end:
 *
 *   E2 82 AC E2 | A     five replacements, then A
 *
 * It does not wait for ever: a client must see the text of a model that writes a language in bytes
 * before the run ends.  Once a run has DETOKENIZER_RUN bytes, its whole characters so far are
 * shown.  They stay shown if the rest is not UTF-8; only then does decoding differ from the
 * reference library's.
 *
 * The whole decode pushes its ids through the streaming one, so the two cannot differ.
 *
 * Thread: any.  Memory: the caller's. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

static const char REPLACEMENT[3] = {'\xEF', '\xBF', '\xBD'};

static size_t expected_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}

/* Returns whether byte can follow the n_pending bytes of a character.  The second byte's range
 * depends on the first: no overlong forms, no surrogates, nothing above U+10FFFF. */
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

/* The buffer that text is written to. */
struct sink {
    char *buffer;
    size_t n, capacity;
    bool full;
};

static void emit(struct detokenizer *d, const struct tokenizer *tokenizer, struct sink *sink,
                 const void *bytes, size_t n) {
    const struct text *strip = &tokenizer->decoder.strip;
    if (n == 0) return;
    if (!d->begun && strip->n > 0 && n >= strip->n && memcmp(bytes, strip->data, strip->n) == 0) {
        bytes = (const char *)bytes + strip->n;
        n -= strip->n;
    }
    d->begun = true;
    sink->full = sink->full || n > sink->capacity - sink->n;
    if (sink->full) return;
    memcpy(sink->buffer + sink->n, bytes, n);
    sink->n += n;
}

static void replace(struct detokenizer *d, const struct tokenizer *tokenizer, struct sink *sink,
                    size_t times) {
    for (size_t i = 0; i < times; i++) emit(d, tokenizer, sink, REPLACEMENT, sizeof(REPLACEMENT));
}

/* Takes one byte and writes what it completes: a character, or up to two replacements.  One
 * replaces pending bytes, one the byte itself. */
static void push_byte(struct detokenizer *d, const struct tokenizer *tokenizer, struct sink *sink,
                      unsigned char byte) {
    if (d->n_pending > 0 && !continues(d, byte)) {
        replace(d, tokenizer, sink, 1);
        d->n_pending = 0;
    }
    if (d->n_pending == 0 && expected_length(byte) == 0) {
        replace(d, tokenizer, sink, 1);
        return;
    }
    d->pending[d->n_pending++] = byte;
    if (d->n_pending < expected_length(d->pending[0])) return;
    emit(d, tokenizer, sink, d->pending, d->n_pending);
    d->n_pending = 0;
}

/* Returns how many bytes the whole characters at the beginning of the run have. */
static size_t whole_characters(const struct detokenizer *d) {
    size_t whole = 0;
    while (whole < d->n_pending) {
        const size_t n = expected_length(d->pending[whole]);
        if (n == 0 || whole + n > d->n_pending) break;
        if (!utf8_is_valid((const char *)d->pending + whole, n)) break;
        whole += n;
    }
    return whole;
}

static void end_run(struct detokenizer *d, const struct tokenizer *tokenizer, struct sink *sink) {
    if (whole_characters(d) == d->n_pending) {
        emit(d, tokenizer, sink, d->pending, d->n_pending);
    } else {
        replace(d, tokenizer, sink, d->n_pending);
    }
    d->n_pending = 0;
    d->broken = false;
}

/* Adds a byte to the run. */
static void push_run(struct detokenizer *d, const struct tokenizer *tokenizer, struct sink *sink,
                     unsigned char byte) {
    if (d->broken) {
        replace(d, tokenizer, sink, 1);
        return;
    }
    d->pending[d->n_pending++] = byte;
    if (d->n_pending < DETOKENIZER_RUN) return;
    const size_t whole = whole_characters(d);
    if (d->n_pending - whole >= 4) { /* more than a character may lack */
        end_run(d, tokenizer, sink);
        d->broken = true;
        return;
    }
    emit(d, tokenizer, sink, d->pending, whole);
    memmove(d->pending, d->pending + whole, d->n_pending - whole);
    d->n_pending -= (uint32_t)whole;
}

static void push_token(struct detokenizer *d, const struct tokenizer *tokenizer, struct sink *sink,
                       const struct token *token) {
    const char *bytes = tokenizer->bytes.data + token->offset;
    size_t n = token->length;
    if (token->is_byte) {
        push_run(d, tokenizer, sink, (unsigned char)*bytes);
    } else if (tokenizer->decoder.byte_level) {
        for (size_t i = 0; i < n; i++) push_byte(d, tokenizer, sink, (unsigned char)bytes[i]);
    } else {
        end_run(d, tokenizer, sink);
        if (!d->begun && token->first_differs) {
            bytes += n;
            n = token->first_length;
        }
        emit(d, tokenizer, sink, bytes, n);
    }
    if (tokenizer->decoder.first_counts) d->begun = true;
}

long detokenizer_push(struct detokenizer *d, const struct tokenizer *tokenizer, uint32_t id,
                      bool skip_special, char *buffer, size_t capacity) {
    if (id >= tokenizer->n_tokens || !tokenizer->tokens[id].exists) return 0;
    if (skip_special && tokenizer_is_special(tokenizer, id)) return 0;
    struct detokenizer next = *d;
    struct sink sink = {.buffer = buffer, .capacity = capacity};
    push_token(&next, tokenizer, &sink, &tokenizer->tokens[id]);
    if (sink.full) return ERR_FULL;
    *d = next;
    return (long)sink.n;
}

long detokenizer_finish(struct detokenizer *d, const struct tokenizer *tokenizer, char *buffer,
                        size_t capacity) {
    if (d->n_pending == 0) return 0;
    struct detokenizer next = *d;
    struct sink sink = {.buffer = buffer, .capacity = capacity};
    if (tokenizer->decoder.byte_level) {
        replace(&next, tokenizer, &sink, 1);
        next.n_pending = 0;
    } else {
        end_run(&next, tokenizer, &sink);
    }
    if (sink.full) return ERR_FULL;
    *d = next;
    return (long)sink.n;
}

int tokenizer_decode(const struct tokenizer *tokenizer, const uint32_t *ids, size_t n,
                     bool skip_special, char **out, size_t *length, struct error *err) {
    size_t n_bytes = 0, used = 0, n_token;
    for (size_t i = 0; i < n; i++) {
        if (tokenizer_token_bytes(tokenizer, ids[i], &n_token)) n_bytes += n_token;
    }
    /* Each byte becomes at most one replacement; one more ends an unfinished character.  One byte
     * ends the text. */
    const size_t capacity = sizeof(REPLACEMENT) * (n_bytes + 1);
    char *text = malloc(capacity + 1);
    if (!text) return error_set(err, ERR_NOMEM, "tokenizer: no memory to decode %zu ids", n);
    struct detokenizer d = {0};
    for (size_t i = 0; i < n; i++) {
        used += (size_t)detokenizer_push(&d, tokenizer, ids[i], skip_special, text + used,
                                         capacity - used);
    }
    used += (size_t)detokenizer_finish(&d, tokenizer, text + used, capacity - used);
    text[used] = '\0';
    *out = text;
    *length = used;
    return 0;
}
