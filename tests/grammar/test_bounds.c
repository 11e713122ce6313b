/* test_bounds.c - grammars that are made to cost: what the library does for one of them has an end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/base/error.h"
#include "engine/grammar/grammar.h"
#include "engine/tokenizer/tokenizer.h"

enum { EOS = 8186, FORCED_BYTES = 512 };

static const char *model_dir;
static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;

static struct grammar_matcher *start(enum grammar_kind kind, const char *text) {
    struct grammar *grammar;
    struct grammar_matcher *matcher;
    struct error err = {0};
    if (grammar_compile(&grammar, vocab, kind, text, strlen(text), &err))
        fail_msg("%.100s: %s", text, err.text);
    assert_int_equal(grammar_matcher_create(&matcher, grammar), 0);
    grammar_unref(grammar);
    return matcher;
}

/* Forms whose only text has no end, or one that nobody reaches. */
static const struct {
    enum grammar_kind kind;
    const char *text, *begins;
} endless[] = {
    {GRAMMAR_EBNF, "root ::= \"a\" root", "aaaa"},
    {GRAMMAR_EBNF, "root ::= \"a\" other\nother ::= \"b\" root", "abab"},
    {GRAMMAR_EBNF, "root ::= \"(\" root \")\"", "(((("},
    {GRAMMAR_EBNF, "root ::= a a\na ::= b b\nb ::= c c\nc ::= d d\nd ::= e e\ne ::= \"x\" root",
     "xxxx"},
    {GRAMMAR_EBNF, "root ::= \"ab\"{2000}", "abab"},
    {GRAMMAR_REGEX, "((ab){100}){100}", "abab"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"self\":{\"$ref\":\"#\"}},\"required\":[\"self\"],"
     "\"additionalProperties\":false}",
     "{\"self\": {\"self\": {"},
    {GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1,\"maxItems\":1}", "[[[["},
    {GRAMMAR_JSON_SCHEMA,
     "{\"anyOf\":[{\"$ref\":\"#/$defs/a\"}],\"$defs\":{\"a\":{\"type\":\"array\",\"prefixItems\":[{"
     "\"$ref\":\"#/$defs/b\"}],\"items\":false,\"minItems\":1},\"b\":{\"type\":\"array\","
     "\"prefixItems\":[{\"$ref\":\"#/$defs/a\"}],\"items\":false,\"minItems\":1}}}",
     "[[[["},
    {GRAMMAR_TAGS,
     "{\"type\":\"structural_tag\",\"format\":{\"type\":\"grammar\",\"grammar\":\"root ::= "
     "\\\"a\\\" "
     "root\"}}",
     "aaaa"},
};

static void forced_text_without_an_end_is_cut(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof(endless) / sizeof(*endless); i++) {
        struct grammar_matcher *matcher = start(endless[i].kind, endless[i].text);
        char text[FORCED_BYTES];
        for (size_t capacity = 4; capacity <= sizeof(text); capacity *= 2) {
            size_t n = 0;
            assert_int_equal(grammar_matcher_forced(matcher, text, capacity, &n), 0);
            assert_int_equal(n, capacity);
            const size_t n_known = strlen(endless[i].begins);
            assert_memory_equal(text, endless[i].begins, n < n_known ? n : n_known);
        }
        grammar_matcher_destroy(matcher);
    }
}

/* Accepts one token again and again, with no more time for each than `seconds`; returns the code. */
static int repeat(struct grammar_matcher *matcher, uint32_t token, int n, double seconds) {
    int code = 0;
    for (int i = 0; i < n && !code; i++) {
        grammar_matcher_allow(matcher, seconds);
        code = grammar_matcher_accept(matcher, token);
    }
    return code;
}

static uint32_t token_of(const char *text) {
    struct token_list ids = {0};
    struct error err = {0};
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), false, UINT32_MAX, &ids, &err),
                     0);
    assert_int_equal(ids.n, 1);
    const uint32_t id = ids.ids[0];
    free(ids.ids);
    return id;
}

/* Grammars with ever more ways to read what has come. */
static const char *const ambiguous[] = {
    "root ::= s\ns ::= s s | \"a\"",
    "root ::= s\ns ::= s s s | s s | \"a\"",
    "root ::= s\ns ::= t t \"b\" | \"a\" s | \"a\"\nt ::= s t | s",
    "root ::= s \"b\"\ns ::= \"a\" s s | \"a\"",
    "root ::= (\"a\" | s)* \"b\"\ns ::= (\"a\" s | \"a\")+",
};

static void what_grows_with_each_token_is_ended(void **state) {
    (void)state;
    const uint32_t a = token_of("a");
    for (size_t i = 0; i < sizeof(ambiguous) / sizeof(*ambiguous); i++) {
        struct grammar_matcher *matcher = start(GRAMMAR_EBNF, ambiguous[i]);
        if (repeat(matcher, a, 20000, 0.001) != ERR_FULL) fail_msg("%s is not ended", ambiguous[i]);
        grammar_matcher_destroy(matcher);
    }
}

/* As many states in each row as there are words, each of which may go on. */
static void what_a_matcher_keeps_is_bounded(void **state) {
    (void)state;
    enum { N_RULES = 600, BYTES = 24 };
    char *text = malloc(N_RULES * 2 * BYTES + 64);
    size_t n = (size_t)sprintf(text, "root ::= r0");
    for (int i = 1; i < N_RULES; i++) n += (size_t)sprintf(text + n, " | r%d", i);
    for (int i = 0; i < N_RULES; i++)
        n += (size_t)sprintf(text + n, "\nr%d ::= \"a\"+ \"%d\"", i, i);
    struct grammar_matcher *matcher = start(GRAMMAR_EBNF, text);
    assert_int_equal(repeat(matcher, token_of("a"), 100000, 1), ERR_FULL);
    grammar_matcher_destroy(matcher);
    free(text);
}

static void no_time_is_no_call(void **state) {
    (void)state;
    struct grammar_matcher *matcher = start(GRAMMAR_REGEX, "a+");
    uint32_t *mask = calloc(grammar_mask_words(tokenizer_n_vocab(tokenizer)), sizeof(*mask));
    size_t n = 0;
    char text[FORCED_BYTES];
    grammar_matcher_allow(matcher, 0);
    assert_int_equal(grammar_matcher_accept(matcher, token_of("a")), ERR_FULL);
    assert_int_equal(grammar_matcher_mask(matcher, mask), ERR_FULL);
    assert_int_equal(grammar_matcher_forced(matcher, text, sizeof(text), &n), ERR_FULL);
    free(mask);
    grammar_matcher_destroy(matcher);
}

static int load(void **state) {
    (void)state;
    struct error err = {0};
    const uint32_t eos = EOS;
    if (tokenizer_load(&tokenizer, model_dir, &err)) return -1;
    return grammar_vocab_create(&vocab, tokenizer, tokenizer_n_vocab(tokenizer), &eos, 1, &err);
}

static int unload(void **state) {
    (void)state;
    grammar_vocab_destroy(vocab);
    tokenizer_destroy(tokenizer);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forced_text_without_an_end_is_cut),
        cmocka_unit_test(what_grows_with_each_token_is_ended),
        cmocka_unit_test(what_a_matcher_keeps_is_bounded),
        cmocka_unit_test(no_time_is_no_call),
    };
    if (!grammar_is_available()) return 77; /* Meson's number for a test that was skipped */
    if (argc < 2) return 1;
    model_dir = argv[1];
    return cmocka_run_group_tests(tests, load, unload);
}
