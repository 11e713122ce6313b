/* test_tokenizer_goldens.c - the tokenizer against what the reference library wrote down.
 *
 * The files come from scripts/fixtures/make_tokenizer_goldens.py and from the shipped model.  Every
 * mismatch is printed; a test fails if there was one, or if there was nothing to compare. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"
#include "tests/test.h"

struct tally {
    const char *name;
    size_t n_cases, n_wrong;
};

static json_t *load_json(const char *path) {
    json_error_t where;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!root) fail_msg("%s: line %d: %s", path, where.line, where.text);
    return root;
}

static void mismatch(struct tally *tally, size_t i, const char *what) {
    tally->n_wrong++;
    if (tally->n_wrong <= 10) print_error("%s: case %zu: %s\n", tally->name, i, what);
}

static void read_ids(struct token_list *list, const json_t *ids) {
    list->n = 0;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const uint32_t id = (uint32_t)json_integer_value(json_array_get(ids, i));
        assert_int_equal(token_list_append(list, &id, 1), 0);
    }
}

/* Decodes at once and token by token; both must give the text. */
static bool decodes_to(const struct tokenizer *tokenizer, const struct token_list *ids,
                       bool skip_special, const json_t *expected) {
    char *whole, buffer[4096];
    size_t length;
    struct text streamed = {0};
    struct detokenizer d = {0};
    struct error err = {0};
    assert_int_equal(
        tokenizer_decode(tokenizer, ids->ids, ids->n, skip_special, &whole, &length, &err), 0);
    for (size_t i = 0; i < ids->n; i++) {
        const long n =
            detokenizer_push(&d, tokenizer, ids->ids[i], skip_special, buffer, sizeof(buffer));
        assert_true(n >= 0);
        assert_true(utf8_is_valid(buffer, (size_t)n)); /* never half a character */
        assert_int_equal(text_append(&streamed, buffer, (size_t)n), 0);
    }
    const long n = detokenizer_finish(&d, tokenizer, buffer, DETOKENIZER_GROWTH);
    assert_true(n >= 0);
    assert_int_equal(text_append(&streamed, buffer, (size_t)n), 0);

    const char *text = json_string_value(expected);
    const bool same = length == json_string_length(expected) && memcmp(whole, text, length) == 0;
    const bool same_streamed =
        streamed.n == length && (length == 0 || memcmp(streamed.data, whole, length) == 0);
    free(whole);
    free(streamed.data);
    return same && same_streamed;
}

/* [text, ids, add_special, decoded or null when it is the text again] */
static void check_encode(const struct tokenizer *tokenizer, const json_t *cases,
                         struct tally *tally) {
    struct token_list expected = {0}, ids = {0};
    for (size_t i = 0; i < json_array_size(cases); i++, tally->n_cases++) {
        const json_t *one = json_array_get(cases, i), *text = json_array_get(one, 0);
        const json_t *decoded = json_array_get(one, 3);
        const bool add_special = json_integer_value(json_array_get(one, 2)) != 0;
        struct error err = {0};
        read_ids(&expected, json_array_get(one, 1));
        ids.n = 0;
        if (tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                             add_special, 0, &ids, &err)) {
            mismatch(tally, i, err.text);
        } else if (ids.n != expected.n ||
                   (ids.n && memcmp(ids.ids, expected.ids, ids.n * sizeof(*ids.ids)) != 0)) {
            mismatch(tally, i, json_string_value(text));
        } else if (!decodes_to(tokenizer, &ids, false, json_is_string(decoded) ? decoded : text)) {
            mismatch(tally, i, "decoded differently");
        }
    }
    free(expected.ids);
    free(ids.ids);
}

/* [ids, skip_special, text] */
static void check_decode(const struct tokenizer *tokenizer, const json_t *cases,
                         struct tally *tally) {
    struct token_list ids = {0};
    for (size_t i = 0; i < json_array_size(cases); i++, tally->n_cases++) {
        const json_t *one = json_array_get(cases, i);
        const bool skip_special = json_integer_value(json_array_get(one, 1)) != 0;
        read_ids(&ids, json_array_get(one, 0));
        if (!decodes_to(tokenizer, &ids, skip_special, json_array_get(one, 2)))
            mismatch(tally, i, "decode");
    }
    free(ids.ids);
}

