/* test_tokenizer_scale.c - half a megabyte of one thing takes as long as that of anything.
 *
 * Every text is monotonous in its own way: one piece, one run of space, a million pieces, a pattern
 * that almost matches.  What a quadratic step would cost here is hours; the bound is seconds, and
 * generous enough for sanitizers on a busy machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/tokenizer/internal.h"
#include "tests/test.h"

enum {
    N_BYTES = 1 << 19,
    N_BYTES_COMPONENT = N_BYTES / 4, /* there are many, and a quarter shows the same */
    MOST_SECONDS = 4, /* of processor time; without sanitizers each takes a few hundredths */
};

struct monotony {
    const char *unit, *end; /* the unit over and over, then the end */
};

static const struct monotony TEXTS[] = {
    {"a", ""},
    {" ", ""},
    {" ", "x"},
    {" ", "\n"},
    {"7", ""},
    {"\n", ""},
    {"\r\n", ""},
    {" \n", "x"},
    {"\t", ""},
    {".", ""},
    {"'", ""},
    {"'s", ""},
    {" a", ""},
    {"A", ""},
    {"aA", ""},
    {"a1", ""},
    {"<|", ""},
    {"<|im_start|", ""},
    {"<|im_start|>", ""},
    {"<both> ", ""},
    {"\xE4\xB8\xAD", ""},
    {"\xC2\xA0", ""},
    {"e\xCC\x81", ""},
    {"\xCC\x81\xCC\xA3", ""},
    {"\xF0\x9F\x98\x80", ""},
    {"the quick brown fox ", ""},
};

static char *write_out(const struct monotony *monotony, size_t n_bytes, size_t *n) {
    const size_t n_unit = strlen(monotony->unit), n_end = strlen(monotony->end);
    const size_t times = n_bytes / n_unit;
    char *text = malloc(times * n_unit + n_end);
    assert_non_null(text);
    for (size_t i = 0; i < times; i++) memcpy(text + i * n_unit, monotony->unit, n_unit);
    memcpy(text + times * n_unit, monotony->end, n_end);
    *n = times * n_unit + n_end;
    return text;
}

static void encode_all_texts(const struct tokenizer *tokenizer, size_t n_bytes, bool lossless) {
    for (size_t i = 0; i < sizeof(TEXTS) / sizeof(*TEXTS); i++) {
        struct token_list ids = {0};
        struct error err = {0};
        size_t n, n_decoded;
        char *text = write_out(&TEXTS[i], n_bytes, &n), *decoded = NULL;
        const clock_t begin = clock();
        if (tokenizer_encode(tokenizer, text, n, false, 0, &ids, &err)) fail_msg("%s", err.text);
        assert_int_equal(
            tokenizer_decode(tokenizer, ids.ids, ids.n, false, &decoded, &n_decoded, &err), 0);
        assert_true((clock() - begin) / CLOCKS_PER_SEC < MOST_SECONDS);
        assert_true(ids.n > 0);
        if (lossless) {
            assert_int_equal(n_decoded, n);
            assert_memory_equal(decoded, text, n);
        }
        free(ids.ids);
        free(decoded);
        free(text);
    }
}

static void encode_texts_of(const char *path, bool lossless) {
    struct tokenizer *tokenizer = NULL;
    struct error err = {0};
    if (tokenizer_load(&tokenizer, path, &err)) fail_msg("%s", err.text);
    encode_all_texts(tokenizer, N_BYTES, lossless);
    tokenizer_destroy(tokenizer);
}

TEST(shipped_tokenizer_is_linear) {
    encode_texts_of(MODEL_DIR, true);
}

/* A piece that cannot fit is refused before anything is allocated for it: ids and scratch would
 * may take fifty times its size, and a request's body may be large. */
TEST(a_piece_beyond_the_bound_costs_nothing) {
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = {0};
    struct error err = {0};
    size_t n;
    char *text = write_out(&(struct monotony){"a", ""}, 4 * (size_t)N_BYTES, &n);
    if (tokenizer_load(&tokenizer, MODEL_DIR, &err)) fail_msg("%s", err.text);
    assert_int_equal(tokenizer_encode(tokenizer, text, n, true, 4096, &ids, &err), ERR_TOO_LONG);
    assert_non_null(strstr(err.text, "more than 4096 tokens"));
    assert_true(ids.capacity <= 4096);
    /* What may fit is still encoded to see: the longest run that is one token is sixteen dashes. */
    memset(text, '-', 16);
    ids.n = 0;
    assert_int_equal(tokenizer_encode(tokenizer, text, 16, false, 1, &ids, &err), 0);
    assert_int_equal(ids.n, 1);
    text[16] = '-';
    ids.n = 0;
    assert_int_equal(tokenizer_encode(tokenizer, text, 17, false, 1, &ids, &err), ERR_TOO_LONG);
    free(ids.ids);
    free(text);
    tokenizer_destroy(tokenizer);
}

