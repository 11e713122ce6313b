/* load.c - builds a tokenizer from a tokenizer.json and the files beside it; see internal.h for its
 * parts.
 *
 * A component that could change a single id and is not understood is refused by name.  Offsets
 * (trim_offsets) change none and are ignored; so are the file's truncation and padding, which are
 * the caller's decision.
 *
 * Thread: any.  Memory: the document is freed before the call returns; every size in it is bounded
 * by the number of entries that the file really has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/base/json_guard.h"
#include "engine/gguf/model_document.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/token_names.h"

enum { LARGEST_FILE = 256 << 20 }; /* ten times the largest published ones */

/* Makes an added token known to decoding and to the search for it.  pattern is its content, or its
 * normal form, to which the reference library then decodes it, too. */
static int define_added(struct tokenizer *t, const json_t *vocab, const json_t *entry,
                        const struct text *pattern, struct matcher *matcher,
                        struct added_token *token, struct error *err) {
    size_t n;
    const char *content = member_text(entry, "content", &n);
    const uint32_t known = vocab_find(vocab, content, n);
    if (known != NO_TOKEN && known != token->id) {
        return error_set(err, ERR_INVALID, "tokenizer.json: added token '%.80s' has ids %u and %u",
                         content, token->id, known);
    }
    int rc = 0;
    if (known == NO_TOKEN) {
        rc = define_token(t, matcher, token->id, pattern->data, pattern->n, err);
    } else if (pattern->n != n || memcmp(pattern->data, content, n) != 0) {
        rc = redefine_token(t, matcher, token->id, pattern->data, pattern->n, err);
    }
    if (rc) return rc;
    const bool special = member_flag(entry, "special", false);
    const bool normalized = member_flag(entry, "normalized", !special);
    t->tokens[token->id].special = token->special = special;
    if (special || !normalized) rc = added_add(&t->added_by_content, content, n, token);
    if (rc) return rc;
    return added_add(normalized ? &t->added_normalized : &t->added, pattern->data, pattern->n,
                     token);
}

static int load_added_token(struct tokenizer *t, const json_t *vocab, const json_t *entry,
                            size_t n_entries, struct matcher *matcher, struct error *err) {
    size_t n;
    const char *content = member_text(entry, "content", &n);
    struct added_token token = {
        .single_word = member_flag(entry, "single_word", false),
        .lstrip = member_flag(entry, "lstrip", false),
        .rstrip = member_flag(entry, "rstrip", false),
    };
    struct text pattern = {0};
    struct error why = {0};
    int rc = check_id(json_object_get(entry, "id"), n_entries, &token.id, err);
    if (rc) goto done;
    rc = text_append(&pattern, content ? content : "", n);
    if (rc) goto done;
    if (member_flag(entry, "normalized", !member_flag(entry, "special", false))) {
        rc = normalizer_run(&t->normalizer, matcher, &pattern, &why);
        if (rc) rc = blame_token(rc, content ? content : "", &why, err);
    }
    if (rc == 0 && pattern.n == 0)
        rc = error_set(err, ERR_INVALID, "tokenizer.json: an added token is empty");
    if (rc == 0) rc = define_added(t, vocab, entry, &pattern, matcher, &token, err);

done:
    free(pattern.data);
    return rc;
}

/* Returns true if the entry, which tokenizer.json does not have, has the id of another token. */
static bool is_taken(const struct tokenizer *t, const json_t *vocab, const json_t *entry) {
    const json_int_t id = json_integer_value(json_object_get(entry, "id"));
    size_t n;
    const char *content = member_text(entry, "content", &n);
    return vocab_find(vocab, content, n) == NO_TOKEN && id >= 0 && id < t->n_tokens &&
           t->tokens[id].exists;
}