static void check_files(const char *tokenizer_path, const char *cases_path) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (tokenizer_load(&tokenizer, tokenizer_path, &err)) fail_msg("%s", err.text);
    json_t *root = load_json(cases_path);
    struct tally encode = {.name = "encode"}, decode = {.name = "decode"};
    check_encode(tokenizer, json_object_get(root, "encode"), &encode);
    check_decode(tokenizer, json_object_get(root, "decode"), &decode);
    json_decref(root);
    tokenizer_destroy(tokenizer);
    assert_true(encode.n_cases >= 1800 && decode.n_cases >= 600);
    assert_int_equal(encode.n_wrong + decode.n_wrong, 0);
}

TEST(gpt2_style_agrees) {
    check_files(DATA_DIR "/gpt2", DATA_DIR "/gpt2/cases.json");
}

TEST(llama3_style_agrees) {
    check_files(DATA_DIR "/llama3/tokenizer.json", DATA_DIR "/llama3/cases.json");
}

TEST(shipped_tokenizer_agrees) {
    check_files(MODEL_DIR, DATA_DIR "/shipped/cases.json");
}

/* Every normalizer and pre-tokenizer, in the same small tokenizer. */
TEST(every_component_agrees) {
    json_t *root = load_json(DATA_DIR "/variants.json");
    const json_t *variants = json_object_get(root, "variants");
    size_t n_wrong = 0;
    assert_true(json_array_size(variants) >= 30);
    for (size_t i = 0; i < json_array_size(variants); i++) {
        const json_t *variant = json_array_get(variants, i);
        struct tally tally = {.name = json_string_value(json_object_get(variant, "name"))};
        json_t *parts = json_copy(json_object_get(root, "base"));
        json_object_update(parts, json_object_get(variant, "parts"));
        char *json = json_dumps(parts, JSON_COMPACT);
        struct tokenizer *tokenizer = NULL;
        struct error err = {0};
        if (tokenizer_load_bytes(&tokenizer, json, strlen(json), &err))
            fail_msg("%s: %s", tally.name, err.text);
        check_encode(tokenizer, json_object_get(variant, "encode"), &tally);
        assert_true(tally.n_cases >= 100);
        n_wrong += tally.n_wrong;
        tokenizer_destroy(tokenizer);
        json_arena_free(json);
        json_decref(parts);
    }
    json_decref(root);
    assert_int_equal(n_wrong, 0);
}

/* The goldens that came with the model: strings, and chats rendered with their special tokens. */
TEST(shipped_goldens_agree) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (tokenizer_load(&tokenizer, MODEL_DIR, &err)) fail_msg("%s", err.text);
    assert_int_equal(tokenizer_n_vocab(tokenizer), 8192);
    json_t *root = load_json(MODEL_DIR "/tokenizer_goldens.json");
    static const char *const LISTS[] = {"strings", "chats"};
    struct tally tally = {0};
    for (size_t l = 0; l < 2; l++) {
        const json_t *list = json_object_get(root, LISTS[l]);
        json_t *cases = json_array();
        for (size_t i = 0; i < json_array_size(list); i++) {
            json_t *one = json_array_get(list, i);
            json_array_append_new(cases, json_pack("[O, O, i]", json_object_get(one, "text"),
                                                   json_object_get(one, "ids"), 0));
        }
        tally.name = LISTS[l];
        assert_true(json_array_size(cases) > 0);
        check_encode(tokenizer, cases, &tally);
        json_decref(cases);
    }
    const json_t *bos = json_object_get(root, "with_bos_example");
    json_t *with_bos =
        json_pack("[[O, O, i]]", json_object_get(bos, "text"), json_object_get(bos, "ids"), 1);
    struct tally bos_tally = {.name = "with_bos_example"};
    json_array_append_new(json_array_get(with_bos, 0), json_string("<|begin_of_text|>Hello"));
    check_encode(tokenizer, with_bos, &bos_tally);
    json_decref(with_bos);
    json_decref(root);
    tokenizer_destroy(tokenizer);
    assert_int_equal(tally.n_wrong + bos_tally.n_wrong, 0);
}