/* Of the pattern's alternatives several go to the end of a run, and back. */
TEST(a_run_of_any_length_is_encoded) {
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = {0};
    struct error err = {0};
    size_t n;
    char *text = write_out(&(struct monotony){" ", "x"}, 16 * (size_t)N_BYTES, &n);
    if (tokenizer_load(&tokenizer, DATA_DIR "/llama3", &err)) fail_msg("%s", err.text);
    if (tokenizer_encode(tokenizer, text, n, false, 0, &ids, &err)) fail_msg("%s", err.text);
    assert_true(ids.n > 0);
    free(ids.ids);
    free(text);
    tokenizer_destroy(tokenizer);
}

TEST(gpt2_style_is_linear) {
    encode_texts_of(DATA_DIR "/gpt2", false); /* its added tokens strip space */
}

TEST(llama3_style_is_linear) {
    encode_texts_of(DATA_DIR "/llama3", true);
}

TEST(every_component_is_linear) {
    json_t *root = json_load_file(DATA_DIR "/variants.json", JSON_ALLOW_NUL, NULL);
    const json_t *variants = json_object_get(root, "variants");
    static const char *const HARD[] = {"nfc",   "nfkd",   "lowercase",
                                       "o200k", "nested", "prefix space"};
    size_t n_found = 0;
    for (size_t i = 0; i < json_array_size(variants); i++) {
        const json_t *variant = json_array_get(variants, i);
        const char *name = json_string_value(json_object_get(variant, "name"));
        bool hard = false;
        for (size_t h = 0; h < sizeof(HARD) / sizeof(*HARD); h++)
            hard |= strcmp(name, HARD[h]) == 0;
        if (!hard) continue;
        json_t *parts = json_copy(json_object_get(root, "base"));
        json_object_update(parts, json_object_get(variant, "parts"));
        char *json = json_dumps(parts, JSON_COMPACT);
        struct tokenizer *tokenizer = NULL;
        assert_int_equal(tokenizer_load_bytes(&tokenizer, json, strlen(json), NULL), 0);
        encode_all_texts(tokenizer, N_BYTES_COMPONENT, false);
        tokenizer_destroy(tokenizer);
        json_arena_free(json);
        json_decref(parts);
        n_found++;
    }
    json_decref(root);
    assert_int_equal(n_found, sizeof(HARD) / sizeof(*HARD));
}

/* SentencePiece-style texts are one piece; in phrases hardly a place can be cut. */
TEST(every_family_is_linear) {
    static const char *const FAMILIES[] = {"llama-2", "mistral", "mistral-tekken", "qwen",
                                           "glm-4",   "gemma",   "phrases"};
    for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(*FAMILIES); i++) {
        char path[512];
        snprintf(path, sizeof(path), DATA_DIR "/families/%s.json", FAMILIES[i]);
        json_t *root = json_load_file(path, JSON_ALLOW_NUL, NULL);
        char *json = json_dumps(json_object_get(root, "tokenizer"), JSON_COMPACT);
        struct tokenizer *tokenizer = NULL;
        assert_int_equal(tokenizer_load_bytes(&tokenizer, json, strlen(json), NULL), 0);
        encode_all_texts(tokenizer, N_BYTES_COMPONENT, false);
        tokenizer_destroy(tokenizer);
        json_arena_free(json);
        json_decref(root);
    }
}

/* Writes token number i of a made-up vocabulary: numbers to the base 16, in letters.  Returns its
 * length. */
static size_t write_token(char *out, size_t i) {
    size_t length = 1, n_shorter = 0;
    for (size_t n = 16; i - n_shorter >= n; n *= 16, length++) n_shorter += n;
    i -= n_shorter;
    for (size_t at = length; at-- > 0; i /= 16) out[at] = (char)('a' + i % 16);
    return length;
}

/* As many tokens and merges as the largest published tokenizers have, merges as pairs. */
TEST(the_largest_vocabulary_loads) {
    enum { N_TOKENS = 262144, MOST_ENTRY = 64 };
    struct tokenizer *tokenizer = NULL;
    struct token_list ids = {0};
    struct error err = {0};
    char *json = malloc(3 * (size_t)N_TOKENS * MOST_ENTRY), *end = json, token[16];
    assert_non_null(json);
    end += sprintf(end, "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"vocab\":{");
    for (size_t i = 0; i < N_TOKENS; i++) {
        const int n = (int)write_token(token, i);
        end += sprintf(end, "%s\"%.*s\":%zu", i ? "," : "", n, token, i);
    }
    end += sprintf(end, "},\"merges\":[");
    for (size_t i = 16; i < N_TOKENS; i++) {
        const int n = (int)write_token(token, i);
        end += sprintf(end, "%s[\"%.*s\",\"%c\"],[\"%c\",\"%.*s\"]", i > 16 ? "," : "", n - 1,
                       token, token[n - 1], token[0], n - 1, token + 1);
    }
    end += sprintf(end, "]}}");
    if (tokenizer_load_bytes(&tokenizer, json, (size_t)(end - json), &err))
        fail_msg("%s", err.text);
    assert_int_equal(tokenizer_n_vocab(tokenizer), N_TOKENS);
    assert_int_equal(tokenizer_encode(tokenizer, "ab", 2, false, 0, &ids, &err), 0);
    assert_int_equal(ids.n, 1);
    free(ids.ids);
    free(json);
    tokenizer_destroy(tokenizer);
}
