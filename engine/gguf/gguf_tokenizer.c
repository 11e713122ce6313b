/* gguf_tokenizer.c - see gguf_tokenizer.h. */
#include "engine/gguf/gguf_tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_guard.h"
#include "engine/gguf/gguf.h"
#include "engine/gguf/gguf_files.h"
#include "engine/gguf/gguf_json.h"
#include "engine/gguf/gguf_merges.h"
#include "engine/gguf/gguf_pre.h"

enum { MAX_TOKENS = 1 << 24 };
enum token_kind { KIND_NORMAL = 1, KIND_UNKNOWN, KIND_CONTROL, KIND_USER, KIND_UNUSED, KIND_BYTE };

static const char LOW_LINE[] = "\xE2\x96\x81"; /* U+2581, SentencePiece's space */

struct writing {
    const struct gguf *keys;
    const char *label;
    const struct gguf_pre *pre; /* NULL: SentencePiece */
    bool adds_space;            /* of SentencePiece: in front of a text */
    bool has_merges;            /* the file has them; if not, scores say them */
    json_t *vocab, *added;
    struct error *err;
};

static int no_memory(const struct writing *w) {
    return error_set(w->err, ERR_NOMEM, "%.200s: no memory for its tokenizer", w->label);
}

static const struct gguf_value *find(const struct writing *w, const char *name) {
    char key[64];
    snprintf(key, sizeof(key), "tokenizer.ggml.%s", name);
    return gguf_find(w->keys, key);
}

static bool is_text(const struct gguf_value *value, const char *text) {
    return value && value->type == GGUF_STRING && value->n == strlen(text) &&
           memcmp(value->bytes, text, value->n) == 0;
}

/* ---- the vocabulary ---- */

/* Returns the kind of token i; without a list all are normal. */
static enum token_kind kind_of(const struct gguf_value *kinds, uint64_t i) {
    uint64_t kind = KIND_NORMAL;
    if (kinds && kinds->type == GGUF_ARRAY && i < kinds->n) {
        const struct gguf_value one = gguf_element(kinds, i);
        if (!gguf_whole(&one, &kind)) kind = KIND_NORMAL;
    }
    return (enum token_kind)kind;
}

/* Returns the text with every space as SentencePiece has it. */
static json_t *spaced(const char *text, size_t n) {
    char *out = malloc(3 * n + 1);
    size_t n_out = 0;
    for (size_t i = 0; out && i < n; i++) {
        if (text[i] != ' ') out[n_out++] = text[i];
        else memcpy(out + n_out, LOW_LINE, 3), n_out += 3;
    }
    json_t *result = out ? json_stringn(out, n_out) : NULL;
    free(out);
    return result;
}

/* Adds an entry of added_tokens.  A token of the user's with spaces is looked for in the normal
 * form of a text, where its spaces are SentencePiece's. */
static int add_entry(const struct writing *w, uint64_t id, json_t *text, bool is_normalized,
                     bool is_special) {
    json_t *entry = json_pack("{s:I, s:O, s:b, s:b}", "id", (json_int_t)id, "content", text,
                              "normalized", is_normalized, "special", is_special);
    return json_array_append_new(w->added, entry) ? no_memory(w) : 0;
}

static int add_token(const struct writing *w, uint64_t id, enum token_kind kind, const char *raw,
                     size_t n) {
    const bool has_spaces = !w->pre && kind == KIND_USER && memchr(raw, ' ', n);
    json_t *text = has_spaces ? spaced(raw, n) : json_stringn(raw, n);
    int rc = 0;
    if (!text)
        return error_set(w->err, ERR_INVALID, "%.200s: token %" PRIu64 " is not UTF-8", w->label,
                         id);
    const char *content = json_string_value(text);
    const size_t length = json_string_length(text);
    if (json_object_getn(w->vocab, content, length))
        rc = error_set(w->err, ERR_INVALID, "%.200s: token %" PRIu64 " has the text of another one",
                       w->label, id);
    else if (json_object_setn_new(w->vocab, content, length, json_integer((json_int_t)id)))
        rc = no_memory(w);
    if (!rc && (kind == KIND_CONTROL || kind == KIND_USER))
        rc = add_entry(w, id, text, has_spaces, kind == KIND_CONTROL);
    json_decref(text);
    return rc;
}