/* Loads the added tokens, of which the first n_own are tokenizer.json's. */
static int load_list(struct tokenizer *t, const json_t *vocab, const json_t *added, size_t n_own,
                     struct matcher *matcher, struct error *err) {
    const size_t n_entries = json_object_size(vocab) + json_array_size(added);
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *entry = json_array_get(added, i);
        if (i >= n_own && is_taken(t, vocab, entry)) continue;
        const int rc = load_added_token(t, vocab, entry, n_entries, matcher, err);
        if (rc) return rc;
    }
    return 0;
}

/* Notes the tokens that have a name.  A name that stands for no token is none. */
static void note_names(struct tokenizer *t, const json_t *added, const struct token_names *names) {
    static const char *const known[] = {[TOKEN_BEGIN] = "bos_token", [TOKEN_END] = "eos_token"};
    for (int name = 0; name < N_TOKEN_NAMES; name++) {
        const json_t *text = json_object_get(names ? names->named : NULL, known[name]);
        t->named[name] = NO_TOKEN;
        for (size_t i = 0; text && i < json_array_size(added); i++) {
            const json_t *entry = json_array_get(added, i);
            const json_int_t id = json_integer_value(json_object_get(entry, "id"));
            if (json_equal(json_object_get(entry, "content"), text) && id < t->n_tokens &&
                t->tokens[id].exists)
                t->named[name] = (uint32_t)id;
        }
    }
}

static int load_added(struct tokenizer *t, const json_t *root, const struct token_names *names,
                      struct matcher *matcher, struct error *err) {
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    json_t *own = json_object_get(root, "added_tokens"), *all = NULL;
    if (names && extra_tokens_merge(&all, own, vocab, names)) return ERR_NOMEM;
    const json_t *added = names ? all : own;
    const int rc = load_list(t, vocab, added, json_array_size(own), matcher, err);
    if (!rc) note_names(t, added, names);
    json_decref(all);
    if (rc) return rc;
    added_index(&t->added);
    added_index(&t->added_normalized);
    added_index(&t->added_by_content);
    return 0;
}

/* Refuses the prepend_scheme "first" after a normalizer, which may move the text's beginning.
 * Which piece the reference library then takes for the first depends on offsets that it keeps. */
static int check_first(const struct tokenizer *t, struct error *err) {
    const struct pretokenizer *pretokenizer = &t->pretokenizer;
    const bool first = pretokenizer->n_steps > 0 && pretokenizer->steps[0].prepend == PREPEND_FIRST;
    if (!first || t->normalizer.n_steps == 0) return 0;
    return refuse(err, "with a normalizer the Metaspace prepend_scheme", "first");
}

/* Builds a tokenizer from a file of n bytes, which bound the work on the texts in it. */
static int build(struct tokenizer *t, const json_t *root, size_t n, const struct token_names *names,
                 struct error *err) {
    const size_t n_added = json_array_size(json_object_get(root, "added_tokens"));
    const json_t *model = json_object_get(root, "model");
    struct matcher matcher;
    if (!json_is_object(model))
        return error_set(err, ERR_INVALID, "tokenizer.json: there is no model");
    if (matcher_init(&matcher, n)) return ERR_NOMEM;
    int rc = normalizer_parse(&t->normalizer, json_object_get(root, "normalizer"), err);
    if (rc == 0)
        rc = pretokenizer_parse(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), err);
    if (rc == 0) rc = check_first(t, err);
    if (rc == 0) rc = decoder_parse(&t->decoder, json_object_get(root, "decoder"), err);
    symbols_init(&t->symbols, t->pretokenizer.byte_level);
    if (rc == 0) rc = vocabulary_load(t, model, n_added, &matcher, err);
    if (rc == 0) rc = load_added(t, root, names, &matcher, err);
    if (rc == 0) rc = post_processor_load(t, json_object_get(root, "post_processor"), err);
    while (t->n_tokens > 0 && !t->tokens[t->n_tokens - 1].exists) t->n_tokens--;
    matcher_fini(&matcher);
    return rc;
}

