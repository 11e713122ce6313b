/* test_bounds.c - grammars that are made to cost: what the library does for one of them has an
 * end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/error.h"
#include "tests/grammar/grammar_rig.h"
#include "tests/test.h"

enum { FORCED_BYTES = 512 };

static struct grammar_matcher *start(enum grammar_kind kind, const char *text) {
    struct grammar *grammar;
    struct grammar_matcher *matcher;
    struct error err = {0};
    if (grammar_compile(&grammar, rig_vocab, kind, text, strlen(text), NULL, &err))
        fail_msg("%.100s: %s", text, err.text);
    assert_int_equal(grammar_matcher_create(&matcher, grammar), 0);
    grammar_unref(grammar);
    return matcher;
}

/* Forms whose only text has no end, or one that cannot be reached. */
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

TEST(forced_text_without_an_end_is_cut) {
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

/* Accepts one token again and again, with no more time for each than `seconds`; returns the
 * code. */
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
    assert_int_equal(
        tokenizer_encode(rig_tokenizer, text, strlen(text), false, UINT32_MAX, &ids, &err), 0);
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

TEST(what_grows_with_each_token_is_ended) {
    const uint32_t a = token_of("a");
    for (size_t i = 0; i < sizeof(ambiguous) / sizeof(*ambiguous); i++) {
        struct grammar_matcher *matcher = start(GRAMMAR_EBNF, ambiguous[i]);
        if (repeat(matcher, a, 20000, 0.001) != ERR_FULL) fail_msg("%s is not ended", ambiguous[i]);
        grammar_matcher_destroy(matcher);
    }
}

/* As many states in each row as there are words, each of which may go on. */
TEST(what_a_matcher_keeps_is_bounded) {
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

/* Pieces of forms that take very long to compile, or much memory, or a deep stack. */

static int write_string(char *out, size_t size, int k) {
    return snprintf(out, size, "%s\"p%d\":{\"type\":\"string\",\"pattern\":\"^[a-z]{%d,128}$\"}",
                    k ? "," : "", k, k % 99);
}

static int write_class(char *out, size_t size, int k) {
    return snprintf(out, size, "[^a-%c]{0,50} ", 'b' + k % 24);
}

static int write_doubling(char *out, size_t size, int k) {
    return snprintf(out, size, "\nr%d ::= r%d r%d | r%d | \"x\"", k, k + 1, k + 1, k + 1);
}

static int write_bracket(char *out, size_t size, int k) {
    (void)k;
    return snprintf(out, size, "(");
}

static const struct {
    enum grammar_kind kind;
    const char *begin, *end;
    int (*piece)(char *out, size_t size, int k);
    int n;
} costly[] = {
    {GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{", "}}", write_string, 900},
    {GRAMMAR_EBNF, "root ::= ", "", write_class, 1500},
    {GRAMMAR_REGEX, "(((a{90}){90}){90}){90}", "", write_class, 300},
    {GRAMMAR_EBNF, "root ::= r0", "\nr400 ::= \"y\"", write_doubling, 400},
    {GRAMMAR_EBNF, "root ::= ", "\"a\"", write_bracket, 30000},
};

static char *make_costly(size_t i) {
    const size_t size = 64 + (size_t)costly[i].n * 64;
    char *text = malloc(size);
    size_t n = (size_t)snprintf(text, size, "%s", costly[i].begin);
    for (int k = 0; k < costly[i].n; k++) n += (size_t)costly[i].piece(text + n, size - n, k);
    snprintf(text + n, size - n, "%s", costly[i].end);
    return text;
}

TEST(compiling_has_an_end) {
    for (size_t i = 0; i < sizeof(costly) / sizeof(*costly); i++) {
        const struct grammar_limits little = {0.01, 256 << 20, NULL, NULL};
        struct grammar *grammar = NULL;
        struct error err = {0};
        char *text = make_costly(i);
        const int code =
            grammar_compile(&grammar, rig_vocab, costly[i].kind, text, strlen(text), &little, &err);
        if (code != ERR_FULL && code != ERR_INVALID) fail_msg("%zu: %d %s", i, code, err.text);
        free(text);
    }
}

/* Rules by which the library calls itself without an end. */
TEST(compiling_ends_before_the_stack) {
    static const char *const forms[] = {"root ::= r0\nr0 ::= (r0){2,9}",
                                        "root ::= a\na ::= (b){2,9}\nb ::= (a){3}"};
    for (size_t i = 0; i < sizeof(forms) / sizeof(*forms); i++) {
        const struct grammar_limits large = {60, 1 << 30, NULL, NULL};
        struct grammar *grammar = NULL;
        struct error err = {0};
        assert_int_equal(grammar_compile(&grammar, rig_vocab, GRAMMAR_EBNF, forms[i],
                                         strlen(forms[i]), &large, &err),
                         ERR_INVALID);
        assert_non_null(strstr(err.text, "deeply"));
    }
}

static bool yes(const void *user) {
    (void)user;
    return true;
}

TEST(compiling_ends_with_memory_and_when_it_is_told_to) {
    struct grammar *grammar = NULL;
    struct error err = {0};
    char *text = make_costly(0);
    const struct grammar_limits small = {60, 4 << 20, NULL, NULL}, told = {60, 1 << 30, yes, NULL};
    assert_int_equal(
        grammar_compile(&grammar, rig_vocab, costly[0].kind, text, strlen(text), &small, &err),
        ERR_FULL);
    assert_non_null(strstr(err.text, "memory"));
    assert_int_equal(
        grammar_compile(&grammar, rig_vocab, costly[0].kind, text, strlen(text), &told, &err),
        ERR_STOPPED);
    free(text);
}

TEST(no_time_is_no_call) {
    struct grammar_matcher *matcher = start(GRAMMAR_REGEX, "a+");
    uint32_t *mask = calloc(grammar_mask_words(tokenizer_n_vocab(rig_tokenizer)), sizeof(*mask));
    size_t n = 0;
    char text[FORCED_BYTES];
    grammar_matcher_allow(matcher, 0);
    assert_int_equal(grammar_matcher_accept(matcher, token_of("a")), ERR_FULL);
    assert_int_equal(grammar_matcher_mask(matcher, mask), ERR_FULL);
    assert_int_equal(grammar_matcher_forced(matcher, text, sizeof(text), &n), ERR_FULL);
    free(mask);
    grammar_matcher_destroy(matcher);
}

/* The first time a quick trial is not enough; later a text that took too much is refused at
 * once.  It is the last test, for it takes the vocabulary. */
TEST(what_took_too_much_is_remembered) {
    struct grammar_cache *cache;
    struct grammar *grammar = NULL;
    struct error err = {0}, again = {0};
    const struct grammar_trial quick = {.effort = GRAMMAR_QUICK};
    char *text = make_costly(0);
    assert_int_equal(grammar_cache_create(&cache, rig_vocab, 1 << 10), 0);
    assert_int_equal(
        grammar_cache_get(cache, &grammar, costly[0].kind, text, strlen(text), &quick, &err),
        ERR_FULL);
    assert_int_equal(grammar_cache_get(cache, &grammar, GRAMMAR_REGEX, "[a-z]+", 6, &quick, &err),
                     ERR_UNSUPPORTED);
    assert_int_equal(grammar_cache_get(cache, &grammar, GRAMMAR_REGEX, "[a-z]+", 6, &quick, &again),
                     ERR_UNSUPPORTED);
    assert_string_equal(err.text, again.text);
    assert_null(grammar_cache_find(cache, GRAMMAR_REGEX, "[a-z]+", 6));
    grammar_cache_destroy(cache); /* with the vocabulary */
    rig_vocab = NULL;
    free(text);
}

int main(int argc, char **argv) {
    if (!grammar_is_available()) return 77; /* Meson's number for a test that was skipped */
    return rig_main(argc, argv);
}