static int fill_vocab(const struct writing *w) {
    const struct gguf_value *tokens = find(w, "tokens"), *kinds = find(w, "token_type");
    struct gguf_strings strings = {.array = tokens};
    const char *text;
    size_t n;
    int rc = 0;
    if (!tokens || tokens->type != GGUF_ARRAY || tokens->element != GGUF_STRING ||
        tokens->n > MAX_TOKENS)
        return error_set(w->err, ERR_INVALID,
                         "%.200s: 'tokenizer.ggml.tokens' is no list of texts, or missing",
                         w->label);
    for (uint64_t id = 0; !rc && (text = gguf_next_string(w->keys, &strings, &n)); id++)
        if (kind_of(kinds, id) != KIND_UNUSED) rc = add_token(w, id, kind_of(kinds, id), text, n);
    return rc;
}

/* Returns the text of a token by the key that has its number; NULL: there is none. */
static json_t *named_text(const struct writing *w, const char *key) {
    struct gguf_strings strings = {.array = find(w, "tokens")};
    uint64_t id;
    const char *text;
    size_t n;
    if (!gguf_whole(find(w, key), &id)) return NULL;
    for (uint64_t i = 0; (text = gguf_next_string(w->keys, &strings, &n)); i++)
        if (i == id) return json_stringn(text, n);
    return NULL;
}

/* ---- the model ---- */

static json_t *copy_merges(const struct writing *w) {
    struct gguf_strings strings = {.array = find(w, "merges")};
    const char *text;
    size_t n;
    json_t *merges = json_array();
    while (merges && (text = gguf_next_string(w->keys, &strings, &n))) {
        json_t *merge = json_stringn(text, n);
        if (json_array_append_new(merges, merge ? merge : json_null())) {
            json_decref(merges);
            return NULL;
        }
    }
    return merges;
}

/* Returns the scores, as many as there are tokens, or NULL with an error. */
static float *read_scores(const struct writing *w) {
    const struct gguf_value *scores = find(w, "scores"), *kinds = find(w, "token_type");
    const uint64_t n = find(w, "tokens")->n;
    if (!scores || scores->type != GGUF_ARRAY || scores->element != GGUF_F32 || scores->n != n) {
        error_set(w->err, ERR_INVALID,
                  "%.200s: 'tokenizer.ggml.scores' is no list of F32, one for each token",
                  w->label);
        return NULL;
    }
    float *out = malloc((n ? n : 1) * sizeof(*out));
    if (!out) no_memory(w);
    for (uint64_t i = 0; out && i < n; i++) {
        const struct gguf_value one = gguf_element(scores, i);
        double score = 0;
        gguf_number(&one, &score);
        /* Only texts of normal tokens come of merges. */
        out[i] = kind_of(kinds, i) == KIND_NORMAL ? (float)score : GGUF_NO_SCORE;
    }
    return out;
}

static int put_model(const struct writing *w, json_t *root) {
    json_t *merges = NULL, *unknown = NULL;
    if (w->has_merges) {
        merges = copy_merges(w);
    } else {
        float *scores = read_scores(w);
        if (!scores) return w->err ? w->err->code : ERR_INVALID;
        merges = gguf_merges(w->vocab, scores, find(w, "tokens")->n);
        free(scores);
    }
    if (!w->pre) unknown = named_text(w, "unknown_token_id");
    json_t *model = json_pack("{s:s, s:O, s:o, s:b, s:b, s:b}", "type", "BPE", "vocab", w->vocab,
                              "merges", merges, "byte_fallback", w->pre == NULL, "fuse_unk",
                              w->pre == NULL, "ignore_merges", w->pre && w->pre->ignores_merges);
    int rc = model ? 0 : no_memory(w);
    if (!rc && unknown && json_object_set(model, "unk_token", unknown)) rc = no_memory(w);
    json_decref(unknown);
    if (rc) json_decref(model);
    else if (json_object_set_new(root, "model", model)) rc = no_memory(w);
    return rc;
}

/* ---- what stands around it ---- */

static json_t *replace(const char *what, const char *by) {
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", what, "content",
                     by);
}

static json_t *split_by(const char *pattern) {
    return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", pattern,
                     "behavior", "Isolated", "invert", 0);
}

