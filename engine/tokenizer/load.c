/* load.c - builds a tokenizer from a tokenizer.json; see internal.h for its parts.
 *
 * What would change a single id and is not understood is refused by name.  Left aside, because they
 * do not: offsets (trim_offsets), and the file's truncation and padding, which are the caller's
 * decision.
 *
 * Thread: any.  Memory: the document is freed before the call returns; every size in it is bounded
 * by the number of entries that the file really has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/error.h"
#include "engine/tokenizer/internal.h"

enum {
    LARGEST_FILE = 256 << 20, /* ten times the largest published ones */
    ID_SLACK = 1024,          /* ids may leave gaps, but not be made of them */
};

static int check_id(const json_t *id, size_t n_entries, uint32_t *out, struct error *err) {
    const json_int_t value = json_is_integer(id) ? json_integer_value(id) : -1;
    if (value < 0 || value > MAX_ID || (size_t)value > 4 * n_entries + ID_SLACK) {
        return error_set(err, ERR_INVALID,
                         "tokenizer.json: a token's id is missing, negative or too large");
    }
    *out = (uint32_t)value;
    return 0;
}

/* Makes the table reach id. */
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

/* A token whose characters are all of the byte alphabet stands for those bytes, any other for its
 * own. */
static int define_token(struct tokenizer *t, uint32_t id, const char *content, size_t n,
                        struct error *err) {
    if (reach(t, id)) return ERR_NOMEM;
    if (t->tokens[id].exists)
        return error_set(err, ERR_INVALID, "tokenizer.json: two tokens have id %u", id);
    const size_t offset = t->bytes.n;
    if (offset + n > UINT32_MAX)
        return error_set(err, ERR_INVALID, "tokenizer.json: the vocabulary is too large");
    if (text_append(&t->bytes, content, n)) return ERR_NOMEM;
    size_t length = n;
    const bool spelled = n > 0 && alphabet_to_bytes(content, n, t->bytes.data + offset, &length);
    t->bytes.n = offset + length;
    t->tokens[id] = (struct token){
        .offset = (uint32_t)offset, .length = (uint32_t)length, .exists = true, .spelled = spelled};
    return 0;
}

static int load_vocab(struct tokenizer *t, json_t *vocab, size_t n_entries, struct error *err) {
    const char *content;
    size_t n;
    json_t *value;
    json_object_keylen_foreach(vocab, content, n, value) {
        uint32_t id = NO_TOKEN;
        int rc = check_id(value, n_entries, &id, err);
        if (rc == 0) rc = define_token(t, id, content, n, err);
        if (rc) return rc;
    }
    return 0;
}

/* The id of a vocabulary entry; the ids were checked when the vocabulary was loaded. */
static uint32_t vocab_find(const json_t *vocab, const char *content, size_t n) {
    const json_t *id = json_object_getn(vocab, content, n);
    return id ? (uint32_t)json_integer_value(id) : NO_TOKEN;
}

static int add_merge(struct bpe *bpe, const json_t *vocab, uint32_t rank, const char *left,
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
    bpe_add_merge(bpe, left_id, right_id, rank, id);

done:
    free(both.data);
    return rc;
}

/* A merge is "left right" or ["left", "right"]. */
static int load_merge(struct bpe *bpe, const json_t *vocab, uint32_t rank, const json_t *merge,
                      struct error *err) {
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        const size_t n = json_string_length(merge);
        const char *space = memchr(text, ' ', n);
        const size_t n_left = space ? (size_t)(space - text) : n;
        if (space && !memchr(space + 1, ' ', n - n_left - 1)) {
            return add_merge(bpe, vocab, rank, text, n_left, space + 1, n - n_left - 1, err);
        }
    }
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (!json_is_string(left) || !json_is_string(right) || json_array_size(merge) != 2) {
        return error_set(err, ERR_INVALID, "tokenizer.json: merge %u is not a pair of tokens",
                         rank);
    }
    return add_merge(bpe, vocab, rank, json_string_value(left), json_string_length(left),
                     json_string_value(right), json_string_length(right), err);
}

