/* vocabulary.c - the vocabulary, its merges, and the symbols that merging begins with.
 *
 * Thread: the loading one.  Memory: the tokenizer owns what is built; sizes are bounded by the
 * number of entries that the file really has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"

static int load_vocab(struct tokenizer *t, json_t *vocab, size_t n_entries, struct matcher *matcher,
                      struct error *err) {
    const char *content;
    size_t n;
    json_t *value;
    json_object_keylen_foreach(vocab, content, n, value) {
        uint32_t id = NO_TOKEN;
        int rc = check_id(value, n_entries, &id, err);
        if (rc == 0) rc = define_token(t, matcher, id, content, n, err);
        if (rc) return rc;
    }
    return 0;
}

/* Returns an entry's id without a check: ids were checked when the vocabulary was loaded. */
uint32_t vocab_find(const json_t *vocab, const char *content, size_t n) {
    const json_t *id = json_object_getn(vocab, content, n);
    return id ? (uint32_t)json_integer_value(id) : NO_TOKEN;
}

static int add_merge(struct tokenizer *t, const json_t *vocab, uint32_t rank, const char *left,
                     size_t n_left, const char *right, size_t n_right, struct error *err) {
    struct text both = {0};
    int rc = text_append(&both, left, n_left);
    if (rc == 0) rc = text_append(&both, right, n_right);
    if (rc) goto done;
    const uint32_t left_id = vocab_find(vocab, left, n_left);
    const uint32_t right_id = vocab_find(vocab, right, n_right);
    const uint32_t id = vocab_find(vocab, both.data ? both.data : "", both.n);
    if (left_id == NO_TOKEN || right_id == NO_TOKEN || id == NO_TOKEN) {
        rc = error_set(err, ERR_INVALID,
                       "tokenizer.json: merge %u has a token that is not in the vocabulary", rank);
        goto done;
    }
    bpe_add_merge(&t->bpe, left_id, right_id, rank, id);
    if (n_left > 0 && n_right > 0) symbols_join(&t->symbols, left, n_left, right);

done:
    free(both.data);
    return rc;
}

/* Loads a merge, which is "left right" or ["left", "right"]. */
static int load_merge(struct tokenizer *t, const json_t *vocab, uint32_t rank, const json_t *merge,
                      struct error *err) {
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        const size_t n = json_string_length(merge);
        const char *space = memchr(text, ' ', n);
        const size_t n_left = space ? (size_t)(space - text) : n;
        if (space && !memchr(space + 1, ' ', n - n_left - 1)) {
            return add_merge(t, vocab, rank, text, n_left, space + 1, n - n_left - 1, err);
        }
    }
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (!json_is_string(left) || !json_is_string(right) || json_array_size(merge) != 2) {
        return error_set(err, ERR_INVALID, "tokenizer.json: merge %u is not a pair of tokens",
                         rank);
    }
    return add_merge(t, vocab, rank, json_string_value(left), json_string_length(left),
                     json_string_value(right), json_string_length(right), err);
}

static int load_merges(struct tokenizer *t, const json_t *vocab, const json_t *merges,
                       struct error *err) {
    if (!json_is_array(merges))
        return error_set(err, ERR_INVALID, "tokenizer.json: the model lists no merges");
    if (json_array_size(merges) > MAX_MERGES)
        return error_set(err, ERR_INVALID, "tokenizer.json: more than %d merges", MAX_MERGES);
    if (bpe_init(&t->bpe, json_array_size(merges))) return ERR_NOMEM;
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const int rc = load_merge(t, vocab, (uint32_t)i, json_array_get(merges, i), err);
        if (rc) return rc;
    }
    return 0;
}

/* Returns whether every byte has a token. */
static bool load_bytes(uint32_t *byte_ids, const json_t *vocab) {
    bool complete = true;
    for (unsigned byte = 0; byte < 256; byte++) {
        char utf8[UTF8_MAX_BYTES];
        const size_t n = utf8_write(utf8, alphabet_char((unsigned char)byte));
        byte_ids[byte] = vocab_find(vocab, utf8, n);
        complete &= byte_ids[byte] != NO_TOKEN;
    }
    return complete;
}

/* Returns whether every byte has a token of byte fallback. */
static bool load_fallback(struct symbols *symbols, const json_t *vocab) {
    bool complete = true;
    for (unsigned byte = 0; byte < 256; byte++) {
        char name[8];
        snprintf(name, sizeof(name), "<0x%02X>", byte);
        symbols->fallback[byte] = vocab_find(vocab, name, 6);
        complete &= symbols->fallback[byte] != NO_TOKEN;
    }
    return complete;
}

static int load_chars(struct symbols *symbols, json_t *vocab) {
    const char *content, *after;
    size_t n;
    json_t *value;
    json_object_keylen_foreach(vocab, content, n, value) {
        if (n == 0) continue;
        const uint32_t c = utf8_next(content, &after);
        if (after != content + n) continue;
        if (symbols_add_char(symbols, c, (uint32_t)json_integer_value(value))) return ERR_NOMEM;
    }
    return 0;
}