/* Returns the pieces of texts whose bytes merge; NULL: no memory. */
static json_t *bytes_pretokenizer(const struct gguf_pre *pre) {
    json_t *steps = json_array();
    int rc = 0;
    if (pre->numbers) rc |= json_array_append_new(steps, split_by(pre->numbers));
    if (pre->pattern) rc |= json_array_append_new(steps, split_by(pre->pattern));
    if (pre->splits_digits)
        rc |= json_array_append_new(
            steps, json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", 1));
    rc |=
        json_array_append_new(steps, json_pack("{s:s, s:b, s:b}", "type", "ByteLevel",
                                               "add_prefix_space", 0, "use_regex", !pre->pattern));
    json_t *all = json_pack("{s:s, s:O}", "type", "Sequence", "pretokenizers", steps);
    json_decref(steps);
    if (!rc) return all;
    json_decref(all);
    return NULL;
}

static int put_bytes(const struct writing *w, json_t *root) {
    int rc = json_object_set_new(root, "pre_tokenizer", bytes_pretokenizer(w->pre));
    if (!rc) rc = json_object_set_new(root, "decoder", json_pack("{s:s}", "type", "ByteLevel"));
    if (!rc && w->pre->is_composed)
        rc = json_object_set_new(root, "normalizer", json_pack("{s:s}", "type", "NFC"));
    return rc ? no_memory(w) : 0;
}

static int put_pieces(const struct writing *w, json_t *root) {
    json_t *normalizer = replace(" ", LOW_LINE),
           *decoders = json_pack("[o, {s:s}, {s:s}]", replace(LOW_LINE, " "), "type",
                                 "ByteFallback", "type", "Fuse");
    if (w->adds_space) {
        normalizer = json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers",
                               "type", "Prepend", "prepend", LOW_LINE, normalizer);
        json_array_append_new(decoders, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip",
                                                  "content", " ", "start", 1, "stop", 0));
    }
    int rc = json_object_set_new(root, "normalizer", normalizer);
    json_t *decoder = json_pack("{s:s, s:o}", "type", "Sequence", "decoders", decoders);
    if (json_object_set_new(root, "decoder", decoder)) rc = ERR_NOMEM;
    return rc ? no_memory(w) : 0;
}

/* Appends the token that a key names to a template, and to its tokens. */
static int put_special(const struct writing *w, json_t *single, json_t *tokens, const char *key) {
    uint64_t id = 0;
    if (!gguf_whole(find(w, key), &id) || id > INT32_MAX)
        return error_set(w->err, ERR_INVALID,
                         "%.200s: a text gets a token that 'tokenizer.ggml.%s' does not name",
                         w->label, key);
    int rc = json_array_append_new(single, json_pack("{s:{s:s}}", "SpecialToken", "id", key));
    if (!rc) rc = json_object_set_new(tokens, key, json_pack("{s:[I]}", "ids", (json_int_t)id));
    return rc ? no_memory(w) : 0;
}

/* Writes which tokens are put around a text. */
static int put_template(const struct writing *w, json_t *root) {
    const bool begins = gguf_truth(find(w, "add_bos_token"), !w->pre || w->pre->adds_begin),
               ends = gguf_truth(find(w, "add_eos_token"), false);
    json_t *single = json_array(), *tokens = json_object();
    int rc = single && tokens ? 0 : no_memory(w);
    if (!rc && begins) rc = put_special(w, single, tokens, "bos_token_id");
    if (!rc && json_array_append_new(single, json_pack("{s:{s:s}}", "Sequence", "id", "A")))
        rc = no_memory(w);
    if (!rc && ends) rc = put_special(w, single, tokens, "eos_token_id");
    if (!rc && json_object_set_new(root, "post_processor",
                                   json_pack("{s:s, s:O, s:O}", "type", "TemplateProcessing",
                                             "single", single, "special_tokens", tokens)))
        rc = no_memory(w);
    json_decref(single);
    json_decref(tokens);
    return rc;
}

/* ---- the document ---- */