static int load_merges(struct bpe *bpe, const json_t *vocab, const json_t *merges,
                       struct error *err) {
    if (!json_is_array(merges))
        return error_set(err, ERR_INVALID, "tokenizer.json: the model lists no merges");
    if (bpe_init(bpe, json_array_size(merges))) return ERR_NOMEM;
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const int rc = load_merge(bpe, vocab, (uint32_t)i, json_array_get(merges, i), err);
        if (rc) return rc;
    }
    return 0;
}

/* Returns whether every byte has a token. */
static bool load_bytes(struct bpe *bpe, const json_t *vocab) {
    bool complete = true;
    for (unsigned byte = 0; byte < 256; byte++) {
        const uint32_t c = alphabet_char((unsigned char)byte);
        const char utf8[2] = {(char)(c < 0x80 ? c : 0xC0 | c >> 6), (char)(0x80 | (c & 0x3F))};
        bpe->byte_ids[byte] = vocab_find(vocab, utf8, c < 0x80 ? 1 : 2);
        complete &= bpe->byte_ids[byte] != NO_TOKEN;
    }
    return complete;
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

/* Unknown tokens matter only when a byte can be unknown. */
static int check_unknown(const json_t *model, bool complete, struct error *err) {
    if (complete) return 0;
    if (json_string_length(json_object_get(model, "unk_token")) > 0)
        return refuse(err, "BPE with", "unk_token");
    if (member_flag(model, "byte_fallback", false)) return refuse(err, "BPE with", "byte_fallback");
    return 0;
}

/* Fills the table of words: with ignore_merges every token, else those that merging arrives at. */
static int load_words(struct tokenizer *t, json_t *vocab, bool ignore_merges) {
    struct bpe_scratch scratch = {0};
    struct token_list ids = {0};
    const char *content;
    json_t *value;
    int rc = words_init(&t->words, json_object_size(vocab));
    if (rc) return rc;
    json_object_foreach(vocab, content, value) {
        const uint32_t id = (uint32_t)json_integer_value(value);
        const struct token *token = &t->tokens[id];
        if (!token->spelled) continue;
        if (!ignore_merges) {
            size_t n_ids;
            ids.n = 0;
            rc = token_list_reserve(&ids, token->length);
            if (rc == 0) {
                rc = bpe_encode(&t->bpe, &scratch, t->bytes.data + token->offset, token->length,
                                ids.ids, &n_ids);
            }
            if (rc) break;
            if (n_ids != 1 || ids.ids[0] != id) continue;
        }
        words_add(&t->words, t, id);
    }
    free(scratch.memory);
    free(ids.ids);
    return rc;
}

static int load_model(struct tokenizer *t, const json_t *model, size_t n_added, struct error *err) {
    int rc = check_model(model, err);
    if (rc) return rc;
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab))
        return error_set(err, ERR_INVALID, "tokenizer.json: the model has no vocab");
    rc = load_vocab(t, vocab, json_object_size(vocab) + n_added, err);
    if (rc == 0) rc = load_merges(&t->bpe, vocab, json_object_get(model, "merges"), err);
    if (rc) return rc;
    const bool complete = load_bytes(&t->bpe, vocab);
    for (uint32_t id = 0; complete && id < t->n_tokens; id++)
        if (t->tokens[id].length > t->longest) t->longest = t->tokens[id].length;
    rc = check_unknown(model, complete, err);
    if (rc == 0) rc = load_words(t, vocab, member_flag(model, "ignore_merges", false));
    return rc;
}

/* Makes an added token known to decoding and to the search for it.  pattern is its content, or that
 * content as the normalizer leaves it, which the reference library then also decodes to. */
static int define_added(struct tokenizer *t, const json_t *vocab, const json_t *entry,
                        const struct text *pattern, struct added_token *token, struct error *err) {
    size_t n;
    const char *content = member_text(entry, "content", &n);
    const uint32_t known = vocab_find(vocab, content, n);
    if (known != NO_TOKEN && known != token->id) {
        return error_set(err, ERR_INVALID, "tokenizer.json: added token '%.80s' has ids %u and %u",
                         content, token->id, known);
    }
    if (known != NO_TOKEN && (pattern->n != n || memcmp(pattern->data, content, n) != 0)) {
        return refuse(err, "both in the vocabulary and, in another form, as an added token",
                      content);
    }
    int rc = known == NO_TOKEN ? define_token(t, token->id, pattern->data, pattern->n, err) : 0;
    if (rc) return rc;
    const bool special = member_flag(entry, "special", false);
    const bool normalized = member_flag(entry, "normalized", !special);
    t->tokens[token->id].special = special;
    return added_add(normalized ? &t->added_normalized : &t->added, pattern->data, pattern->n,
                     token);
}