/* Makes a tokenizer of a document, whose reference it takes. */
static int make(struct tokenizer **out, json_t *root, size_t n, const struct token_names *names,
                struct error *err) {
    struct tokenizer *t = calloc(1, sizeof(*t));
    const int rc = t ? build(t, root, n, names, err) : ERR_NOMEM;
    json_decref(root);
    if (rc) {
        tokenizer_destroy(t);
        return rc == ERR_NOMEM ? error_set(err, rc, "tokenizer: no memory to load %zu bytes", n)
                               : rc;
    }
    *out = t;
    return 0;
}

static int load_document(struct tokenizer **out, const char *json, size_t n,
                         const struct token_names *names, struct error *err) {
    json_t *root = NULL;
    const int rc = json_guard_parse_any(&root, json, n, JSON_ALLOW_NUL, "tokenizer.json", err);
    return rc ? rc : make(out, root, n, names, err);
}

int tokenizer_load_bytes(struct tokenizer **out, const char *json, size_t n, struct error *err) {
    return load_document(out, json, n, NULL, err);
}

static int load_file(struct tokenizer **out, const char *path, const struct token_names *names,
                     struct error *err) {
    char *json = NULL;
    size_t size = 0;
    int rc = file_read(&json, &size, path, LARGEST_FILE, err);
    if (rc) return rc;
    rc = load_document(out, json, size, names, err);
    free(json);
    return rc;
}

/* Loads what the keys of a GGUF file stand for, which its header has: its size bounds the work. */
static int load_gguf(struct tokenizer **out, const char *path, size_t size, struct error *err) {
    struct token_names names = {0};
    json_t *root = NULL;
    int rc = token_names_load(&names, path, err);
    if (!rc) rc = model_document_read(&root, path, "tokenizer.json", LARGEST_FILE, err);
    if (!rc) rc = make(out, root, size < LARGEST_FILE ? size : LARGEST_FILE, &names, err);
    token_names_fini(&names);
    return rc;
}

int tokenizer_load(struct tokenizer **out, const char *path, struct error *err) {
    char inside[4096];
    struct token_names names = {0};
    struct stat status;
    if (stat(path, &status) != 0) return load_file(out, path, NULL, err);
    if (model_is_gguf(path)) return load_gguf(out, path, (size_t)status.st_size, err);
    if (!S_ISDIR(status.st_mode)) return load_file(out, path, NULL, err);
    const int n = snprintf(inside, sizeof(inside), "%s/tokenizer.json", path);
    if (n < 0 || (size_t)n >= sizeof(inside))
        return error_set(err, ERR_INVALID, "%.200s: the path is too long", path);
    int rc = token_names_load(&names, path, err);
    if (!rc) rc = load_file(out, inside, &names, err);
    token_names_fini(&names);
    return rc;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t) return;
    normalizer_fini(&t->normalizer);
    pretokenizer_fini(&t->pretokenizer);
    decoder_fini(&t->decoder);
    symbols_fini(&t->symbols);
    added_fini(&t->added);
    added_fini(&t->added_normalized);
    added_fini(&t->added_by_content);
    bpe_fini(&t->bpe);
    words_fini(&t->words);
    free(t->prefix.ids);
    free(t->suffix.ids);
    free(t->bytes.data);
    free(t->tokens);
    free(t);
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t) {
    return t->n_tokens;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, uint32_t id, size_t *length) {
    if (id >= t->n_tokens || !t->tokens[id].exists) return NULL;
    *length = t->tokens[id].length;
    return t->bytes.data + t->tokens[id].offset;
}

bool tokenizer_is_special(const struct tokenizer *t, uint32_t id) {
    return id < t->n_tokens && t->tokens[id].special;
}

bool tokenizer_named(const struct tokenizer *t, enum token_name name, uint32_t *id) {
    *id = t->named[name];
    return *id != NO_TOKEN;
}

const struct token_list *tokenizer_prefix(const struct tokenizer *t) {
    return &t->prefix;
}
