/* test_tokenizer_trust.c - a text of which only parts are trusted: special tokens come from these
 * parts alone, and nothing else changes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/span.h"
#include "engine/tokenizer/internal.h"
#include "tests/test.h"

enum { MAX_TEXT = 4096, MAX_SPECIAL = 64 };

/* ids  0 a  1 b  2 c  3 <s>  4 <s>b  5 </s>, which has a normal form  6 < (no special token)  7 >
 * The normalizer replaces "/" by "c". */
static const char SMALL[] =
    "{\"added_tokens\":["
    "{\"id\":3,\"content\":\"<s>\",\"special\":true,\"normalized\":false},"
    "{\"id\":4,\"content\":\"<s>b\",\"special\":true,\"normalized\":false},"
    "{\"id\":5,\"content\":\"</s>\",\"special\":true,\"normalized\":true},"
    "{\"id\":8,\"content\":\"ba\",\"special\":false,\"normalized\":false}],"
    "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"/\"},\"content\":\"c\"},"
    "\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":{\"type\":\"Fuse\"},"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"<\":6,\">\":7,\"s\":9},"
    "\"merges\":[]}}";

static struct tokenizer *small(void) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (tokenizer_load_bytes(&tokenizer, SMALL, strlen(SMALL), &err)) fail_msg("%s", err.text);
    return tokenizer;
}

static int encode_trusted(const struct tokenizer *tokenizer, const char *text, size_t n,
                          const struct byte_span *spans, size_t n_spans, struct token_list *out,
                          struct error *err) {
    const struct tokenizer_input input = {.text = text,
                                          .length = n,
                                          .is_trusted_in_part = true,
                                          .trusted = spans,
                                          .n_trusted = n_spans};
    return tokenizer_encode_input(tokenizer, &input, 0, out, err);
}

