/* encode.c - text to ids: added tokens are taken out, the rest is normalized, cut into pieces and
 * merged.
 *
 * Thread: any; everything that changes is in the call's struct encoding.
 * Memory: freed before the call returns, but for the caller's list. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

static int check_bound(const struct encoding *e, size_t n_more) {
    if (e->max_ids == 0 || n_more <= e->max_ids - e->out->n) return 0;
    return error_set(e->err, ERR_TOO_LONG, "the text has more than %zu tokens", e->max_ids);
}

int encoding_extend(struct encoding *e, size_t n) {
    const int rc = check_bound(e, n);
    if (rc == 0) e->out->n += n;
    return rc;
}

static int append(struct encoding *e, const uint32_t *ids, size_t n) {
    if (token_list_reserve(e->out, n)) return ERR_NOMEM;
    if (n > 0) memcpy(e->out->ids + e->out->n, ids, n * sizeof(*ids));
    return encoding_extend(e, n);
}

uint32_t encoding_find_special(const struct encoding *e, size_t n_before) {
    const struct tokenizer *tokenizer = e->tokenizer;
    for (size_t i = n_before; i < e->out->n; i++) {
        const uint32_t id = e->out->ids[i];
        if (tokenizer->tokens[id].special && id != tokenizer->symbols.unknown) return id;
    }
    return NO_TOKEN;
}

/* Refuses special ids behind the first n_before.  Added tokens have been taken out of the text
 * before, so only a vocabulary with such merges comes to this. */
static int check_untrusted(const struct encoding *e, size_t n_before) {
    const uint32_t id = encoding_find_special(e, n_before);
    if (id == NO_TOKEN) return 0;
    return error_set(e->err, ERR_INVALID, "the text must not hold the special token %u", id);
}

/* Encodes a piece, or a part of it between two cuts. */
static int encode_word(struct encoding *e, const char *word, size_t n) {
    const struct tokenizer *tokenizer = e->tokenizer;
    const uint32_t whole = words_find(&tokenizer->words, word, n);
    if (whole != NO_TOKEN) return append(e, &whole, 1);
    /* Merging may take fifty bytes of memory a byte.  So a word is not begun if it exceeds the
     * bound whatever it merges to. */
    int rc = tokenizer->longest > 0 ? check_bound(e, n / tokenizer->longest) : 0;
    if (rc) return rc;
    if (token_list_reserve(e->out, n)) return ERR_NOMEM;
    uint32_t *ids = e->out->ids + e->out->n;
    size_t n_ids = symbols_write(&tokenizer->symbols, word, n, ids);
    rc = bpe_merge(&tokenizer->bpe, &e->scratch, ids, &n_ids);
    return rc ? rc : encoding_extend(e, n_ids);
}

/* Encodes the words of a piece.  The last one in a part of it may go on behind the part. */
static int encode_words(struct encoding *e, size_t step, const char *piece, size_t n,
                        enum extent extent, size_t *done) {
    (void)step;
    const size_t n_before = e->out->n;
    size_t i = 0;
    while (i < n && !(extent == EXTENT_FIRST && i > 0)) {
        const size_t length = symbols_cut(&e->tokenizer->symbols, piece + i, n - i);
        if (extent == EXTENT_CERTAIN && i + length == n) break;
        const int rc = encode_word(e, piece + i, length);
        if (rc) return rc;
        i += length;
    }
    *done = i;
    return e->trust ? check_untrusted(e, n_before) : 0;
}

int encode_piece(struct encoding *e, const char *piece, size_t n) {
    return encode_chunks(e, e->tokenizer->pretokenizer.n_steps, piece, n, encode_words);
}

typedef int (*between_fn)(struct encoding *e, const char *text, size_t n);

/* Appends the added tokens of a set, special ones where they are trusted, and calls between() for
 * the text around them. */
static int encode_around(struct encoding *e, const struct added_set *set, const char *text,
                         size_t n, const struct trust *trust, between_fn between) {
    struct added_match match = {.trust = trust};
    const bool at_start = e->at_start;
    for (;;) {
        added_next(set, text, n, &match);
        const size_t until = match.id != NO_TOKEN ? match.begin : n;
        int rc = 0;
        e->at_start = at_start && match.taken == 0;
        if (until > match.taken) rc = between(e, text + match.taken, until - match.taken);
        if (rc || match.id == NO_TOKEN) return rc;
        rc = append(e, &match.id, 1);
        if (rc) return rc;
        match.taken = match.end;
    }
}

/* Recognises no special tokens in a text that is trusted in part: they have been taken out
 * before. */
static int encode_normalized(struct encoding *e, const char *text, size_t n) {
    static const struct trust nowhere = {0};
    return encode_around(e, &e->tokenizer->added_normalized, text, n, e->trust ? &nowhere : NULL,
                         pretokenizer_run);
}

static int encode_plain(struct encoding *e, const char *text, size_t n) {
    const struct normalizer *normalizer = &e->tokenizer->normalizer;
    if (normalizer->n_steps == 0) return encode_normalized(e, text, n);
    struct text copy = {0};
    int rc = text_append(&copy, text, n);
    if (rc == 0) rc = normalizer_run(normalizer, &e->matcher, &copy, e->err);
    if (rc == 0) rc = encode_normalized(e, copy.data, copy.n);
    free(copy.data);
    return rc;
}

static int encode_all(struct encoding *e, const char *text, size_t length, bool add_special) {
    const struct tokenizer *tokenizer = e->tokenizer;
    const struct added_set *set = e->trust ? &tokenizer->added_by_content : &tokenizer->added;
    int rc = matcher_init(&e->matcher, length);
    if (rc == 0 && add_special) rc = append(e, tokenizer->prefix.ids, tokenizer->prefix.n);
    if (rc == 0 && length > 0) rc = encode_around(e, set, text, length, e->trust, encode_plain);
    if (rc == 0 && add_special) rc = append(e, tokenizer->suffix.ids, tokenizer->suffix.n);
    matcher_fini(&e->matcher);
    bpe_scratch_fini(&e->scratch);
    return rc;
}

static int encode(struct encoding *e, const char *text, size_t length, bool add_special) {
    if (length > LONGEST_TEXT)
        return error_set(e->err, ERR_TOO_LONG, "the text has %zu bytes", length);
    if (e->max_ids > 0 && e->out->n > e->max_ids)
        return error_set(e->err, ERR_TOO_LONG, "the text has more than %zu tokens", e->max_ids);
    if (!utf8_is_valid(text, length))
        return error_set(e->err, ERR_INVALID, "the text is not valid UTF-8");
    const int rc = encode_all(e, text, length, add_special);
    if (rc == ERR_NOMEM)
        return error_set(e->err, rc, "tokenizer: no memory to encode %zu bytes", length);
    return rc;
}

int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     bool add_special, size_t max_ids, struct token_list *out, struct error *err) {
    const struct tokenizer_input input = {
        .text = text, .length = length, .add_special = add_special};
    return tokenizer_encode_input(tokenizer, &input, max_ids, out, err);
}

int tokenizer_encode_input(const struct tokenizer *tokenizer, const struct tokenizer_input *input,
                           size_t max_ids, struct token_list *out, struct error *err) {
    const struct trust trust = {input->trusted, input->n_trusted};
    struct encoding e = {.tokenizer = tokenizer,
                         .out = out,
                         .max_ids = max_ids,
                         .at_start = true,
                         .trust = input->is_trusted_in_part ? &trust : NULL,
                         .cache = input->cache,
                         .scope = input->scope,
                         .err = err};
    return encode(&e, input->text, input->length, input->add_special);
}