static int choose_model(struct writing *w) {
    const struct gguf_value *model = find(w, "model"), *pre = find(w, "pre");
    char known[GGUF_PRE_TEXT];
    const bool has_name = pre && pre->type == GGUF_STRING;
    w->adds_space = gguf_truth(find(w, "add_space_prefix"), true);
    w->has_merges = !is_text(model, "llama");
    if (is_text(model, "llama") || is_text(model, "gemma4")) return 0;
    if (!is_text(model, "gpt2"))
        return error_set(w->err, ERR_UNSUPPORTED,
                         "%.200s: 'tokenizer.ggml.model' is not gpt2, llama or gemma4, or missing",
                         w->label);
    if (has_name) w->pre = gguf_pre_find((const char *)pre->bytes, pre->n);
    if (w->pre) return 0;
    gguf_pre_text(known);
    return error_set(w->err, ERR_UNSUPPORTED,
                     "%.160s: 'tokenizer.ggml.pre' is '%.*s', which is not supported; these are: "
                     "%s",
                     w->label, has_name ? (int)(pre->n < 60 ? pre->n : 60) : 0,
                     has_name ? (const char *)pre->bytes : "", known);
}

static int write_tokenizer(struct writing *w, json_t *root) {
    int rc = choose_model(w);
    if (!rc) rc = fill_vocab(w);
    if (!rc) rc = put_model(w, root);
    if (!rc) rc = w->pre ? put_bytes(w, root) : put_pieces(w, root);
    if (!rc) rc = put_template(w, root);
    if (!rc && json_object_set(root, "added_tokens", w->added)) rc = no_memory(w);
    return rc;
}

int gguf_tokenizer(json_t **out, const struct gguf_files *files, const char *label,
                   struct error *err) {
    struct writing w = {.keys = gguf_files_keys(files), .label = label, .err = err};
    const struct gguf_value *whole = gguf_find(w.keys, "tokenizer.huggingface.json");
    if (whole && whole->type == GGUF_STRING)
        return json_guard_parse_any(out, (const char *)whole->bytes, whole->n, JSON_ALLOW_NUL,
                                    "tokenizer.huggingface.json", err);
    json_t *root = json_object();
    w.vocab = json_object();
    w.added = json_array();
    int rc = root && w.vocab && w.added ? 0 : no_memory(&w);
    if (!rc) rc = write_tokenizer(&w, root);
    json_decref(w.vocab);
    json_decref(w.added);
    if (rc) json_decref(root);
    else *out = root;
    return rc;
}

/* Returns the chat templates: a text, or a list if some have names. */
static json_t *templates(const struct gguf *keys) {
    static const char start[] = "tokenizer.chat_template.";
    const struct gguf_value *usual = gguf_find(keys, "tokenizer.chat_template");
    json_t *list = json_array(), *text = usual ? gguf_to_json(usual) : json_null();
    for (uint32_t i = 0; list && i < gguf_n_keys(keys); i++) {
        char name[128];
        size_t n;
        const char *key = gguf_key_at(keys, i, &n);
        if (n < sizeof(start) || n >= sizeof(name) || memcmp(key, start, sizeof(start) - 1) != 0)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)n, key);
        const struct gguf_value *value = gguf_find(keys, name);
        if (!value || value->type != GGUF_STRING) continue;
        json_array_append_new(list, json_pack("{s:s, s:o}", "name", name + sizeof(start) - 1,
                                              "template", gguf_to_json(value)));
    }
    if (json_array_size(list) == 0) {
        json_decref(list);
        return text;
    }
    if (json_is_string(text))
        json_array_append_new(list, json_pack("{s:s, s:O}", "name", "default", "template", text));
    json_decref(text);
    return list;
}

int gguf_tokenizer_config(json_t **out, const struct gguf_files *files, const char *label,
                          struct error *err) {
    static const char *const names[][2] = {{"bos_token", "bos_token_id"},
                                           {"eos_token", "eos_token_id"},
                                           {"unk_token", "unknown_token_id"},
                                           {"pad_token", "padding_token_id"}};
    const struct writing w = {.keys = gguf_files_keys(files), .label = label, .err = err};
    json_t *root = json_object(), *chat = templates(w.keys);
    int rc = root && chat ? 0 : no_memory(&w);
    for (size_t i = 0; !rc && i < sizeof(names) / sizeof(*names); i++) {
        json_t *text = named_text(&w, names[i][1]);
        if (text && json_object_set_new(root, names[i][0], text)) rc = no_memory(&w);
    }
    if (!rc && !json_is_null(chat) && json_object_set(root, "chat_template", chat))
        rc = no_memory(&w);
    json_decref(chat);
    if (rc) json_decref(root);
    else *out = root;
    return rc;
}
