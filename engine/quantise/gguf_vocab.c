/* gguf_vocab.c - see gguf_vocab.h. */
#include "engine/quantise/gguf_vocab.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/file.h"
#include "engine/gguf/gguf_pre.h"
#include "engine/gguf/model_document.h"
#include "engine/model/model.h"
#include "engine/quantise/gguf_writer.h"

enum { MAX_DOCUMENT = 256 << 20, MAX_TEMPLATE = 16 << 20, KEY_BYTES = 96 };
enum token_kind { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct token {
    const char *text; /* NULL: no token has this number */
    size_t n;
    enum token_kind kind;
    float score;
};

struct vocab {
    struct gguf_writer *w;
    const char *dir;
    const json_t *root;   /* tokenizer.json */
    const json_t *named;  /* tokenizer_config.json, or NULL */
    struct token *tokens; /* [n] */
    uint32_t n;
    bool is_exact; /* the keys say all that tokenizer.json says */
    struct error *err;
};

static const char *type_of(const json_t *object) {
    const char *type = json_string_value(json_object_get(object, "type"));
    return type ? type : "";
}

static bool is_type(const json_t *object, const char *type) {
    return strcmp(type_of(object), type) == 0;
}

static bool is_true(const json_t *object, const char *key, bool other) {
    const json_t *value = json_object_get(object, key);
    return json_is_boolean(value) ? json_is_true(value) : other;
}

/* Returns the part of this type of a Sequence, or the object itself. */
static const json_t *part_of(const json_t *object, const char *list, const char *type) {
    const json_t *parts = json_object_get(object, list), *part;
    size_t i;
    if (is_type(object, type)) return object;
    json_array_foreach(parts, i, part) {
        if (is_type(part, type)) return part;
    }
    return NULL;
}

/* ---- tokens ---- */

static int set_token(struct vocab *v, const char *text, size_t n, const json_t *id,
                     enum token_kind kind) {
    const json_int_t at = json_integer_value(id);
    if (!json_is_integer(id) || at < 0 || at >= v->n)
        return error_set(v->err, ERR_INVALID,
                         "%.200s: tokenizer.json: token '%.60s' is not one of the %" PRIu32
                         " tokens of the embedding",
                         v->dir, text, v->n);
    v->tokens[at] = (struct token){.text = text, .n = n, .kind = kind};
    return 0;
}

static int fill_vocab(struct vocab *v) {
    const json_t *model = json_object_get(v->root, "model"), *vocab, *id;
    const char *text;
    size_t n;
    int rc = 0;
    vocab = json_object_get(model, "vocab");
    if (!is_type(model, "BPE") || !json_is_object(vocab))
        return error_set(
            v->err, ERR_UNSUPPORTED,
            "%.200s: tokenizer.json is not of the kind BPE, and so has no keys in GGUF", v->dir);
    json_object_keylen_foreach((json_t *)vocab, text, n, id) {
        if (!rc) rc = set_token(v, text, n, id, NORMAL);
    }
    return rc;
}

static int fill_added(struct vocab *v) {
    const json_t *entry;
    size_t i;
    json_array_foreach(json_object_get(v->root, "added_tokens"), i, entry) {
        const json_t *text = json_object_get(entry, "content");
        const bool is_special = is_true(entry, "special", false);
        if (!json_is_string(text)) continue;
        const int rc = set_token(v, json_string_value(text), json_string_length(text),
                                 json_object_get(entry, "id"), is_special ? CONTROL : USER_DEFINED);
        if (rc) return rc;
        if (is_true(entry, "lstrip", false) || is_true(entry, "rstrip", false) ||
            is_true(entry, "single_word", false))
            v->is_exact = false;
    }
    return 0;
}

static void put_tokens(const struct vocab *v) {
    gguf_put_array(v->w, "tokenizer.ggml.tokens", GGUF_STRING, v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        char unused[24];
        const struct token *t = &v->tokens[i];
        const int n = snprintf(unused, sizeof(unused), "[PAD%" PRIu32 "]", i);
        if (t->text) gguf_put_element_string(v->w, t->text, t->n);
        else gguf_put_element_string(v->w, unused, (size_t)n);
    }
    gguf_put_array(v->w, "tokenizer.ggml.token_type", GGUF_I32, v->n);
    for (uint32_t i = 0; i < v->n; i++)
        gguf_put_element_i32(v->w, v->tokens[i].text ? v->tokens[i].kind : UNUSED);
}

/* ---- merges of bytes ---- */

/* Returns how the file splits texts before bytes merge, by what it must have. */
static const struct gguf_pre *find_pre(const struct vocab *v) {
    const json_t *normalizer = json_object_get(v->root, "normalizer"),
                 *pre = json_object_get(v->root, "pre_tokenizer"),
                 *model = json_object_get(v->root, "model"),
                 *parts = json_object_get(pre, "pretokenizers"),
                 *bytes = part_of(pre, "pretokenizers", "ByteLevel"),
                 *split = part_of(parts ? pre : NULL, "pretokenizers", "Split"),
                 *digits = part_of(parts ? pre : NULL, "pretokenizers", "Digits");
    const char *pattern =
        json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    const struct gguf_pre like = {.pattern = pattern,
                                  .splits_digits = digits != NULL,
                                  .is_composed = is_type(normalizer, "NFC"),
                                  .ignores_merges = is_true(model, "ignore_merges", false)};
    const size_t n_parts = (split != NULL) + (digits != NULL) + 1;
    if ((parts && json_array_size(parts) != n_parts) || (split && digits)) return NULL;
    if (normalizer && !json_is_null(normalizer) && !like.is_composed) return NULL;
    if (is_true(bytes, "add_prefix_space", true) || is_true(bytes, "use_regex", true) == !!split)
        return NULL;
    if (split && (!pattern || !behavior || strcmp(behavior, "Isolated") != 0 ||
                  is_true(split, "invert", false)))
        return NULL;
    if (digits && !is_true(digits, "individual_digits", false)) return NULL;
    return gguf_pre_like(&like);
}

/* Returns the halves of a merge, "a b" or ["a", "b"], as the first; NULL: it is neither. */
static json_t *merge_text(const json_t *merge) {
    const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);
    if (json_is_string(merge)) return json_incref((json_t *)merge);
    if (!json_is_string(a) || !json_is_string(b)) return NULL;
    return json_sprintf("%s %s", json_string_value(a), json_string_value(b));
}