static void check(const struct tokenizer *tokenizer, const char *text,
                  const struct byte_span *spans, size_t n_spans, const uint32_t *ids, size_t n) {
    struct token_list list = {0};
    struct error err = {0};
    if (encode_trusted(tokenizer, text, strlen(text), spans, n_spans, &list, &err))
        fail_msg("%s: %s", text, err.text);
    assert_int_equal(list.n, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(list.ids[i], ids[i]);
    free(list.ids);
}

#define SPANS(...)                                                                                 \
    (const struct byte_span[]){__VA_ARGS__},                                                       \
        sizeof((struct byte_span[]){__VA_ARGS__}) / sizeof(struct byte_span)
#define IDS(...) (const uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4

TEST(special_tokens_come_from_trusted_parts) {
    struct tokenizer *t = small();
    check(t, "a<s>a", SPANS({0, 5}), IDS(0, 3, 0));
    check(t, "a<s>a", NULL, 0, IDS(0, 6, 9, 7, 0));
    check(t, "a<s>a<s>", SPANS({5, 8}), IDS(0, 6, 9, 7, 0, 3));
    /* In part inside, on either side, and across two spans. */
    check(t, "a<s>a", SPANS({1, 3}), IDS(0, 6, 9, 7, 0));
    check(t, "a<s>a", SPANS({2, 5}), IDS(0, 6, 9, 7, 0));
    check(t, "a<s>a", SPANS({0, 2}, {3, 5}), IDS(0, 6, 9, 7, 0));
    /* Text behind a trusted token does not make a longer one of it. */
    check(t, "<s>b", SPANS({0, 4}), IDS(4));
    check(t, "<s>b", SPANS({0, 3}), IDS(3, 1));
    /* Other added tokens are only words. */
    check(t, "ba<s>", NULL, 0, IDS(8, 6, 9, 7));
    tokenizer_destroy(t);
}

TEST(so_do_those_with_a_normal_form) {
    struct tokenizer *t = small();
    check(t, "</s>a", SPANS({0, 4}), IDS(5, 0));
    check(t, "</s>a", NULL, 0, IDS(6, 2, 9, 7, 0));
    check(t, "<cs>a</s>", SPANS({5, 9}), IDS(6, 2, 9, 7, 0, 5));
    tokenizer_destroy(t);
}

/* ---- any tokenizer ---- */

struct specials {
    const char *text[MAX_SPECIAL];
    size_t length[MAX_SPECIAL], n;
};

static uint32_t random_below(uint32_t n) {
    return (uint32_t)rand() % n;
}

/* Appends some words; with specials, now and then one of them. */
static size_t random_text(char *text, const struct specials *specials) {
    static const char *const words[] = {" the", "<",   ">",     "|im", "_end|>", "\n",
                                        "a",    "Ünï", "[INST", "]",   "s",      "/",
                                        " 12",  "{}",  "  ",    "<s",  "Q"};
    size_t n = 0;
    for (uint32_t i = random_below(30); i > 0; i--) {
        const char *word = words[random_below(sizeof(words) / sizeof(*words))];
        size_t length = strlen(word);
        if (specials->n > 0 && random_below(3) == 0) {
            const uint32_t which = random_below((uint32_t)specials->n);
            word = specials->text[which];
            length = specials->length[which];
        }
        if (n + length > MAX_TEXT) break;
        memcpy(text + n, word, length);
        n += length;
    }
    return n;
}

static void find_specials(const struct tokenizer *t, struct specials *out) {
    out->n = 0;
    for (size_t i = 0; i < t->added_by_content.n && out->n < MAX_SPECIAL; i++) {
        const struct added_token *token = &t->added_by_content.tokens[i];
        if (!token->special) continue;
        out->text[out->n] = token->pattern;
        out->length[out->n++] = token->n;
    }
}

static void encode(const struct tokenizer *t, const char *text, size_t n, bool all,
                   struct token_list *out) {
    const struct byte_span whole = {0, n};
    struct error err = {0};
    out->n = 0;
    if (encode_trusted(t, text, n, &whole, all && n > 0, out, &err))
        fail_msg("'%.*s': %s", (int)n, text, err.text);
}

/* Words may come to one. */
static bool has_special(const struct tokenizer *t, const char *text, size_t n) {
    struct token_list list = {0};
    bool has = false;
    assert_int_equal(tokenizer_encode(t, text, n, false, 0, &list, NULL), 0);
    for (size_t i = 0; i < list.n; i++) has = has || tokenizer_is_special(t, list.ids[i]);
    free(list.ids);
    return has;
}

static void check_equal(const struct tokenizer *t, const char *text, size_t n,
                        const struct token_list *found) {
    struct token_list expected = {0};
    assert_int_equal(tokenizer_encode(t, text, n, false, 0, &expected, NULL), 0);
    assert_int_equal(found->n, expected.n);
    for (size_t i = 0; i < found->n; i++) assert_int_equal(found->ids[i], expected.ids[i]);
    free(expected.ids);
}

/* equal: without special tokens in a normal form, which a text may have and its content not. */
static void check_tokenizer(struct tokenizer *t, bool equal) {
    static const struct specials none;
    struct specials specials;
    struct token_list found = {0};
    char text[MAX_TEXT];
    find_specials(t, &specials);
    for (int i = 0; i < 300; i++) {
        size_t n = random_text(text, &none);
        encode(t, text, n, false, &found);
        if (!has_special(t, text, n)) check_equal(t, text, n, &found);
        n = random_text(text, &specials);
        encode(t, text, n, true, &found);
        if (equal) check_equal(t, text, n, &found);
        encode(t, text, n, false, &found);
        for (size_t k = 0; k < found.n; k++)
            assert_true(!tokenizer_is_special(t, found.ids[k]) ||
                        found.ids[k] == t->symbols.unknown);
    }
    free(found.ids);
    tokenizer_destroy(t);
}

static struct tokenizer *load_family(const char *name) {
    char path[512];
    json_error_t where;
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    snprintf(path, sizeof(path), DATA_DIR "/families/%s.json", name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!root) fail_msg("%s: line %d: %s", path, where.line, where.text);
    char *json = json_dumps(json_object_get(root, "tokenizer"), JSON_COMPACT);
    if (tokenizer_load_bytes(&tokenizer, json, strlen(json), &err)) fail_msg("%s", err.text);
    json_arena_free(json);
    json_decref(root);
    return tokenizer;
}

/* Without special tokens, and with all of it trusted, a text is what it always is; without trust it
 * holds no special token. */
TEST(nothing_else_changes) {
    static const char *const families[] = {"llama-2", "llama-2-normalized",
                                           "llama-3", "yi",
                                           "mistral", "mistral-tekken",
                                           "qwen",    "phi-3",
                                           "glm-4",   "gemma",
                                           "phrases"};
    srand(7);
    for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++)
        check_tokenizer(load_family(families[i]), i != 1);
    struct tokenizer *shipped = NULL;
    struct error err = {0};
    if (tokenizer_load(&shipped, MODEL_DIR, &err)) fail_msg("%s", err.text);
    check_tokenizer(shipped, true);
}
