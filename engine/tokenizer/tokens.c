/* tokens.c - the table of tokens: an id, and the bytes that it decodes to.
 *
 * Thread: any.  Memory: the tokenizer's. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/internal.h"

enum { ID_SLACK = 1024 }; /* ids may have gaps, but not consist of them */

int check_id(const json_t *id, size_t n_entries, uint32_t *out, struct error *err) {
    const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value > MAX_ID || (size_t)value > 4 * n_entries + ID_SLACK) {
        return error_set(err, ERR_INVALID,
                         "tokenizer.json: a token's id is missing, negative or too large");
    }
    *out = (uint32_t)value;
    return 0;
}

/* Grows the table of tokens so that it holds id. */
static int reach(struct tokenizer *t, uint32_t id) {
    if (id < t->n_tokens) return 0;
    uint32_t n = t->n_tokens ? t->n_tokens : 256;
    while (n <= id) n *= 2;
    struct token *tokens = realloc(t->tokens, n * sizeof(*tokens));
    if (!tokens) return ERR_NOMEM;
    memset(tokens + t->n_tokens, 0, (n - t->n_tokens) * sizeof(*tokens));
    t->tokens = tokens;
    t->n_tokens = n;
    return 0;
}

int blame_token(int rc, const char *content, const struct error *why, struct error *err) {
    if (rc == ERR_NOMEM) return rc;
    return error_set(err, rc, "tokenizer.json: token '%.80s': %s", content, why->text);
}

/* Appends to the tokenizer's bytes what the decoder makes of content. */
static int spell(struct tokenizer *t, struct matcher *matcher, bool first, const char *content,
                 size_t n, uint32_t *length, bool *is_byte, struct error *err) {
    struct text text = {0};
    struct error why = {0};
    int rc = text_append(&text, content, n);
    if (rc == 0) rc = decoder_run(&t->decoder, matcher, first, &text, is_byte, &why);
    if (rc) rc = blame_token(rc, content, &why, err);
    if (rc == 0 && t->bytes.n + text.n > UINT32_MAX)
        rc = error_set(err, ERR_INVALID, "tokenizer.json: the vocabulary is too large");
    if (rc == 0) rc = text_append(&t->bytes, text.data, text.n);
    *length = (uint32_t)text.n;
    free(text.data);
    return rc;
}

int redefine_token(struct tokenizer *t, struct matcher *matcher, uint32_t id, const char *content,
                   size_t n, struct error *err) {
    struct token *token = &t->tokens[id];
    *token = (struct token){.offset = (uint32_t)t->bytes.n, .exists = true};
    int rc = spell(t, matcher, false, content, n, &token->length, &token->is_byte, err);
    if (rc || !t->decoder.first_counts) return rc;
    bool is_byte;
    rc = spell(t, matcher, true, content, n, &token->first_length, &is_byte, err);
    token->first_differs = true;
    return rc;
}

int define_token(struct tokenizer *t, struct matcher *matcher, uint32_t id, const char *content,
                 size_t n, struct error *err) {
    if (reach(t, id)) return ERR_NOMEM;
    if (t->tokens[id].exists)
        return error_set(err, ERR_INVALID, "tokenizer.json: two tokens have id %u", id);
    return redefine_token(t, matcher, id, content, n, err);
}