static int load_added_token(struct tokenizer *t, const json_t *vocab, const json_t *entry,
                            size_t n_entries, struct error *err) {
    size_t n;
    const char *content = member_text(entry, "content", &n);
    struct added_token token = {
        .single_word = member_flag(entry, "single_word", false),
        .lstrip = member_flag(entry, "lstrip", false),
        .rstrip = member_flag(entry, "rstrip", false),
    };
    struct text pattern = {0};
    struct matcher matcher = {0};
    int rc = check_id(json_object_get(entry, "id"), n_entries, &token.id, err);
    if (rc) goto done;
    rc = text_append(&pattern, content ? content : "", n);
    if (rc == 0) rc = matcher_init(&matcher);
    if (rc) goto done;
    if (member_flag(entry, "normalized", !member_flag(entry, "special", false))) {
        rc = normalizer_run(&t->normalizer, &matcher, &pattern, err);
    }
    if (rc == 0 && pattern.n == 0)
        rc = error_set(err, ERR_INVALID, "tokenizer.json: an added token is empty");
    if (rc == 0) rc = define_added(t, vocab, entry, &pattern, &token, err);

done:
    matcher_fini(&matcher);
    free(pattern.data);
    return rc;
}

static int load_added(struct tokenizer *t, const json_t *root, struct error *err) {
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const json_t *added = json_object_get(root, "added_tokens");
    const size_t n_entries = json_object_size(vocab) + json_array_size(added);
    for (size_t i = 0; i < json_array_size(added); i++) {
        const int rc = load_added_token(t, vocab, json_array_get(added, i), n_entries, err);
        if (rc) return rc;
    }
    added_index(&t->added);
    added_index(&t->added_normalized);
    return 0;
}

static int load_special(struct tokenizer *t, const json_t *template, const json_t *special,
                        struct token_list *out, struct error *err) {
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *ids =
        json_object_get(json_object_get(json_object_get(template, "special_tokens"), name), "ids");
    if (!json_is_array(ids))
        return error_set(err, ERR_INVALID, "tokenizer.json: a template's token has no ids");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_int_t id = json_integer_value(json_array_get(ids, i));
        if (id < 0 || id >= t->n_tokens || !t->tokens[id].exists) {
            return error_set(err, ERR_INVALID, "tokenizer.json: a template's token does not exist");
        }
        const uint32_t value = (uint32_t)id;
        if (token_list_append(out, &value, 1)) return ERR_NOMEM;
    }
    return 0;
}

/* Puts before in front of list, and leaves before empty. */
static int prepend(struct token_list *list, struct token_list *before) {
    const int rc = token_list_append(before, list->ids, list->n);
    free(list->ids);
    *list = *before;
    *before = (struct token_list){0};
    return rc;
}

/* "single": what stands before the sequence A and after it.  A later template wraps the earlier. */
static int load_template(struct tokenizer *t, const json_t *template, struct error *err) {
    struct token_list before = {0};
    const json_t *single = json_object_get(template, "single");
    size_t n_sequences = 0;
    int rc = 0;
    for (size_t i = 0; i < json_array_size(single) && rc == 0; i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *sequence = json_object_get(piece, "Sequence");
        const char *name = json_string_value(json_object_get(sequence, "id"));
        if (sequence) {
            n_sequences += name && strcmp(name, "A") == 0 ? 1 : 2;
        } else {
            rc = load_special(t, template, json_object_get(piece, "SpecialToken"),
                              n_sequences == 0 ? &before : &t->suffix, err);
        }
    }
    if (rc == 0) rc = prepend(&t->prefix, &before);
    if (rc == 0 && n_sequences != 1)
        rc = refuse(err, "a template that does not name A once in", "single");
    free(before.ids);
    return rc;
}