/* Loads the token that characters without a token become. */
static int load_unknown(struct symbols *symbols, const json_t *model, struct error *err) {
    size_t n;
    const char *unknown = member_text(model, "unk_token", &n);
    if (!unknown) return 0;
    symbols->unknown = vocab_find(json_object_get(model, "vocab"), unknown, n);
    symbols->fuses_unknown = member_flag(model, "fuse_unk", false);
    if (symbols->unknown != NO_TOKEN) return 0;
    return error_set(err, ERR_INVALID, "tokenizer.json: unk_token '%.80s' is not in the vocabulary",
                     unknown);
}

/* Refuses unknown tokens and byte fallback if a byte has no token; otherwise they never occur. */
static int check_unknown(const json_t *model, bool complete, struct error *err) {
    if (complete) return 0;
    if (json_string_length(json_object_get(model, "unk_token")) > 0)
        return refuse(err, "BPE with", "unk_token");
    if (member_flag(model, "byte_fallback", false)) return refuse(err, "BPE with", "byte_fallback");
    return 0;
}

/* Loads the symbols.  *complete: a text of n bytes has at least n / (bytes of the longest
 * vocabulary entry) tokens. */
static int load_symbols(struct tokenizer *t, const json_t *model, bool *complete,
                        struct error *err) {
    struct symbols *symbols = &t->symbols;
    json_t *vocab = json_object_get(model, "vocab");
    symbols->falls_back = member_flag(model, "byte_fallback", false);
    if (symbols->bytes) {
        *complete = load_bytes(symbols->byte_ids, vocab);
        return check_unknown(model, *complete, err);
    }
    if (!member_flag(model, "ignore_merges", false)) { /* it looks up a whole piece */
        symbols->joins = calloc(JOIN_WORDS, sizeof(*symbols->joins));
        if (!symbols->joins) return ERR_NOMEM;
    }
    *complete = load_fallback(symbols, vocab) && symbols->falls_back;
    const int rc = load_chars(symbols, vocab);
    return rc ? rc : load_unknown(symbols, model, err);
}

static int check_model(const json_t *model, struct error *err) {
    static const char *const AFFIXES[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = component_type(model);
    if (*type && strcmp(type, "BPE") != 0) return refuse(err, "model", type);
    for (size_t i = 0; i < 2; i++) {
        if (json_string_length(json_object_get(model, AFFIXES[i])) > 0)
            return refuse(err, "BPE with", AFFIXES[i]);
    }
    if (json_number_value(json_object_get(model, "dropout")) != 0)
        return refuse(err, "BPE with", "dropout");
    return 0;
}

/* Finds out whether merging the word gives this one token. */
static int merges_to(struct tokenizer *t, struct bpe_scratch *scratch, struct token_list *ids,
                     const char *word, size_t n, uint32_t id, bool *out) {
    ids->n = 0;
    if (token_list_reserve(ids, n)) return ERR_NOMEM;
    size_t n_ids = symbols_write(&t->symbols, word, n, ids->ids);
    const int rc = bpe_merge(&t->bpe, scratch, ids->ids, &n_ids);
    *out = n_ids == 1 && ids->ids[0] == id;
    return rc;
}

/* Fills the table of words: with ignore_merges with every token, else with those that their own
 * bytes merge to.  Under ByteLevel a word is its bytes; a token that does not spell bytes is no
 * word. */
static int load_words(struct tokenizer *t, json_t *vocab, bool ignore_merges) {
    struct bpe_scratch scratch = {0};
    struct token_list ids = {0};
    struct text word = {0};
    const char *content;
    size_t n;
    json_t *value;
    int rc = words_init(&t->words, json_object_size(vocab));
    if (rc) return rc;
    json_object_keylen_foreach(vocab, content, n, value) {
        const uint32_t id = (uint32_t)json_integer_value(value);
        bool is_word = ignore_merges;
        word.n = 0;
        rc = text_append(&word, content, n);
        if (rc) break;
        if (n == 0 || (t->symbols.bytes && !alphabet_to_bytes(content, n, word.data, &word.n)))
            continue;
        if (!is_word) rc = merges_to(t, &scratch, &ids, word.data, word.n, id, &is_word);
        if (rc == 0 && is_word) rc = words_add(&t->words, word.data, word.n, id);
        if (rc) break;
    }
    bpe_scratch_fini(&scratch);
    free(ids.ids);
    free(word.data);
    return rc;
}

static size_t longest_key(json_t *vocab) {
    const char *content;
    size_t n, longest = 0;
    json_t *value;
    json_object_keylen_foreach(vocab, content, n, value) {
        if (n > longest) longest = n;
    }
    return longest;
}

int vocabulary_load(struct tokenizer *t, const json_t *model, size_t n_added,
                    struct matcher *matcher, struct error *err) {
    bool complete = false;
    int rc = check_model(model, err);
    if (rc) return rc;
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab))
        return error_set(err, ERR_INVALID, "tokenizer.json: the model has no vocab");
    rc = load_vocab(t, vocab, json_object_size(vocab) + n_added, matcher, err);
    if (rc == 0) rc = load_symbols(t, model, &complete, err);
    if (rc == 0) rc = load_merges(t, vocab, json_object_get(model, "merges"), err);
    if (rc == 0) rc = load_words(t, vocab, member_flag(model, "ignore_merges", false));
    if (complete) t->longest = (uint32_t)longest_key(vocab);
    return rc;
}