static int put_merges(const struct vocab *v) {
    const json_t *merges = json_object_get(json_object_get(v->root, "model"), "merges"), *merge;
    size_t i;
    gguf_put_array(v->w, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, merge) {
        json_t *text = merge_text(merge);
        if (!text)
            return error_set(v->err, ERR_INVALID, "%.200s: tokenizer.json: merge %zu is no pair",
                             v->dir, i);
        gguf_put_element_string(v->w, json_string_value(text), json_string_length(text));
        json_decref(text);
    }
    return 0;
}

static int put_bytes(struct vocab *v) {
    const struct gguf_pre *pre = find_pre(v);
    const char *name = pre ? pre->name : "default";
    if (!pre) v->is_exact = false;
    gguf_put_string(v->w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_put_string(v->w, "tokenizer.ggml.pre", name, strlen(name));
    put_tokens(v);
    return put_merges(v);
}

/* ---- merges of pieces, by scores ---- */

static void set_score(struct vocab *v, const char *text, size_t n, float score) {
    const json_t *vocab = json_object_get(json_object_get(v->root, "model"), "vocab"),
                 *id = json_object_getn(vocab, text, n);
    const json_int_t at = json_is_integer(id) ? json_integer_value(id) : -1;
    if (at >= 0 && at < v->n && v->tokens[at].score == 0) v->tokens[at].score = score;
}

/* Gives each token the rank of its first merge as a score, the earliest the highest. */
static int score_tokens(struct vocab *v) {
    const json_t *merges = json_object_get(json_object_get(v->root, "model"), "merges"), *merge;
    size_t i;
    json_array_foreach(merges, i, merge) {
        json_t *text = merge_text(merge);
        char *joined = text ? strdup(json_string_value(text)) : NULL;
        char *space = joined ? strchr(joined, ' ') : NULL;
        if (space) {
            memmove(space, space + 1, strlen(space));
            set_score(v, joined, strlen(joined), -(float)(i + 1));
        }
        free(joined);
        json_decref(text);
        if (!space)
            return error_set(v->err, ERR_INVALID, "%.200s: tokenizer.json: merge %zu is no pair",
                             v->dir, i);
    }
    return 0;
}

/* Returns the kind of a normal token of pieces. */
static enum token_kind piece_kind(const struct vocab *v, const struct token *t) {
    const char *unknown =
        json_string_value(json_object_get(json_object_get(v->root, "model"), "unk_token"));
    if (unknown && strcmp(t->text, unknown) == 0) return UNKNOWN;
    return t->n == 6 && memcmp(t->text, "<0x", 3) == 0 && t->text[5] == '>' ? BYTE : t->kind;
}

static int put_pieces(struct vocab *v) {
    const json_t *normalizer = json_object_get(v->root, "normalizer"),
                 *prepend = part_of(normalizer, "normalizers", "Prepend");
    int rc = score_tokens(v);
    if (rc) return rc;
    for (uint32_t i = 0; i < v->n; i++)
        if (v->tokens[i].text) v->tokens[i].kind = piece_kind(v, &v->tokens[i]);
    v->is_exact = false; /* scores are made up here */
    gguf_put_string(v->w, "tokenizer.ggml.model", "llama", 5);
    put_tokens(v);
    gguf_put_array(v->w, "tokenizer.ggml.scores", GGUF_F32, v->n);
    for (uint32_t i = 0; i < v->n; i++) gguf_put_element_f32(v->w, v->tokens[i].score);
    gguf_put_bool(v->w, "tokenizer.ggml.add_space_prefix", prepend != NULL);
    return 0;
}

/* ---- named tokens, templates ---- */

/* Finds the token of a text; returns false if there is none. */
static bool find_text(const struct vocab *v, const char *text, uint32_t *id) {
    const size_t n = strlen(text);
    for (uint32_t i = 0; i < v->n; i++) {
        if (!v->tokens[i].text || v->tokens[i].n != n || memcmp(v->tokens[i].text, text, n) != 0)
            continue;
        *id = i;
        return true;
    }
    return false;
}

/* Finds the token of tokenizer_config.json, a text or an object that has it. */
static bool find_named(const struct vocab *v, const char *name, uint32_t *id) {
    const json_t *value = json_object_get(v->named, name),
                 *content = json_object_get(value, "content");
    const char *text = json_string_value(content ? content : value);
    return text && find_text(v, text, id);
}

static void put_named(const struct vocab *v, const struct model_config *c) {
    static const char *const names[][2] = {{"unk_token", "tokenizer.ggml.unknown_token_id"},
                                           {"pad_token", "tokenizer.ggml.padding_token_id"}};
    static const char *const ends[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    uint32_t id, eos = 0, n = 0;
    const bool has_eos = find_named(v, "eos_token", &eos);
    if (find_named(v, "bos_token", &id)) gguf_put_u32(v->w, "tokenizer.ggml.bos_token_id", id);
    else if (c->has_bos) gguf_put_u32(v->w, "tokenizer.ggml.bos_token_id", c->bos);
    if (has_eos) gguf_put_u32(v->w, ends[n++], eos);
    for (uint32_t i = 0; i < c->n_eos && n < 3; i++)
        if (!has_eos || c->eos[i] != eos) gguf_put_u32(v->w, ends[n++], c->eos[i]);
    for (int i = 0; i < 2; i++)
        if (find_named(v, names[i][0], &id)) gguf_put_u32(v->w, names[i][1], id);
}

/* Writes whether a text gets a begin and an end token. */
static void put_around(const struct vocab *v) {
    const json_t *post = json_object_get(v->root, "post_processor"),
                 *around = part_of(post, "processors", "TemplateProcessing"),
                 *single = json_object_get(around, "single"), *first = json_array_get(single, 0),
                 *last = json_array_get(single, json_array_size(single) - 1);
    gguf_put_bool(v->w, "tokenizer.ggml.add_bos_token",
                  json_object_get(first, "SpecialToken") != NULL);
    gguf_put_bool(v->w, "tokenizer.ggml.add_eos_token",
                  json_object_get(last, "SpecialToken") != NULL);
}

static int put_template_file(const struct vocab *v, bool *is_there) {
    char path[PATH_MAX], *text;
    struct error why;
    size_t n;
    const int length = snprintf(path, sizeof(path), "%s/chat_template.jinja", v->dir);
    *is_there = false;
    if (length < 0 || length >= PATH_MAX) return 0;
    const int rc = file_read(&text, &n, path, MAX_TEMPLATE, &why);
    if (rc == ERR_NOT_FOUND) return 0;
    if (rc) return error_set(v->err, rc, "%s", why.text);
    gguf_put_string(v->w, "tokenizer.chat_template", text, n);
    *is_there = true;
    free(text);
    return 0;
}

/* Writes one of several templates: the usual one, or one with a name. */
static void put_named_template(const struct vocab *v, const json_t *entry) {
    const json_t *text = json_object_get(entry, "template");
    const char *name = json_string_value(json_object_get(entry, "name"));
    char key[KEY_BYTES] = "tokenizer.chat_template";
    if (!name || !json_is_string(text)) return;
    if (strcmp(name, "default") != 0)
        snprintf(key, sizeof(key), "tokenizer.chat_template.%.60s", name);
    gguf_put_string(v->w, key, json_string_value(text), json_string_length(text));
}

static int put_templates(const struct vocab *v) {
    const json_t *said = json_object_get(v->named, "chat_template"), *entry;
    bool is_there;
    size_t i;
    const int rc = put_template_file(v, &is_there);
    if (rc || is_there) return rc;
    if (json_is_string(said))
        gguf_put_string(v->w, "tokenizer.chat_template", json_string_value(said),
                        json_string_length(said));
    json_array_foreach(said, i, entry) {
        put_named_template(v, entry);
    }
    return 0;
}

/* Writes tokenizer.json itself, byte by byte. */
static int put_whole(const struct vocab *v) {
    char path[PATH_MAX], *text;
    size_t n;
    if (v->is_exact) return 0;
    snprintf(path, sizeof(path), "%.4000s/tokenizer.json", v->dir);
    const int rc = file_read(&text, &n, path, MAX_DOCUMENT, v->err);
    if (rc) return rc;
    gguf_put_string(v->w, "tokenizer.huggingface.json", text, n);
    free(text);
    return 0;
}

static int put_all(struct vocab *v, const struct model_config *c) {
    const json_t *pre = json_object_get(v->root, "pre_tokenizer");
    v->n = c->n_vocab;
    v->tokens = calloc(v->n, sizeof(*v->tokens));
    if (!v->tokens) return error_set(v->err, ERR_NOMEM, "no memory for the tokens");
    int rc = fill_vocab(v);
    if (!rc) rc = fill_added(v);
    if (!rc) rc = part_of(pre, "pretokenizers", "ByteLevel") ? put_bytes(v) : put_pieces(v);
    if (rc) return rc;
    put_named(v, c);
    put_around(v);
    rc = put_templates(v);
    return rc ? rc : put_whole(v);
}

int gguf_vocab_put(struct gguf_writer *w, const char *dir, const struct model_config *c,
                   struct error *err) {
    struct vocab v = {.w = w, .dir = dir, .is_exact = true, .err = err};
    json_t *root = NULL, *named = NULL;
    struct error why;
    int rc = model_document_read(&root, dir, "tokenizer.json", MAX_DOCUMENT, err);
    if (rc) return rc;
    rc = model_document_read(&named, dir, "tokenizer_config.json", MAX_TEMPLATE, &why);
    if (rc == ERR_NOT_FOUND) rc = 0;
    else if (rc) error_set(err, rc, "%s", why.text);
    v.root = root;
    v.named = named;
    if (!rc) rc = put_all(&v, c);
    json_decref(root);
    json_decref(named);
    free(v.tokens);
    return rc;
}
