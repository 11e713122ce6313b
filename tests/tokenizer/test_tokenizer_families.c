/* test_tokenizer_families.c - the configurations of model families against the reference library.
 *
 * The files come from scripts/fixtures/make_tokenizer_families.py: for each family a small
 * tokenizer and the hashes of what the library makes of the shared strings and of random ids, which
 * are drawn here as they are there.  Every mismatch is printed with its text, and ids, or text,
 * of ours. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/base/error.h"
#include "engine/base/json_arena.h"
#include "engine/base/utf8.h"
#include "engine/tokenizer/internal.h"
#include "tests/test.h"
#include "tests/tokenizer/family_names.h"

enum { N_RANDOM = 1500, HASH_DIGITS = 6 };

struct family {
    const char *name;
    json_t *root;
    struct tokenizer *tokenizer;
    size_t n_wrong;
};

static json_t *load_json(const char *name) {
    char path[512];
    json_error_t where;
    snprintf(path, sizeof(path), DATA_DIR "/families/%s.json", name);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!root) fail_msg("%s: line %d: %s", path, where.line, where.text);
    return root;
}

static void load_family(struct family *family, const char *name) {
    struct error err = {0};
    *family = (struct family){.name = name, .root = load_json(name)};
    char *json = json_dumps(json_object_get(family->root, "tokenizer"), JSON_COMPACT);
    if (tokenizer_load_bytes(&family->tokenizer, json, strlen(json), &err))
        fail_msg("%s: %s", name, err.text);
    json_arena_free(json);
}

static void free_family(struct family *family) {
    tokenizer_destroy(family->tokenizer);
    json_decref(family->root);
}

static uint32_t hash_byte(uint32_t hash, unsigned char byte) {
    return (hash ^ byte) * UINT32_C(0x01000193);
}

static uint32_t hash_text(const char *text, size_t n) {
    uint32_t hash = UINT32_C(0x811C9DC5);
    for (size_t i = 0; i < n; i++) hash = hash_byte(hash, (unsigned char)text[i]);
    return hash & 0xFFFFFF;
}

static uint32_t hash_ids(const struct token_list *list) {
    uint32_t hash = UINT32_C(0x811C9DC5);
    for (size_t i = 0; i < list->n; i++) {
        for (int shift = 0; shift < 32; shift += 8)
            hash = hash_byte(hash, (unsigned char)(list->ids[i] >> shift));
    }
    return hash & 0xFFFFFF;
}

/* The i-th hash of a member. */
static uint32_t wanted(const struct family *family, const char *member, size_t i) {
    size_t n;
    char digits[HASH_DIGITS + 1] = {0};
    const char *text = member_text(family->root, member, &n);
    assert_true(text && (i + 1) * HASH_DIGITS <= n);
    memcpy(digits, text + i * HASH_DIGITS, HASH_DIGITS);
    return (uint32_t)strtoul(digits, NULL, 16);
}

static void print_ids(const struct token_list *ids) {
    for (size_t i = 0; i < ids->n; i++) print_error(" %u", ids->ids[i]);
    print_error("\n");
}

static void mismatch(struct family *family, const char *what, size_t i, const char *text,
                     const struct token_list *ids) {
    if (family->n_wrong++ >= 10) return;
    print_error("%s: %s %zu: '%s' is ours for", family->name, what, i, text);
    print_ids(ids);
}

/* Decodes at once and token by token; the two must agree, and give the text of the hash. */
static void check_decode(struct family *family, const char *member, size_t i,
                         const struct token_list *ids, bool skip_special) {
    const struct tokenizer *tokenizer = family->tokenizer;
    char *whole = NULL, buffer[4096];
    size_t length;
    struct text streamed = {0};
    struct detokenizer d = {0};
    struct error err = {0};
    assert_int_equal(
        tokenizer_decode(tokenizer, ids->ids, ids->n, skip_special, &whole, &length, &err), 0);
    for (size_t t = 0; t <= ids->n; t++) {
        const long n = t < ids->n ? detokenizer_push(&d, tokenizer, ids->ids[t], skip_special,
                                                     buffer, sizeof(buffer))
                                  : detokenizer_finish(&d, tokenizer, buffer, DETOKENIZER_GROWTH);
        assert_true(n >= 0);
        assert_true(utf8_is_valid(buffer, (size_t)n)); /* never half a character */
        assert_int_equal(text_append(&streamed, buffer, (size_t)n), 0);
    }
    assert_int_equal(streamed.n, length);
    if (length > 0) assert_memory_equal(streamed.data, whole, length);
    if (hash_text(whole, length) != wanted(family, member, i))
        mismatch(family, member, i, whole, ids);
    free(whole);
    free(streamed.data);
}

static void check_texts(struct family *family, const json_t *texts) {
    struct token_list ids = {0};
    assert_true(json_array_size(texts) >= 5000);
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *one = json_array_get(texts, i);
        const char *text = json_string_value(one);
        struct error err = {0};
        ids.n = 0;
        const bool add_special = i % 5 == 0;
        if (tokenizer_encode(family->tokenizer, text, json_string_length(one), add_special, 0, &ids,
                             &err)) {
            fail_msg("%s: encoded %zu: %s", family->name, i, err.text);
        } else if (hash_ids(&ids) != wanted(family, "encoded", i)) {
            mismatch(family, "encoded", i, text, &ids);
        } else {
            check_decode(family, "decoded", i, &ids, false);
        }
    }
    free(ids.ids);
}

static uint32_t draw(uint64_t *state, uint32_t n) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((*state >> 33) % n);
}

static uint32_t number(const struct family *family, const char *key) {
    return (uint32_t)json_integer_value(json_object_get(family->root, key));
}

static void check_random_ids(struct family *family) {
    const uint32_t low = number(family, "low"), high = number(family, "high");
    const uint32_t n_ids = number(family, "n_ids");
    const bool skips = member_flag(family->root, "skips", true);
    struct token_list ids = {0};
    uint64_t state = 1;
    for (size_t i = 0; i < N_RANDOM; i++) {
        const bool skip = draw(&state, 2), few = draw(&state, 2);
        const uint32_t n = draw(&state, 13);
        ids.n = 0;
        for (uint32_t t = 0; t < n; t++) {
            const uint32_t id = few ? low + draw(&state, high - low) : draw(&state, n_ids);
            assert_int_equal(token_list_append(&ids, &id, 1), 0);
        }
        check_decode(family, "random", i, &ids, skip && skips);
    }
    free(ids.ids);
}

TEST(every_family_agrees) {
    size_t n_wrong = 0;
    json_t *texts = load_json("texts");
    for (size_t i = 0; i < sizeof(FAMILIES) / sizeof(*FAMILIES); i++) {
        struct family family;
        load_family(&family, FAMILIES[i]);
        check_texts(&family, texts);
        check_random_ids(&family);
        if (family.n_wrong) print_error("%s: %zu mismatches\n", family.name, family.n_wrong);
        n_wrong += family.n_wrong;
        free_family(&family);
    }
    json_decref(texts);
    assert_int_equal(n_wrong, 0);
}
