/* fake_tokenizer.c - a byte-level tokenizer for tests of what stands on the tokenizer's interface.
 *
 * Tokens below 256 are bytes, 256 and up are the pieces below.  Text is assumed to be valid UTF-8
 * that may be cut anywhere. */
#include "tests/engine/fake_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/tokenizer/tokenizer.h"

/* tokenizer.h promises nothing of the inside. */
struct tokenizer {
    char unused;
};
static const struct tokenizer nothing = {0};
const struct tokenizer *const fake_tokenizer = &nothing;

static const char *const pieces[FAKE_PIECES] = {"ab",    "abc", "ba",    "\xc3\xa9", "\xe2\x82",
                                                "\xac!", "aab", "c\xc3", "<end>"};

const char *tokenizer_token_bytes(const struct tokenizer *tokenizer, uint32_t id, size_t *length) {
    static char bytes[256][2];
    (void)tokenizer;
    if (id >= FAKE_VOCAB) return NULL;
    if (id < 256) {
        bytes[id][0] = (char)id;
        *length = 1;
        return bytes[id];
    }
    *length = strlen(pieces[id - 256]);
    return pieces[id - 256];
}

static uint32_t char_length(unsigned char lead) {
    return lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

long detokenizer_push(struct detokenizer *d, const struct tokenizer *tokenizer, uint32_t id,
                      bool skip_special, char *buffer, size_t capacity) {
    size_t length, n = 0;
    const char *bytes = tokenizer_token_bytes(tokenizer, id, &length);
    if (id == FAKE_EOS && skip_special) return 0;
    if (!bytes || capacity < length + DETOKENIZER_GROWTH) return ERR_FULL;
    for (size_t i = 0; i < length; i++) {
        d->pending[d->n_pending++] = (unsigned char)bytes[i];
        if (d->n_pending < char_length(d->pending[0])) continue;
        memcpy(buffer + n, d->pending, d->n_pending);
        n += d->n_pending;
        d->n_pending = 0;
    }
    return (long)n;
}

long detokenizer_finish(struct detokenizer *d, const struct tokenizer *tokenizer, char *buffer,
                        size_t capacity) {
    (void)tokenizer;
    if (d->n_pending == 0 || capacity < 3) return 0;
    d->n_pending = 0;
    memcpy(buffer, "\xef\xbf\xbd", 3);
    return 3;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id) {
    (void)tokenizer;
    return id == FAKE_EOS;
}

/* Cuts text into its bytes. */
int tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t length,
                     bool add_special, size_t max_ids, struct token_list *out, struct error *err) {
    (void)tokenizer, (void)add_special, (void)max_ids;
    out->ids = malloc(length * sizeof(*out->ids));
    if (!out->ids) return error_set(err, ERR_NOMEM, "no memory for tokens");
    out->n = out->capacity = length;
    for (size_t i = 0; i < length; i++) out->ids[i] = (unsigned char)text[i];
    return 0;
}