static int load_post_processor(struct tokenizer *t, const json_t *component, size_t depth,
                               struct error *err) {
    const char *type = component_type(component);
    if (!component || json_is_null(component) || strcmp(type, "ByteLevel") == 0)
        return 0; /* only offsets */
    if (strcmp(type, "TemplateProcessing") == 0) return load_template(t, component, err);
    if (strcmp(type, "Sequence") != 0 || depth == MAX_STEPS)
        return refuse(err, "post-processor", type);
    const json_t *list = json_object_get(component, "processors");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const int rc = load_post_processor(t, json_array_get(list, i), depth + 1, err);
        if (rc) return rc;
    }
    return 0;
}

/* ByteLevel, or a Sequence of just that: twice would decode twice. */
static int check_decoder(const json_t *decoder, struct error *err) {
    const char *type = component_type(decoder);
    if (strcmp(type, "ByteLevel") == 0) return 0;
    const json_t *list = json_object_get(decoder, "decoders");
    if (strcmp(type, "Sequence") != 0 || json_array_size(list) != 1)
        return refuse(err, "decoder", type);
    type = component_type(json_array_get(list, 0));
    return strcmp(type, "ByteLevel") == 0 ? 0 : refuse(err, "decoder", type);
}

static int build(struct tokenizer *t, const json_t *root, struct error *err) {
    const size_t n_added = json_array_size(json_object_get(root, "added_tokens"));
    int rc = load_model(t, json_object_get(root, "model"), n_added, err);
    if (rc == 0) rc = normalizer_parse(&t->normalizer, json_object_get(root, "normalizer"), err);
    if (rc == 0)
        rc = pretokenizer_parse(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), err);
    if (rc == 0) rc = load_added(t, root, err);
    if (rc == 0) rc = load_post_processor(t, json_object_get(root, "post_processor"), 0, err);
    if (rc == 0) rc = check_decoder(json_object_get(root, "decoder"), err);
    while (t->n_tokens > 0 && !t->tokens[t->n_tokens - 1].exists) t->n_tokens--;
    return rc;
}

int tokenizer_load_bytes(struct tokenizer **out, const char *json, size_t n, struct error *err) {
    json_error_t where;
    json_t *root = json_loadb(json, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    if (!root)
        return error_set(err, ERR_INVALID, "tokenizer.json: line %d: %s", where.line, where.text);
    struct tokenizer *t = calloc(1, sizeof(*t));
    int rc = t ? build(t, root, err) : ERR_NOMEM;
    json_decref(root);
    if (rc) {
        tokenizer_destroy(t);
        return rc == ERR_NOMEM ? error_set(err, rc, "tokenizer: no memory to load %zu bytes", n)
                               : rc;
    }
    *out = t;
    return 0;
}

static int read_file(struct text *out, FILE *file) {
    char chunk[1 << 16];
    size_t n;
    while ((n = fread(chunk, 1, sizeof(chunk), file)) > 0) {
        if (out->n + n > LARGEST_FILE) return ERR_INVALID;
        if (text_append(out, chunk, n)) return ERR_NOMEM;
    }
    return ferror(file) ? ERR_IO : 0;
}

int tokenizer_load(struct tokenizer **out, const char *path, struct error *err) {
    char inside[4096];
    struct stat status;
    if (stat(path, &status) == 0 && S_ISDIR(status.st_mode)) {
        const int n = snprintf(inside, sizeof(inside), "%s/tokenizer.json", path);
        if (n < 0 || (size_t)n >= sizeof(inside))
            return error_set(err, ERR_INVALID, "%.200s: too long a path", path);
        path = inside;
    }
    FILE *file = fopen(path, "rb");
    if (!file) return error_set(err, ERR_NOT_FOUND, "%.300s: cannot be opened", path);
    struct text json = {0};
    int rc = read_file(&json, file);
    if (rc) {
        error_set(err, rc, "%.300s: cannot be read, or is larger than %d MiB", path,
                  LARGEST_FILE >> 20);
    } else {
        rc = tokenizer_load_bytes(out, json.data ? json.data : "", json.n, err);
    }
    free(json.data);
    fclose(file);
    return rc;
}

void tokenizer_destroy(struct tokenizer *t) {
    if (!t) return;
    normalizer_fini(&t->normalizer);
    pretokenizer_fini(&t->pretokenizer);
    added_fini(&t->added);
    added_fini(&t->added_normalized);
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
